//! Files: what the model gives out, as JSON lines, and their aggregate.

mod aggregate;
mod flow_files;
mod json_lines;
mod lines;
mod output_dir;
mod session_file;

pub use aggregate::{Aggregated, aggregate_directory};
pub use flow_files::{FlowFileSummary, FlowFiles};
pub use json_lines::JsonLinesFile;
pub use lines::{FlowStepLine, HostInfo, PeerLine, ProxyFlowLine};
pub use output_dir::OutputDir;
pub use session_file::{
    BufferReport, ClockReport, CommunicatorReport, CpuReport, LibraryReport, LossReport, ProbeReport,
    SessionReport, SessionState, TargetReport,
};
