//! Notes of processes and verdicts on them as data: parts of the schema of `ncclflow history --json`
//! (docs/HISTORY.md).

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{GroupVerdict, HistoryState};
use torch::{
    RingReport,
    flight_recorder::{Entry, GroupStatus, ProcessGroup},
};

/// Notes of the torch in one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotesReport {
    /// torch's version, as it states it: `2.11.0+cu130`.
    pub torch: Option<String>,
    /// The layouts were tried on a torch that ran on GPUs; if not, they come from its headers alone.
    pub layouts_were_run: bool,
    /// Unix time in ns at which the rings had been read.
    pub read_ns: i64,
    pub rings: Vec<RingReport>,
    /// Reason why nothing is known, or not everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// The verdict over all process groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryVerdict {
    /// The worst state of all groups.
    pub state: HistoryState,
    pub sentence: String,
}

/// A process group over all processes that were read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupHistory {
    pub name: String,
    pub description: String,
    pub backend: Option<String>,
    /// Hashes of NCCL's communicators with the same ranks in the same order, where NCCL was asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comm_hashes: Vec<String>,
    /// The job's ranks in the order of the group's.
    pub ranks: Vec<u64>,
    /// Judged anew wherever a report is read.
    #[serde(skip_deserializing)]
    pub verdict: GroupVerdict,
    pub members: Vec<Member>,
}

impl GroupHistory {
    /// Tells whether a process's note of a group is of this one.
    pub fn is(&self, noted: &ProcessGroup) -> bool {
        (&*self.name, &*self.description, &*self.ranks) == (&*noted.name, &*noted.description, &*noted.ranks)
    }
}

/// Notes of a process on a process group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// Host of the process; empty in a history that an older ncclflow has made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    pub pid: u32,
    /// Rank in the job; null where nothing tells it.
    pub rank: Option<u64>,
    /// Numbers of the first and the last collective with entries in the ring; null where it has none.
    pub first_seq: Option<u64>,
    pub last_seq: Option<u64>,
    /// The latest collective that torch has noticed to be completed.
    pub completed_seq: Option<u64>,
    /// Seconds from the latest call, and from the latest completion that torch has noticed, to the reading.
    pub called_seconds_ago: Option<f64>,
    pub completed_seconds_ago: Option<f64>,
    /// torch's own status of the group.
    pub status: Option<GroupStatus>,
}

/// A process, and what its torch has noted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessHistory {
    pub host: String,
    pub pid: u32,
    pub name: String,
    /// Rank in the job; null where nothing tells it.
    pub rank: Option<u64>,
    /// Source of the rank: `torch`, the name of a variable of the initial environment, or `communicator`:
    /// NCCL's communicator of the largest group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_from: Option<String>,
    /// Job, where the process was started with its name (`SLURM_JOB_ID`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// torch's notes; null if the process has no torch.
    pub notes: Option<NotesReport>,
    /// Reason why the process was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl GroupHistory {
    /// Tells whether `name` is a name of this group: its name, its description or the hash of a communicator.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.description == name || self.comm_hashes.iter().any(|hash| hash == name)
    }

    pub fn has(&self, entry: &Entry) -> bool {
        entry.is_of(&self.name, &self.description)
    }

    /// Tells whether a process is one of the members.
    pub fn has_process(&self, process: &ProcessHistory) -> bool {
        self.members.iter().any(|member| (&member.host, member.pid) == (&process.host, process.pid))
    }
}

impl ProcessHistory {
    pub fn rings(&self) -> impl Iterator<Item = &RingReport> {
        self.notes.iter().flat_map(|notes| &notes.rings)
    }

    pub fn has_entries(&self) -> bool {
        self.rings().any(|ring| !ring.entries.is_empty())
    }

    pub fn keep(&mut self, is_wanted: impl Fn(&Entry) -> bool) {
        for ring in self.notes.iter_mut().flat_map(|notes| &mut notes.rings) {
            ring.entries.retain(&is_wanted);
        }
    }

    /// Keeps the latest entries of each process group.
    pub fn keep_last(&mut self, last: usize) {
        for ring in self.notes.iter_mut().flat_map(|notes| &mut notes.rings) {
            let mut seen: HashMap<u64, usize> = HashMap::new();
            ring.entries.reverse();
            ring.entries.retain(|entry| {
                let count = seen.entry(entry.pg_id).or_default();
                *count += 1;
                *count <= last
            });
            ring.entries.reverse();
        }
    }
}
