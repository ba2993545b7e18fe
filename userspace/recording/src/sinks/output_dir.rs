//! The folder that a session writes to. As root, and perhaps in a folder that others can write to too: no
//! link is followed, and nothing that exists is opened for writing.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat, fstat, fstatvfs, linkat, mkdirat,
        openat, renameat, renameat_with, statat, unlinkat,
    },
    io::Errno,
};

use super::{
    budget::{Account, DiskBudget, ENTRY, Share},
    created_files::FileId,
    output_file::{OutputFile, Source},
};

#[derive(Debug)]
pub struct OutputDir {
    path: PathBuf,
    pub(super) fd: OwnedFd,
    /// The folder did not exist before; we made it.
    is_new: bool,
    /// Account for what is written to the folder; `None` without a limit.
    account: Option<Account>,
}

/// The entry under a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) id: FileId,
    pub(super) is_folder: bool,
    pub(super) bytes: u64,
}

impl From<Stat> for Found {
    fn from(stat: Stat) -> Self {
        Self {
            id: FileId { device: stat.st_dev, inode: stat.st_ino },
            is_folder: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
        }
    }
}

const OTHERS: u32 = 0o077;

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
const NEW_FILE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

impl OutputDir {
    /// Creates the folder (mode 0700) and those above it, or takes an existing empty one.
    pub fn create(path: &Path) -> Result<Self> {
        let mut made = mkdirat(CWD, path, Mode::RWXU);
        if made == Err(Errno::NOENT) {
            Self::open_or_create(path.parent().unwrap_or(Path::new("")))?;
            made = mkdirat(CWD, path, Mode::RWXU);
        }
        let is_new = match made {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make the folder `{}`", path.display()));
            }
        };
        let dir = Self { is_new, ..Self::open(path)? };
        let entries = dir.entries().with_context(|| format!("cannot list `{}`", path.display()))?;
        if !entries.is_empty() {
            bail!("`{}` exists and is not empty: give -o a folder that does not exist yet", path.display());
        }
        let writable = rustix::fs::accessat(&dir.fd, ".", rustix::fs::Access::WRITE_OK, AtFlags::EACCESS);
        writable.with_context(|| format!("cannot write to the folder `{}`", path.display()))?;
        Ok(dir)
    }

    /// Opens a folder that a file is to be made in. If it is not there, it is made (mode 0700), and so are
    /// those above it: each inside the one that was opened before, so that nobody can put a link in its
    /// place.
    ///
    /// # Errors
    /// It is no folder, or cannot be made.
    pub fn open_or_create(path: &Path) -> Result<Self> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        if path.exists() {
            return Self::open(path);
        }
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (Some(Component::Normal(name)), false) = (path.components().next_back(), above == path) else {
            bail!("`{}` does not exist", path.display());
        };
        // Links on the way to what is there are the user's own.
        let above =
            if above.exists() { Self::open_to_read(above)?.fd } else { Self::open_or_create(above)?.fd };
        let failed = || format!("cannot make the folder `{}`", path.display());
        mkdirat(&above, name, Mode::RWXU).with_context(failed)?;
        let fd = openat(&above, name, DIR_FLAGS, Mode::empty()).with_context(failed)?;
        Ok(Self { path: path.to_path_buf(), fd, is_new: true, account: None })
    }

    /// Opens an existing folder. A symbolic link in its place is refused.
    pub fn open(path: &Path) -> Result<Self> {
        let fd = openat(CWD, path, DIR_FLAGS, Mode::empty()).with_context(|| {
            let path = path.display();
            format!("cannot open `{path}` as a folder (links are not followed; another user's takes root)")
        })?;
        Ok(Self { path: path.to_path_buf(), fd, is_new: false, account: None })
    }

    /// Opens a folder that a user has named, to read it. A link in its place is followed; links inside are not.
    pub fn open_to_read(path: &Path) -> Result<Self> {
        let flags = DIR_FLAGS.difference(OFlags::NOFOLLOW);
        let fd = openat(CWD, path, flags, Mode::empty()).map_err(|error| {
            let advice = if error == Errno::ACCESS { ": read it as who recorded it, or as root" } else { "" };
            anyhow!(error).context(format!("cannot open the folder `{}`{advice}", path.display()))
        })?;
        Ok(Self { path: path.to_path_buf(), fd, is_new: false, account: None })
    }

    /// Limits what is written to this folder, through this handle and those opened from it, to `limit` bytes
    /// on disk. `compress`: room is kept to compress files at the end.
    pub fn limited(self, limit: u64, compress: bool) -> io::Result<Self> {
        let block = fstatvfs(&self.fd)?.f_frsize;
        let root = Self { account: None, ..self.try_clone()? };
        let account = DiskBudget::limit_folder(root, limit, block, compress);
        Ok(Self { account: Some(account), ..self })
    }

    pub fn budget(&self) -> Option<&DiskBudget> {
        self.account.as_ref().map(|account| &account.budget)
    }

    /// Returns the same folder for line files: under a limit they are removed before any recording is.
    pub fn for_lines(&self) -> io::Result<Self> {
        let account = self.account.as_ref().map(Account::of_lines);
        Ok(Self { account, ..self.try_clone()? })
    }

    /// Tells whether what was made here was removed, for the limit or its age.
    pub fn is_removed(&self) -> bool {
        self.account.as_ref().is_some_and(Account::is_removed)
    }

    /// Notes that records are lost, as there is no room under the limit.
    pub fn refuse(&self) {
        self.account.iter().for_each(Account::refuse);
    }

    /// Creates a file inside for records.
    pub(crate) fn create_records(&self, name: &str) -> io::Result<OutputFile> {
        self.create_from(Share::Records, name)
    }

    /// Makes room under the limit for so many bytes without taking them. `false`: not enough can be removed.
    pub fn make_room(&self, bytes: u64) -> bool {
        self.account.as_ref().is_none_or(|account| account.make_room(bytes))
    }

    /// Makes room under the limit for an op's lines.
    pub(crate) fn make_some_room(&self) -> bool {
        self.account.as_ref().is_none_or(Account::make_some_room)
    }

    /// Tells whether lines are no longer written: there is no room under the limit, and nothing to remove.
    pub(super) fn has_no_room(&self) -> bool {
        self.account.as_ref().is_some_and(Account::is_full)
    }

    pub fn keep(&self, share: Share, bytes: u64) {
        if let Some(account) = &self.account {
            account.keep(share, account.budget.cost(bytes) + ENTRY);
        }
    }

    /// Frees the room kept for this folder, as everything in it is written. If it is a window's, it may be
    /// removed.
    pub fn complete(&self) {
        if let Some(account) = &self.account {
            account.complete();
        }
    }

    /// Removes the folder, if we made it and nothing is in it.
    pub fn discard(self) {
        if self.is_new {
            // Fails if the folder is not empty.
            let _ = unlinkat(CWD, &self.path, AtFlags::REMOVEDIR);
        }
    }

    /// Tells whether the folder is ours, and nobody else can look into it or write to it.
    pub fn is_private(&self) -> io::Result<bool> {
        let status = fstat(&self.fd)?;
        Ok(status.st_uid == rustix::process::geteuid().as_raw() && status.st_mode & OTHERS == 0)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        let (path, account) = (self.path.clone(), self.account.clone());
        Ok(Self { path, fd: self.fd.try_clone()?, is_new: false, account })
    }

    /// Opens or creates a folder inside.
    pub fn subfolder(&self, name: &str) -> io::Result<Self> {
        let Some(account) = &self.account else {
            return match mkdirat(&self.fd, name, Mode::RWXU) {
                Ok(()) => self.open_new(name),
                Err(Errno::EXIST) => self.open_subfolder(name),
                Err(error) => Err(error.into()),
            };
        };
        match self.open_subfolder(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        let needed = account.budget.cost(1) + ENTRY;
        account.take(Share::Free, needed)?;
        self.make_folder(name, account, account.inside(name)).inspect_err(|_| account.give_back(needed))
    }

    /// Opens or creates the folders of a path with slashes.
    pub(super) fn subfolders(&self, path: &str) -> io::Result<Self> {
        path.split('/').try_fold(self.try_clone()?, |dir, name| dir.subfolder(name))
    }

    /// Creates a folder inside for a window. With a limit, the window has an account of its own, and `report`
    /// bytes are kept for its `session.json`. `tenant`: of its processes; empty for all processes.
    pub fn window(&self, name: &str, report: u64, tenant: &str) -> io::Result<Self> {
        let Some(account) = &self.account else { return self.subfolder(name) };
        let report = account.budget.cost(report) + ENTRY;
        let window = account.open_window(name, report, tenant)?;
        self.make_folder(name, account, window.clone()).inspect_err(|_| window.abandon_window())
    }

    /// Opens the folder of a complete window, to write to it once more. `None`: it was removed, or there is
    /// no limit.
    pub(crate) fn complete_window(&self, name: &str) -> io::Result<Option<Self>> {
        let Some(window) = self.account.as_ref().and_then(|account| account.complete_window(name)) else {
            return Ok(None);
        };
        Ok(Some(Self { account: Some(window), ..self.open_subfolder(name)? }))
    }

    /// Removes the folder of a window that came to nothing, with its content.
    pub fn discard_window(&self, name: &str, window: &Self) {
        window.clear(1);
        if let Some(account) = &window.account {
            account.abandon_window();
        }
        // A folder that cannot be removed stays, and is empty.
        let _ = self.unlink(name, true);
    }

    /// Removes our entries in the folder, down to folders of this depth.
    fn clear(&self, depth: u32) {
        for name in self.entries().unwrap_or_default() {
            let Ok(name) = name.to_str() else { continue };
            let is_folder = self.look_at(name).is_ok_and(|found| found.is_folder);
            if is_folder
                && depth > 0
                && let Ok(folder) = self.open_subfolder(name)
            {
                folder.clear(depth - 1);
            }
            let _ = self.unlink(name, is_folder);
        }
    }

    fn make_folder(&self, name: &str, parent: &Account, account: Account) -> io::Result<Self> {
        mkdirat(&self.fd, name, Mode::RWXU)?;
        let dir = Self { account: Some(account), ..self.open_new(name)? };
        if let Some(account) = &dir.account {
            let id = Found::from(fstat(&dir.fd)?).id;
            account.made(|made, _| made.add(&parent.within, name, id));
        }
        Ok(dir)
    }

    /// Opens a folder that was just made. If it cannot be opened, for want of descriptors, it goes again.
    fn open_new(&self, name: &str) -> io::Result<Self> {
        self.open_subfolder(name).inspect_err(|_| _ = self.unlink(name, true))
    }

    /// Opens an existing folder inside.
    pub fn open_subfolder(&self, name: &str) -> io::Result<Self> {
        let fd = openat(&self.fd, name, DIR_FLAGS, Mode::empty())?;
        let account = self.account.as_ref().map(|account| account.inside(name));
        Ok(Self { path: self.path.join(name), fd, is_new: false, account })
    }

    /// Opens the folder at a path with slashes, of which none is a link.
    pub fn open_below(&self, path: &str) -> io::Result<Self> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(self.try_clone()?, |dir, name| dir.open_subfolder(name))
    }

    /// Creates a file inside (mode 0600). If the name exists, that is an error.
    pub fn create_file(&self, name: &str) -> io::Result<OutputFile> {
        self.create_from(Share::Free, name)
    }

    /// Creates a file from which something is made at the end.
    pub(super) fn create_source(&self, name: &str, source: Source) -> io::Result<OutputFile> {
        self.create_file(name)?.source_of(source).inspect_err(|_| {
            // If it cannot be removed, it is empty.
            let _ = self.remove_made(name);
        })
    }

    fn create_from(&self, share: Share, name: &str) -> io::Result<OutputFile> {
        let create = || self.open_at(name, NEW_FILE);
        let Some(account) = &self.account else { return create().map(OutputFile::from) };
        account.take(share, ENTRY)?;
        let file = create().inspect_err(|_| account.give_back(ENTRY))?;
        let id = Found::from(fstat(&file)?).id;
        account.made(|made, folder| made.add(folder, name, id));
        Ok(OutputFile::new(file, account, share))
    }

    /// Gives a file inside a second name. If that exists, that is an error.
    pub fn link(&self, name: &str, second: &str) -> io::Result<()> {
        let link = || Ok(linkat(&self.fd, name, &self.fd, second, AtFlags::empty())?);
        let Some(account) = &self.account else { return link() };
        account.take(Share::Report, ENTRY)?;
        link().inspect_err(|_| account.give_back(ENTRY))?;
        let id = self.look_at(name)?.id;
        account.made(|made, folder| made.add(folder, second, id));
        Ok(())
    }

    /// Removes a file inside, if it exists. For folders without a limit.
    pub fn remove_file(&self, name: &str) {
        let _ = unlinkat(&self.fd, name, AtFlags::empty());
    }

    /// Removes a folder inside, if it is empty. For folders without a limit.
    pub fn remove_folder(&self, name: &str) {
        let _ = unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
    }

    /// Removes a file that was made here.
    pub(crate) fn remove_made(&self, name: &str) -> io::Result<()> {
        let bytes = self.look_at(name)?.bytes;
        self.unlink(name, false)?;
        if let Some(account) = &self.account {
            account.made(|made, folder| made.forget(folder, name));
            account.give_back(account.budget.cost(bytes) + ENTRY);
        }
        Ok(())
    }

    /// Looks a name up; a link is not followed.
    pub(super) fn look_at(&self, name: &str) -> io::Result<Found> {
        Ok(statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?.into())
    }

    /// Removes a file, or a folder that is empty.
    pub(super) fn unlink(&self, name: &str, is_folder: bool) -> io::Result<()> {
        let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        Ok(unlinkat(&self.fd, name, flags)?)
    }

    /// Creates a file without a name, to write and to read, that goes when it is closed.
    pub fn nameless_file(&self) -> io::Result<File> {
        let name = format!(".nameless.{}", std::process::id());
        // Left by a process that was killed, and had our number.
        self.remove_file(&name);
        let flags = NEW_FILE.difference(OFlags::WRONLY) | OFlags::RDWR;
        let file = self.open_at(&name, flags)?;
        self.remove_file(&name);
        Ok(file)
    }

    /// Opens a file inside for reading. A pipe in its place must not block us, nor a link lead us away.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = self.open_at(name, flags)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(file)
    }

    /// Opens a name inside, new files with mode 0600.
    fn open_at(&self, name: &str, flags: OFlags) -> io::Result<File> {
        Ok(openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Writes a whole file in the place of any with this name: readers see the old or the new one, no half.
    /// Under a limit, its bytes are taken from `share`.
    pub fn replace_file(
        &self,
        share: Share,
        name: &str,
        write: impl FnOnce(&mut OutputFile) -> io::Result<()>,
    ) -> io::Result<()> {
        self.write_under(share, name, write, |temporary| {
            let before = self.look_at(name).ok();
            renameat(&self.fd, temporary, &self.fd, name)?;
            Ok(before)
        })
    }

    /// Writes a whole file under a new name, which it gets when it is on the disk; so is the name when this
    /// returns. An existing name is an error.
    pub(super) fn add_file(
        &self,
        share: Share,
        name: &str,
        write: impl FnOnce(&mut OutputFile) -> io::Result<()>,
    ) -> io::Result<()> {
        let write = |file: &mut OutputFile| write(file).and_then(|()| file.sync());
        self.write_under(share, name, write, |temporary| {
            self.rename_new(temporary, name)?;
            Ok(None)
        })?;
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    /// Renames a file inside. If the new name exists, that is an error.
    pub fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        match renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            // Not every file system can do that.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                if self.look_at(to).is_ok() {
                    return Err(Errno::EXIST.into());
                }
                Ok(renameat(&self.fd, from, &self.fd, to)?)
            }
            renamed => Ok(renamed?),
        }
    }

    /// Writes a file under a temporary name; `rename` gives it its own, and returns what had that before.
    fn write_under(
        &self,
        share: Share,
        name: &str,
        write: impl FnOnce(&mut OutputFile) -> io::Result<()>,
        rename: impl FnOnce(&str) -> io::Result<Option<Found>>,
    ) -> io::Result<()> {
        let temporary = format!(".{name}.{}", std::process::id());
        // Left by a process that was killed, and had our number.
        self.remove_file(&temporary);
        let mut file = self.create_from(share, &temporary)?;
        let written = write(&mut file).and_then(|()| rename(&temporary));
        let is_removed = written.is_err() && self.unlink(&temporary, false).is_ok();
        if let Some(account) = &self.account {
            if let Ok(before) = &written {
                let ours = account.made(|made, folder| {
                    let ours = before.filter(|before| made.has(folder, name, before.id));
                    made.rename(folder, &temporary, name);
                    ours
                });
                if let Some(before) = ours {
                    account.give_back(account.budget.cost(before.bytes) + ENTRY);
                }
            } else if is_removed {
                account.made(|made, folder| made.forget(folder, &temporary));
                account.give_back(file.taken() + ENTRY);
            }
        }
        written.map(drop)
    }

    /// Returns the names inside, sorted; names that are not UTF-8 are none of ours and left out.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names: Vec<String> =
            self.entries()?.into_iter().filter_map(|name| name.into_string().ok()).collect();
        names.sort();
        Ok(names)
    }

    fn entries(&self) -> io::Result<Vec<CString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(self.fd.as_fd())? {
            names.push(entry?.file_name().to_owned());
        }
        names.retain(|name| !matches!(name.as_bytes(), b"." | b".."));
        Ok(names)
    }
}

#[cfg(test)]
mod tests;
