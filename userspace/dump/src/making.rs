//! Communicators that threads are making, by the stacks of these threads.
//!
//! A communicator that is being made need not be in NCCL's own list yet ([`super::own_list`]), and a search of all
//! memory takes seconds in a large process. But the function that makes it, `ncclCommInitRankFunc` (src/init.cc), needs
//! its address until it is done. It runs in the thread that has called or, for calls in a group, splits and others
//! with a configuration, in one of NCCL's own threads for each communicator (src/group.cc, `asyncJobLaunch`). The
//! functions that it calls save the registers that they use, so the address stands on the stack.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    budget::Budget,
    comm_layout::{CommLayout, MAGIC},
    communicator::{self, Communicator, MAX_COMMUNICATORS},
    places, set_up,
};
use inspect::{
    memory::{AddressSpace, Memory, ReadError},
    threads::StackTop,
};
use nccl_library::elf::RuntimeAddr;

/// Maximum number of stacks of a process that are looked at.
const MAX_STACKS: usize = 256;
/// Maximum number of bytes of one stack: NCCL's frames are innermost, and have some 10 KiB.
const MAX_STACK: u64 = 256 << 10;
/// Maximum number of bytes of all stacks of a process.
const MAX_BYTES: u64 = 16 << 20;
/// Maximum number of pointers that are followed; stacks of a real process have some thousands.
const MAX_POINTERS: usize = 1 << 16;

/// Communicators that were found on stacks.
#[derive(Debug, Default)]
pub(super) struct OnStacks {
    /// Those that were not known.
    pub(super) found: Vec<Communicator>,
    /// Addresses of those, known or not, whose set-up goes on, with what is known of each.
    pub(super) open: BTreeMap<u64, Open>,
}

/// A communicator whose set-up goes on.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) comm_hash: u64,
    /// Number of ranks. 0: a split or shrunk one, whose ranks are not known before all have called.
    pub(super) n_ranks: u64,
}

/// Finds the communicators to which there are pointers on these stacks. `known`: addresses of those that need not be
/// read.
pub(super) fn find(
    memory: Memory<'_>,
    layout: &CommLayout,
    space: &AddressSpace,
    stacks: &[StackTop],
    known: &BTreeSet<u64>,
) -> Result<OnStacks, ReadError> {
    let mut on_stacks = OnStacks::default();
    // Libraries that have a list have the marks, too.
    if !layout.has_magics() {
        return Ok(on_stacks);
    }
    let [start, ..] = layout.in_making;
    let pointers: Vec<_> =
        pointers(memory, space, stacks)?.into_iter().map(|address| (address, [start])).collect();
    let begins = places::read_each(memory, &pointers)?;
    let begin_so = pointers.iter().zip(begins).filter(|(_, begin)| *begin == Some([Some(MAGIC)]));
    let candidates: Vec<_> =
        begin_so.map(|((address, _), _)| (*address, layout.in_making)).take(MAX_COMMUNICATORS).collect();
    let budget = Budget::default();
    for ((address, _), fields) in candidates.iter().zip(places::read_each(memory, &candidates)?) {
        let Some([_, Some(MAGIC), comm_hash, n_ranks, n_channels, init]) = fields else { continue };
        if !budget.has_time() {
            break;
        }
        let channels = n_channels.and_then(|count| u32::try_from(count).ok()).unwrap_or(u32::MAX);
        let is_open = set_up::is_open(layout.result(init).as_deref(), channels);
        let (comm_hash, n_ranks) = (comm_hash.unwrap_or_default(), n_ranks.unwrap_or_default());
        if !known.contains(address) && n_ranks != 0 {
            match communicator::read(memory, layout, space, *address) {
                Ok(comm) => on_stacks.found.push(comm),
                Err(Some(error)) if error.is_final() => return Err(error),
                Err(_) => continue,
            }
        }
        if is_open {
            on_stacks.open.insert(*address, Open { comm_hash, n_ranks });
        }
    }
    Ok(on_stacks)
}

/// Tells whether a communicator may be being split off from one of these, given by address and layout. A rank that
/// calls ncclCommSplit without a colour waits for all others, too, and makes none.
pub(super) fn may_split<'l>(
    memory: Memory<'_>,
    known: impl Iterator<Item = (u64, &'l CommLayout)>,
) -> Result<bool, ReadError> {
    let known: Vec<_> = known.map(|(address, layout)| (address, layout.children)).collect();
    let children = places::read_each(memory, &known)?;
    Ok(children.iter().any(|child| *child != Some([Some(0), Some(0)])))
}

