//! The folder in which dumps are kept: so many and so large at most; the oldest go.
//!
//! Each dump is a folder of its own: `dump.json`, `dump.txt`, and a file for each rank in the form of torch's
//! flight recorder. Only folders that have the form of these names are ever removed.

use std::{io::Write as _, path::Path};

use analysis::export::RankFiles;
use anyhow::{Context as _, Result};
use dump::DumpReport;
use flow::text::REPORT_WIDTH;
use recording::sinks::{OutputDir, OutputFile, Share};

/// Beginning of the names of dumps. A number follows that counts milliseconds since 1970.
const PREFIX: &str = "alert-";
const JSON: &str = "dump.json";
const TEXT: &str = "dump.txt";
/// Folder of the flight recorder's files.
const RANKS: &str = "flight-recorder";

/// Bounds of the folder.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub dumps: usize,
    pub bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Store {
    dir: OutputDir,
    budget: Budget,
}

/// Returns the name of a dump's folder.
pub(crate) fn name(unix_ms: u64, kind: &str) -> String {
    format!("{PREFIX}{unix_ms:013}-{kind}")
}

impl Store {
    /// Opens the folder, or makes it.
    ///
    /// # Errors
    /// It is neither there nor can it be made, or others than its owner may write to it.
    pub(crate) fn open(path: &Path, budget: Budget) -> Result<Self> {
        let dir = if path.exists() { OutputDir::open(path)? } else { OutputDir::create(path)? };
        Ok(Self { dir, budget })
    }

    /// Keeps a dump, after room was made for it. Returns the path of its folder.
    ///
    /// # Errors
    /// It cannot be written: what was written of it is removed.
    pub(crate) fn keep(&self, name: &str, report: &DumpReport) -> Result<String> {
        self.make_room(self.budget.dumps.saturating_sub(1), self.budget.bytes);
        let written = self.write(name, report);
        if written.is_err() {
            self.remove(name);
        }
        self.make_room(self.budget.dumps, self.budget.bytes);
        written.with_context(|| format!("keeping a dump in `{}`", self.dir.path().display()))?;
        Ok(self.dir.path().join(name).display().to_string())
    }

    fn write(&self, name: &str, report: &DumpReport) -> Result<()> {
        let dir = self.dir.subfolder(name)?;
        let file = |name: &str, bytes: &[u8]| {
            dir.replace_file(Share::Free, name, |file: &mut OutputFile| file.write_all(bytes))
        };
        file(JSON, &serde_json::to_vec(report)?)?;
        file(TEXT, dump::render(report, true, REPORT_WIDTH).as_bytes())?;
        let ranks = dump::recorder_dumps(report).ranks;
        if ranks.is_empty() {
            return Ok(());
        }
        dir.subfolder(RANKS)?;
        let files = RankFiles::at(&dir.path().join(RANKS))?;
        for (rank, dump) in &ranks {
            files.write((*rank).into(), &dump.entries, &dump.groups, dump.comm_lib_version.as_deref())?;
        }
        Ok(())
    }

    /// Removes the oldest dumps until so many are left, and all have so many bytes at most. The latest one
    /// stays, whatever its size.
    fn make_room(&self, dumps: usize, bytes: u64) {
        let names = self.dir.names().unwrap_or_default();
        let mut names: Vec<(&String, u64)> =
            names.iter().filter(|name| is_dump(name)).map(|name| (name, self.size(name))).collect();
        let mut sum: u64 = names.iter().map(|(_, size)| size).sum();
        names.reverse();
        while let Some((name, size)) = names.pop() {
            let is_over = names.len() + 1 > dumps || (sum > bytes && !names.is_empty());
            if !is_over {
                return;
            }
            self.remove(name);
            sum = sum.saturating_sub(size);
        }
    }

    fn size(&self, name: &str) -> u64 {
        let of = |dir: &OutputDir| -> u64 {
            let names = dir.names().unwrap_or_default();
            let length = |name: &String| dir.open_file(name).ok()?.metadata().ok().map(|file| file.len());
            names.iter().filter_map(length).sum()
        };
        let Ok(dir) = self.dir.open_subfolder(name) else { return 0 };
        of(&dir) + dir.open_subfolder(RANKS).map_or(0, |ranks| of(&ranks))
    }

    /// Removes a dump: the files that we write, and then the folder, if nothing else is in it.
    fn remove(&self, name: &str) {
        let Ok(dir) = self.dir.open_subfolder(name) else { return };
        if let Ok(ranks) = dir.open_subfolder(RANKS) {
            for name in ranks.names().unwrap_or_default() {
                ranks.remove_file(&name);
            }
            dir.remove_folder(RANKS);
        }
        for file in dir.names().unwrap_or_default() {
            dir.remove_file(&file);
        }
        self.dir.remove_folder(name);
    }
}

fn is_dump(name: &str) -> bool {
    let number = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
    number.is_some_and(|(number, _)| number.len() >= 13 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn store(path: &Path, dumps: usize, bytes: u64) -> Store {
        Store::open(path, Budget { dumps, bytes }).unwrap()
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_they_are_too_large_and_nothing_else_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dumps");
        let of = |at: u64| name(1_700_000_000_000 + at, "hang");
        for at in 0..5 {
            store(&path, 3, 1 << 30).keep(&of(at), &DumpReport::default()).unwrap();
        }
        assert_eq!(names(&path), [of(2), of(3), of(4)]);
        let own = path.join("alert-mine");
        fs::create_dir(&own).unwrap();
        let text = fs::read_to_string(path.join(of(4)).join(TEXT)).unwrap();
        assert!(!text.is_empty() && path.join(of(4)).join(JSON).is_file());
        // Each has some hundred bytes: two do not fit, and the latest stays in any case.
        store(&path, 3, 10).keep(&of(5), &DumpReport::default()).unwrap();
        assert_eq!(names(&path), [of(5), "alert-mine".to_owned()]);
        assert!(own.is_dir());
    }

    #[test]
    fn what_cannot_be_written_is_an_error_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dumps");
        let store = store(&path, 3, 1 << 30);
        // A folder in the place of a file.
        fs::create_dir_all(path.join("alert-1700000000000-hang").join(JSON).join("x")).unwrap();
        let error = store.keep("alert-1700000000000-hang", &DumpReport::default()).unwrap_err();
        assert!(format!("{error:#}").contains("keeping a dump in"), "{error:#}");
    }
}
