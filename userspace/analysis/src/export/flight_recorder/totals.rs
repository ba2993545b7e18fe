//! Numbers of entries that were written, and that were left out.

use flow::text::counts;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) entries: u64,
    pub(super) without_communicator: u64,
    pub(super) not_in_torch: u64,
    pub(super) of_one_rank: u64,
    pub(super) p2p: u64,
    pub(super) left_out_p2p: u64,
    pub(super) launched_replays: u64,
    pub(super) before: u64,
    pub(super) after: u64,
    pub(super) without_stack: u64,
    pub(super) uncertain: u64,
    pub(super) inferred: u64,
}

impl Totals {
    /// Returns notes on what is not in the files, or may surprise. `derived` counts ranks of the job that
    /// nobody stated.
    pub(super) fn notes(&self, derived: u64) -> impl Iterator<Item = String> {
        counts([
            (
                self.before,
                "entries are left out, as they are from before the first collective that all recorded ranks of their group have",
            ),
            (
                self.after,
                "entries are left out, as they are from the last second, and other ranks of their group had not come to them when the recording ended",
            ),
            (self.without_stack, "entries have no frames: no stack was recorded for them (record --stacks)"),
            (
                self.uncertain,
                "ranks of communicators may be numbered otherwise than others: their beginning was not recorded, and more was launched than called",
            ),
            (
                self.inferred,
                "ranks of communicators were not recorded, and are assumed to have the same numbers in the job",
            ),
            (derived, "ranks of the job are derived: the ranks in the largest communicators"),
            (self.without_communicator, "calls have no known communicator, and no entry"),
            (self.not_in_torch, "calls are of functions that torch has no operation for, and have no entry"),
            (self.of_one_rank, "calls or ops are of communicators of one rank, and have no entry"),
            (
                self.launched_replays,
                "ops are replays of CUDA graphs of which only the graph's launch was seen: they have no entry",
            ),
            (self.left_out_p2p, "sends and receives are left out (--collectives-only)"),
            (
                self.p2p - self.left_out_p2p,
                "sends and receives have entries of their own, as their groups are not known: torch's analyser may call them mismatched, and compares no collectives of their group after that; --collectives-only leaves them out",
            ),
        ])
    }
}
