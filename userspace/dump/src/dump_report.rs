//! A whole dump as data: the schema of `--json` (docs/DUMP.md), and what `--merge` reads back.

use serde::{Deserialize, Serialize};

use super::{
    Activity, CopiedRank, FewFiles, HostNotRead, OfHost, Owner, ProcessId, ProcessState, PythonGroup,
    PythonReport, PythonThread, RankReport, StoreWait, Unanswered,
    of_host::only,
    python,
    thread_roles::Caller,
    verdict::{JobVerdict, Verdict},
};
use flow::{known, session::LostReaders as Lost, text::joined};
use inspect::{gpu::GpuReport, memory::ScanReport, threads::Thread};
use nccl_library::{
    elf::Machine,
    symbols::{LayoutSource, SymbolSource},
};

/// Version of the schema. Fields may be added within one version; none changes its meaning.
pub const SCHEMA: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DumpReport {
    pub schema: u32,
    pub hosts: Vec<String>,
    /// Unix time of the last reading, in seconds.
    pub unix_time: u64,
    /// Verdict on the whole job; null without a communicator. Judged anew wherever a dump is read.
    #[serde(skip_deserializing)]
    pub job: Option<JobVerdict>,
    pub processes: Vec<ProcessReport>,
    pub communicators: Vec<CommunicatorReport>,
    /// All GPUs that the drivers of the hosts tell of.
    #[serde(default)]
    pub gpus: Vec<GpuReport>,
    /// Reasons why nothing, or not everything, is known of GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_remarks: Vec<String>,
    /// Sentences on torch's flight recorder, one for each process group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub torch_notes: Vec<String>,
    /// Processes of the hosts that cannot be inspected, with `--all`: what NCCL does in them is not seen.
    #[serde(default, skip_serializing_if = "flow::is_default")]
    pub processes_denied: usize,
    /// Children of ncclflow that read files or memory and were lost: what they read did not answer.
    #[serde(default, skip_serializing_if = "flow::is_default")]
    pub lost_readers: Lost,
    /// Other hosts that were asked and gave no dump.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts_not_read: Vec<HostNotRead>,
}

impl OfHost for DumpReport {
    const COMMAND: &'static str = "dump";
    const SCHEMA: u32 = SCHEMA;

    fn host(&self) -> Option<&str> {
        let ranks = self.communicators.iter().flat_map(|communicator| &communicator.ranks);
        let of = self.processes.iter().map(|process| &process.host);
        let of = of.chain(ranks.map(|rank| &rank.host)).chain(self.gpus.iter().map(|gpu| &gpu.host));
        only(self.hosts.first()?, of.chain(&self.hosts))
    }
}

