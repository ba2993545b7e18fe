//! Looks at a file on a local file system without a child, and never waits for it.
//!
//! Files with probes on them are looked at some times a second, for months, and asking a child wakes this
//! program twice each time. A file system of a disk or of memory has nobody behind it who could leave a
//! question unanswered. What can still keep a reader waiting are a lease, a page that is not in memory, and a
//! writer. An open with O_NONBLOCK and a read with RWF_NOWAIT do not wait for these but fail, and then the
//! child is asked.

use std::{
    fs::File,
    io::{self, IoSliceMut},
    os::{fd::BorrowedFd, unix::fs::FileExt as _},
};

use nccl_library::elf::FileOffset;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::protocol::{MAX_PLACE, Status};
use crate::process::{MappedLibrary, library::open_held};

/// Most places of one check.
const MAX_PLACES: usize = 4096;

/// Returns the state of a file, and its bytes at these places.
///
/// # Errors
/// Whatever prevents it, also that it would have to wait. The error says nothing of the file.
pub(super) fn check(
    library: &MappedLibrary,
    places: &[(FileOffset, u32)],
) -> io::Result<(Status, Vec<Vec<u8>>)> {
    look_at(library.held(), places, read)
}

/// Returns the state of a held file, and its bytes at these places as `read` has them.
pub(super) fn look_at(
    held: BorrowedFd<'_>,
    places: &[(FileOffset, u32)],
    read: impl Fn(&File, &mut [u8], u64) -> io::Result<()>,
) -> io::Result<(Status, Vec<Vec<u8>>)> {
    let file = open_held(held)?;
    let bytes = |(at, length): &(FileOffset, u32)| {
        let mut bytes = vec![0; (*length).min(MAX_PLACE) as usize];
        read(&file, &mut bytes, at.0)?;
        Ok(bytes)
    };
    let parts = places.iter().take(MAX_PLACES).map(bytes).collect::<io::Result<_>>()?;
    Ok((Status::of(&file.metadata()?), parts))
}

fn read(file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    match preadv2(file, &mut [IoSliceMut::new(into)], at, ReadWriteFlags::NOWAIT) {
        Ok(read) if read == into.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        // The file system does not know the flag (tmpfs, and overlays on some kernels).
        Err(Errno::OPNOTSUPP) => file.read_exact_at(into, at),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::process::{LibraryId, MappedFile, library::FileSystem};

    fn library(path: &std::path::Path) -> MappedLibrary {
        let held = rustix::fs::open(path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let file = MappedFile {
            id: LibraryId::from(&fs::metadata(path).unwrap()),
            file_system: FileSystem::default(),
            path: PathBuf::new(),
            deleted: false,
        };
        MappedLibrary::new(file, held)
    }

    #[test]
    fn it_says_what_the_file_is_and_has() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"0123456789").unwrap();
        let library = library(file.path());
        let places = [(FileOffset(3), 2), (FileOffset(8), 2)];
        let (status, parts) = check(&library, &places).unwrap();
        assert_eq!((status.id, status.links), (library.id, 1));
        assert_eq!(parts, [b"34".to_vec(), b"89".to_vec()]);
        assert!(check(&library, &[(FileOffset(9), 2)]).is_err(), "it ends before");
        fs::remove_file(file.path()).unwrap();
        assert_eq!(check(&library, &[]).unwrap().0.links, 0, "deleted, and held");
    }

    #[test]
    fn a_lease_is_not_waited_for() {
        use std::os::fd::AsRawFd as _;
        let file = tempfile::NamedTempFile::new().unwrap();
        // SAFETY: concerns the file of this test only.
        let leased = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        if !test_support::need("leases", leased == 0, "run it where files can be leased") {
            return;
        }
        // A lease is broken with a signal, which would end the test.
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        let library = library(file.path());
        let begun = std::time::Instant::now();
        assert!(check(&library, &[]).is_err());
        // The kernel takes a lease away after 45 s (/proc/sys/fs/lease-break-time).
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
    }
}
