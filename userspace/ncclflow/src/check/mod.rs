//! What recordings say, across ranks and hosts: who moved how much over which link and waited for whom, and
//! whether the ranks agree.
//!
//! Everything here comes from recordings, or from their files of lines. Times are only ever compared with
//! times of the same rank.

mod attribution;
mod by_number;
mod check_text;
mod claims;
mod collectives;
mod communicator_check;
mod p2p;
mod parts;
mod ranges;
mod rank_reader;
mod room;
mod row_source;
mod summary;
mod verdict;

pub use attribution::{Attribution, Cause};
pub use check_text::write_check;
pub use communicator_check::{CheckReport, CommunicatorCheck, Finding, FindingKind, check};
pub use rank_reader::{RankFile, Recording};
pub use row_source::ReadingProgress;
pub use summary::{RankReport, SummaryReport, summarize};
pub use verdict::{Culprit, RankWaits, Reason, Verdict};
