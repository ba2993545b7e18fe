//! The block that records are gathered in before they are written.

use std::{collections::HashSet, sync::Arc};

use flow::{
    decode::RecordView,
    recording::{Batch, Binding, Members},
    wire::ProbeKind,
};
use ncclflow_common::LOSS_MARK;

use super::facts::WhoFacts;

/// Records that are not written yet.
#[derive(Debug, Default)]
pub(super) struct OpenBlock {
    pub(super) batches: Vec<Arc<Batch>>,
    /// Bytes of the batches.
    pub(super) bytes: usize,
    pub(super) records: u64,
    pub(super) members: Members,
    pub(super) is_lasting: bool,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
}

impl OpenBlock {
    /// Makes a block of one batch.
    pub(super) fn of(
        batch: &Arc<Batch>,
        bindings: &[Binding],
        walks: &mut OpenWalks,
        mut who: Option<&mut (dyn WhoFacts + 'static)>,
    ) -> Self {
        let mut block = Self {
            batches: vec![Arc::clone(batch)],
            bytes: batch.bytes().len(),
            records: batch.len() as u64,
            ..Self::default()
        };
        for record in batch.records() {
            block.note(record, bindings, walks, who.as_deref_mut());
        }
        block
    }

    /// Adds the block that came after this one.
    pub(super) fn append(&mut self, mut other: Self) {
        self.batches.append(&mut other.batches);
        self.bytes += other.bytes;
        self.records += other.records;
        self.members.add(other.members);
        self.is_lasting |= other.is_lasting;
        // Loss marks have no time.
        if other.last_ns > 0 {
            self.note_times(other.first_ns, other.last_ns);
        }
    }

    fn note_times(&mut self, first_ns: u64, last_ns: u64) {
        self.first_ns = if self.last_ns == 0 { first_ns } else { self.first_ns.min(first_ns) };
        self.last_ns = self.last_ns.max(last_ns);
    }

    /// Notes the process and communicator of a record, and its time.
    fn note(
        &mut self,
        record: &[u8],
        bindings: &[Binding],
        walks: &mut OpenWalks,
        who: Option<&mut (dyn WhoFacts + 'static)>,
    ) {
        let Ok(view) = RecordView::new(record) else { return };
        let binding = bindings.get(usize::from(view.header.probe));
        let kind = binding.map(|binding| &binding.kind);
        self.members.note(kind, &view);
        if let (Some(who), Some(binding)) = (who, binding) {
            who.note(binding, &view);
        }
        if view.header.probe == LOSS_MARK {
            return; // it has no time
        }
        let at = view.header.ts_ns;
        self.note_times(at, at);
        self.is_lasting |= kind.is_some_and(|kind| walks.is_lasting(kind, &view));
    }
}

/// Walks whose records last and whose plan is still to come: the plan names the communicator, and can be in
/// the next block.
#[derive(Debug, Default)]
pub(super) struct OpenWalks(HashSet<Walk>);

/// Key of a walk: process, thread and time, which all its records have in common.
type Walk = (u32, u32, u64);

/// Most walks that are open. A walk that ends takes microseconds; after a lost plan no more records of its
/// walk come.
const MAX_OPEN_WALKS: usize = 1024;

impl OpenWalks {
    /// Tells whether later records cannot be understood without this one: the kernel sends channels and
    /// connectors once for a communicator, and the plan of a CUDA graph comes when it is captured, not when
    /// it is replayed.
    fn is_lasting(&mut self, kind: &ProbeKind, record: &RecordView<'_>) -> bool {
        let walk = (record.header.tgid, record.header.tid, record.header.ts_ns);
        match kind {
            ProbeKind::Channel(_) | ProbeKind::Connectors(_) => {
                if self.0.len() >= MAX_OPEN_WALKS {
                    self.0.clear();
                }
                self.0.insert(walk);
                true
            }
            ProbeKind::Plan(spans) => {
                self.0.remove(&walk)
                    || record.unsigned(&spans.persistent).is_ok_and(|persistent| persistent != 0)
            }
            _ => false,
        }
    }
}
