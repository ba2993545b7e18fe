//! Judges a job by torch's word: where some of its processes are in a call of `torch.distributed` that all
//! must make before there is a communicator to look at.

use std::collections::BTreeMap;

use super::{Kind, State, case::named, job::JobVerdict, job_ranks::Job, store_waits};
use crate::{dump_report::ProcessReport, python::PythonThread};

/// Functions of `torch.distributed` that return when all ranks of the job, or of a group, have called them,
/// and that make process groups.
const CALLS: [&str; 9] = [
    "init_process_group",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "split_group",
    "init_device_mesh",
    "monitored_barrier",
    "_store_based_barrier",
    "rendezvous",
];

/// Those of [`CALLS`] that all ranks of the job must make. The others are of a group's ranks: whoever is in none
/// comes out at once, and the store's barrier after a group is made only with `TORCH_DIST_INIT_BARRIER=1`.
const OF_THE_JOB: [&str; 3] = ["init_process_group", "rendezvous", "init_device_mesh"];

/// Returns the verdict on the jobs of these processes; `None` if no process is in such a call, or in a wait
/// of torch's store, or all are.
pub(crate) fn judge(processes: &[ProcessReport]) -> Option<JobVerdict> {
    // Two jobs can have one size.
    type Key<'a> = (u32, &'a str, Option<(u32, Option<&'a str>)>);
    let mut jobs: BTreeMap<Key<'_>, Vec<(u32, &ProcessReport)>> = BTreeMap::new();
    for process in processes {
        if let (Some(rank), Some(size), Some(from)) =
            (process.job_rank, process.job_size, &process.job_rank_from)
        {
            let owner = process.owner.as_ref().map(|owner| (owner.uid, owner.job.as_deref()));
            jobs.entry((size, from, owner)).or_default().push((rank, process));
        }
    }
    let jobs = jobs.into_iter().filter_map(|((size, ..), ranks)| Job::new(size, ranks));
    let judge_one = |job: Job<'_>| match job.ranks.iter().find_map(|(_, process)| call_of(process)) {
        Some(call) => in_a_call(&job, call),
        None => store_waits::judge(&job),
    };
    jobs.filter_map(judge_one).max_by_key(|job| job.state)
}

/// Judges a job of which some ranks are in a call that all must make.
fn in_a_call(job: &Job<'_>, call: &str) -> Option<JobVerdict> {
    let (inside, mut outside): (Vec<_>, Vec<_>) =
        job.ranks.iter().partition(|(_, process)| call_of(process) == Some(call));
    let verb = if inside.len() == 1 { "is" } else { "are" };
    let waits = format!("{} of {} ranks of the job {verb} in torch's {call}", inside.len(), job.size);
    let for_what = store_waits::described(&inside);
    let missing = job.missing();
    if outside.is_empty() && store_waits::too_many_have_come(&inside) {
        return Some(JobVerdict {
            state: State::Stuck,
            kind: Some(Kind::NeverMatches),
            sentence: format!("stuck: {waits}{for_what}"),
            next: Some(Kind::NeverMatches.next_step([])),
            communicators: Vec::new(),
        });
    }
    if outside.is_empty() {
        missing.first()?;
        let verb = if missing.len() > 1 { "were" } else { "was" };
        let why = format!(
            "{waits}{for_what}, and wait for {}, which {verb} not read: give the PIDs, or merge the dumps of the hosts",
            named(&missing)
        );
        return Some(job.cannot_tell(&why, None));
    }
    // The rank that has the store waits in the call for all to come, and others that have come can have gone
    // on.
    match store_waits::have_not_come(job, &inside, &outside) {
        Some(Ok(left)) => outside = left,
        Some(Err(why)) => return Some(job.cannot_tell(&format!("{waits}{for_what}; {why}"), None)),
        None if OF_THE_JOB.contains(&call) || (outside.len() == 1 && missing.is_empty()) => {}
        None => {
            let why =
                format!("{waits}{for_what}, which is of some ranks only: whom it waits for is not known");
            return Some(job.cannot_tell(&why, None));
        }
    }
    Some(job.waits_for(Kind::CallNotMade, &format!("{waits}{for_what}"), "has not called it", &outside))
}

/// Returns the call that a thread of a process is in, the main thread first: the outermost function of
/// `torch.distributed` above the user's own innermost line.
fn call_of(process: &ProcessReport) -> Option<&'static str> {
    let call = |thread: &PythonThread| {
        let of_torch = thread.frames.iter().take_while(|frame| flow::schema::is_of_a_library(&frame.file));
        let in_distributed = of_torch.filter(|frame| frame.file.contains("/torch/distributed/"));
        in_distributed.filter_map(|frame| CALLS.into_iter().find(|call| *call == frame.function)).last()
    };
    process.python.as_ref()?.may_wait_in_store().find_map(call)
}

#[cfg(test)]
mod tests {
    use flow::schema::PythonFrame;

    use super::*;
    use crate::{activity::Activity, process_state::ProcessState, python::PythonReport};

    const TORCH: &str = "/opt/lib/python3.12/site-packages/torch/distributed";

    fn process(rank: u32, frames: &[(&str, u32, &str)]) -> ProcessReport {
        let frame = |(file, line, function): &(&str, u32, &str)| PythonFrame {
            file: file.replace('@', TORCH),
            line: Some(*line),
            function: (*function).to_owned(),
            qualname: None,
        };
        let main = PythonThread {
            is_main: true,
            frames: frames.iter().map(frame).collect(),
            ..PythonThread::default()
        };
        let python = PythonReport { threads: vec![main], ..PythonReport::default() };
        ProcessReport {
            pid: 100 + rank,
            job_rank: Some(rank),
            job_size: Some(4),
            job_rank_from: Some("RANK".to_owned()),
            python: Some(python),
            ..ProcessReport::default()
        }
    }

