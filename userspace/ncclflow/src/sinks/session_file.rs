//! `session.json`: targets, quality of the trace, and losses.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
};

use serde::Serialize;

use super::{
    budget::{Share, is_over_max_size},
    compress::Compressed,
    messages::Messages,
    output_dir::OutputDir,
    over_budget::{Budget, OverBudget, Whose as WhoseBudget},
    target_list::TargetList,
    window_iterations::WindowIterations,
};
use crate::kernel::{
    loader::{BufferKind, LinkKind},
    probe::{CallSource, Level, MissingProbe, ProbePlace, ProbeStrategy, StepDetail},
};
use crate::recording::RecordingTotals;
use crate::resolver::Lost;
use crate::target::Container;
use crate::who::{Job, Whose};
use flow::{
    model::{ModelCounters, Sampling},
    schema::{ClockReport, CommunicatorReport, CpuReport, Gap, LossReport},
};
use nccl_library::{elf::BuildId, nccl::NcclVersion, symbols::SymbolSource};

/// Most windows that are listed in the report of their recording.
const MAX_WINDOWS: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Still going on, or ended without a word (killed).
    Recording,
    Complete,
    /// The recording is whole; files are still made of it.
    MakingFiles,
    /// Over, with files that could not be written in full.
    WriteFailed,
    /// Ended before its time, as a part of ncclflow failed. `errors` says which; what was lost is counted.
    Failed,
}

#[derive(Clone, Debug, Serialize)]
pub struct SessionReport {
    pub ncclflow: &'static str,
    pub state: SessionState,
    pub host: String,
    pub kernel: String,
    pub level: Level,
    /// The API's calls are recorded, too.
    pub api: bool,
    /// Detail of measured messages; with [`Level::Steps`] only.
    pub step_detail: Option<StepDetail>,
    /// Ops whose messages were measured, if not all.
    pub sampling: Option<Sampling>,
    pub clock: ClockReport,
    /// Movement of wall time against the records' clock from the beginning to the end, if over 1 ms: the
    /// clock was set, or the host slept. Wall times made with `clock.offset_ns` are wrong by up to as much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_moved_ns: Option<i64>,
    pub attach: AttachReport,
    pub targets: TargetList,
    pub libraries: Vec<LibraryReport>,
    pub communicators: Vec<CommunicatorReport>,
    pub buffer: BufferReport,
    pub probes: Vec<ProbeReport>,
    /// Sums over all probes, for each CPU with a hit.
    pub cpus: Vec<CpuReport>,
    pub loss: LossReport,
    pub gaps: Vec<Gap>,
    pub model: ModelCounters,
    /// Why the first record that could not be decoded could not.
    pub first_undecodable: Option<String>,
    /// Libraries that look like NCCL and could not be traced, and why.
    pub passed_over: Vec<String>,
    /// Libraries whose files were changed while probes were on them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed_libraries: Vec<ChangedLibrary>,
    /// Children of ncclflow that looked at tenants' files and were lost, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_readers: Option<Lost>,
    pub errors: Messages,
    /// Containers whose flag files are not looked at, and why.
    #[serde(skip_serializing_if = "Messages::is_empty")]
    pub flags_not_seen: Messages,
    /// Processes and tenants that were over their share of something in common, and lost of their own.
    #[serde(skip_serializing_if = "OverBudget::is_empty")]
    pub over_budget: OverBudget,
    /// Counts of entries that are not listed, as there are too many for a report.
    #[serde(skip_serializing_if = "LeftOut::is_nothing")]
    pub left_out: LeftOut,
    /// Contents of the folder `recording`, except its last blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording: Option<RecordingTotals>,
    /// Files made from the recording, on which `model`, `communicators`, and the counts of lines and of
    /// undecodable records rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesReport>,
    /// State of `--max-size`, in the recording's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_size: Option<MaxSizeReport>,
    /// Result of `--compress`, for the files in this folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed: Option<Compressed>,
    /// The window, in a window's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowReport>,
    /// All windows that are closed and were not removed, in the folder of a recording with windows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<WindowReport>,
}

/// Counts of entries that a report has left out, by list. A report is as large after a year as after a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Processes that have ended; the latest 1,000 of them are listed.
    pub targets: u64,
    /// Ranks of processes that have ended; the latest 1,000 of them are listed.
    pub communicators: u64,
    /// Windows; the latest 1,000 are listed.
    pub windows: u64,
}

