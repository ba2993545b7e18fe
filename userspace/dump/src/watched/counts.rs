//! Counters of one communicator, and the places in memory that they are copied from.

use std::ops::Range;

use crate::{
    comm_layout::{CommLayout, MAGIC},
    libraries::Layout,
    places,
};
use inspect::memory::{Memory, ReadError};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{ArrayField, IntField, unsigned},
};

/// `ncclInProgress` (nccl.h, a part of the API).
const IN_PROGRESS: u64 = 7;

/// Maximum number of channels whose batches are counted.
const MAX_CHANNELS: u64 = 1024;
/// Maximum number of functions that are counted.
const MAX_FUNCTIONS: u64 = 64;

/// Counters of a communicator at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Collectives launched, by NCCL's number of the function; empty before 2.26.
    pub by_function: Vec<u64>,
    /// Collectives launched, counted for this communicator alone; from 2.27 on only of plans that use the
    /// proxy.
    pub coll_op_count: Option<u64>,
    /// Point-to-point batches launched over all channels, of all communicators that share resources with this
    /// one.
    pub p2p_op_count: Option<u64>,
    /// `ncclComm.opCount`.
    pub op_count: Option<u64>,
    /// The proxy has ops in flight, of this communicator or of others that share it.
    pub has_ops_in_flight: bool,
    /// `ncclResult_t` of the communicator, or of its proxy, that is a failure.
    pub failure: Option<u64>,
    /// The set-up is complete.
    pub is_set_up: bool,
    /// The program is ending the communicator, or has aborted it.
    pub is_ending: bool,
}

impl Counts {
    /// Returns the number of collectives launched, by the best counter there is; equal on all ranks when
    /// nobody lags. As [`crate::Counters::launched`].
    pub fn launched(&self) -> Option<u64> {
        if self.by_function.is_empty() {
            self.coll_op_count
        } else {
            Some(self.by_function.iter().fold(0, |sum, count| sum.wrapping_add(*count)))
        }
    }

    /// Tells whether anything was ever launched.
    pub fn has_moved(&self) -> bool {
        let others = [self.coll_op_count, self.p2p_op_count, self.op_count];
        self.by_function.iter().any(|count| *count > 0) || others.iter().flatten().any(|count| *count > 0)
    }

    /// Tells whether something was launched between two moments.
    pub fn moved_since(&self, before: &Self) -> bool {
        (&self.by_function, self.coll_op_count, self.p2p_op_count, self.op_count)
            != (&before.by_function, before.coll_op_count, before.p2p_op_count, before.op_count)
    }
}

/// Pieces of memory (address, bytes) that are copied together.
#[derive(Debug, Default)]
pub(super) struct Pieces(pub(super) Vec<(RuntimeAddr, usize)>);

impl Pieces {
    pub(super) fn add(&mut self, at: u64, bytes: usize) -> usize {
        self.0.push((RuntimeAddr(at), bytes));
        self.0.len() - 1
    }

    /// Adds a field of the struct at `base`, if both are there.
    pub(super) fn field(&mut self, base: u64, field: Option<IntField>) -> Option<usize> {
        let field = field.filter(|_| base != 0)?;
        Some(self.add(base.saturating_add(field.offset()), field.size()))
    }

    /// Adds an array of words of the struct at `base`.
    fn words(&mut self, base: u64, array: Option<ArrayField>, most: u64) -> Option<usize> {
        let array = array.filter(|array| base != 0 && array.elem_size == 8)?;
        let bytes = usize::try_from(array.count.min(most) * 8).ok()?;
        Some(self.add(base.saturating_add(array.offset), bytes))
    }
}

/// [`Pieces`] with those of one page in one read: each read looks a page up.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// What is read: address, bytes.
    all: Vec<(RuntimeAddr, usize)>,
    /// Read and place in it of each piece.
    places: Vec<(usize, Range<usize>)>,
}

/// Smallest size of a page.
const PAGE: u64 = 4096;

