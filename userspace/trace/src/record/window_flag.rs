//! The flag file of `--window-flag`.

use std::{
    ffi::OsStr,
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

use super::container_flags::FlagId;

/// A file whose existence asks for an open window. On a file system without events (NFS, where another host
/// makes the file) it is looked for at intervals.
#[derive(Debug)]
pub(super) struct FlagFile {
    path: PathBuf,
    /// Readable when something happens in the file's folder.
    events: OwnedFd,
    /// Identity of the file when it was last there: containers can see the same file, and see it longer.
    pub(super) id: Option<FlagId>,
    /// A limit has closed the file's window. It opens none before it has gone.
    pub(super) is_spent: bool,
}

impl FlagFile {
    /// Watches for the file. Its folder must exist.
    pub(super) fn watch(path: &Path) -> Result<Self> {
        path.file_name().with_context(|| format!("`{}` names no file", path.display()))?;
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let events =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).context("making an inotify")?;
        let wanted = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::MOVED_FROM;
        inotify::add_watch(&events, folder, wanted | WatchFlags::ONLYDIR)
            .with_context(|| format!("cannot watch the folder `{}` of the flag file", folder.display()))?;
        Ok(Self { path: path.to_owned(), events, id: None, is_spent: false })
    }

    /// Returns a descriptor that is readable when something happens in that folder.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Looks at the file. Tells whether it exists, and whether it has existed since the last call, too.
    pub(super) fn look(&mut self) -> (bool, bool) {
        let has_gone = self.has_gone();
        let is_there = self.is_there();
        if is_there {
            self.id = FlagId::of_path(&self.path).ok().or(self.id);
        }
        self.is_spent &= is_there && !has_gone;
        (is_there, is_there && !has_gone)
    }

    /// Tells whether the file exists; a dangling link counts.
    fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok()
    }

    /// Tells whether the file has gone since the last call, though it may be there again.
    fn has_gone(&self) -> bool {
        let mut buffer = [const { MaybeUninit::uninit() }; 4096];
        let mut reader = inotify::Reader::new(&self.events, &mut buffer);
        let mut gone = false;
        // An error means that there are no more events.
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            let is_it = name.is_some() && name == self.path.file_name();
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