/// A process that was read, or that could not be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessReport {
    pub host: String,
    /// PID in the PID namespace of the dump.
    pub pid: u32,
    pub name: String,
    pub state: ProcessState,
    /// Owner; null if the process could not be looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    pub libraries: Vec<LibraryReport>,
    pub scan: Option<ScanReport>,
    pub communicators: usize,
    /// Seconds since the process was started, at the last reading.
    pub age_seconds: Option<f64>,
    /// Progress outside NCCL, over the readings.
    pub activity: Option<Activity>,
    /// Threads inside NCCL, and with `--stacks` the first thread and those that have called NCCL.
    #[serde(default)]
    pub threads: Vec<Thread>,
    /// Threads that have called NCCL, beside the first and NCCL's own; empty if that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nccl_callers: Vec<Caller>,
    /// Connections that the process tries to make while a communicator is made, and that nobody answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<Unanswered>,
    /// Files that the process has open and may open while a communicator is made, if those are few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub few_files: Option<FewFiles>,
    /// Python threads; null if the process is no Python program.
    pub python: Option<PythonReport>,
    /// Rank in the job, by the initial environment of the process (`RANK`, `SLURM_PROCID` …).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_rank: Option<u32>,
    /// Size of the job, and the variable that states the rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_size: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_rank_from: Option<String>,
    /// Wait of the program in torch's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_wait: Option<StoreWait>,
    /// Number of connections of the process to the store of one that waits for all ranks to come to it; null
    /// if none waits so, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_connections: Option<u32>,
    /// Names of the threads that live on after the first thread has ended; null if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_thread_ended: Option<Vec<String>>,
    /// PID of the process from which this one was forked: its communicators are copies and not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<u32>,
    /// Ranks of processes that are gone, of whose communicators the process has copies: it was forked from
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_over_of: Vec<CopiedRank>,
    /// Reason why the process was not read, or not to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ProcessReport {
    /// Returns the process of a rank, if it is among `processes`.
    pub(super) fn of<'p>(rank: &RankReport, processes: &'p [Self]) -> Option<&'p Self> {
        processes.iter().find(|process| process.is_of(rank))
    }

    /// Tells whether a rank runs in this process.
    pub(super) fn is_of(&self, rank: &RankReport) -> bool {
        // The numbers first: they nearly always tell.
        self.pid == rank.pid && self.host == rank.host
    }

    pub(super) fn id(&self) -> ProcessId<'_> {
        (&self.host, self.pid)
    }

    /// Tells whether two processes are of one user, job and program, and on one host of one container. Of
    /// those that a launcher told their ranks, both are; the launcher itself was told none.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let is_here = self.host == other.host;
        let owner = self.owner.as_ref().map(|owner| owner.compared(is_here));
        owner == other.owner.as_ref().map(|owner| owner.compared(is_here))
            && (&self.name, self.job_rank.is_some()) == (&other.name, other.job_rank.is_some())
    }

    /// Returns the calls of NCCL's API that threads are in and do not come out of, with the threads.
    pub(super) fn calls(&self) -> impl Iterator<Item = (u32, &str)> {
        self.threads
            .iter()
            .filter(|thread| !thread.passes)
            .filter_map(|thread| Some((thread.tid, thread.nccl_api.as_deref()?)))
    }

    /// Says where the main thread is in its program, or that it has ended, and where others are that have called
    /// NCCL: `its main thread is at train.py:41 in load_batch`.
    pub fn whereabouts(&self) -> Option<String> {
        const SHOWN: usize = 6;
        if let Some(live) = &self.first_thread_ended {
            let names = joined(live.iter().take(SHOWN), ", ");
            let more = if live.len() > SHOWN { " …" } else { "" };
            let s = if live.len() == 1 { " lives" } else { "s live" };
            return Some(format!(
                "its first thread has ended, and {} thread{s} on: {names}{more}",
                live.len()
            ));
        }
        let kernel = self.activity.as_ref().and_then(|activity| activity.uninterruptible_in.as_ref());
        let kernel = kernel.map(|function| {
            format!(
                "its first thread is in state D, in {function}: a driver or a file system does not answer"
            )
        });
        let line = self.main_thread().and_then(python::place);
        let line = line.map(|place| format!("its main thread is at {place}"));
        let all: Vec<String> = line.into_iter().chain(kernel).chain(self.callers_places()).collect();
        (!all.is_empty()).then(|| joined(all, "; "))
    }

    /// Says of some threads that have called NCCL, beside the first, where they are in the program.
    fn callers_places(&self) -> Vec<String> {
        const SHOWN: usize = 3;
        let place = |caller: &Caller| {
            let Caller { tid, name } = caller;
            let Some(python) = &self.python else {
                return Some(format!("thread {tid} ({name}) has called NCCL, too"));
            };
            let place = python::place(python.thread(*tid)?)?;
            Some(format!("thread {tid} ({name}), which calls NCCL, is at {place}"))
        };
        let callers = self.nccl_callers.iter().filter(|caller| !caller.is_backward());
        callers.filter_map(place).take(SHOWN).collect()
    }

    /// Returns the main thread of a Python program, if it is known where it is.
    pub(super) fn main_thread(&self) -> Option<&PythonThread> {
        self.python.as_ref()?.threads.iter().find(|thread| thread.is_main && !thread.frames.is_empty())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LibraryReport {
    pub path: String,
    pub version: Option<String>,
    pub build_id: Option<String>,
    /// Processor that it was built for.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub processor: Option<Machine>,
    /// Sources of the library's symbols and of its struct layouts.
    #[serde(default, deserialize_with = "known")]
    pub symbols: Option<SymbolSource>,
    #[serde(default, deserialize_with = "known")]
    pub layouts_from: Option<LayoutSource>,
    /// Reason why no communicators can be read with the library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
}

/// A communicator over all processes that were read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommunicatorReport {
    pub comm_hash: String,
    pub name: Option<String>,
    pub n_ranks: u32,
    pub ranks: Vec<RankReport>,
    /// Judged anew wherever a dump is read.
    #[serde(skip_deserializing)]
    pub verdict: Verdict,
    /// Ranks by the Python stacks of their main threads, as far as those are known and stand still.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub python_stacks: Vec<PythonGroup>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_alike_by_user_job_and_program_and_a_launcher_is_like_no_rank() {
        let owner =
            |container: &str| Owner { uid: 7, container: Some(container.to_owned()), ..Owner::default() };
        let of = |host: &str, container, job_rank| ProcessReport {
            host: host.to_owned(),
            name: "python3".to_owned(),
            owner: Some(owner(container)),
            job_rank,
            ..ProcessReport::default()
        };
        let rank = of("a", "pod-1", Some(0));
        assert!(rank.is_like(&of("a", "pod-1", Some(1))) && rank.is_like(&of("b", "pod-2", Some(8))));
        assert!(!rank.is_like(&of("a", "pod-2", Some(1))), "another container of this host");
        assert!(!rank.is_like(&of("a", "pod-1", None)), "the launcher was told no rank");
    }

    /// The first thread of a server waits for the others, and one of them launches.
    #[test]
    fn a_thread_that_has_called_nccl_is_told_of_beside_the_first() {
        let thread = |tid, function: &str| PythonThread {
            tid,
            is_main: tid == 7,
            frames: vec![flow::schema::PythonFrame {
                file: "/a/serve.py".to_owned(),
                line: Some(tid),
                function: function.to_owned(),
                qualname: None,
            }],
            ..PythonThread::default()
        };
        let caller = |(tid, name): (u32, &str)| Caller { tid, name: name.to_owned() };
        let of = |callers: &[(u32, &str)], python: Option<Vec<PythonThread>>| {
            let python = python.map(|threads| PythonReport { threads, ..PythonReport::default() });
            let nccl_callers = callers.iter().copied().map(caller).collect();
            ProcessReport { pid: 7, nccl_callers, python, ..ProcessReport::default() }.whereabouts()
        };
        let threads = || Some(vec![thread(7, "main"), thread(9, "forward"), thread(11, "other")]);
        // One for the backward pass has no line of the user's, and one that ended has none any more.
        let callers = [(8, "pt_autograd_0"), (9, "worker"), (10, "gone")];
        let expected = "its main thread is at serve.py:7 in main; thread 9 (worker), which calls NCCL, is at \
                        serve.py:9 in forward";
        assert_eq!(of(&callers, threads()).as_deref(), Some(expected));
        assert_eq!(of(&[], threads()).as_deref(), Some("its main thread is at serve.py:7 in main"));
        assert_eq!(of(&callers[1..2], None).as_deref(), Some("thread 9 (worker) has called NCCL, too"));
        assert_eq!(of(&callers[..1], None), None);
    }

    /// Fields that a dump had before GPUs, pending calls and kinds were added to schema 1.
    #[test]
    fn a_dump_of_an_older_program_is_still_read() {
        let rank = r#"{ "commHash": "0x1", "commName": null, "nRanks": 2, "rank": 0, "host": "a", "pid": 7,
            "processState": "running", "ncclVersion": "2.27.5", "address": 4096, "node": 0, "nNodes": 1,
            "localRank": 0, "cudaDev": 0, "nvmlDev": 0, "nChannels": 0,
            "counters": { "seqNumber": { "AllReduce": 3 }, "collOpCount": null, "collOpCountIsShared": false,
                "p2pOpCount": null, "opCount": null },
            "status": { "init": null, "asyncResult": null, "proxyResult": null, "abort": null,
                "finalizeCalled": null, "destroying": null, "revoked": null },
            "channels": [], "proxy": { "state": "none", "carriesRings": null, "ops": [] },
            "motion": { "readings": 3, "seconds": 1.0, "stepsMoved": false, "countersMoved": false } }"#;
        let text = format!(
            r#"{{ "schema": 1, "hosts": ["a"], "unixTime": 5,
                "processes": [{{ "host": "a", "pid": 7, "name": "x", "state": "running", "libraries": [],
                    "scan": null, "communicators": 1 }}],
                "communicators": [{{ "commHash": "0x1", "name": null, "nRanks": 2, "ranks": [{rank}],
                    "verdict": {{ "state": "stuck", "culprits": [1], "victims": [0], "evidence": [] }} }}] }}"#
        );
        let report: DumpReport = serde_json::from_str(&text).unwrap();
        let merged = super::super::merge(vec![report]);
        assert_eq!(merged.communicators[0].ranks[0].counters.launched(), Some(3));
        assert!(merged.job.is_some());
    }
}