impl Reads {
    pub(super) fn of(pieces: &Pieces) -> Self {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut sorted: Vec<usize> = (0..pieces.0.len()).collect();
        sorted.sort_by_key(|piece| pieces.0.get(*piece));
        let mut reads = Self { all: Vec::new(), places: vec![(0, 0..0); pieces.0.len()] };
        for (piece, (at, bytes)) in
            sorted.into_iter().filter_map(|piece| Some((piece, *pieces.0.get(piece)?)))
        {
            let end = at.0.saturating_add(bytes as u64);
            let is_one_page = |from: u64| from / PAGE == end.saturating_sub(1) / PAGE;
            let begin = match reads.all.last_mut() {
                Some((from, length)) if is_one_page(from.0) => {
                    *length = (*length).max(size(end - from.0));
                    *from
                }
                _ => {
                    reads.all.push((at, bytes));
                    at
                }
            };
            let offset = size(at.0 - begin.0);
            if let Some(place) = reads.places.get_mut(piece) {
                *place = (reads.all.len() - 1, offset..offset.saturating_add(bytes));
            }
        }
        reads
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Reads all, with as few calls as possible.
    pub(super) fn read(&self, memory: Memory<'_>) -> Result<Vec<Option<Vec<u8>>>, ReadError> {
        memory.copies(&self.all)
    }

    /// Returns the bytes of each piece; `None` for one that could not be read.
    pub(super) fn pieces<'c>(&self, read: &'c [Option<Vec<u8>>]) -> Vec<Option<&'c [u8]>> {
        let piece = |(at, range): &(usize, Range<usize>)| read.get(*at)?.as_ref()?.get(range.clone());
        self.places.iter().map(piece).collect()
    }
}

/// Bytes of [`Pieces`]; `None` for one that could not be read.
pub(super) type Copies<'c> = [Option<&'c [u8]>];

/// Places of a communicator's counters among the pieces of its process.
#[derive(Debug)]
pub(super) struct CountedPlaces {
    /// Words and values that prove that it is still the same communicator.
    proof: Vec<(usize, u64)>,
    functions: Option<usize>,
    coll_op_count: Option<usize>,
    p2p_op_count: Option<usize>,
    op_count: Option<usize>,
    active: Option<usize>,
    results: [Option<usize>; 2],
    init_state: Option<usize>,
    endings: [Option<usize>; 4],
}

impl CountedPlaces {
    /// Finds the places of the communicator at `address`. Returns them with the address of its proxy's state.
    /// `shares`: other communicators of the process use its resources.
    pub(super) fn of(
        memory: Memory<'_>,
        layout: &Layout,
        address: u64,
        shares: bool,
        pieces: &mut Pieces,
    ) -> (Self, u64) {
        #[rustfmt::skip]
        let [start, end, hash, rank, n_ranks, _, _, _, _, _, _, proxy_state, shared_res, _, op_count, coll_op_count,
            init, async_result, abort_flag, finalize, destroy, revoked, _] = layout.comm.comm;
        let one = |field| places::read_one(memory, address, field).unwrap_or_default();
        let (proxy, shared, abort) = (one(proxy_state), one(shared_res), one(abort_flag));
        let mut proof = Vec::new();
        let magics = layout.comm.has_magics();
        for (field, value) in [
            (start.filter(|_| magics), MAGIC),
            (end.filter(|_| magics), MAGIC),
            (hash, one(hash)),
            (rank, one(rank)),
            (n_ranks, one(n_ranks)),
        ] {
            proof.extend(pieces.field(address, field).map(|at| (at, value)));
        }
        let CommLayout { seq_number, shared_coll_op_count, shared_p2p_op_count, .. } = layout.comm;
        let shared_coll = shared_coll_op_count.filter(|_| coll_op_count.is_none() && !shares);
        let places = Self {
            proof,
            functions: pieces.words(address, seq_number, MAX_FUNCTIONS),
            coll_op_count: pieces.field(address, coll_op_count).or_else(|| pieces.field(shared, shared_coll)),
            p2p_op_count: pieces.words(shared, shared_p2p_op_count, MAX_CHANNELS),
            op_count: pieces.field(address, op_count),
            active: pieces.field(proxy, Some(layout.proxy.active)),
            results: [pieces.field(address, async_result), pieces.field(proxy, layout.proxy.async_result)],
            init_state: pieces.field(address, init),
            endings: [
                pieces.field(address, finalize),
                pieces.field(address, destroy),
                pieces.field(address, revoked),
                (abort != 0).then(|| pieces.add(abort, 4)),
            ],
        };
        (places, proxy)
    }

