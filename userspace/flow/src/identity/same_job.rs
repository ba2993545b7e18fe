//! Groups processes by job, as far as they show that they belong together.

use std::collections::{BTreeMap, HashMap};

use super::{Job, Largest, Whose};

/// A process that is to be put into a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobMember<P> {
    /// What tells the process from all others.
    pub process: P,
    /// The kernel's short name of the process.
    pub program: String,
    pub pid: u32,
    /// The job's name by `--job` or Slurm.
    pub named: Option<String>,
    /// UID of the Kubernetes pod.
    pub pod: Option<String>,
    /// Communicators of the process, by any name that is the same for all of their ranks.
    pub communicators: Vec<String>,
}

impl<P> JobMember<P> {
    pub fn new(process: P, pid: u32, program: &str, whose: Option<&Whose>) -> Self {
        let container = whose.and_then(|whose| whose.container.as_ref());
        Self {
            process,
            program: program.to_owned(),
            pid,
            named: whose.and_then(|whose| Job::of(whose, Largest::default()).name),
            pod: container.and_then(|container| container.pod.clone()),
            communicators: Vec::new(),
        }
    }
}

/// Returns the name of each process's job. Processes are of one job if they have the same name of a job, or
/// are in the same pod, or share a communicator. A job that nobody names is called by the program and PID of
/// its first process, as in events of `watch`.
pub fn job_names<P: Ord + Clone>(members: &[JobMember<P>]) -> BTreeMap<P, String> {
    let mut first: Vec<usize> = (0..members.len()).collect();
    let mut known = HashMap::new();
    for (at, member) in members.iter().enumerate() {
        let communicators = member.communicators.iter().map(|name| ("communicator", name));
        let marks = member.named.iter().map(|name| ("name", name));
        for mark in marks.chain(member.pod.iter().map(|pod| ("pod", pod))).chain(communicators) {
            let other = *known.entry(mark).or_insert(at);
            let (one, other) = (root(&mut first, at), root(&mut first, other));
            if let Some(parent) = first.get_mut(one.max(other)) {
                *parent = one.min(other);
            }
        }
    }
    let roots: Vec<usize> = (0..members.len()).map(|at| root(&mut first, at)).collect();
    let mut names: BTreeMap<usize, String> = BTreeMap::new();
    for of_names in [true, false] {
        for (member, root) in members.iter().zip(&roots) {
            let name = member.named.clone().filter(|_| of_names);
            let name = name.or_else(|| (!of_names).then(|| format!("{}-{}", member.program, member.pid)));
            if let Some(name) = name {
                names.entry(*root).or_insert(name);
            }
        }
    }
    let of =
        |(member, root): (&JobMember<P>, &usize)| Some((member.process.clone(), names.get(root)?.clone()));
    members.iter().zip(&roots).filter_map(of).collect()
}

/// Finds the first member of a job, and shortens the way to it.
fn root(first: &mut [usize], at: usize) -> usize {
    let mut found = at;
    while let Some(&next) = first.get(found).filter(|next| **next != found) {
        found = next;
    }
    if let Some(parent) = first.get_mut(at) {
        *parent = found;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pid: u32, named: Option<&str>, pod: Option<&str>, communicators: &[&str]) -> JobMember<u32> {
        JobMember {
            process: pid,
            program: "python3".to_owned(),
            pid,
            named: named.map(str::to_owned),
            pod: pod.map(str::to_owned),
            communicators: communicators.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn a_job_is_what_shares_a_name_a_pod_or_a_communicator() {
        let members = [
            // A job of three ranks: no communicator has all of them.
            member(1, None, None, &["tp"]),
            member(2, None, None, &["tp", "pp"]),
            member(3, None, None, &["pp"]),
            // A job of Slurm, of which one process has no communicator yet.
            member(4, Some("77"), None, &["world"]),
            member(5, Some("77"), None, &[]),
            // A pod, whose second process joins it with another pod.
            member(6, None, Some("a"), &[]),
            member(7, None, Some("a"), &["x"]),
            member(8, None, Some("b"), &["x"]),
            member(9, None, None, &[]),
        ];
        let names = job_names(&members);
        let names: Vec<&str> = names.values().map(String::as_str).collect();
        let expected = ["python3-1", "77", "python3-6", "python3-9"];
        let of = [0, 0, 0, 1, 1, 2, 2, 2, 3].map(|at: usize| expected[at]);
        assert_eq!(names, of);
    }

    #[test]
    fn a_name_that_one_process_has_is_that_of_all_who_share_its_communicator() {
        let members = [member(1, None, None, &["w"]), member(2, Some("77"), None, &["w"])];
        assert_eq!(job_names(&members), BTreeMap::from([(1, "77".to_owned()), (2, "77".to_owned())]));
    }
}
