//! The flag file of `--window-flag`.

use std::{
    ffi::OsString,
    fs,
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

/// A file whose existence asks for an open window. On a file system without events (NFS, where another host
/// makes the file) it is looked for at intervals.
#[derive(Debug)]
pub(super) struct FlagFile {
    path: PathBuf,
    name: OsString,
    /// Readable when something happens in the file's folder.
    events: OwnedFd,
}

impl FlagFile {
    /// Watches for the file. Its folder must exist.
    pub(super) fn watch(path: &Path) -> Result<Self> {
        let name =
            path.file_name().with_context(|| format!("`{}` names no file", path.display()))?.to_owned();
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let events =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).context("making an inotify")?;
        let wanted = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::MOVED_FROM;
        inotify::add_watch(&events, folder, wanted | WatchFlags::ONLYDIR)
            .with_context(|| format!("cannot watch the folder `{}` of the flag file", folder.display()))?;
        Ok(Self { path: path.to_owned(), name, events })
    }

    /// Returns a descriptor that is readable when something happens in that folder.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Tells whether the file exists; a dangling link counts.
    pub(super) fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok()
    }

    /// Tells whether the file has gone since the last call, though it may be there again.
    pub(super) fn has_gone(&self) -> bool {
        let mut buffer = [const { MaybeUninit::uninit() }; 4096];
        let mut reader = inotify::Reader::new(&self.events, &mut buffer);
        let mut gone = false;
        // An error means that there are no more events.
        while let Ok(event) = reader.next() {
            let is_it = event.file_name().is_some_and(|name| name.to_bytes() == self.name.as_bytes());
            gone |= is_it && event.events().intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_goes_and_comes_again_unseen() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("flag");
        let flag = FlagFile::watch(&path).unwrap();
        assert!(!flag.is_there() && !flag.has_gone());
        fs::write(&path, [])?;
        assert!(flag.is_there() && !flag.has_gone());
        fs::write(folder.path().join("other"), [])?;
        fs::remove_file(folder.path().join("other"))?;
        assert!(!flag.has_gone(), "another file has");
        fs::remove_file(&path)?;
        fs::write(&path, [])?;
        assert!(flag.is_there() && flag.has_gone() && !flag.has_gone());
        assert!(FlagFile::watch(&folder.path().join("no/such/flag")).is_err());
        Ok(())
    }
}
