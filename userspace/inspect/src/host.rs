//! Name of this host.

/// Returns the host's name, as `uname -n` has it. It tells rows, reports and dumps of several hosts apart.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
