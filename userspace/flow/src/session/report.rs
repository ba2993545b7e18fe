//! `session.json`: targets, quality of the trace, and losses.

use std::{
    borrow::Cow,
    io::{self, Write as _},
};

use serde::{Deserialize, Serialize};

use super::{
    AttachReport, Budget, BufferReport, ChangedLibrary, Compressed, FilesReport, Level, LibraryReport,
    MaxSizeReport, Messages, OverBudget, ProbeReport, RecordingTotals, StepDetail, TargetList, WhoseBudget,
    WindowReport, lenient,
};
use crate::{
    model::{ModelCounters, Sampling, counters::counters},
    schema::{ClockReport, CommunicatorReport, CpuReport, Gap, LossReport, named::named},
};

/// Bytes of the text of a report that are written at once.
const PIECE: usize = 64 << 10;

/// Most windows that are listed in the report of their recording.
const MAX_WINDOWS: usize = 1000;

named! {
    /// State of a recording or window.
    #[derive(Default)]
    SessionState {
        /// Still going on, or ended without a word (killed).
        Recording = "recording",
        Complete = "complete",
        /// The recording is whole; files are still made of it.
        MakingFiles = "making_files",
        /// Over, with files that could not be written in full.
        WriteFailed = "write_failed",
        /// Ended before its time, as a part of ncclflow failed. `errors` says which; what was lost is
        /// counted.
        Failed = "failed",
        ;
        /// A state that a newer version writes, or none.
        #[default]
        #[serde(rename = "unknown")]
        Unknown = "unknown",
    }
}

/// The report of a recording or window. Any version, and anybody, can have written it: what is not understood
/// counts as missing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionReport {
    /// Version of the ncclflow that wrote it.
    pub ncclflow: Cow<'static, str>,
    pub state: SessionState,
    pub host: String,
    pub kernel: String,
    /// `None` where a newer version has written another.
    #[serde(deserialize_with = "lenient::value")]
    pub level: Option<Level>,
    /// The API's calls are recorded, too.
    pub api: bool,
    /// Detail of measured messages; with [`Level::Steps`] only.
    #[serde(deserialize_with = "lenient::value")]
    pub step_detail: Option<StepDetail>,
    /// Ops whose messages were measured, if not all.
    #[serde(deserialize_with = "lenient::value")]
    pub sampling: Option<Sampling>,
    pub clock: ClockReport,
    /// Movement of wall time against the records' clock from the beginning to the end, if over 1 ms: the
    /// clock was set, or the host slept. Wall times made with `clock.offset_ns` are wrong by up to as much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_moved_ns: Option<i64>,
    #[serde(deserialize_with = "lenient::value")]
    pub attach: AttachReport,
    #[serde(deserialize_with = "lenient::list")]
    pub targets: TargetList,
    #[serde(deserialize_with = "lenient::list")]
    pub libraries: Vec<LibraryReport>,
    #[serde(deserialize_with = "lenient::list")]
    pub communicators: Vec<CommunicatorReport>,
    #[serde(deserialize_with = "lenient::value")]
    pub buffer: BufferReport,
    #[serde(deserialize_with = "lenient::list")]
    pub probes: Vec<ProbeReport>,
    /// Sums over all probes, for each CPU with a hit.
    pub cpus: Vec<CpuReport>,
    pub loss: LossReport,
    pub gaps: Vec<Gap>,
    #[serde(deserialize_with = "lenient::value")]
    pub model: ModelCounters,
    /// Why the first record that could not be decoded could not.
    pub first_undecodable: Option<String>,
    /// Libraries that look like NCCL, and processes of `-p`, that could not be traced, and why.
    pub passed_over: Vec<String>,
    /// Processes that ncclflow may not look at, with `--all`, as of now: what NCCL does in them is not seen.
    pub processes_denied: u64,
    /// `/proc` hides the processes of other users (`hidepid`), which `processes_denied` does not count.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub processes_hidden: bool,
    /// Libraries whose files were changed while probes were on them.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient::list")]
    pub changed_libraries: Vec<ChangedLibrary>,
    /// Children of ncclflow that looked at tenants' files and were lost, if any.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::value")]
    pub lost_readers: Option<LostReaders>,
    pub errors: Messages,
    /// Containers whose flag files are not looked at, and why.
    #[serde(skip_serializing_if = "Messages::is_empty")]
    pub flags_not_seen: Messages,
    /// Processes and tenants that were over their share of something in common, and lost of their own.
    #[serde(skip_serializing_if = "OverBudget::is_empty", deserialize_with = "lenient::value")]
    pub over_budget: OverBudget,
    /// Counts of entries that are not listed, as there are too many for a report.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub left_out: LeftOut,
    /// Contents of the folder `recording`, except its last blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording: Option<RecordingTotals>,
    /// Files made from the recording, on which `model`, `communicators`, and the counts of lines and of
    /// undecodable records rest.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::value")]
    pub files: Option<FilesReport>,
    /// State of `--max-size`, in the recording's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_size: Option<MaxSizeReport>,
    /// Result of `--compress`, for the files in this folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed: Option<Compressed>,
    /// The window, in a window's folder.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient::value")]
    pub window: Option<WindowReport>,
    /// All windows that are closed and were not removed, in the folder of a recording with windows.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient::list")]
    pub windows: Vec<WindowReport>,
}