impl LeftOut {
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Time at which line files are made from the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "program", derive(clap::ValueEnum))]
pub enum FilesWhen {
    /// When it is over
    End,
    /// Not at all; `ncclflow export` makes them whenever they are wanted
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FilesState {
    /// The files hold all of the recording.
    Complete,
    /// The files end at `limit_bytes`.
    Limit,
    /// The files end where a second signal ended them.
    Stopped,
    /// The files were removed for `max_size` or their age.
    Removed,
    /// The files are not complete; `errors` says why.
    Failed,
    /// No files were asked for.
    None,
}

/// The line files, which are made from the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FilesReport {
    pub state: FilesState,
    /// Bytes of lines, before they are compressed.
    pub bytes: u64,
    /// Most bytes of all files with `flow_rank`: `--files-limit`, or half of `--max-size`.
    pub limit_bytes: Option<u64>,
    /// Records of the recording that were read for the files.
    pub records: u64,
    /// Records that were removed before they were read: the files lack them.
    pub missed_records: u64,
    /// Time of the last record read, by the records' clock.
    pub until_ns: Option<u64>,
}

impl FilesReport {
    /// Reports that no files were asked for.
    pub fn none() -> Self {
        Self {
            state: FilesState::None,
            bytes: 0,
            limit_bytes: None,
            records: 0,
            missed_records: 0,
            until_ns: None,
        }
    }

    /// Reports files of which nothing is known.
    pub fn failed() -> Self {
        Self { state: FilesState::Failed, ..Self::none() }
    }
}

/// State of `--max-size` and `--max-age`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MaxSizeReport {
    /// Most bytes of the folder on the disk; `None`: there is only an age.
    pub bytes: Option<u64>,
    /// Bytes that the folder took when this was written, without this file in its last form.
    pub used_bytes: u64,
    /// Windows that were removed to make room, always the oldest.
    pub windows_removed: u64,
    pub bytes_removed: u64,
    /// Folders of removed windows; of more than 256 the latest.
    pub folders_removed: Vec<String>,
    /// Windows, or recordings, whose line files were removed; `ncclflow export` makes them again.
    pub lines_removed: u64,
}

/// A part of a recording that has a folder of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WindowReport {
    /// Number of the window, from 1.
    pub number: u32,
    /// Folder inside the recording's.
    pub folder: String,
    /// Unix time in milliseconds.
    pub opened_unix_ms: u64,
    /// Hits were recorded from here on …
    pub opened_monotonic_ns: u64,
    /// … until here, by the records' clock.
    pub closed_monotonic_ns: Option<u64>,
    pub closed_by: Option<WindowEnd>,
    /// Ops and calls beyond the limit that came before the window was closed.
    pub ops_left_out: u64,
    /// The window's line files were removed for `max_size`.
    pub lines_removed: bool,
    /// Containers, if the window is for some containers' processes. Hits of others are counted as `disarmed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub containers: Option<Vec<WindowContainer>>,
    /// Training iterations, with `--window-iterations`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<WindowIterations>,
}

/// A container whose flag file opened a window of its processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WindowContainer {
    /// Inode of `/proc/PID/ns/mnt`.
    pub mount_namespace: u64,
    /// The runtime's name of the container, where a control group tells.
    pub container: Option<Container>,
    /// Traced processes that were in it while the window was open, as ncclflow sees them.
    pub pids: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowEnd {
    /// The flag file had gone.
    Flag,
    /// A flag came in another container, or the host's did: the next window is for more processes.
    OtherFlag,
    MaxOps,
    MaxSecs,
    /// The window has as many iterations as were asked for.
    Iterations,
    Signal,
    Recording,
}

/// Times until hits were recorded, in milliseconds since the start of the program.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct AttachReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<LinkKind>,
    /// Processes and libraries are found, and the libraries' symbols and layouts known.
    pub resolved_ms: f64,
    /// The eBPF object is in the kernel, with the programs that are likely to be needed.
    pub loaded_ms: f64,
    /// The first probe is in the kernel; `attached_ms`: all are.
    pub first_probe_ms: f64,
    pub attached_ms: f64,
    /// The session is open: hits are recorded from here on.
    pub armed_ms: f64,
    /// Time of `armed_ms` by the records' clock.
    pub armed_monotonic_ns: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    /// Number of the process in our PID namespace.
    pub pid: u32,
    /// Number that the process itself sees.
    pub own_pid: u32,
    pub name: String,
    /// Indexes into `libraries`.
    pub libraries: Vec<usize>,
    pub exited: bool,
    /// Start of the process, in ticks since boot. With the PID, it identifies the process.
    pub started_ticks: Option<u64>,
    /// Latest time from which its hits are recorded, by the records' clock; with `--all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub followed_since_ns: Option<u64>,
    /// Why it is not traced, though it has NCCL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untraced: Option<String>,
    /// `None`: it had ended, or could not be looked at.
    #[serde(flatten)]
    pub whose: Option<Whose>,
    /// At the end of the recording or window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// Version of its Python, or `not known: ` and why its stacks are not; with `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
}

