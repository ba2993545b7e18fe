//! Room on the disk for one file that is written when there is no other.

use std::{
    fs::File,
    io::{self, Seek as _, Write as _},
    os::fd::{AsFd as _, AsRawFd as _},
};

use rustix::{
    fs::{
        AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, ftruncate, linkat, openat, renameat, unlinkat,
    },
    io::Errno,
};

use super::output_dir::OutputDir;

/// Name that the file has for a moment, until it takes another's place.
const TEMPORARY: &str = ".session.json.last";

/// A file without a name, with room for so many bytes. The room is free again when this is dropped.
#[derive(Debug)]
pub struct ReservedFile(File);

impl ReservedFile {
    /// Takes the room in a folder.
    ///
    /// # Errors
    /// There is no such room, or the file system has no files without a name, or cannot take room.
    pub fn new(dir: &OutputDir, bytes: u64) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let reserved = Self(openat(&dir.fd, ".", flags, Mode::RUSR | Mode::WUSR)?.into());
        reserved.grow(bytes)?;
        Ok(reserved)
    }

    /// Takes room for so many bytes in all.
    ///
    /// # Errors
    /// There is no such room. What there was stays.
    pub fn grow(&self, bytes: u64) -> io::Result<()> {
        Ok(fallocate(&self.0, FallocateFlags::empty(), 0, bytes.max(1))?)
    }

    /// Writes the file, and puts it in the place of the one with this name.
    ///
    /// # Errors
    /// The text is longer than the room, or the file was put before.
    pub(super) fn put(&self, dir: &OutputDir, name: &str, text: &str) -> io::Result<()> {
        let folder = dir.fd.as_fd();
        (&self.0).rewind()?;
        (&self.0).write_all(text.as_bytes())?;
        ftruncate(&self.0, text.len() as u64)?;
        let own = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let link = || linkat(CWD, &own, folder, TEMPORARY, AtFlags::SYMLINK_FOLLOW);
        match link() {
            // An earlier session was killed between the two steps.
            Err(Errno::EXIST) => unlinkat(folder, TEMPORARY, AtFlags::empty()).and_then(|()| link())?,
            linked => linked?,
        }
        Ok(renameat(folder, TEMPORARY, folder, name)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_the_place_of_the_file_once_with_its_whole_text() {
        let folder = tempfile::tempdir().unwrap();
        let dir = OutputDir::open(folder.path()).unwrap();
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let Ok(reserved) = ReservedFile::new(&dir, 64 << 10) else { return };
        assert_eq!(names(), 0, "it has no name");
        std::fs::write(folder.path().join("session.json"), "before, and longer").unwrap();
        std::fs::write(folder.path().join(TEMPORARY), "left by one that was killed").unwrap();
        reserved.grow(128 << 10).unwrap();
        reserved.put(&dir, "session.json", "after").unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join("session.json")).unwrap(), "after");
        assert_eq!(names(), 1);
    }
}
