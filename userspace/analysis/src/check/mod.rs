//! Analyses of recordings across ranks and hosts: how much went over which link, which rank waited for which,
//! and whether the ranks agree.
//!
//! Everything here comes from recordings. Times of several hosts are compared by [`crate::slow`] alone, which
//! knows how far their clocks differ.

mod attribution;
mod by_number;
mod call;
mod call_lines;
mod call_marks;
mod check_text;
mod collectives;
mod communicator_check;
mod first_difference;
mod folder_rows;
mod memory_limit;
mod ownership;
mod p2p;
mod parts;
mod row_source;
mod running;
mod summary;
mod summary_text;
mod twice;

pub(crate) use check_text::by_name;
pub use check_text::{headline, write_check};
pub(crate) use communicator_check::JobPart;
pub use communicator_check::{
    CheckReport, CommunicatorCheck, Finding, FindingKind, JobCheck, Place, Verdict, check, check_jobs,
};
pub(crate) use communicator_check::{NOTHING, SLOWNESS};
pub use first_difference::{DifferingRanks, FirstDifference};
pub(crate) use ownership::Claims;
pub use row_source::ReadingProgress;
pub(crate) use row_source::{FolderFacts, Gather, read_sources};
pub(crate) use running::RunningCheck;
pub use summary::{RankReport, SummaryReport, summarize};
pub use summary_text::{headline as summary_headline, write_summary};