counters! {
    /// Losses from looking at foreign files and memory.
    pub struct LostReaders {
        /// Children that did not answer in time.
        unanswered: u32;
        /// Children of these that were still there after they were killed: they sleep in the kernel.
        left_behind: u32;
        /// Children that ended, or answered garbage, because of what they read.
        died: u32;
    }
}

counters! {
    /// Counts of entries that a report has left out, by list. A report is as large after a year as after a
    /// day.
    pub struct LeftOut {
        /// Processes that have ended; the latest 1,000 of them are listed.
        targets: u64;
        /// Ranks of processes that have ended; the latest 1,000 of them are listed.
        communicators: u64;
        /// Windows; the latest 1,000 are listed.
        windows: u64;
    }
}

impl SessionReport {
    /// Parses a report; any other text gives an empty one.
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Returns the offset from CLOCK_MONOTONIC to Unix time; `None` before the clocks were read.
    pub fn offset_ns(&self) -> Option<u64> {
        Some(self.clock.offset_ns).filter(|offset| *offset != 0)
    }

    /// Notes why launches of CUDA graphs of a process are not recorded.
    pub fn no_graph_launches(&mut self, pid: u32, why: &str) {
        for target in self.targets.iter_mut().filter(|target| target.pid == pid) {
            target.no_graph_launches = Some(why.to_owned());
        }
    }

    /// Returns the name of the level; empty where it is not known.
    pub fn level_name(&self) -> &'static str {
        self.level.map_or("", Level::name)
    }

    /// Tells whether hits were lost or dropped.
    pub fn has_losses(&self) -> bool {
        self.probes.iter().any(|probe| probe.lost > 0 || probe.dropped > 0)
    }

    /// Returns the clock; `None` where it was not read.
    pub fn known_clock(&self) -> Option<&ClockReport> {
        Some(&self.clock).filter(|clock| !clock.clock.is_empty())
    }

    /// Notes that the process was over a budget.
    pub fn over(&mut self, budget: Budget, pid: u32, count: u64) {
        let name = self.targets.iter().find(|target| target.pid == pid).map(|target| target.name.as_str());
        self.over_budget.add(budget, WhoseBudget::Process(pid), name.unwrap_or_default(), count);
    }

    /// Adds a window that is over. The oldest are not listed any more when there are very many.
    pub fn push_window(&mut self, window: WindowReport) {
        self.windows.push(window);
        if self.windows.len() > MAX_WINDOWS {
            let over = self.windows.len() - MAX_WINDOWS;
            self.windows.drain(..over);
            self.left_out.windows += over as u64;
        }
    }

    /// Returns the report of a window of this session, as it begins.
    #[must_use]
    pub fn of_window(&self, window: &WindowReport) -> Self {
        let mut report = self.clone();
        report.windows.clear();
        (report.max_size, report.window) = (None, Some(window.clone()));
        report
    }

    /// Returns the form without lists of gaps and CPUs, for where the folder's limit leaves no room.
    #[must_use]
    pub fn shortened(&self) -> Self {
        let mut report = self.clone();
        report.errors.push("lists of gaps and CPUs are left out: --max-size leaves no room".to_owned());
        (report.gaps, report.cpus) = (Vec::new(), Vec::new());
        for probe in &mut report.probes {
            probe.cpus = Vec::new();
        }
        report
    }

    /// Returns the text of `session.json`.
    ///
    /// # Errors
    /// None that a report can cause.
    pub fn to_text(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Writes the text of `session.json`. It can be megabytes, and is written again and again: it is never held whole.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_to(&self, to: impl io::Write) -> io::Result<()> {
        let mut to = io::BufWriter::with_capacity(PIECE, to);
        serde_json::to_writer_pretty(&mut to, self)?;
        to.write_all(b"\n")?;
        to.flush()
    }
}
