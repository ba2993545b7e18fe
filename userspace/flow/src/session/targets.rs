//! The processes of a session: those that go on, and the latest of those that have ended.

use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

use super::lenient;
use crate::identity::{Job, Whose};

/// A process, and what is traced of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetReport {
    /// Number of the process in our PID namespace.
    pub pid: u32,
    /// Number that the process itself sees.
    pub own_pid: u32,
    pub name: String,
    /// Indexes into `libraries`.
    pub libraries: Vec<usize>,
    pub exited: bool,
    /// Start of the process, in ticks since boot. With the PID, it identifies the process.
    pub started_ticks: Option<u64>,
    /// Latest time from which its hits are recorded, by the records' clock; with `--all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub followed_since_ns: Option<u64>,
    /// Why it is not traced, though it has NCCL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untraced: Option<String>,
    /// Why launches of CUDA graphs are not recorded; at other levels than `api`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_graph_launches: Option<String>,
    /// `None`: it had ended, or could not be looked at.
    #[serde(flatten)]
    pub whose: Option<Whose>,
    /// At the end of the recording or window.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::value")]
    pub job: Option<Job>,
    /// Version of its Python, or `not known: ` and why its stacks are not; with `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
}

/// Most ended processes that are listed. A node has as many in an hour as somebody starts.
pub const MAX_ENDED_TARGETS: usize = 1000;

/// Number of excess processes that are forgotten at once.
const AT_A_TIME: usize = 64;

/// Processes in the order in which they were found. The oldest of those that have ended are forgotten, and
/// counted.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct TargetList {
    listed: Vec<TargetReport>,
    /// Number of each process that is listed.
    #[serde(skip)]
    numbers: Vec<usize>,
    #[serde(skip)]
    next: usize,
}

impl TargetList {
    /// Adds a process. Returns its number, valid as long as it is listed.
    pub fn push(&mut self, target: TargetReport) -> usize {
        let number = self.next;
        self.next += 1;
        self.listed.push(target);
        self.numbers.push(number);
        self.forget_ended();
        number
    }

    /// Returns the process of this number, if it is listed.
    pub fn numbered(&mut self, number: usize) -> Option<&mut TargetReport> {
        self.listed.get_mut(self.numbers.binary_search(&number).ok()?)
    }

    /// Returns the number of ended processes that are not listed any more.
    pub fn forgotten(&self) -> u64 {
        (self.next - self.listed.len()) as u64
    }

    fn forget_ended(&mut self) {
        if self.listed.len() <= MAX_ENDED_TARGETS + AT_A_TIME {
            return;
        }
        let over = self.iter().filter(|target| target.exited).count().saturating_sub(MAX_ENDED_TARGETS);
        if over >= AT_A_TIME {
            let listed = self.numbers.drain(..).zip(self.listed.drain(..));
            let mut oldest = 0..over;
            let left = listed.filter(|(_, target)| !target.exited || oldest.next().is_none());
            (self.numbers, self.listed) = left.unzip();
        }
    }
}

impl FromIterator<TargetReport> for TargetList {
    fn from_iter<I: IntoIterator<Item = TargetReport>>(targets: I) -> Self {
        let listed: Vec<TargetReport> = targets.into_iter().collect();
        Self { numbers: (0..listed.len()).collect(), next: listed.len(), listed }
    }
}

impl Deref for TargetList {
    type Target = [TargetReport];

    fn deref(&self) -> &[TargetReport] {
        &self.listed
    }
}

impl DerefMut for TargetList {
    fn deref_mut(&mut self) -> &mut [TargetReport] {
        &mut self.listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(pid: u32) -> TargetReport {
        TargetReport {
            pid,
            own_pid: pid,
            name: "python3".to_owned(),
            libraries: vec![0],
            exited: false,
            started_ticks: Some(u64::from(pid)),
            followed_since_ns: Some(1),
            untraced: None,
            no_graph_launches: None,
            whose: None,
            job: None,
            python: None,
        }
    }

    /// Bytes as JSON after so many short processes beside one that goes on.
    fn after(processes: u32) -> (usize, TargetList) {
        let mut list = TargetList::default();
        let lasting = list.push(target(7_000_000));
        for pid in 0..processes {
            let number = list.push(target(1_000_000 + pid));
            list.numbered(number).unwrap().exited = true;
        }
        assert_eq!(list.numbered(lasting).unwrap().pid, 7_000_000, "it has not ended");
        (serde_json::to_vec(&list).unwrap().len(), list)
    }

    #[test]
    fn the_list_is_as_large_after_a_hundred_thousand_processes_as_after_a_thousand() {
        let ((small, few), (large, many)) = (after(1000), after(100_000));
        assert_eq!(few.forgotten(), 0);
        assert_eq!(many.forgotten() + many.len() as u64, 100_001);
        assert!(large <= small + small / 10, "{small} bytes became {large}");
        let latest = many.iter().last().unwrap();
        assert_eq!(latest.pid, 1_099_999, "the latest are kept");
    }

    #[test]
    fn processes_that_go_on_are_all_listed() {
        let list: TargetList = (0..5000).map(target).collect();
        assert_eq!(list.len(), 5000);
        let mut list = list;
        let number = list.push(target(9000));
        assert_eq!((list.len(), list.numbered(number).unwrap().pid), (5001, 9000));
    }
}
