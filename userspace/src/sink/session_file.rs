//! `session.json`: what was traced, how well, and what was lost.

use std::io::Write as _;

use serde::Serialize;

use super::output_dir::OutputDir;
use crate::{
    elf::BuildId,
    model::ModelCounters,
    probe::{Level, MissingProbe, ProbePlace},
    symbols::{NcclVersion, Rung},
};

/// Whether the session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Still going on, or ended without a word (killed).
    Recording,
    Complete,
    /// Over, with files that could not be written in full.
    WriteFailed,
}

/// The whole of `session.json`.
#[derive(Clone, Debug, Serialize)]
pub struct SessionReport {
    pub ncclflow: &'static str,
    pub state: SessionState,
    pub host: String,
    pub kernel: String,
    pub level: Level,
    pub clock: ClockReport,
    pub attach: AttachReport,
    pub targets: Vec<TargetReport>,
    pub libraries: Vec<LibraryReport>,
    pub communicators: Vec<CommunicatorReport>,
    pub probes: Vec<ProbeReport>,
    pub loss: LossReport,
    pub model: ModelCounters,
    /// Why the first record that was not understood was not.
    pub first_undecodable: Option<String>,
    /// Libraries that look like NCCL and could not be traced, and why.
    pub passed_over: Vec<String>,
    pub errors: Vec<String>,
}

/// Both clocks, read together when the session began. Every `ts_ns` is on the monotonic one; add `offset_ns` for wall time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ClockReport {
    pub clock: &'static str,
    pub started_monotonic_ns: u64,
    pub started_realtime_ns: u64,
    pub offset_ns: u64,
    pub ended_monotonic_ns: Option<u64>,
}

/// How long it took until hits were recorded: milliseconds since the start of the program.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct AttachReport {
    /// Processes and libraries are found, and the libraries' symbols and layouts known.
    pub resolved_ms: f64,
    /// The eBPF object is in the kernel.
    pub loaded_ms: f64,
    /// The first probe is in the kernel.
    pub first_probe_ms: f64,
    /// All probes are.
    pub attached_ms: f64,
    /// The session is open: hits are recorded from here on.
    pub armed_ms: f64,
    /// That moment by the records' clock.
    pub armed_monotonic_ns: Option<u64>,
}

/// A process that was traced.
#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    /// In our PID namespace.
    pub pid: u32,
    /// What the process sees of itself.
    pub own_pid: u32,
    pub name: String,
    /// Indexes into `libraries`.
    pub libraries: Vec<usize>,
    /// It ended while it was traced.
    pub exited: bool,
}

/// An NCCL library that was traced.
#[derive(Clone, Debug, Serialize)]
pub struct LibraryReport {
    pub path: String,
    pub deleted: bool,
    pub device: u64,
    pub inode: u64,
    pub build_id: Option<BuildId>,
    pub nccl_version: Option<NcclVersion>,
    pub cuda_version: Option<(u32, u32)>,
    /// Where symbols and layouts are from.
    pub symbols: Rung,
    /// They were known from an earlier recording.
    pub cached: bool,
    pub missing_probes: Vec<MissingProbe>,
}

/// A rank of a communicator that was seen.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommunicatorReport {
    pub comm_hash: String,
    pub folder: String,
    pub rank: i32,
    pub n_ranks: i32,
    pub pid: u32,
    pub proxy_flow_lines: u64,
    pub flow_steps_lines: u64,
    pub api_lines: u64,
    pub lost_lines: u64,
}

/// A probe's account: `hits = delivered + lost + disarmed`.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeReport {
    pub function: String,
    pub symbol: String,
    pub at: ProbePlace,
    pub pid: u32,
    /// Index into `libraries`.
    pub library: usize,
    pub hits: u64,
    pub delivered: u64,
    pub lost: u64,
    /// Hits before the session opened and after it closed.
    pub disarmed: u64,
    /// Delivered with memory of the target that could not be read.
    pub faulted: u64,
}

/// Everything that was lost. Zeroes are written too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LossReport {
    /// Hits whose record found the ring buffer full.
    pub records_lost: u64,
    /// Records that could not be understood.
    pub records_undecodable: u64,
    /// Lines that could not be written.
    pub lines_lost: u64,
    /// Records that the capture lacks, where one was to be kept.
    pub records_not_captured: u64,
}

impl LossReport {
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl SessionReport {
    /// Writes `session.json`, in the place of an earlier one.
    pub fn write(&self, dir: &OutputDir) -> std::io::Result<()> {
        let text = self.to_text()?;
        dir.replace_file("session.json", |file| file.write_all(text.as_bytes()))
    }

    /// The content of `session.json`.
    pub fn to_text(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}
