//! Resources that the host is short of now and can have again soon. A caller that finds such an error tries
//! again; the error says nothing of a file or a process.

use std::io;

/// Tells whether descriptors or memory are short.
pub fn is_of_host(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Tells whether room on the disk, or under a limit, is short.
pub fn is_of_disk(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
