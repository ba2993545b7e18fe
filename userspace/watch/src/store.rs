//! The folder in which dumps are kept: so many and so large at most; the oldest of the tenant with most go.
//!
//! Each dump is a folder of its own: `dump.json`, `dump.txt`, `tenant` with the name of the job's tenant, and a
//! file for each rank in the form of torch's flight recorder. Only folders that have the form of these names are ever removed.

use std::{
    collections::BTreeMap,
    io::{self, Read as _, Write as _},
    path::Path,
};

use analysis::export::RankFiles;
use anyhow::{Context as _, Result, ensure};
use dump::DumpReport;
use flow::text::{PlainWriter, REPORT_WIDTH};
use recording::sinks::{OutputDir, OutputFile, Share};

/// Beginning of the names of dumps. A number follows that counts milliseconds since 1970.
const PREFIX: &str = "alert-";
const JSON: &str = "dump.json";
const TEXT: &str = "dump.txt";
const TENANT: &str = "tenant";
/// Most bytes that are read of a tenant's name: of a job of thousands of pods.
const MAX_TENANT: u64 = 1 << 20;
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

    /// Keeps a dump of a tenant's job, after room was made for it. Returns the path of its folder.
    ///
    /// # Errors
    /// It cannot be written: what was written of it is removed. Or it is larger than what others leave.
    pub(crate) fn keep(&self, name: &str, whose: &str, report: &DumpReport) -> Result<String> {
        self.make_room(Some(whose));
        let written = self.write(name, whose, report);
        if written.is_err() {
            self.remove(name);
        }
        self.make_room(None);
        written.with_context(|| format!("keeping a dump in `{}`", self.dir.path().display()))?;
        ensure!(
            self.dir.open_subfolder(name).is_ok(),
            "a dump is larger than what dumps of other tenants leave"
        );
        Ok(self.dir.path().join(name).display().to_string())
    }

    fn write(&self, name: &str, whose: &str, report: &DumpReport) -> Result<()> {
        let dir = self.dir.subfolder(name)?;
        let file = |name: &str, bytes: &[u8]| {
            dir.replace_file(Share::Free, name, |file: &mut OutputFile| file.write_all(bytes))
        };
        file(TENANT, whose.as_bytes())?;
        // Tenants' names stand in both, and people show them on terminals.
        let (mut json, mut text) = (Vec::new(), Vec::new());
        serde_json::to_writer(PlainWriter::of_json(&mut json), report)?;
        PlainWriter::new(&mut text).write_all(dump::render(report, true, REPORT_WIDTH).as_bytes())?;
        file(JSON, &json)?;
        file(TEXT, &text)?;
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

    /// Removes dumps until there are as many, and as large, as may be: the oldest of the tenant that has most, so
    /// that nobody's alerts take the dumps of others. One stays, whatever its size. `coming`: the tenant whose
    /// dump is written next.
    fn make_room(&self, coming: Option<&str>) {
        let names = self.dir.names().unwrap_or_default();
        let mut kept: Vec<(&String, String, u64)> = names
            .iter()
            .filter(|name| is_dump(name))
            .map(|name| (name, self.whose(name), self.size(name)))
            .collect();
        loop {
            let count = kept.len() + usize::from(coming.is_some());
            let bytes: u64 = kept.iter().map(|(.., size)| size).sum();
            let are_too_many = count > self.budget.dumps;
            if !are_too_many && (bytes <= self.budget.bytes || count < 2) {
                return;
            }
            let mut of: BTreeMap<&str, u64> = BTreeMap::new();
            if let Some(whose) = coming.filter(|_| are_too_many) {
                of.insert(whose, 1);
            }
            for (_, whose, size) in &kept {
                *of.entry(whose).or_default() += if are_too_many { 1 } else { *size };
            }
            // Of equal ones the last is taken: from the end, that is the oldest.
            let most = kept.iter().enumerate().rev().max_by_key(|(_, (_, whose, _))| of.get(whose.as_str()));
            let Some(at) = most.map(|(at, _)| at) else { return };
            self.remove(kept.remove(at).0);
        }
    }

    /// Returns the tenant of a dump; empty where an older ncclflow kept it.
    fn whose(&self, name: &str) -> String {
        let read = || -> io::Result<String> {
            let mut whose = String::new();
            let file = self.dir.open_subfolder(name)?.open_file(TENANT)?;
            file.take(MAX_TENANT).read_to_string(&mut whose)?;
            Ok(whose)
        };
        read().unwrap_or_default()
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

    use dump::ProcessReport;

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
            store(&path, 3, 1 << 30).keep(&of(at), "ann", &DumpReport::default()).unwrap();
        }
        assert_eq!(names(&path), [of(2), of(3), of(4)]);
        let own = path.join("alert-mine");
        fs::create_dir(&own).unwrap();
        let text = fs::read_to_string(path.join(of(4)).join(TEXT)).unwrap();
        assert!(!text.is_empty() && path.join(of(4)).join(JSON).is_file());
        // Each has some hundred bytes: two do not fit, and the latest stays in any case.
        store(&path, 3, 10).keep(&of(5), "ann", &DumpReport::default()).unwrap();
        assert_eq!(names(&path), [of(5), "alert-mine".to_owned()]);
        assert!(own.is_dir());
    }

    #[test]
    fn a_flood_of_one_tenants_dumps_takes_its_own_and_not_those_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dumps");
        let of = |at: u64| name(1_700_000_000_000 + at, "hang");
        let keep =
            |at: u64, whose: &str| store(&path, 4, 1 << 30).keep(&of(at), whose, &DumpReport::default());
        (0..2).for_each(|at| drop(keep(at, "ann").unwrap()));
        (2..50).for_each(|at| drop(keep(at, "bob").unwrap()));
        assert_eq!(names(&path), [of(0), of(1), of(48), of(49)]);
        keep(50, "eve").unwrap();
        keep(51, "eve").unwrap();
        assert_eq!(names(&path), [of(1), of(49), of(50), of(51)]);
        // One that is too large takes its tenant's, itself at last.
        let large = DumpReport { hosts: vec!["x".repeat(10_000)], ..DumpReport::default() };
        let error = store(&path, 4, 10_000).keep(&of(52), "eve", &large).unwrap_err();
        assert!(format!("{error:#}").contains("larger than what dumps of other tenants leave"), "{error:#}");
        assert_eq!(names(&path), [of(1), of(49)]);
    }

    #[test]
    fn what_a_terminal_would_obey_is_in_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dumps");
        let hostile = "a\u{202e}b\u{1b}[31m".to_owned();
        let process =
            ProcessReport { name: hostile.clone(), error: Some(hostile), ..ProcessReport::default() };
        let report = DumpReport { processes: vec![process], ..DumpReport::default() };
        let kept = store(&path, 3, 1 << 30).keep("alert-1700000000000-hang", "ann", &report).unwrap();
        let read = |name: &str| fs::read_to_string(Path::new(&kept).join(name)).unwrap();
        let (json, text) = (read(JSON), read(TEXT));
        assert!(text.contains("a\u{fffd}b") && json.contains("a\\u202eb"), "{text}{json}");
        assert!(!text.replace('\n', "").contains(flow::text::is_obeyed), "{text:?}");
        assert!(!json.contains(flow::text::is_obeyed), "{json:?}");
    }

    #[test]
    fn what_cannot_be_written_is_an_error_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dumps");
        let store = store(&path, 3, 1 << 30);
        // A folder in the place of a file.
        fs::create_dir_all(path.join("alert-1700000000000-hang").join(JSON).join("x")).unwrap();
        let error = store.keep("alert-1700000000000-hang", "ann", &DumpReport::default()).unwrap_err();
        assert!(format!("{error:#}").contains("keeping a dump in"), "{error:#}");
    }
}
