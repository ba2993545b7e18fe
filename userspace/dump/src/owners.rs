//! Owners of ranks. The hash that tells communicators apart stands in the memory of processes, and a tenant
//! can write any into its own. So ranks of one hash are told apart by user and job before they are judged.

use inspect::{
    identity::read_variables,
    process::{Description, Process, Users},
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::{ProcessId, ProcessReport, RankReport};
use flow::{
    identity::{Container, JobVariable},
    text::joined,
};

/// Owner of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    pub uid: u32,
    /// Name in the host's `/etc/passwd`; the number where that has no name.
    pub user: String,
    /// `SLURM_JOB_ID` of the initial environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Container: `containerd:0123456789ab`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// UID of the Kubernetes pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

impl Owner {
    pub(super) fn read(process: &Process, users: &Users) -> Self {
        let Description { uid, user, container, .. } = Description::read(process, users, &[]);
        let environment = read_variables(process);
        let job = environment.as_ref().and_then(|known| known.text(JobVariable::SlurmJobId));
        Self {
            uid,
            user,
            job: job.map(str::to_owned),
            container: container.as_ref().map(Container::short),
            pod: container.and_then(|container| container.pod),
        }
    }

    /// Names the owner: `user ann, job 17`.
    fn named(&self) -> String {
        let job = self.job.as_ref().map_or_else(String::new, |job| format!(", job {job}"));
        format!("user {}{job}", self.user)
    }
}

/// User and job.
type Whose<'a> = (u32, Option<&'a str>);

