//! Finds the source line at which each rank called a collective, by a second reading of recordings with
//! stacks. So no stacks are kept while ranks are compared.
//!
//! The second reading begins shortly before the ranks came to that collective and ends soon after, and costs
//! little next to the first. Only if a rank's call is not found in that time, the recordings are read from
//! their beginning.

use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
    sync::Arc,
};

use flow::schema::{ApiCall, FrameRow, Op, RankKey, StackId, StackRow};

use super::{
    call_marks::{Mark, Marks},
    collectives::Difference,
    row_source::{FolderFacts, Gather},
};
use crate::sources::CallNumbers;
use recording::sinks::Sink;
use torch::flight_recorder::Function;

/// Wait for further ranks after a collective was first seen. Later ones are known not to have called it.
const WAIT_NS: u64 = 60_000_000_000;

/// Time before and after that is searched first for calls: host clocks differ less, and most calls are
/// launched sooner.
const NEAR_NS: u64 = 1_000_000_000;

/// Most memory, about, of a folder's stacks until it is known which are needed.
const MAX_BYTES: usize = 256 << 20;

/// A rank's call of a collective, with its stack.
#[derive(Clone, Debug)]
pub(super) struct CallLine {
    pub(super) number: u64,
    pub(super) pid: u32,
    pub(super) stack: Option<StackId>,
    /// Frames, outermost first, once they are known.
    pub(super) frames: Option<Vec<FrameRow>>,
}

/// Calls of a rank.
#[derive(Clone, Debug, Default)]
pub(super) struct RankLines {
    /// The rank's call of the wanted collective.
    at: Option<CallLine>,
    /// The rank's last call of a collective before that.
    before: Option<CallLine>,
}

impl RankLines {
    pub(super) fn note(&mut self, wanted: u64, line: CallLine) {
        if line.number == wanted {
            self.at.get_or_insert(line);
        } else if line.number < wanted
            && self.before.as_ref().is_none_or(|before| before.number < line.number)
        {
            self.before = Some(line);
        }
    }
}

/// A collective whose lines are wanted.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    number: u64,
    /// Wall times at which it, and the one before it, were first seen; `before_seen_ns` where known.
    first_seen_ns: u64,
    before_seen_ns: Option<u64>,
    /// Ranks, and whether they called it.
    ranks: Vec<(i32, bool)>,
    /// Marks of ranks with recorded calls, each with the wall time at which the second reading can begin.
    marks: BTreeMap<i32, (u64, Mark)>,
}

impl Wanted {
    /// Returns what a second reading is to find. `marks`: of ranks, with the offset from their clock to wall
    /// time.
    pub(super) fn of(difference: &Difference, marks: &BTreeMap<i32, (u64, Marks)>) -> Self {
        let Difference { number, first_seen_ns, before_seen_ns, ref groups } = *difference;
        let with_call = |(call, ranks): &(Option<_>, Vec<i32>)| {
            let has_called = call.is_some();
            ranks.iter().map(move |rank| (*rank, has_called)).collect::<Vec<_>>()
        };
        let ranks = groups.iter().flat_map(with_call).collect();
        let mut wanted = Self { number, first_seen_ns, before_seen_ns, ranks, ..Self::default() };
        for (rank, (offset, marks)) in marks {
            wanted.mark(*rank, marks, *offset);
        }
        wanted
    }

    /// Notes where the counting of this rank's calls can begin. `offset`: from its clock to wall time.
    fn mark(&mut self, rank: i32, marks: &Marks, offset: u64) {
        if let Some(mark) = marks.before(self.number) {
            self.marks.insert(rank, (mark.at.0.saturating_add(offset), mark));
        }
    }

    /// Returns the wall time from which rows are looked for first.
    fn begin_ns(&self, is_of_calls: bool) -> u64 {
        let known = |ns: Option<u64>| ns.filter(|ns| *ns < u64::MAX).unwrap_or(0);
        let seen = if is_of_calls {
            let mark = |(rank, _): &(i32, bool)| self.marks.get(rank).map_or(0, |(wall_ns, _)| *wall_ns);
            self.ranks.iter().map(mark).min()
        } else {
            self.before_seen_ns
        };
        known(seen).saturating_sub(NEAR_NS)
    }
}

/// The lines of all ranks that were asked for.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Wanted collectives by communicator.
    wanted: Arc<HashMap<String, Wanted>>,
    /// Recordings are read from their beginning.
    is_whole: bool,
    pub(super) ranks: BTreeMap<(String, i32), RankLines>,
}

