//! The folder that a session writes to. As root, and perhaps in a folder that others can write to too: nothing is followed,
//! nothing that exists is opened for writing.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, linkat, mkdirat, openat, renameat, unlinkat},
    io::Errno,
};

/// An open output folder.
#[derive(Debug)]
pub struct OutputDir {
    path: PathBuf,
    fd: OwnedFd,
    /// We made it, it was not there before.
    is_new: bool,
}

/// What others may do with a file.
const OTHERS: u32 = 0o077;

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
const NEW_FILE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

impl OutputDir {
    /// Makes the folder (mode 0700), or takes an empty one that is there.
    pub fn create(path: &Path) -> Result<Self> {
        let is_new = match mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(Errno::NOENT) => {
                bail!("cannot make `{}`: the folder above it does not exist", path.display())
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make the folder `{}`", path.display()));
            }
        };
        let dir = Self { is_new, ..Self::open(path)? };
        if !dir.is_empty()? {
            bail!("`{}` exists and is not empty: give -o a folder that does not exist yet", path.display());
        }
        let writable = rustix::fs::accessat(&dir.fd, ".", rustix::fs::Access::WRITE_OK, AtFlags::EACCESS);
        writable.with_context(|| format!("cannot write to the folder `{}`", path.display()))?;
        Ok(dir)
    }

    /// Opens a folder that is there. A symbolic link in its place is refused.
    pub fn open(path: &Path) -> Result<Self> {
        let fd = openat(CWD, path, DIR_FLAGS, Mode::empty()).with_context(|| {
            format!("cannot open `{}` as a folder (links are not followed)", path.display())
        })?;
        Ok(Self { path: path.to_path_buf(), fd, is_new: false })
    }

    /// Nothing came of it: takes the folder away again, if we made it and nothing is in it.
    pub fn discard(self) {
        if self.is_new {
            // It refuses a folder that is not empty.
            let _ = unlinkat(CWD, &self.path, AtFlags::REMOVEDIR);
        }
    }

    /// It is ours, and nobody else can look into it or write to it.
    pub fn is_private(&self) -> io::Result<bool> {
        let status = rustix::fs::fstat(&self.fd)?;
        Ok(status.st_uid == rustix::process::geteuid().as_raw() && status.st_mode & OTHERS == 0)
    }

    /// For messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same open folder once more.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { path: self.path.clone(), fd: self.fd.try_clone()?, is_new: false })
    }

    /// A folder inside, made if it is not there.
    pub fn subfolder(&self, name: &str) -> io::Result<Self> {
        match mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let fd = openat(&self.fd, name, DIR_FLAGS, Mode::empty())?;
        Ok(Self { path: self.path.join(name), fd, is_new: false })
    }

    /// A folder inside that is there already.
    pub fn open_subfolder(&self, name: &str) -> io::Result<Self> {
        let fd = openat(&self.fd, name, DIR_FLAGS, Mode::empty())?;
        Ok(Self { path: self.path.join(name), fd, is_new: false })
    }

    /// A new file inside (mode 0600). One that exists is an error.
    pub fn create_file(&self, name: &str) -> io::Result<File> {
        Ok(File::from(openat(&self.fd, name, NEW_FILE, Mode::RUSR | Mode::WUSR)?))
    }

    /// Gives a file inside a second name. One that exists is an error.
    pub fn link(&self, name: &str, second: &str) -> io::Result<()> {
        Ok(linkat(&self.fd, name, &self.fd, second, AtFlags::empty())?)
    }

    /// Removes a file inside, if it is there.
    pub(crate) fn remove_file(&self, name: &str) {
        let _ = unlinkat(&self.fd, name, AtFlags::empty());
    }

    /// A new file without a name, to write and to read, that goes when it is closed.
    pub(super) fn nameless_file(&self) -> io::Result<File> {
        let name = format!(".nameless.{}", std::process::id());
        // One of a process that was killed, and had our number.
        self.remove_file(&name);
        let flags = NEW_FILE.difference(OFlags::WRONLY) | OFlags::RDWR;
        let file = File::from(openat(&self.fd, &name, flags, Mode::RUSR | Mode::WUSR)?);
        self.remove_file(&name);
        Ok(file)
    }

    /// Opens a file inside for reading. A pipe in its place must not make us wait, nor a link lead us away.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(openat(&self.fd, name, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(file)
    }

    /// Writes a whole file, in the place of one with this name if there is one: readers see the old or the new, no half.
    pub fn replace_file(
        &self,
        name: &str,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let temporary = format!(".{name}.{}", std::process::id());
        // One of a process that was killed, and had our number.
        self.remove_file(&temporary);
        let mut file = self.create_file(&temporary)?;
        let written = write(&mut file).and_then(|()| Ok(renameat(&self.fd, &*temporary, &self.fd, name)?));
        if written.is_err() {
            self.remove_file(&temporary);
        }
        written
    }

    /// Names inside, sorted; those that are not UTF-8 are none of ours and left out.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(self.fd.as_fd())? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    fn is_empty(&self) -> Result<bool> {
        for entry in Dir::read_from(self.fd.as_fd())? {
            let entry = entry.with_context(|| format!("cannot list `{}`", self.path.display()))?;
            let name: CString = entry.file_name().to_owned();
            if !matches!(name.as_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn new_and_empty_folders_are_taken_and_full_ones_and_links_are_not() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("out");
        let dir = OutputDir::create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        OutputDir::create(&path).unwrap();
        let file = dir.create_file("a").unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(OutputDir::create(&path).unwrap_err().to_string().contains("not empty"));
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(OutputDir::open(&link).is_err());
        assert!(
            OutputDir::create(&parent.path().join("no/such"))
                .unwrap_err()
                .to_string()
                .contains("does not exist")
        );
    }

    #[test]
    fn a_file_that_exists_or_is_a_link_is_never_written_through() {
        let parent = tempfile::tempdir().unwrap();
        let victim = parent.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let dir = OutputDir::create(&parent.path().join("out")).unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("trap")).unwrap();
        assert!(dir.create_file("trap").is_err());
        assert!(dir.open_file("trap").is_err());
        dir.replace_file("trap", |file| file.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(std::fs::read_to_string(dir.path().join("trap")).unwrap(), "new");
    }

    #[test]
    fn a_replacement_that_fails_leaves_the_old_file() {
        let parent = tempfile::tempdir().unwrap();
        let dir = OutputDir::create(&parent.path().join("out")).unwrap();
        dir.replace_file("a", |file| file.write_all(b"old")).unwrap();
        dir.replace_file("a", |_| Err(io::Error::other("no"))).unwrap_err();
        assert_eq!(std::fs::read_to_string(dir.path().join("a")).unwrap(), "old");
        assert_eq!(dir.names().unwrap(), ["a"]);
    }
}
