//! The processes of a session: those that go on, and the latest of those that have ended.

use std::collections::{BTreeMap, btree_map};

use serde::{Serialize, Serializer};

use super::TargetReport;

/// Most ended processes that are listed. A node has as many in an hour as somebody starts.
pub const MAX_ENDED_TARGETS: usize = 1000;

/// Number of excess processes that are forgotten at once.
const AT_A_TIME: usize = 64;

/// Processes in the order in which they were found. The oldest of those that have ended are forgotten, and
/// counted.
#[derive(Clone, Debug, Default)]
pub struct TargetList {
    listed: BTreeMap<usize, TargetReport>,
    next: usize,
    forgotten: u64,
}

impl TargetList {
    /// Adds a process. Returns its number, valid as long as it is listed.
    pub fn push(&mut self, target: TargetReport) -> usize {
        let number = self.next;
        self.next += 1;
        self.listed.insert(number, target);
        self.forget_ended();
        number
    }

    pub fn get_mut(&mut self, number: usize) -> Option<&mut TargetReport> {
        self.listed.get_mut(&number)
    }

    pub fn iter(&self) -> btree_map::Values<'_, usize, TargetReport> {
        self.listed.values()
    }

    pub fn iter_mut(&mut self) -> btree_map::ValuesMut<'_, usize, TargetReport> {
        self.listed.values_mut()
    }

    pub fn len(&self) -> usize {
        self.listed.len()
    }

    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Returns the number of ended processes that are not listed any more.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn forget_ended(&mut self) {
        if self.listed.len() <= MAX_ENDED_TARGETS + AT_A_TIME {
            return;
        }
        let ended = || self.listed.iter().filter(|(_, target)| target.exited).map(|(number, _)| *number);
        let over = ended().count().saturating_sub(MAX_ENDED_TARGETS);
        if over < AT_A_TIME {
            return;
        }
        let oldest: Vec<usize> = ended().take(over).collect();
        self.forgotten += oldest.len() as u64;
        for number in oldest {
            self.listed.remove(&number);
        }
    }
}

impl FromIterator<TargetReport> for TargetList {
    fn from_iter<I: IntoIterator<Item = TargetReport>>(targets: I) -> Self {
        let listed: BTreeMap<usize, TargetReport> = targets.into_iter().enumerate().collect();
        Self { next: listed.len(), listed, forgotten: 0 }
    }
}

impl<'a> IntoIterator for &'a TargetList {
    type Item = &'a TargetReport;
    type IntoIter = btree_map::Values<'a, usize, TargetReport>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut TargetList {
    type Item = &'a mut TargetReport;
    type IntoIter = btree_map::ValuesMut<'a, usize, TargetReport>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl Serialize for TargetList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
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
            list.get_mut(number).unwrap().exited = true;
        }
        assert_eq!(list.get_mut(lasting).unwrap().pid, 7_000_000, "it has not ended");
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
        assert_eq!((list.len(), list.get_mut(number).unwrap().pid), (5001, 9000));
    }
}
