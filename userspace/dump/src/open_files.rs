//! Processes that may open too few files for NCCL. Its proxy thread accepts a connection of each local rank,
//! and polls them all: poll(2) refuses more places than the limit of open files (src/proxy.cc,
//! ncclProxyService). Then the thread ends, and whoever asks it for a connection waits for ever (nccl#550).

use std::fs;

use serde::{Deserialize, Serialize};

use inspect::process::{Process, read_text};

/// Places that the proxy thread polls, by a wide margin (`NCCL_MAX_PROXY_CONNECTIONS`, src/proxy.cc).
const POLLED: u64 = 128;
/// A process that may open no more files than this has run out of them.
const SPARE: u64 = 4;
/// Maximum number of descriptors that are counted.
const MAX_COUNTED: usize = 1 << 20;

/// A process that may open few files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FewFiles {
    pub open: u64,
    /// `RLIMIT_NOFILE`, which the process cannot pass.
    pub limit: u64,
}

/// Returns how many files the process has open and may open, if those are few.
pub(super) fn look(process: &Process) -> Option<FewFiles> {
    let folder = process.proc_path();
    let limit = limit(&read_text(folder.join("limits")).ok()?)?;
    // The count is not known of a process whose descriptors may not be listed.
    let open = fs::read_dir(folder.join("fd")).ok()?.take(MAX_COUNTED).count() as u64;
    few(open, limit)
}

fn few(open: u64, limit: u64) -> Option<FewFiles> {
    (limit < POLLED || limit.saturating_sub(open) <= SPARE).then_some(FewFiles { open, limit })
}

/// Parses the soft limit (fs/proc/base.c, proc_pid_limits): `Max open files  1024  1048576  files`.
fn limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_low_or_reached_is_told_and_no_other() {
        assert_eq!(few(13, 46), Some(FewFiles { open: 13, limit: 46 }));
        assert_eq!(few(1022, 1024), Some(FewFiles { open: 1022, limit: 1024 }));
        assert_eq!((few(900, 1024), few(13, 128)), (None, None));
        let text = "Limit       Soft Limit  Hard Limit  Units\nMax open files            36      4096      files     \n";
        assert_eq!((limit(text), limit("Max open files  unlimited  unlimited  files")), (Some(36), None));
    }

    /// The kernel's own word, against what the C library says of this process.
    #[test]
    fn the_limit_is_read_as_the_kernel_writes_it() {
        let said = limit(&fs::read_to_string("/proc/self/limits").unwrap());
        assert_eq!(said, rustix::process::getrlimit(rustix::process::Resource::Nofile).current);
    }
}
