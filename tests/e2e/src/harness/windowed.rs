//! Jobs that call all-reduce all the time, a recording of them with windows, and the folders of these windows.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "part of tests, which fail by panicking")]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    bed::Bed,
    programs, progress,
    recorder::Recorder,
    rows::{assert_no_loss, list, number, read_lines, session},
    world::CALL_LOG,
};
use crate::truth::call_log::{self, Call};

/// Two jobs of four processes that call all-reduce all the time, and a recording with windows.
#[derive(Debug)]
pub struct Windowed {
    folder: tempfile::TempDir,
    beds: Vec<Bed>,
    pub recorder: Option<Recorder>,
    pub output: PathBuf,
    pub flag: PathBuf,
}

/// When the flag of a window was touched and removed, in nanoseconds of the calls' clock.
#[derive(Debug, Clone, Copy)]
pub struct Flagged {
    pub touched: u64,
    /// Just before the rm, and just after it.
    pub removing: u64,
    pub removed: u64,
    /// The window's folder was seen to be complete.
    pub completed: u64,
}

impl Windowed {
    /// `arguments` are the recording's. `ranks` processes in each of `jobs` jobs.
    pub fn start(jobs: usize, ranks: &str, arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out");
        Self::start_in(folder, output, jobs, ranks, arguments)
    }

    pub fn start_in(
        folder: tempfile::TempDir,
        output: PathBuf,
        jobs: usize,
        ranks: &str,
        arguments: &[&str],
    ) -> Option<Self> {
        let flag = folder.path().join("flag");
        let fixed = "--mode processes --iters 1000000 --interval-ms 20 --bytes 4096 --sync --channels 1 --timeout 600";
        let workload = format!("{fixed} {CALL_LOG} --ranks {ranks}");
        let mut beds = Vec::new();
        let ncclflow = programs::ncclflow()?;
        for (job, version) in ["2.27.5-cu12", "2.21.5-cu12"].into_iter().enumerate().take(jobs) {
            let (_, bed, library) = programs::needed(version)?;
            let path = folder.path().join(format!("job-{job}"));
            beds.push(Bed::of_words(&bed, &library, &path, &workload).unwrap());
        }
        let pids: Vec<String> = beds.iter().map(Bed::pid_list).collect();
        let flag_text = flag.display().to_string();
        let mut all =
            if arguments.contains(&"--rotate") { vec![] } else { vec!["--window-flag", &flag_text] };
        all.extend(arguments);
        let recorder = Recorder::start(&ncclflow, &pids.join(","), &output, &all).unwrap();
        for bed in &beds {
            bed.go().unwrap();
        }
        let job = Self { folder, beds, recorder: Some(recorder), output, flag };
        job.wait_for_calls(3);
        Some(job)
    }

    /// Waits until each process has made so many calls more.
    pub fn wait_for_calls(&self, more: usize) {
        for (job, bed) in self.beds.iter().enumerate() {
            let prefix = self.folder.path().join(format!("job-{job}/calls"));
            progress::wait_for_calls(&prefix, &bed.ready.pids, more);
        }
    }

    /// Waits until the recorder has said that the window of this number is open: from then on calls are in it.
    pub fn wait_until_open(&mut self, number: usize) {
        self.recorder.as_mut().unwrap().hear(&format!("window {number} opened")).unwrap();
    }

    /// Opens the window of this number, for so many calls of each process, and waits until it is complete.
    pub fn window(&mut self, number: usize, calls: usize) -> Flagged {
        let touched = call_log::now_ns();
        File::create(&self.flag).unwrap();
        self.wait_until_open(number);
        self.wait_for_calls(calls);
        let removing = call_log::now_ns();
        fs::remove_file(&self.flag).unwrap();
        let removed = call_log::now_ns();
        progress::wait_for_windows(&self.output, number);
        Flagged { touched, removing, removed, completed: call_log::now_ns() }
    }

    pub fn end(&mut self) -> (Value, String) {
        let recorder = self.recorder.take().unwrap();
        let said = recorder.interrupt().unwrap();
        (session(&self.output), said)
    }

    /// All calls of all-reduce, by process.
    pub fn calls(&mut self) -> BTreeMap<u32, Vec<Call>> {
        let pids: Vec<u32> = self.beds.iter().flat_map(|bed| bed.ready.pids.clone()).collect();
        self.beds.clear();
        progress::wait_for_exits(&pids);
        let mut by_pid: BTreeMap<u32, Vec<Call>> = BTreeMap::new();
        for job in fs::read_dir(self.folder.path()).unwrap().flatten() {
            if job.file_name().to_string_lossy().starts_with("job-") {
                for call in call_log::read(&job.path().join("calls")).unwrap() {
                    if call.function == "ncclAllReduce" {
                        by_pid.entry(call.pid).or_default().push(call);
                    }
                }
            }
        }
        by_pid
    }
}

/// The folder's own report: complete, without loss.
pub fn whole_session(folder: &Path) -> Value {
    let session = session(folder);
    assert_eq!(session["state"], "complete", "{session:#}");
    assert_no_loss(&session);
    session
}

/// A number of each rank of a session.
pub fn of_ranks(session: &Value, key: &str) -> Vec<u64> {
    list(&session["communicators"]).iter().map(|rank| number(&rank[key])).collect()
}

pub fn folders(path: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(path).unwrap().flatten().filter(|entry| entry.path().is_dir())
}

/// The folders of communicators, each with the process whose ranks it has.
pub fn communicators(window: &Path) -> Vec<(u32, PathBuf)> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut found = Vec::new();
    for process in folders(window).filter(|entry| entry.file_name() != "recording") {
        let name = process.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(&format!("{host}.")).unwrap_or_else(|| panic!("{name}"));
        let pid = pid.parse().unwrap();
        found.extend(folders(&process.path()).map(|entry| (pid, entry.path())));
    }
    found
}

/// Times of the recorded calls of a window, by process.
pub fn recorded(folder: &Path, opened_ms: u64) -> BTreeMap<u32, Vec<u64>> {
    let mut by_pid: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for (owner, communicator) in communicators(folder) {
        let hash = communicator.file_name().unwrap().to_string_lossy().into_owned();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        for file in fs::read_dir(&communicator).unwrap().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            // Each rank's file has two names; this is the one with the process in it.
            let Some((rank, tag)) = name.split_once("_pid") else { continue };
            assert!(rank.ends_with(&format!("_{hash}_{host}")), "{name}");
            let (pid, ms) = tag.strip_suffix(".jsonl").unwrap().split_once('_').unwrap();
            assert_eq!(ms, opened_ms.to_string(), "{name}");
            let pid: u32 = pid.parse().unwrap();
            assert_eq!(pid, owner, "{name}");
            for line in read_lines(&file.path()) {
                assert_eq!(line["pid"], pid, "{name}");
                by_pid.entry(pid).or_default().push(number(&line["ts_ns"]));
            }
        }
    }
    for times in by_pid.values_mut() {
        times.sort_unstable();
    }
    by_pid
}
