//! Files: what the model gives out, as JSON lines, and their aggregate.

mod aggregate;
mod api_files;
mod api_line;
mod budget;
mod compress;
mod flow_files;
mod json_lines;
mod lines;
mod made;
mod megatrace;
mod output_dir;
mod output_file;
mod read_lines;
mod session_file;
mod session_files;

pub use aggregate::{Aggregated, MAX_AGGREGATED, aggregate_directory};
pub use api_files::{ApiFiles, ApiFormat, ApiOutputOptions};
pub use api_line::{ApiCallLine, OtherCallLine};
pub(crate) use budget::is_over_max_size;
pub use budget::{DiskBudget, DiskNews, Share};
pub use compress::{Compressed, compress_files};
pub use flow_files::{FlowFileSummary, FlowFiles};
pub use json_lines::{JsonLinesFile, LostLines};
pub use lines::{FlowStepLine, PeerLine, ProxyFlowLine};
pub use output_dir::OutputDir;
pub use output_file::OutputFile;
pub(crate) use read_lines::{for_each_line, ranks_of};
pub use session_file::{
    AttachReport, BufferReport, ClockReport, CommunicatorReport, CpuReport, LibraryReport, LossReport,
    MaxSizeReport, ProbeReport, SessionReport, SessionState, TargetReport, WindowEnd, WindowReport,
};
pub use session_files::SessionFiles;
