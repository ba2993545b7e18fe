//! Numbers of entries, counted as torch does.

use nccl_library::nccl::Name;

use super::{BY_PLACE, CommGroup, spool::Waiting};
use torch::flight_recorder::{Entry, Function, Operation, ProcessGroup};

/// Counts of a group's entries that were read and written.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// The rank in the group.
    rank: u32,
    /// NCCL's number of the next collective.
    next: u64,
    /// torch's number of the latest collective, counted from 1.
    pub(super) collectives: u64,
    /// Number of collectives that NCCL does not count as such.
    uncounted: u64,
    p2p: u64,
    operations: u64,
}

impl Counts {
    pub(super) fn of(group: &ProcessGroup, job_rank: i64) -> Self {
        let place = group.ranks.iter().position(|rank| i64::try_from(*rank) == Ok(job_rank));
        Self { rank: place.and_then(|rank| u32::try_from(rank).ok()).unwrap_or(0), ..Self::default() }
    }

    /// Returns NCCL's number of a collective or, for another operation, that of the next collective.
    pub(super) fn number(&mut self, operation: &Waiting, function: Function) -> u64 {
        if operation.number == BY_PLACE {
            return self.next;
        }
        self.next = operation.number.saturating_add(u64::from(function.is_counted())).max(self.next);
        operation.number
    }

    pub(super) fn entry(
        &mut self,
        operation: &Waiting,
        function: Function,
        group: &CommGroup,
        datatypes: &[Name],
    ) -> Entry {
        let CommGroup { process_group: group, places, .. } = group;
        self.operations += 1;
        if function.is_p2p() {
            self.p2p += 1;
        } else {
            let number = operation.number.saturating_add(self.uncounted).saturating_add(1);
            self.collectives = number.max(self.collectives + 1);
            self.uncounted += u64::from(!function.is_counted());
        }
        let datatype = operation.datatype.and_then(|at| datatypes.get(usize::from(at)));
        let called = Operation {
            function,
            count: operation.count,
            datatype: datatype.map(Name::as_str),
            rank: self.rank,
            root: operation.root,
            peer: operation.peer,
        };
        Entry {
            collective_seq_id: self.collectives,
            p2p_seq_id: self.p2p,
            op_id: self.operations,
            time_created_ns: i64::try_from(operation.ts_ns).unwrap_or(i64::MAX),
            thread_id: Some(operation.tid.into()),
            ..called.entry(group, places)
        }
    }
}
