//! Targets: processes, and the NCCL libraries that they have mapped.

pub mod census;
mod cgroup;
mod cgroup_folders;
pub mod description;
pub mod discover;
pub mod filter;
mod fuse_connections;
pub mod identify;
pub mod library;
pub mod maps;
#[doc(hidden)]
pub mod mounts;
pub(crate) mod os_error;
pub mod pid_namespace;
mod processor_limits;
pub(crate) mod raw_path;
mod returns;
pub mod running;
mod tenant;

pub use crate::proc_text::{
    MAX_TEXT, has_ended, read_text, run_times, stat_field, stat_name, status_field, turns,
};
pub use census::{Census, Visibility, is_hidden};
pub use cgroup_folders::cgroup_folder;
pub use description::{Description, Users, age_seconds};
pub use discover::{Denied, Discovered, Sighting, Unfinished, denied_remedy, in_brackets, pids};
pub use filter::Filter;
pub use fuse_connections::fuse_connections_that_owe_an_answer;
pub use identify::Evidence;
pub use library::{LibraryError, LibraryId, MappedFile, MappedLibrary, why_unread};
pub use pid_namespace::in_first_pid_namespace;
pub use processor_limits::{ThrottleWatch, Throttled};
pub use returns::{can_end_processes, no_return_probes};
pub use running::{Process, ProcessError};
pub use running::{is_gone, try_started};
pub use tenant::{Tenant, Tenants};

use flow::text::plain;

/// Makes a name or path that the target chose safe for root's terminal, see [`plain`].
pub fn printable(text: &str) -> String {
    plain(text).into_owned()
}
