//! What recordings say, across ranks and hosts: who moved how much over which link and waited for whom, and whether the ranks agree.
//!
//! Everything here comes from the files of recordings. Times are only ever compared with times of the same rank.

mod attribution;
mod collectives;
mod lines;
mod links;
mod p2p;
mod quantiles;
mod rank_reader;
mod report;
mod summary;
mod text;
mod verdict;

pub use attribution::{Attribution, Cause};
pub use lines::{FlowLine, PeerEntry, StepLine};
pub use links::{LinkKey, LinkSummary, OpSummary, OpTimes, RankSummary, WaitSummary};
pub use rank_reader::{RankFile, Recording, recordings};
pub use report::{CheckReport, CommunicatorCheck, Finding, FindingKind, check};
pub use summary::{RankReport, SummaryReport, summarize};
pub use text::write_check;
pub use verdict::{Culprit, RankWaits, Reason, Verdict};
