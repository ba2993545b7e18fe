//! Sinks for rows: files of JSON lines, what is made of them at the end, and statistics.
//!
//! A new sink is a file here that implements [`Sink`], which [`SessionFiles::of_sink`] takes.

mod budget;
mod compress;
mod created_files;
mod flow_rank;
mod json_lines;
mod layout;
mod lazy_lines;
mod line_files;
mod live_statistics;
mod new_file;
mod output_dir;
mod output_file;
mod rank_files;
mod reserved_file;
mod session_file;
mod session_files;
mod sink;

pub use budget::is_over_max_size;
pub use budget::{DiskBudget, DiskNews, Share};
pub use compress::compress_files;
pub use flow_rank::FlowRanks;
pub use json_lines::JsonLinesFile;
pub use json_lines::LostLines;
pub use layout::Layout;
pub use layout::{host_in_names, process_name, window_folders, window_name};
pub use line_files::LineFiles;
pub use live_statistics::LiveStatistics;
pub use new_file::NewFile;
pub use output_dir::OutputDir;
pub use output_file::OutputFile;
pub use reserved_file::ReservedFile;
pub use session_file::{read_session, tell_window_of_removed_lines, write_last_session, write_session};
pub use session_files::SessionFiles;
pub use sink::Sink;
