//! A file that has its name only when it is complete.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::{output_dir::OutputDir, output_file::OutputFile};

/// A file that gets its name when it is complete. If this is dropped before, the file is removed.
#[derive(Debug)]
pub struct NewFile {
    dir: OutputDir,
    name: String,
    file: Option<OutputFile>,
}

impl NewFile {
    /// Creates the file. One that exists, or a link, is refused. `hint` says what writes such a file, and how
    /// it is called.
    pub fn create(path: &Path, hint: &str) -> Result<Self> {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            bail!("`{}` is not a file name: {hint}", path.display());
        };
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if std::fs::symlink_metadata(path).is_ok() {
            bail!("`{}` exists: {hint}", path.display());
        }
        let made = Self::within(&OutputDir::open_or_create(folder)?, name.to_owned());
        made.with_context(|| format!("making `{}` (-o FILE gives another place)", path.display()))
    }

    /// Creates a file of this name in a folder.
    pub fn within(dir: &OutputDir, name: String) -> io::Result<Self> {
        let mut made = Self { dir: dir.try_clone()?, name, file: None };
        let temporary = made.temporary();
        // A file of a process that was killed, and had our number.
        dir.remove_file(&temporary);
        made.file = Some(dir.create_file(&temporary)?);
        Ok(made)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }

    fn temporary(&self) -> String {
        format!(".{}.{}.part", self.name, std::process::id())
    }

    /// Writes over bytes that were written before.
    pub fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.flush()?;
        self.file.as_ref().map_or(Ok(()), |file| file.write_at(bytes, at))
    }

    /// Gives the file its name.
    pub fn publish(&mut self) -> io::Result<()> {
        self.flush()?;
        self.dir.rename_new(&self.temporary(), &self.name)?;
        self.file = None;
        Ok(())
    }

    /// Gives the file its name; an error names it.
    pub fn finish(&mut self) -> Result<()> {
        self.publish().with_context(|| format!("writing `{}`", self.path().display()))
    }
}

impl io::Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().map_or(Ok(bytes.len()), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), OutputFile::flush)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            self.dir.remove_file(&self.temporary());
        }
    }
}