impl Lines {
    pub(super) fn new(wanted: HashMap<String, Wanted>) -> Self {
        Self { wanted: Arc::new(wanted), ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Tells whether a line is missing that may be elsewhere in the recordings.
    pub(super) fn is_incomplete(&self) -> bool {
        let mut ranks =
            self.wanted.iter().flat_map(|(name, of)| of.ranks.iter().map(move |rank| (name, rank)));
        let is_missing = |(name, (rank, has_called)): (&String, &(i32, bool))| {
            let line = self.of(name, *rank, *has_called);
            line.is_none_or(|line| line.stack.is_none())
        };
        !self.is_whole && ranks.any(is_missing)
    }

    /// Begins anew, for reading from the beginning.
    pub(super) fn whole(self) -> Self {
        Self { wanted: self.wanted, is_whole: true, ranks: BTreeMap::new() }
    }

    /// Returns a rank's call of the wanted collective, or, of a rank that did not call it, the last before.
    pub(super) fn of(&self, communicator: &str, rank: i32, has_called: bool) -> Option<&CallLine> {
        let lines = self.ranks.get(&(communicator.to_owned(), rank))?;
        if has_called { lines.at.as_ref() } else { lines.before.as_ref() }
    }
}

impl Gather for Lines {
    type Folder = FolderLines;

    fn folder(&self, facts: FolderFacts) -> FolderLines {
        FolderLines {
            wanted: Arc::clone(&self.wanted),
            is_whole: self.is_whole,
            facts,
            ranks: HashMap::new(),
            stacks: HashMap::new(),
            bytes: 0,
        }
    }

    fn times(&self, is_of_calls: bool) -> RangeInclusive<u64> {
        let seen = self.wanted.values().map(|wanted| wanted.first_seen_ns).max().unwrap_or(0);
        if self.is_whole {
            return 0..=seen.saturating_add(WAIT_NS);
        }
        let from = self.wanted.values().map(|wanted| wanted.begin_ns(is_of_calls)).min().unwrap_or(0);
        from..=seen.saturating_add(NEAR_NS)
    }

    fn add(&mut self, folder: FolderLines) -> bool {
        let FolderLines { ranks, stacks, .. } = folder;
        let ranks = ranks.into_values().flatten();
        for FolderRank { communicator, rank, mut lines, is_counted, .. } in ranks {
            if !is_counted {
                continue;
            }
            for line in [&mut lines.at, &mut lines.before].into_iter().flatten() {
                line.frames = line.stack.and_then(|stack| stacks.get(&(line.pid, stack))).cloned();
            }
            // Of two recordings of a rank, the first counts.
            self.ranks.entry((communicator, rank)).or_insert(lines);
        }
        true
    }
}

/// A rank of the folder.
#[derive(Debug)]
struct FolderRank {
    communicator: String,
    rank: i32,
    wanted: u64,
    /// The call from which on calls are counted.
    mark: Option<Mark>,
    numbers: CallNumbers,
    /// The rank's ops have the same numbers as in the whole recording.
    is_counted: bool,
    lines: RankLines,
}

/// Takes the rows of a folder.
#[derive(Debug)]
pub(super) struct FolderLines {
    wanted: Arc<HashMap<String, Wanted>>,
    is_whole: bool,
    facts: FolderFacts,
    /// Ranks by key; `None`: the rank's lines are not wanted.
    ranks: HashMap<RankKey, Option<FolderRank>>,
    stacks: HashMap<(u32, StackId), Vec<FrameRow>>,
    bytes: usize,
}

impl FolderLines {
    /// Returns the rank if its rows are wanted; adds it if it is new.
    fn rank(&mut self, key: RankKey) -> Option<&mut FolderRank> {
        let new = || {
            let communicator = self.facts.claims.name(key);
            let wanted = self.wanted.get(&communicator)?;
            let mark = wanted.marks.get(&key.rank).filter(|_| !self.is_whole);
            Some(FolderRank {
                communicator,
                rank: key.rank,
                wanted: wanted.number,
                mark: mark.map(|(_, mark)| *mark),
                numbers: CallNumbers::default(),
                is_counted: true,
                lines: RankLines::default(),
            })
        };
        self.ranks.entry(key).or_insert_with(new).as_mut()
    }
}

impl Sink for FolderLines {
    fn op(&mut self, op: &Op) {
        let (row, is_whole) = (&op.row, self.is_whole);
        let Some(rank) = self.rank(op.rank) else { return };
        // Replays of graphs count in NCCL before they are seen.
        rank.is_counted &= is_whole || row.captured_seq.is_none() || row.graph_launch.is_some();
        if row.pattern.is_p2p() || row.graph_launch.is_some() || !row.seq.is_multiple_of(2) {
            return;
        }
        let line = CallLine { number: row.seq / 2, pid: row.pid, stack: row.stack, frames: None };
        rank.lines.note(rank.wanted, line);
    }

    fn wants_messages(&self, _op: &Op) -> bool {
        false
    }

    fn call(&mut self, call: &ApiCall) {
        let Some(key) = call.rank.filter(|_| self.facts.takes_calls) else { return };
        let was_lost = self.facts.was_lost;
        let Some(rank) = self.rank(key) else { return };
        let row = &call.row;
        if let Some(mark) = rank.mark {
            if mark.at != (row.ts_ns, row.tid) {
                return;
            }
            (rank.mark, rank.numbers) = (None, mark.numbers);
        }
        let is_counted = Function::of(row.function.as_str()).is_some_and(Function::is_counted);
        let number = rank.numbers.number(is_counted, row.launched, was_lost);
        if is_counted {
            rank.lines.note(rank.wanted, CallLine { number, pid: row.pid, stack: row.stack, frames: None });
        }
    }

    fn stack(&mut self, row: &StackRow) {
        self.bytes = self.bytes.saturating_add(row.memory());
        if self.bytes <= MAX_BYTES {
            self.stacks.insert((row.pid, row.stack), row.frames.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn wanted() -> Wanted {
        Wanted {
            number: 5,
            first_seen_ns: 90 * SECOND,
            before_seen_ns: Some(80 * SECOND),
            ranks: vec![(0, true), (1, false)],
            marks: BTreeMap::new(),
        }
    }

    fn asked(wanted: Wanted) -> Lines {
        Lines::new(HashMap::from([("0x7".to_owned(), wanted)]))
    }

    fn marks(from_ns: u64) -> Marks {
        let (mut marks, mut numbers) = (Marks::default(), CallNumbers::default());
        for call in 0..8 {
            marks.note((from_ns + call * SECOND, 1), numbers);
            numbers.number(true, Some(0), false);
        }
        marks
    }

    #[test]
    fn it_begins_before_the_collective_before_and_ends_soon() {
        let seconds = |from: u64, until: u64| from * SECOND..=until * SECOND;
        assert_eq!(asked(wanted()).times(false), seconds(79, 91));
        assert_eq!(asked(wanted()).whole().times(false), seconds(0, 150));
        // Calls are counted from the first one on, or from a mark of each rank: the fifth call is number 4.
        assert_eq!(asked(wanted()).times(true), seconds(0, 91));
        let mut marked = wanted();
        marked.mark(0, &marks(60 * SECOND), 10 * SECOND);
        assert_eq!(asked(wanted()).times(true), seconds(0, 91), "the other rank has none");
        marked.mark(1, &marks(50 * SECOND), 10 * SECOND);
        assert_eq!(asked(marked).times(true), seconds(63, 91));
        // Unknown clocks.
        let unknown = Wanted { first_seen_ns: u64::MAX, before_seen_ns: Some(u64::MAX), ..wanted() };
        assert_eq!(asked(unknown).times(false), 0..=u64::MAX);
    }

    #[test]
    fn what_was_not_found_is_looked_for_from_the_beginning() {
        let line =
            |number, stack: Option<u64>| CallLine { number, pid: 1, stack: stack.map(StackId), frames: None };
        let insert = |lines: &mut Lines, rank, line| {
            lines.ranks.entry(("0x7".to_owned(), rank)).or_default().note(5, line);
        };
        let mut lines = asked(wanted());
        assert!(lines.is_incomplete());
        insert(&mut lines, 0, line(5, Some(3)));
        assert!(lines.is_incomplete(), "nothing of rank 1");
        insert(&mut lines, 1, line(4, None));
        assert!(lines.is_incomplete(), "the stack of rank 1");
        assert!(!lines.whole().is_incomplete(), "more is not to be had");
        let mut lines = asked(wanted());
        insert(&mut lines, 0, line(5, Some(3)));
        insert(&mut lines, 1, line(4, Some(3)));
        assert!(!lines.is_incomplete());
    }
}
