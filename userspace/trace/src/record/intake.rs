//! First steps for each record, in the thread that takes it first: the record is counted, and its process
//! announced.

use std::collections::HashMap;

use flow::{
    decode::RecordView,
    recording::{Batch, FirstHit},
};
use ncclflow_common::{LOSS_MARK, RecordHeader};

use super::{
    accounts::Accounts,
    mailbox::{EventSender, SessionEvent},
};
use crate::call_stacks::StackFeed;

/// Number of processes at which ended ones are forgotten.
const MAX_ENDED: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Intake {
    accounts: Accounts,
    /// Known processes, for probes that several processes share.
    arrivals: Option<Arrivals>,
    /// Feed to the thread that names call stacks.
    stacks: Option<StackFeed>,
}

impl Intake {
    /// `announces`: tell of each process at its first record.
    pub(super) fn new(announces: bool, stacks: Option<StackFeed>) -> Self {
        Self { accounts: Accounts::default(), arrivals: announces.then(Arrivals::default), stacks }
    }

    pub(super) fn note(&mut self, batch: &Batch, events: &EventSender) {
        for record in batch.records() {
            // Foreign items are reported by the thread that decodes them.
            let Ok(view) = RecordView::new(record) else { continue };
            let header = view.header;
            if header.probe == LOSS_MARK {
                continue;
            }
            self.accounts.note(&header);
            if let Some(stacks) = &self.stacks {
                stacks.note(&view);
            }
            if self.arrivals.as_mut().is_some_and(|arrivals| arrivals.is_new(&header)) {
                events.send(SessionEvent::NewProcess(header.tgid));
            }
        }
    }

    pub(super) fn process_ended(&mut self, tgid: u32, at_ns: u64) {
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.ended(tgid, at_ns);
        }
    }

    /// Returns the accounts until now, and begins new ones at these hits. All processes are announced again.
    pub(super) fn begin_anew(&mut self, hits: &[FirstHit]) -> Accounts {
        let announces = self.arrivals.is_some();
        let begun =
            Self { accounts: Accounts::beginning_at(hits), ..Self::new(announces, self.stacks.clone()) };
        std::mem::replace(self, begun).accounts
    }

    pub(super) fn into_accounts(self) -> Accounts {
        self.accounts
    }
}

/// Processes that sent records, with the end time of those that have ended.
#[derive(Debug, Default)]
struct Arrivals(HashMap<u32, Option<u64>>);

impl Arrivals {
    /// Tells whether this is the first record of its process. Older records can come after a process's end
    /// was seen; newer ones are of another process with its number.
    fn is_new(&mut self, header: &RecordHeader) -> bool {
        let is_known =
            self.0.get(&header.tgid).is_some_and(|ended| ended.is_none_or(|at| header.ts_ns <= at));
        if !is_known {
            self.0.insert(header.tgid, None);
        }
        !is_known
    }

    fn ended(&mut self, tgid: u32, at_ns: u64) {
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
