//! A small disk that the recording is on. It fills, and empties again.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

/// Unmounted when this is dropped.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// A file system in memory, of so many megabytes, in a new folder.
    pub fn mount(at: &Path, megabytes: u32) -> Result<Self> {
        Self::mount_kib(at, megabytes << 10)
    }

    /// The same of so many kilobytes.
    pub fn mount_kib(at: &Path, kilobytes: u32) -> Result<Self> {
        fs::create_dir(at)?;
        let options = format!("size={kilobytes}k,mode=0700");
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "ncclflow-test"]).arg(at).status();
        if !status.context("starting mount")?.success() {
            bail!("no file system can be mounted here");
        }
        Ok(Self(at.to_path_buf()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Fills it to the last byte.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::create(self.0.join("filler"))?;
        let block = vec![0; 1 << 16];
        while file.write_all(&block).is_ok() {}
        Ok(())
    }

    /// Empties it again.
    pub fn empty(&self) -> Result<()> {
        Ok(fs::remove_file(self.0.join("filler"))?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