    fn inside(rank: u32) -> ProcessReport {
        process(
            rank,
            &[
                ("@/rendezvous.py", 278, "_create_c10d_store"),
                ("@/distributed_c10d.py", 1757, "init_process_group"),
                ("@/c10d_logger.py", 95, "wrapper"),
                ("/home/a/train.py", 9, "main"),
            ],
        )
    }

    fn elsewhere(rank: u32) -> ProcessReport {
        process(rank, &[("/home/a/train.py", 5, "load")])
    }

    #[test]
    fn the_rank_that_has_not_called_is_named_with_its_line() {
        let all = [inside(0), inside(1), inside(2), elsewhere(3)];
        let job = judge(&all).unwrap();
        let expected = "stuck: 3 of 4 ranks of the job are in torch's init_process_group; rank 3 (process 103) \
                        has not called it: train.py:5 in load";
        assert_eq!((&*job.sentence, job.state, job.kind), (expected, State::Stuck, Some(Kind::CallNotMade)));
        assert_eq!(job.next.as_deref(), Some("see where it is: ncclflow dump --stacks -p 103"));
        // One that makes progress only has to come.
        let mut all = all;
        all[3].activity =
            Some(Activity { seconds: 1.0, cpu_seconds: Some(0.9), sleeps: Some(0), ..Activity::default() });
        assert_eq!(judge(&all).unwrap().state, State::Waiting);
        all[3].state = ProcessState::Stopped;
        assert_eq!(judge(&all).unwrap().state, State::Stuck);
    }

    #[test]
    fn of_many_ranks_the_first_eight_are_named() {
        let mut all: Vec<_> = (1..30).map(elsewhere).collect();
        all.push(inside(0));
        for process in &mut all {
            process.job_size = Some(30);
        }
        let job = judge(&all).unwrap();
        let next = "see where it is: ncclflow dump --stacks -p 101,102,103,104,105,106,107,108";
        assert_eq!(job.next.as_deref(), Some(next));
        assert!(job.sentence.ends_with("; and 21 more"), "{}", job.sentence);
    }

    #[test]
    fn nobody_is_accused_who_was_not_read_or_where_jobs_cannot_be_told_apart() {
        assert_eq!(judge(&[inside(0), inside(1), inside(2), inside(3)]), None);
        assert_eq!(judge(&[elsewhere(0), elsewhere(1), elsewhere(2), elsewhere(3)]), None);
        let job = judge(&[inside(0), inside(1), inside(3)]).unwrap();
        assert_eq!(job.state, State::Unknown);
        assert!(job.sentence.contains("rank 2, which was not read"), "{}", job.sentence);
        assert_eq!(judge(&[inside(0), elsewhere(0), inside(1), inside(3)]), None);
        let mut other = elsewhere(3);
        other.job_rank_from = Some("SLURM_PROCID".to_owned());
        assert_eq!(judge(&[inside(0), inside(1), inside(2), other]).unwrap().state, State::Unknown);
    }

    /// A group's ranks alone wait in `new_group`: rank 3 may be one of them, ranks 1 and 2 come out at once.
    #[test]
    fn in_a_call_of_a_group_nobody_is_accused_but_the_only_one_that_is_outside() {
        let inside = |rank| {
            process(rank, &[("@/distributed_c10d.py", 4000, "new_group"), ("/home/a/t.py", 9, "main")])
        };
        let job = judge(&[elsewhere(0), elsewhere(1), elsewhere(2), inside(3)]).unwrap();
        assert_eq!(job.state, State::Unknown);
        assert!(
            job.sentence.ends_with("of some ranks only: whom it waits for is not known"),
            "{}",
            job.sentence
        );
        let job = judge(&[inside(0), inside(1), elsewhere(2), inside(3)]).unwrap();
        assert_eq!((job.state, job.kind), (State::Stuck, Some(Kind::CallNotMade)));
    }

    /// Half of a job is on this host, and half of another user's, of the same size.
    #[test]
    fn jobs_of_one_size_are_told_apart_by_their_owners() {
        let of = |uid, process: ProcessReport| {
            let owner = crate::Owner { uid, ..crate::Owner::default() };
            ProcessReport { owner: Some(owner), ..process }
        };
        let all = [of(1, inside(0)), of(1, inside(1)), of(2, elsewhere(2)), of(2, elsewhere(3))];
        let job = judge(&all).unwrap();
        assert_eq!(job.state, State::Unknown);
        assert!(job.sentence.contains("wait for ranks 2, 3, which were not read"), "{}", job.sentence);
    }

    #[test]
    fn a_callback_of_the_user_s_own_is_no_call_of_torch() {
        let mut own = inside(0);
        let frames = &mut own.python.as_mut().unwrap().threads[0].frames;
        frames.insert(0, PythonFrame { file: "/home/a/hook.py".to_owned(), ..frames[0].clone() });
        assert_eq!(call_of(&own), None);
        assert_eq!(call_of(&inside(0)), Some("init_process_group"));
        assert_eq!(call_of(&process(0, &[("@/distributed_c10d.py", 3, "all_reduce")])), None);
    }
}
