//! A job on the bed in a folder of its own, recordings of it, and what both leave there.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "part of tests, which fail by panicking")]

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{bed::Bed, exported, programs, progress, recorder::Recorder, rows};
use crate::truth::{
    call_log::{self, Call},
    debug_log::DebugLog,
};

/// Words of a workload: what NCCL itself, the bed and its kernels say of the job, into its folder.
pub const CALL_LOG: &str = "--call-log {}/calls";
pub const DEBUG_LOG: &str = "--debug-file {}/log/%p";
pub const TRANSFER_LOG: &str = "--transfer-log {}/transfers";
/// NCCL has the interface from 2.23.
pub const PLUGIN_LOG: &str = "--env NCCL_PROFILER_PLUGIN={profiler} --env NCCLFLOW_TRUTH_DIR={}/truth";

/// A job whose communicators are up, and that waits for the word to begin. It ends when this is dropped.
#[derive(Debug)]
pub struct World {
    pub ncclflow: PathBuf,
    pub library: PathBuf,
    pub folder: tempfile::TempDir,
    pub bed: Bed,
    computes: bool,
}

impl World {
    /// Starts it on an official library, with these words for the bed: `{}` is the folder. `None`: the machine lacks
    /// something.
    pub fn start(version: &str, workload: &str) -> Option<Self> {
        Self::on(&programs::nccl(version)?, workload)
    }

    /// The same on any library file.
    pub fn on(library: &Path, workload: &str) -> Option<Self> {
        Self::try_with(&programs::bed()?, library, workload).unwrap()
    }

    /// The same on a copy of an official library, which `copy` makes in the folder. The bed takes symbols from the
    /// original.
    pub fn of_copy(
        version: &str,
        copy: impl FnOnce(&Path, &Path) -> Result<PathBuf>,
        workload: &str,
    ) -> Option<Self> {
        let (library, bed) = (programs::nccl(version)?, programs::bed()?);
        let folder = tempfile::tempdir().unwrap();
        let copied = copy(&library, folder.path()).unwrap();
        let workload = format!("--symbols {} {workload}", library.display());
        Self::in_folder(folder, &bed, &copied, &workload).unwrap()
    }

    /// The same with a program in place of the bed.
    pub fn try_with(program: &Path, library: &Path, workload: &str) -> Result<Option<Self>> {
        Self::in_folder(tempfile::tempdir()?, program, library, workload)
    }

    fn in_folder(
        folder: tempfile::TempDir,
        program: &Path,
        library: &Path,
        workload: &str,
    ) -> Result<Option<Self>> {
        let Some(ncclflow) = programs::tracer() else { return Ok(None) };
        let mut words = workload.to_owned();
        if words.contains("{profiler}") {
            let Some(profiler) = programs::truth_profiler() else { return Ok(None) };
            words = words.replace("{profiler}", &profiler.display().to_string());
        }
        let bed = Bed::of_words(program, library, folder.path(), &words)?;
        let computes = !workload.contains("--no-emulate");
        Ok(Some(Self { ncclflow, library: library.to_path_buf(), folder, bed, computes }))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder of its recording.
    pub fn out(&self) -> PathBuf {
        self.path("out")
    }

    /// Makes a file in its folder that something waits for.
    pub fn touch(&self, name: &str) {
        File::create(self.path(name)).unwrap();
    }

    /// Attaches with these options of `ncclflow record`.
    pub fn record(&self, options: &str) -> Recorder {
        self.record_to("out", options)
    }

    /// The same into a folder of this name.
    pub fn record_to(&self, name: &str, options: &str) -> Recorder {
        self.try_record(name, options).unwrap()
    }

    fn try_record(&self, name: &str, options: &str) -> Result<Recorder> {
        let options: Vec<&str> = options.split_whitespace().collect();
        Recorder::start(&self.ncclflow, &self.bed.pid_list(), &self.path(name), &options)
    }

    /// Lets the job go and waits for its end. Its data must be right.
    #[track_caller]
    pub fn run(&mut self) {
        self.try_run().unwrap();
    }

    fn try_run(&mut self) -> Result<()> {
        self.bed.go()?;
        let (status, summary) = self.bed.finish().context("waiting for the job")?;
        let is_checked = summary.checked_elements > 0 || !self.computes;
        ensure!(status.success() && summary.ok && is_checked, "the job failed ({status}): {summary:?}");
        Ok(())
    }

    /// Records all that the job does, until its end ends the recording. Gives what was said.
    #[track_caller]
    pub fn record_all(&mut self, options: &str) -> String {
        self.try_record_all(options).unwrap()
    }

    pub fn try_record_all(&mut self, options: &str) -> Result<String> {
        let recorder = self.try_record("out", options)?;
        self.try_run()?;
        recorder.end()
    }

    /// Records the job, which is let go, until `meanwhile` is done. Gives what was said.
    #[track_caller]
    pub fn record_while(&mut self, options: &str, meanwhile: impl FnOnce(&mut Self)) -> String {
        let recorder = self.record(options);
        self.bed.go().unwrap();
        meanwhile(self);
        recorder.interrupt().unwrap()
    }

    /// The report of its recording.
    #[track_caller]
    pub fn session(&self) -> Value {
        rows::session(&self.out())
    }

    /// Asserts that an export of its recording, which needs no root, makes the same files, byte for byte.
    #[track_caller]
    pub fn check_export(&self) {
        exported::check(&self.out());
    }

    /// The calls that it has logged ([`CALL_LOG`]).
    pub fn calls(&self) -> Vec<Call> {
        call_log::read(&self.path("calls")).unwrap()
    }

    /// Ends the job; all calls that it has logged.
    pub fn calls_at_end(self) -> Vec<Call> {
        let Self { folder, bed, .. } = self;
        let pids = bed.ready.pids.clone();
        drop(bed);
        progress::wait_for_exits(&pids);
        call_log::read(&folder.path().join("calls")).unwrap()
    }

    /// NCCL's own log ([`DEBUG_LOG`]).
    pub fn log(&self) -> DebugLog {
        DebugLog::read_directory(&self.path("log")).unwrap()
    }

    /// Waits until each of its processes has made so many calls more ([`CALL_LOG`]).
    #[track_caller]
    pub fn wait_for_calls(&self, more: usize) {
        progress::wait_for_calls(&self.path("calls"), &self.bed.ready.pids, more);
    }
}