/// A library whose file was changed while probes were on it. They were taken away at once.
#[derive(Clone, Debug, Serialize)]
pub struct ChangedLibrary {
    /// Index into `libraries`.
    pub library: usize,
    pub path: String,
    /// Time when the change was seen, by the records' clock.
    pub seen_ns: u64,
    /// The change that was found.
    pub what: String,
    /// The processes that had it mapped. They are not traced any more: what their memory has of the file is a
    /// mixture of both contents.
    pub pids: Vec<u32>,
    /// Time from which the probes could have been on other instructions, by the records' clock: the last look
    /// that found the file as it was resolved.
    pub unchanged_until_ns: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct LibraryReport {
    pub path: String,
    pub deleted: bool,
    pub device: u64,
    pub inode: u64,
    pub build_id: Option<BuildId>,
    pub nccl_version: Option<NcclVersion>,
    pub cuda_version: Option<(u32, u32)>,
    pub symbols: SymbolSource,
    pub cached: bool,
    /// Probes of ops: whole plans at their launch, or call by call.
    pub probes: Option<ProbeStrategy>,
    /// Probes of the API's calls; `None` if calls are not recorded.
    pub calls: Option<CallSource>,
    pub missing_probes: Vec<MissingProbe>,
}

/// Buffers between the kernel and the files.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BufferReport {
    pub kind: BufferKind,
    /// Size of the kernel's buffers, all CPUs together.
    pub bytes: u64,
    /// Most bytes of records that wait to be written into the recording.
    pub queue_bytes: u64,
    /// Most bytes that waited at a time.
    pub queue_peak_bytes: u64,
}

/// A probe's account: `hits = delivered + lost + dropped + disarmed`.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeReport {
    pub function: String,
    pub symbol: String,
    pub at: ProbePlace,
    /// Content of a part, if this is no probe but a part of those that walk lists.
    pub part: Option<&'static str>,
    /// Process that it is limited to; parts serve all processes that use the library.
    pub pid: Option<u32>,
    /// Index into `libraries`.
    pub library: usize,
    pub hits: u64,
    /// Records that came into the recording's thread.
    pub delivered: u64,
    /// Lost in the kernel, as its buffer was full.
    pub lost: u64,
    /// Records taken out of the kernel, and dropped as writing the recording had not kept up and the queue
    /// was full.
    pub dropped: u64,
    /// Hits before the session opened and after it closed.
    pub disarmed: u64,
    /// Records delivered although memory of the target could not be read.
    pub faulted: u64,
    /// CPUs on which something was lost or dropped.
    pub cpus: Vec<CpuReport>,
}

/// Largest `session.json` of a window that is read again.
const MAX_SESSION: u64 = 64 << 20;

/// Notes in the `session.json` of a complete window that its line files were removed. No room is made for it:
/// the recording's own `session.json` says the same.
pub(crate) fn tell_window_of_removed_lines(dir: &OutputDir, window: &str) -> std::io::Result<()> {
    let Some(dir) = dir.complete_window(window)? else { return Ok(()) };
    let mut text = Vec::new();
    dir.open_file("session.json")?.take(MAX_SESSION).read_to_end(&mut text)?;
    let mut session: serde_json::Value = serde_json::from_slice(&text)?;
    let mut set = |of: &str, key: &str, value: serde_json::Value| {
        let found = session.get_mut(of).and_then(|of| of.as_object_mut()?.get_mut(key));
        found.map(|found| *found = value)
    };
    set("window", "lines_removed", true.into());
    set("files", "state", serde_json::to_value(FilesState::Removed)?);
    let text = serde_json::to_string_pretty(&session)? + "\n";
    dir.replace_file(Share::Aggregates, "session.json", |file| file.write_all(text.as_bytes()))
}

impl SessionReport {
    /// Writes `session.json`, in the place of an earlier one. Where the folder's limit leaves no room for all
    /// of it, lists of gaps and CPUs are left out.
    pub fn write(&self, dir: &OutputDir) -> std::io::Result<()> {
        let write = |report: &Self| {
            let text = report.to_text()?;
            dir.replace_file(Share::Report, "session.json", |file| file.write_all(text.as_bytes()))
        };
        match write(self) {
            Err(error) if is_over_max_size(&error) => write(&self.shortened()),
            written => written,
        }
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

    fn shortened(&self) -> Self {
        let mut report = self.clone();
        report.errors.push("lists of gaps and CPUs are left out: --max-size leaves no room".to_owned());
        (report.gaps, report.cpus) = (Vec::new(), Vec::new());
        for probe in &mut report.probes {
            probe.cpus = Vec::new();
        }
        report
    }

    pub fn to_text(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}