/// Tells ranks of one hash and size apart by their owners, and adds sentences on the other owners that claim
/// the same communicator.
///
/// Ranks of different owners stay together only where nothing speaks against it, on different hosts and with
/// different numbers: with user namespaces, the users of one job can have other numbers on each host.
pub(super) fn tell_apart(
    ranks: Vec<RankReport>,
    processes: &[ProcessReport],
) -> Vec<(Vec<RankReport>, Vec<String>)> {
    // If a process is given twice, the first counts.
    let known: HashMap<ProcessId<'_>, &ProcessReport> =
        processes.iter().rev().map(|process| (process.id(), process)).collect();
    let owner_of = |rank: &RankReport| known.get(&rank.process())?.owner.as_ref();
    // The user is known even of a process whose environment cannot be read.
    let mut jobs: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    for owner in ranks.iter().filter_map(owner_of) {
        jobs.entry(owner.uid).or_default().extend(owner.job.as_deref());
    }
    let whose = |rank: &RankReport| -> Option<Whose<'_>> {
        let owner = owner_of(rank)?;
        let of_user = jobs.get(&owner.uid)?;
        let only = of_user.first().copied().filter(|_| of_user.len() == 1);
        Some((owner.uid, owner.job.as_deref().or(only)))
    };
    let mut by_owner: BTreeMap<Option<Whose<'_>>, (String, Vec<RankReport>)> = BTreeMap::new();
    for rank in ranks {
        let name = owner_of(&rank).map_or_else(|| "an unknown user".to_owned(), Owner::named);
        by_owner.entry(whose(&rank)).or_insert_with(|| (name, Vec::new())).1.push(rank);
    }
    let mut owners: Vec<_> = by_owner.into_iter().collect();
    owners.sort_by_key(|(_, (_, ranks))| std::cmp::Reverse(ranks.len()));
    let mut groups: Vec<(Vec<String>, Vec<RankReport>)> = Vec::new();
    for (key, (name, ranks)) in owners {
        // Ranks whose owner an older dump does not tell conflict with none.
        let fits = |known: &[RankReport]| {
            let conflicts = |rank: &RankReport| {
                known.iter().any(|other| {
                    other.rank == rank.rank
                        || (key.is_some() && whose(other).is_some() && other.host == rank.host)
                })
            };
            !ranks.iter().any(conflicts)
        };
        match groups.iter_mut().find(|(_, known)| fits(known)) {
            Some((names, known)) => {
                names.push(name);
                known.extend(ranks);
            }
            None => groups.push((vec![name], ranks)),
        }
    }
    let said: Vec<String> = groups
        .iter()
        .map(|(names, ranks)| {
            let numbers = joined(ranks.iter().take(8).map(|rank| rank.rank), ", ");
            let more = if ranks.len() > 8 { " …" } else { "" };
            format!(
                "processes of {} claim to be ranks {numbers}{more} of a communicator with the same hash: they \
                 are judged separately",
                names.join(" and ")
            )
        })
        .collect();
    let all = groups.into_iter().enumerate().map(|(at, (_, ranks))| {
        let others = said.iter().enumerate().filter(|(other, _)| *other != at);
        (ranks, others.map(|(_, text)| text.clone()).collect())
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32, host: &str, pid: u32) -> RankReport {
        RankReport { rank, host: host.to_owned(), pid, n_ranks: 4, ..RankReport::default() }
    }

    fn process(host: &str, pid: u32, uid: u32, job: Option<&str>) -> ProcessReport {
        let (user, job) = (uid.to_string(), job.map(str::to_owned));
        let owner = Owner { uid, user, job, ..Owner::default() };
        ProcessReport { host: host.to_owned(), pid, owner: Some(owner), ..ProcessReport::default() }
    }

    fn numbers(ranks: Vec<RankReport>, processes: &[ProcessReport]) -> Vec<Vec<u32>> {
        let claims = tell_apart(ranks, processes);
        claims.iter().map(|(ranks, _)| ranks.iter().map(|rank| rank.pid).collect()).collect()
    }

    #[test]
    fn another_user_who_writes_the_same_hash_is_told_apart_with_and_without_a_rank_twice() {
        let processes =
            [process("a", 1, 1000, None), process("a", 2, 1000, None), process("a", 3, 666, None)];
        let of = |forged| vec![rank(0, "a", 1), rank(1, "a", 2), rank(forged, "a", 3)];
        assert_eq!(numbers(of(1), &processes), [vec![1, 2], vec![3]]);
        assert_eq!(numbers(of(2), &processes), [vec![1, 2], vec![3]], "a rank that nobody else has");
        let claims = tell_apart(of(2), &processes);
        assert!(claims[0].1[0].starts_with("processes of user 666 claim to be ranks 2 of"));
        assert_eq!(numbers(vec![rank(0, "a", 1), rank(1, "a", 2)], &processes), [vec![1, 2]]);
    }

    #[test]
    fn two_jobs_of_one_user_are_told_apart_where_it_is_known() {
        let processes = [
            process("a", 1, 1000, Some("17")),
            process("b", 2, 1000, Some("17")),
            process("a", 3, 1000, Some("18")),
            process("a", 4, 1000, None),
        ];
        let all = vec![rank(0, "a", 1), rank(1, "b", 2), rank(2, "a", 3)];
        assert_eq!(numbers(all, &processes), [vec![1, 2], vec![3]]);
        let unread = vec![rank(0, "a", 1), rank(1, "b", 2), rank(2, "a", 4)];
        assert_eq!(numbers(unread, &processes), [vec![1, 2, 4]], "its environment could not be read");
    }

    #[test]
    fn users_with_other_numbers_on_each_host_are_one_job_while_nothing_speaks_against_it() {
        let processes = [process("a", 1, 100_000, None), process("b", 1, 165_536, None)];
        assert_eq!(numbers(vec![rank(0, "a", 1), rank(1, "b", 1)], &processes), [vec![1, 1]]);
        assert_eq!(numbers(vec![rank(0, "a", 1), rank(0, "b", 1)], &processes).len(), 2);
        let older = [ProcessReport { host: "a".into(), pid: 1, ..ProcessReport::default() }];
        assert_eq!(numbers(vec![rank(0, "a", 1), rank(1, "b", 1)], &older), [vec![1, 1]]);
    }
}
