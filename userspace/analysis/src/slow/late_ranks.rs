//! Lateness of the ranks of a communicator, iteration by iteration.

use std::collections::BTreeMap;

use flow::schema::StackId;

use super::launches::{Late, median, sum};

/// The job's iterations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Iteration {
    pub(super) typical_ns: u64,
    pub(super) mean_ns: u64,
    pub(super) count: u64,
}

/// Lateness of ranks of a communicator on one host; ranks by index into [`Evidence::ranks`].
#[derive(Clone, Debug, Default)]
pub(super) struct LateRanks {
    pub(super) ranks: Vec<usize>,
    pub(super) late: Late,
    /// Length of iterations, if there are some.
    pub(super) iteration: Option<Iteration>,
    /// Lines of code at which ranks launch late, in the order of ranks; none, if no stacks were recorded.
    pub(super) lines: Vec<Option<LateLine>>,
}

/// The line of code at which most of a rank's late launches were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LateLine {
    /// `model.py:88 (backward)`
    pub(super) line: String,
    /// Number of iterations in which it was the first late one, and of all late ones.
    pub(super) count: usize,
    pub(super) of: usize,
}

/// Part of an iteration by which launches are late, so that their lines are looked at.
const LATE_PART: u64 = 50;

impl LateRanks {
    pub(super) fn new(ranks: Vec<usize>, late: Late) -> Self {
        let made = Self { ranks, late, iteration: None, lines: Vec::new() };
        Self { iteration: made.iteration(), ..made }
    }

    /// Notes the lines of late launches. `line`: that of a stack of a rank, by its place in `late.ranks`.
    pub(super) fn note_lines(&mut self, line: &dyn Fn(usize, StackId) -> Option<String>) {
        let Some(iteration) = self.iteration else { return };
        let of_rank = |at: usize| {
            let mut lines: BTreeMap<String, usize> = BTreeMap::new();
            for one in &self.late.iterations {
                let late_ns = one.late_ns.get(at).copied().unwrap_or(0);
                let stack = one.late_at.get(at).copied().flatten();
                let is_late = late_ns.saturating_mul(LATE_PART) >= iteration.typical_ns;
                if let Some(line) = stack.filter(|_| is_late).and_then(|stack| line(at, stack)) {
                    *lines.entry(line).or_default() += 1;
                }
            }
            let of = lines.values().sum();
            let (line, count) = lines.into_iter().max_by_key(|(_, count)| *count)?;
            Some(LateLine { line, count, of })
        };
        self.lines = (0..self.ranks.len()).map(of_rank).collect();
    }

    /// Returns the line at which a rank launches late.
    pub(super) fn line(&self, rank: usize) -> Option<&LateLine> {
        let at = self.ranks.iter().position(|other| *other == rank)?;
        self.lines.get(at)?.as_ref()
    }

    /// Leaves out what was before a wall time.
    pub(super) fn since(&mut self, wall_ns: u64) {
        self.late.iterations.retain(|iteration| iteration.begun_ns >= wall_ns);
        self.iteration = self.iteration();
    }

    /// Returns the lateness of a rank in each iteration, in the order of iterations.
    pub(super) fn of(&self, rank: usize) -> Vec<u64> {
        let Some(at) = self.ranks.iter().position(|other| *other == rank) else { return Vec::new() };
        let iterations = self.late.iterations.iter();
        iterations.map(|iteration| iteration.late_ns.get(at).copied().unwrap_or(0)).collect()
    }

    /// Returns begin and length of iterations that were seen whole.
    pub(super) fn lengths(&self) -> Vec<(u64, u64)> {
        let iterations = self.late.iterations.iter();
        iterations.filter_map(|iteration| Some((iteration.begun_ns, iteration.lasted_ns?))).collect()
    }

    fn iteration(&self) -> Option<Iteration> {
        let lasted: Vec<u64> = self.lengths().into_iter().map(|(_, ns)| ns).collect();
        let count = lasted.len() as u64;
        let mean_ns = sum(lasted.iter().copied()).checked_div(count)?;
        Some(Iteration { typical_ns: median(lasted), mean_ns, count })
    }
}
