//! At which line each rank called a collective: a second reading, of recordings with stacks, once it is known which
//! collective is asked for. So nothing of stacks is kept while ranks are compared.

use std::collections::{BTreeMap, HashMap};

use flow::schema::{ApiCallRow, FrameRow, MessageRow, OpRow, StackId, StackRow};

use super::{
    rank_reader::FolderClock,
    row_source::{Gather, TakeRows},
};
use crate::{export::CallNumbers, flight_recorder::Function};

/// After a collective was first seen, ranks that come later than this are not waited for: they are known not to have
/// called it.
const WAIT_NS: u64 = 60_000_000_000;

/// Memory of all stacks of a folder, about, that are kept until it is known which are asked for.
const MAX_BYTES: usize = 256 << 20;

/// Where a rank called a collective.
#[derive(Clone, Debug)]
pub(super) struct CallLine {
    pub(super) number: u64,
    pid: u32,
    stack: Option<StackId>,
    /// Outermost first, once they are known.
    frames: Option<Vec<FrameRow>>,
}

impl CallLine {
    pub(super) fn frames(&self) -> Option<Vec<FrameRow>> {
        self.frames.clone()
    }

    #[cfg(test)]
    pub(super) fn for_test(number: u64, frames: Vec<FrameRow>) -> Self {
        Self { number, pid: 0, stack: None, frames: Some(frames) }
    }
}

/// What is known of a rank.
#[derive(Clone, Debug, Default)]
pub(super) struct RankLines {
    /// Its call of the collective that is asked for.
    pub(super) at: Option<CallLine>,
    /// Its last call of a collective before that.
    pub(super) before: Option<CallLine>,
}

impl RankLines {
    fn note(&mut self, wanted: u64, line: CallLine) {
        if line.number == wanted {
            self.at.get_or_insert(line);
        } else if line.number < wanted
            && self.before.as_ref().is_none_or(|before| before.number < line.number)
        {
            self.before = Some(line);
        }
    }
}

/// The lines of all ranks that were asked for.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Collectives by communicator.
    wanted: HashMap<String, u64>,
    /// Wall time after which no rank is waited for.
    until_ns: u64,
    ranks: BTreeMap<(String, i32), RankLines>,
}

impl Lines {
    /// Asks for a collective of a communicator, which was first seen at this wall time.
    pub(super) fn ask(&mut self, communicator: &str, number: u64, first_seen_ns: u64) {
        self.wanted.insert(communicator.to_owned(), number);
        self.until_ns = self.until_ns.max(first_seen_ns.saturating_add(WAIT_NS));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    pub(super) fn of(&self, communicator: &str, rank: i32) -> Option<&RankLines> {
        self.ranks.get(&(communicator.to_owned(), rank))
    }

    #[cfg(test)]
    pub(super) fn insert_for_test(&mut self, communicator: &str, rank: i32, wanted: u64, line: CallLine) {
        self.ranks.entry((communicator.to_owned(), rank)).or_default().note(wanted, line);
    }
}

impl Gather for Lines {
    type Folder = FolderLines;

    fn folder(&self, _clock: Option<FolderClock>) -> FolderLines {
        let wanted = self.wanted.clone();
        FolderLines { wanted, ranks: Vec::new(), stacks: HashMap::new(), bytes: 0 }
    }

    fn until_ns(&self) -> u64 {
        self.until_ns
    }

    fn add(&mut self, folder: FolderLines) -> bool {
        let FolderLines { ranks, stacks, .. } = folder;
        for FolderRank { communicator, rank, mut lines, .. } in ranks {
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
    numbers: CallNumbers,
    lines: RankLines,
}

/// Takes the rows of a folder.
#[derive(Debug)]
pub(super) struct FolderLines {
    wanted: HashMap<String, u64>,
    ranks: Vec<FolderRank>,
    stacks: HashMap<(u32, StackId), Vec<FrameRow>>,
    bytes: usize,
}

impl TakeRows for FolderLines {
    fn rank(&mut self, communicator: &str, rank: i32) -> Option<usize> {
        let wanted = *self.wanted.get(communicator)?;
        self.ranks.push(FolderRank {
            communicator: communicator.to_owned(),
            rank,
            wanted,
            numbers: CallNumbers::default(),
            lines: RankLines::default(),
        });
        Some(self.ranks.len() - 1)
    }

    fn op(&mut self, rank: usize, row: &OpRow) {
        let Some(rank) = self.ranks.get_mut(rank) else { return };
        if row.pattern.is_p2p() || !row.seq.is_multiple_of(2) {
            return;
        }
        let line = CallLine { number: row.seq / 2, pid: row.pid, stack: row.stack, frames: None };
        rank.lines.note(rank.wanted, line);
    }

    fn wants_messages(&self, _rank: usize, _row: &OpRow) -> bool {
        false
    }

    fn message(&mut self, _rank: usize, _row: &MessageRow) {}

    fn wants_calls(&self) -> bool {
        true
    }

    fn call(&mut self, rank: usize, row: &ApiCallRow, was_lost: bool) {
        let Some(rank) = self.ranks.get_mut(rank) else { return };
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