    /// Takes the counters out of a copy; `None` if the communicator is not there any more.
    pub(super) fn counts(&self, copies: &Copies<'_>) -> Option<Counts> {
        let bytes = |at: Option<usize>| *copies.get(at?)?;
        let value = |at: Option<usize>| bytes(at).and_then(unsigned);
        if !self.proof.iter().all(|(at, wanted)| value(Some(*at)) == Some(*wanted)) {
            return None;
        }
        let words = |at| Some(bytes(at)?.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)));
        let is_failure = |result: &u64| !matches!(*result, 0 | IN_PROGRESS);
        Some(Counts {
            by_function: words(self.functions).into_iter().flatten().collect(),
            coll_op_count: value(self.coll_op_count),
            p2p_op_count: words(self.p2p_op_count).map(|words| words.fold(0, u64::wrapping_add)),
            op_count: value(self.op_count),
            has_ops_in_flight: value(self.active).is_some_and(|active| active != 0),
            failure: self.results.into_iter().find_map(|at| value(at).filter(is_failure)),
            is_set_up: value(self.init_state).is_none_or(|state| state == 0),
            is_ending: self.endings.into_iter().any(|at| value(at).is_some_and(|value| value != 0)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::process::Process;

    #[test]
    fn what_was_launched_is_motion_and_an_error_is_none() {
        let counts = Counts { by_function: vec![0, 5, 2], op_count: Some(3), ..Counts::default() };
        assert_eq!((counts.launched(), counts.has_moved()), (Some(7), true));
        let failed = Counts { failure: Some(1), has_ops_in_flight: true, ..counts.clone() };
        assert!(!failed.moved_since(&counts));
        assert!(Counts { p2p_op_count: Some(1), ..counts.clone() }.moved_since(&counts));
        let old = Counts { coll_op_count: Some(4), ..Counts::default() };
        assert_eq!(old.launched(), Some(4));
        assert!(!Counts { op_count: Some(0), ..Counts::default() }.has_moved());
    }

    #[test]
    fn a_place_that_has_another_value_now_is_no_communicator_any_more() {
        let places = CountedPlaces {
            proof: vec![(0, 7)],
            functions: Some(1),
            coll_op_count: None,
            p2p_op_count: None,
            op_count: Some(9),
            active: Some(2),
            results: [Some(3), None],
            init_state: None,
            endings: [None; 4],
        };
        let [seven, none, six, in_progress] = [7, 0, 6, IN_PROGRESS].map(u64::to_le_bytes);
        let functions = [1u64, 2].map(u64::to_le_bytes).concat();
        let mut copies: [Option<&[u8]>; 4] = [Some(&seven), Some(&functions), Some(&none), Some(&six)];
        let counts = places.counts(&copies).unwrap();
        assert_eq!((counts.by_function.as_slice(), counts.op_count), (&[1, 2][..], None));
        assert_eq!((counts.has_ops_in_flight, counts.failure), (false, Some(6)));
        copies[3] = Some(&in_progress);
        assert_eq!(places.counts(&copies).unwrap().failure, None);
        copies[0] = None;
        assert_eq!(places.counts(&copies), None);
    }

    /// In our own memory: pieces of one page are one read, and each has its own bytes.
    #[test]
    fn pieces_of_a_page_are_read_together() {
        let memory: Vec<u8> = (0..5 * PAGE).map(|byte| (byte % 251) as u8).collect();
        let base = memory.as_ptr() as u64;
        let page = base.next_multiple_of(PAGE) - base;
        let [first, second] = [page, page + PAGE];
        // Two of the first page, one over the end of it, one of the second, and one that is nowhere.
        let wanted = [(first + 100, 8), (second + 40, 4), (first + 16, 4), (first + PAGE - 2, 6)];
        let mut pieces = Pieces::default();
        for (at, bytes) in wanted {
            pieces.add(base + at, bytes);
        }
        pieces.add(8, 8);
        let reads = Reads::of(&pieces);
        assert_eq!(reads.all.len(), 4, "{reads:?}");
        let process = Process::open(std::process::id()).unwrap();
        let read = reads.read(Memory::new(&process)).unwrap();
        let found = reads.pieces(&read);
        for ((at, bytes), found) in wanted.into_iter().zip(&found) {
            let at = usize::try_from(at).unwrap();
            assert_eq!(*found, memory.get(at..at + bytes), "{at}");
        }
        assert_eq!(found.last(), Some(&None));
    }
}
