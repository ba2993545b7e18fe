//! Files of all ranks of a job, named by a prefix and the rank as torch names them.

use std::{
    io::{BufWriter, IntoInnerError},
    path::Path,
};

use anyhow::{Context as _, Result, bail};

use recording::sinks::{NewFile, OutputDir};
use torch::flight_recorder::{DumpWriter, Entry, ProcessGroup};

/// Prefix of torch's own names, without their folder (`TORCH_FR_DUMP_TEMP_FILE`).
const NAME: &str = "nccl_trace_rank_";

/// Folder and prefix of the ranks' files.
#[derive(Debug)]
pub struct RankFiles {
    pub(super) dir: OutputDir,
    prefix: String,
}

impl RankFiles {
    /// Opens the folder. `path` is the beginning of the files' names, or a folder, or ends with a slash: in a
    /// folder the files have torch's own names. Folders that are not there are made.
    ///
    /// # Errors
    /// The folder cannot be opened or made.
    pub fn at(path: &Path) -> Result<Self> {
        let is_folder = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
        if is_folder {
            let dir = if path.exists() { OutputDir::open(path) } else { OutputDir::create(path) };
            return Ok(Self { dir: dir?, prefix: NAME.to_owned() });
        }
        let Some(prefix) = path.file_name().and_then(|name| name.to_str()) else {
            bail!("`{}` is neither a folder nor the beginning of a file name", path.display());
        };
        let dir = OutputDir::open_or_create(path.parent().unwrap_or(Path::new("")))?;
        Ok(Self { dir, prefix: prefix.to_owned() })
    }

    /// Writes the whole file of a rank of the job.
    ///
    /// # Errors
    /// There is such a file, or it cannot be written.
    pub fn write(
        &self,
        rank: u64,
        entries: &[Entry],
        groups: &[ProcessGroup],
        comm_lib_version: Option<&str>,
    ) -> Result<()> {
        let mut file = self.create(rank)?;
        entries.iter().try_for_each(|entry| file.writer.entry(entry))?;
        file.finish(groups, comm_lib_version)
    }

    /// Begins the file of a rank of the job. The file gets its name when it is complete.
    ///
    /// # Errors
    /// There is such a file, or it cannot be written.
    pub fn create(&self, rank: u64) -> Result<RankFile> {
        let name = format!("{}{rank}", self.prefix);
        let shown = || self.dir.path().join(&name).display().to_string();
        if self.dir.open_file(&name).is_ok() {
            bail!("`{}` is there already", shown());
        }
        let file = NewFile::within(&self.dir, name.clone());
        let file = file.with_context(|| format!("making `{}`", shown()))?;
        Ok(RankFile { writer: DumpWriter::new(BufWriter::new(file))? })
    }
}

/// File of a rank of the job, while it is written.
#[derive(Debug)]
pub struct RankFile {
    /// Writer that takes the file's entries.
    pub writer: DumpWriter<BufWriter<NewFile>>,
}

impl RankFile {
    /// Completes the file and gives it its name.
    ///
    /// # Errors
    /// The file cannot be written, or a file of its name has come meanwhile.
    pub fn finish(self, groups: &[ProcessGroup], comm_lib_version: Option<&str>) -> Result<()> {
        let file = self.writer.finish(groups, comm_lib_version)?.into_inner();
        let mut file = file.map_err(IntoInnerError::into_error)?;
        file.publish().with_context(|| format!("naming `{}`", file.path().display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_begin_as_it_is_asked_for() {
        let parent = tempfile::tempdir().unwrap();
        let write = |path: &Path, rank| RankFiles::at(path)?.create(rank)?.finish(&[], None);
        write(&parent.path().join("rank_"), 3).unwrap();
        write(&parent.path().join("new/"), 0).unwrap();
        write(&parent.path().join("new"), 12).unwrap();
        for name in ["rank_3", "new/nccl_trace_rank_0", "new/nccl_trace_rank_12"] {
            assert!(parent.path().join(name).is_file(), "{name}");
        }
        // No file is overwritten, and one that is not completed is removed.
        assert!(write(&parent.path().join("rank_"), 3).unwrap_err().to_string().contains("there already"));
        drop(RankFiles::at(&parent.path().join("rank_")).unwrap().create(4).unwrap());
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 2);
        write(&parent.path().join("made/rank_"), 0).unwrap();
        assert!(parent.path().join("made/rank_0").is_file());
        assert!(write(&parent.path().join("rank_3/rank_"), 0).is_err(), "a file is no folder");
    }
}
