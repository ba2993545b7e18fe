//! The report of a session, `session.json`: one type, which a recording writes and everybody reads.

mod files;
mod lenient;
mod messages;
mod over_budget;
mod probes;
mod report;
mod targets;
mod window;

pub use files::{Compressed, FilesReport, FilesState, MaxSizeReport, RecordingTotals};
pub use messages::Messages;
pub use over_budget::{Budget, OverBudget, Whose as WhoseBudget};
pub use probes::{
    AttachReport, BufferKind, BufferReport, CallSource, ChangedLibrary, Level, LibraryReport, LinkKind,
    MissingProbe, ProbePlace, ProbeReport, ProbeStrategy, StepDetail,
};
pub use report::{LeftOut, LostReaders, SessionReport, SessionState};
pub use targets::{MAX_ENDED_TARGETS, TargetList, TargetReport};
pub use window::{
    ProcessIterations, UncutProcess, WindowContainer, WindowEnd, WindowIterations, WindowReport,
};
