//! Shares of a queue that is more than half full, so that a process that floods it loses its own records and
//! not those of others.
//!
//! Ring buffers have the same (`ebpf/src/share.rs`): until one is half full it takes every record; from then
//! on each tenant has a share of the other half, until it has been read down. So one burst can use nearly all
//! of it, and a job that floods leaves room for others. The kernel side notes when the mark is passed; below
//! it a hit costs one comparison more. User space says which tenant a process belongs to (`target::tenant`),
//! as a tenant could make as many control groups as it wants.

use flow::recording::Batch;
use std::collections::{HashMap, HashSet};

use ncclflow_common::RecordHeader;

/// Most processes that are told apart at a time; all records of later ones are taken.
const MAX_PROCESSES: usize = 4096;

/// Bytes that processes have put into the upper half of a queue since it was last half empty.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Bytes by process.
    taken: HashMap<u32, usize>,
    /// Number of processes the last time, which will mostly be there again.
    processes: usize,
}

impl Shares {
    /// Begins anew, as the queue is at most half full.
    pub(super) fn renew(&mut self) {
        if !self.taken.is_empty() {
            self.processes = self.taken.len();
            self.taken.clear();
        }
    }

    /// Leaves out of a batch the records that are over their process's share of `bytes`. `left_out` gets
    /// their headers. Returns `None` if all records may be taken.
    pub(super) fn cut(
        &mut self,
        batch: &Batch,
        bytes: usize,
        mut left_out: impl FnMut(&RecordHeader),
    ) -> Option<Batch> {
        let mut by_process = HashMap::<u32, usize>::new();
        for record in batch.records() {
            if let Some(header) = RecordHeader::from_bytes(record) {
                *by_process.entry(header.tgid).or_default() += record.len();
            }
        }
        for tgid in by_process.keys() {
            if self.taken.len() < MAX_PROCESSES {
                self.taken.entry(*tgid).or_default();
            }
        }
        let processes = self.taken.len().max(self.processes).max(1);
        let share = bytes / processes;
        let fits = |taken: &HashMap<u32, usize>, tgid: &u32, more: usize| {
            processes == 1 || taken.get(tgid).is_none_or(|taken| taken + more <= share)
        };
        if by_process.iter().all(|(tgid, more)| fits(&self.taken, tgid, *more)) {
            for (tgid, more) in by_process {
                if let Some(taken) = self.taken.get_mut(&tgid) {
                    *taken += more;
                }
            }
            return None;
        }
        let mut kept = Batch::default();
        // No record of a process comes after one that was left out, so that its loss is in one place.
        let mut over = HashSet::<u32>::new();
        for record in batch.records() {
            let Some(header) = RecordHeader::from_bytes(record) else {
                kept.push(record);
                continue;
            };
            if over.contains(&header.tgid) || !fits(&self.taken, &header.tgid, record.len()) {
                over.insert(header.tgid);
                left_out(&header);
                continue;
            }
            if let Some(taken) = self.taken.get_mut(&header.tgid) {
                *taken += record.len();
            }
            kept.push(record);
        }
        Some(kept)
    }
}