/// Tells whether these calls, each of which makes a communicator, make more than there are whose set-up goes on.
/// `may_split`: one may be being split off. `ranks`: number of communicators of the process that have this hash.
pub(super) fn lacks_one(
    calls: &[&str],
    open: &BTreeMap<u64, Open>,
    may_split: bool,
    ranks: impl Fn(u64) -> usize,
) -> bool {
    let makes_none = |call: &&&str| !may_split && call.starts_with("ncclCommSplit");
    let makers = calls.iter().filter(|call| !makes_none(call));
    // All ranks of one communicator are made by one call.
    let makes_all = calls.iter().any(|call| call.starts_with("ncclCommInitAll"));
    let is_whole = |open: &Open| open.n_ranks > 0 && ranks(open.comm_hash) as u64 >= open.n_ranks;
    open.len() < makers.count() || (makes_all && !open.values().any(is_whole))
}

/// Returns the pointers on these stacks to where a communicator can be, each once.
fn pointers(memory: Memory<'_>, space: &AddressSpace, stacks: &[StackTop]) -> Result<Vec<u64>, ReadError> {
    let mut left = MAX_BYTES;
    let stack = |top: &StackTop| {
        let at = top.pointer.checked_next_multiple_of(8)?;
        let bytes = space.readable_bytes(at, MAX_STACK.min(left));
        left -= bytes;
        Some((RuntimeAddr(at), usize::try_from(bytes).ok().filter(|bytes| *bytes > 0)?))
    };
    let pieces: Vec<_> = stacks.iter().take(MAX_STACKS).filter_map(stack).collect();
    let copies = memory.copies(&pieces)?;
    let words = copies.iter().flatten().flat_map(|copy| copy.as_chunks::<8>().0);
    let registers = stacks.iter().take(MAX_STACKS).flat_map(|top| &top.registers).copied();
    let words = registers.chain(words.map(|word| u64::from_le_bytes(*word)));
    let mut regions: Vec<(u64, u64)> =
        space.regions.iter().map(|region| (region.start, region.end)).collect();
    regions.sort_unstable();
    let is_data = |word: u64| {
        let next = regions.partition_point(|(start, _)| *start <= word);
        next.checked_sub(1).and_then(|at| regions.get(at)).is_some_and(|(_, end)| word < *end)
    };
    let mut seen = BTreeSet::new();
    let pointers = words.filter(|word| word % 8 == 0 && is_data(*word) && seen.insert(*word));
    Ok(pointers.take(MAX_POINTERS).collect())
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::communicator::tests::{CONFIG, Made, index, layout, made};
    use inspect::process::{Process, maps};

    const IN_PROGRESS: u64 = 7;
    const INTERNAL_ERROR: u64 = 3;

    /// Looks at a stack, and at registers, of a process that has nothing but this and these communicators.
    fn look_at(
        stack: &[u64],
        registers: &[u64],
        made: &[Made],
        known: &[u64],
    ) -> (Vec<u64>, Vec<(u64, u64)>) {
        let range = |at: *const u64, words: usize| {
            format!("{:x}-{:x} rw-p 00000000 00:00 0\n", at as u64, at as u64 + 8 * words as u64)
        };
        let mut map = range(stack.as_ptr(), stack.len());
        for made in made {
            map += &range(made.words.as_ptr(), made.words.len());
            map += &range(made.user_ranks.as_ptr().cast(), 2);
        }
        let space = AddressSpace::of(&maps::parse(map.as_bytes()));
        let process = Process::open(std::process::id()).unwrap();
        let top = StackTop { pointer: stack.as_ptr() as u64, registers: registers.to_vec() };
        let known = known.iter().copied().collect();
        let seen = find(Memory::new(&process), &layout(), &space, slice::from_ref(&top), &known).unwrap();
        let found = seen.found.iter().map(|comm| comm.report.address).collect();
        (found, seen.open.iter().map(|(address, open)| (*address, open.n_ranks)).collect())
    }

    fn address(made: &Made) -> u64 {
        made.words.as_ptr() as u64
    }

    /// A communicator in this state of its set-up.
    fn made_so(init: u64) -> Made {
        let mut made = made();
        made.words[index("initState")] = init;
        made
    }

    #[test]
    fn what_a_stack_or_a_register_points_to_is_found() {
        let made = [made_so(IN_PROGRESS), made_so(0)];
        let [making, done] = [&made[0], &made[1]].map(address);
        // Numbers, what is nearly an address, and addresses of what is no communicator.
        let mut stack = vec![0, 7, u64::MAX, making + 4, making + 8, done + 8 * 20, making, 1, done];
        let itself = stack.as_ptr() as u64;
        stack[1] = itself;
        let (mut found, open) = look_at(&stack, &[], &made, &[]);
        found.sort_unstable();
        let mut both = vec![making, done];
        both.sort_unstable();
        assert_eq!((found, open), (both, vec![(making, 3)]));
        assert_eq!(look_at(&[0, done], &[5, making], &made, &[done]), (vec![making], vec![(making, 3)]));
        // The one that is being made has come into the list meanwhile.
        assert_eq!(look_at(&stack, &[], &made, &[making, done]), (vec![], vec![(making, 3)]));
        assert_eq!(look_at(&[0, 0], &[], &made, &[]), (vec![], vec![]));
    }

    #[test]
    fn a_split_whose_ranks_are_not_known_yet_is_being_made_and_not_read() {
        let mut begun = made_so(INTERNAL_ERROR);
        for field in ["rank", "nRanks", "nChannels", "localRank"] {
            begun.words[index(field)] = 0;
        }
        // One that has failed is not being made.
        let made = [begun, made_so(INTERNAL_ERROR)];
        let [begun, failed] = [&made[0], &made[1]].map(address);
        assert_eq!(look_at(&[begun], &[], &made, &[]), (vec![], vec![(begun, 0)]));
        assert_eq!(look_at(&[failed], &[], &made, &[]), (vec![failed], vec![]));
        let [mut cut, _] = made;
        *cut.words.last_mut().unwrap() = 0;
        assert_eq!(look_at(&[begun], &[], &[cut], &[]), (vec![], vec![]));
    }

    #[test]
    fn one_may_be_split_off_unless_no_communicator_has_a_child_or_shares_with_those() {
        let may_split = |child, share, layout: CommLayout| {
            let mut made = made();
            (made.words[index("childAbortFlag")], made.words[CONFIG]) = (child, share);
            let process = Process::open(std::process::id()).unwrap();
            may_split(Memory::new(&process), [(address(&made), &layout)].into_iter()).unwrap()
        };
        assert!(!may_split(0, 0, layout()));
        assert!(may_split(8, 0, layout()) && may_split(0, 1, layout()));
        // Where a field is not known, nothing is.
        let mut older = layout();
        older.children = [older.children[0], None];
        assert!(may_split(0, 0, older));
    }

    #[test]
    fn a_stack_is_read_to_a_bound() {
        let made = [made_so(IN_PROGRESS)];
        let words = usize::try_from(MAX_STACK / 8).unwrap();
        let mut stack = vec![0; words + 1];
        stack[words] = address(&made[0]);
        assert!(look_at(&stack, &[], &made, &[]).0.is_empty());
        stack[words - 1] = address(&made[0]);
        assert_eq!(look_at(&stack, &[], &made, &[]).0, [address(&made[0])]);
    }

    #[test]
    fn each_call_needs_a_communicator_that_is_being_made() {
        let open = |all: &[(u64, u64, u64)]| {
            all.iter()
                .map(|(at, comm_hash, n_ranks)| (*at, Open { comm_hash: *comm_hash, n_ranks: *n_ranks }))
                .collect::<BTreeMap<_, _>>()
        };
        let (none, begun, two) = (open(&[]), open(&[(8, 0, 0)]), open(&[(8, 5, 2), (16, 5, 2)]));
        let lacks = |calls: &[&str], open: &_, ranks| {
            lacks_one(calls, open, true, |hash| if hash == 5 { ranks } else { 0 })
        };
        assert!(!lacks(&[], &none, 0) && lacks(&["ncclCommSplit"], &none, 2));
        assert!(!lacks(&["ncclCommSplit"], &begun, 0));
        assert!(lacks(&["ncclCommSplit", "ncclCommInitRank"], &begun, 0));
        assert!(!lacks(&["ncclCommSplit", "ncclCommInitRank"], &two, 2));
        assert!(lacks(&["ncclCommInitAll"], &begun, 0));
        assert!(lacks(&["ncclCommInitAll"], &two, 1) && !lacks(&["ncclCommInitAll"], &two, 2));
        // A rank without a colour makes none.
        assert!(!lacks_one(&["ncclCommSplit"], &none, false, |_| 0));
        assert!(lacks_one(&["ncclCommSplit", "ncclCommInitRank"], &none, false, |_| 0));
    }
}
