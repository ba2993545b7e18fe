//! Statistics of a session while it goes on: the model's output, counted by communicator and rank.
//!
//! Pure, like the model: no files, no clock, no kernel. `top` and the metrics of `record` read them.
//! Everything is bounded: things that a target can make many of (communicators, ranks, peers, names) are kept
//! apart up to a limit, and beyond it counted together and shown as such. Planned, derived and measured
//! values have fields of their own, and are never added up.

mod durations;
mod links;
mod ranges;
mod rank;
mod tally;

#[cfg(test)]
mod tests;

pub use crate::schema::{RankKey, Wait};
pub use durations::{BOUNDS, Durations, Histogram, Quantiles, Sum};
pub use links::{LinkSums, RankLinks};
pub use ranges::Ranges;
pub use rank::{
    CallStatistics, OTHER, OpKind, OpStatistics, PeerKind, PeerStatistics, RankStatistics, Traffic,
};
pub use tally::{ProcessStatistics, Statistics, Tally};
