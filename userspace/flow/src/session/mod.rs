//! The report of a session, `session.json`: one type, which a recording writes and everybody reads.

mod files;
mod lenient;
mod lost_readers;
mod messages;
mod over_budget;
mod probes;
mod recording_totals;
mod report;
mod target;
mod target_list;
mod window;
mod window_iterations;

pub use files::{Compressed, FilesReport, FilesState, MaxSizeReport};
pub use lost_readers::LostReaders;
pub use messages::Messages;
pub use over_budget::{Budget, OverBudget, Whose as WhoseBudget};
pub use probes::{
    AttachReport, BufferKind, BufferReport, CallSource, ChangedLibrary, Level, LibraryReport, LinkKind,
    MissingProbe, ProbePlace, ProbeReport, ProbeStrategy, StepDetail,
};
pub use recording_totals::RecordingTotals;
pub use report::{LeftOut, SessionReport, SessionState};
pub use target::TargetReport;
pub use target_list::{MAX_ENDED_TARGETS, TargetList};
pub use window::{WindowContainer, WindowEnd, WindowReport};
pub use window_iterations::{ProcessIterations, WindowIterations};
