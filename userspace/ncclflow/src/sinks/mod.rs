//! Sinks for rows: files of JSON lines, what is made of them at the end, and statistics.
//!
//! A new sink is a file here that implements [`Sink`], and a line in [`SessionFiles::new`].

mod budget;
mod compress;
mod flow_rank;
mod json_lines;
mod layout;
mod lazy_lines;
mod line_files;
mod live_statistics;
mod made;
mod messages;
mod output_dir;
mod output_file;
mod over_budget;
#[cfg(feature = "program")]
mod parquet;
mod rank_files;
mod session_file;
mod session_files;
mod side_lines;
mod sink;
mod target_list;
mod window_iterations;

pub(crate) use budget::is_over_max_size;
pub use budget::{DiskBudget, DiskNews, Share};
pub use compress::{Compressed, compress_files};
pub use flow_rank::FlowRanks;
pub(crate) use json_lines::JsonLinesFile;
pub use json_lines::LostLines;
pub use layout::Layout;
pub(crate) use layout::{host_in_names, process_name, window_folders, window_name};
pub use live_statistics::LiveStatistics;
pub use messages::Messages;
pub use output_dir::OutputDir;
pub use output_file::OutputFile;
pub use over_budget::{Budget, OverBudget, Whose as WhoseBudget};
#[cfg(feature = "program")]
pub use parquet::{ParquetFormats, ParquetInput, ParquetTables, ParquetTotals};
pub(crate) use session_file::tell_window_of_removed_lines;
pub use session_file::{
    AttachReport, BufferReport, ChangedLibrary, FilesReport, FilesState, FilesWhen, LeftOut, LibraryReport,
    MaxSizeReport, ProbeReport, SessionReport, SessionState, TargetReport, WindowContainer, WindowEnd,
    WindowReport,
};
pub use session_files::SessionFiles;
pub use sink::{Sink, Written};
pub use target_list::TargetList;
pub use window_iterations::{ProcessIterations, WindowIterations};
