//! Processes whose records come from probes that several processes share: each is announced at its first.

use std::collections::HashMap;

use ncclflow_common::RecordHeader;

/// Number of processes at which ended ones are forgotten.
const MAX_ENDED: usize = 1024;

/// Processes that sent records, with the end time of those that have ended.
#[derive(Debug, Default)]
pub(super) struct Arrivals(HashMap<u32, Option<u64>>);

impl Arrivals {
    /// Tells whether this is the first record of its process. Older records can come after a process's end
    /// was seen; newer ones are of another process with its number.
    pub(super) fn is_new(&mut self, header: &RecordHeader) -> bool {
        let is_known =
            self.0.get(&header.tgid).is_some_and(|ended| ended.is_none_or(|at| header.ts_ns <= at));
        if !is_known {
            self.0.insert(header.tgid, None);
        }
        !is_known
    }

    pub(super) fn ended(&mut self, tgid: u32, at_ns: u64) {
        if let Some(ended) = self.0.get_mut(&tgid) {
            *ended = Some(at_ns);
        }
        if self.0.len() > MAX_ENDED {
            // Forget the older half: their last records have come.
            let mut ends: Vec<u64> = self.0.values().filter_map(|ended| *ended).collect();
            ends.sort_unstable();
            let middle = ends.get(ends.len() / 2).copied().unwrap_or(0);
            self.0.retain(|_, ended| ended.is_none_or(|at| at > middle));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tgid: u32, ts_ns: u64) -> RecordHeader {
        RecordHeader { tgid, ts_ns, ..RecordHeader::default() }
    }

    #[test]
    fn a_process_is_new_once_until_another_has_its_number() {
        let mut arrivals = Arrivals::default();
        assert!(arrivals.is_new(&record(7, 10)) && !arrivals.is_new(&record(7, 11)));
        assert!(arrivals.is_new(&record(8, 12)));
        arrivals.ended(7, 20);
        assert!(!arrivals.is_new(&record(7, 19)), "it was on its way");
        assert!(arrivals.is_new(&record(7, 21)) && !arrivals.is_new(&record(7, 22)));
    }

    #[test]
    fn processes_that_have_gone_are_forgotten() {
        let mut arrivals = Arrivals::default();
        for tgid in 0..100_000 {
            let at_ns = u64::from(tgid) * 10;
            assert!(arrivals.is_new(&record(tgid, at_ns)));
            arrivals.ended(tgid, at_ns + 1);
        }
        assert!(arrivals.0.len() <= MAX_ENDED + 1);
    }
}
