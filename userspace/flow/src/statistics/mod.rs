//! Statistics of a session while it goes on: the model's output, counted by communicator and rank.
//!
//! Pure, like the model: no files, no clock, no kernel. `top` and the metrics of `record` read them.
//! Everything is bounded: things that a target can make many of (communicators, ranks, peers, names) are kept
//! apart up to a limit, and beyond it counted together and shown as such. Planned, derived and measured
//! values have fields of their own, and are never added up.

mod histogram;
mod link_sums;
mod op_window;
mod peer;
mod quantiles;
mod rank;
mod rank_links;
mod sum;
mod tally;
mod totals;

#[cfg(test)]
pub mod tests;

pub use crate::schema::{RankKey, Wait};
pub use histogram::{BOUNDS, Histogram};
pub use link_sums::{Durations, LinkSums};
pub use peer::{PeerKind, PeerStatistics, Traffic};
pub use quantiles::Quantiles;
pub use rank::{CallStatistics, OTHER, OpKind, OpStatistics, RankStatistics};
pub use rank_links::RankLinks;
pub use sum::Sum;
pub use tally::Tally;
pub use totals::{ProcessStatistics, Statistics};
