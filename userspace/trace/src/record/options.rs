//! Options of a recording, its notices while it goes on, and its outcome.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::setup::{LibraryInUse, Setup};
use crate::{
    health::Health,
    kernel::{loader::Buffer, stream::Waker},
};
use flow::{
    model::Sampling,
    session::{BufferKind, Level, LinkKind, ProbeStrategy, SessionReport, StepDetail, WindowReport},
};
use inspect::{
    gpu::GpuSamples,
    identity::WhoOptions,
    process::{Filter, Process},
};
use nccl_library::symbols::DebugFiles;
use recording::sinks::{FlowRanks, LiveStatistics};
use stacks::LiveStacks;

/// Time at which line files are made from the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FilesWhen {
    /// When it is over
    End,
    /// Not at all; `ncclflow export` makes them whenever they are wanted
    None,
}

#[derive(Clone, Debug)]
pub enum Targets {
    /// Processes that are running now.
    Pids(Vec<u32>),
    /// All processes of this node that the filter admits, also those that start later.
    All(Filter),
}

impl Targets {
    pub fn new(all: bool, pids: &[u32], filter: &Filter) -> Self {
        if all { Self::All(filter.clone()) } else { Self::Pids(pids.to_vec()) }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ProbeChoice {
    pub level: Level,
    /// `None`: the best way that the library allows, whole plans first.
    pub strategy: Option<ProbeStrategy>,
    /// Detail of [`Level::Steps`].
    pub detail: StepDetail,
    /// Calls of the API too, with the other levels.
    pub api: bool,
    /// Returns of the exported functions too, with [`Level::Api`] or `api`.
    pub returns: bool,
    pub stacks: Option<StackChoice>,
}

/// Call stacks that are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackChoice {
    pub kind: StackKind,
    /// Most frames of Python.
    pub depth: u8,
}

/// Language of the frames in call stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackKind {
    #[default]
    Python,
    Native,
    Both,
}

impl StackKind {
    pub fn has_python(self) -> bool {
        self != Self::Native
    }

    pub fn has_native(self) -> bool {
        self != Self::Python
    }
}

impl std::str::FromStr for StackKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "python" => Ok(Self::Python),
            "native" => Ok(Self::Native),
            "both" => Ok(Self::Both),
            _ => Err("python, native or both".to_owned()),
        }
    }
}

/// Line files that are made from the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesOptions {
    pub when: FilesWhen,
    /// Most bytes of all files of a recording, or of a window.
    pub limit_bytes: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// Start of the program, from which the report's times count.
    pub started: Instant,
    pub targets: Targets,
    /// `None`: nothing is written.
    pub output: Option<PathBuf>,
    pub files: FilesOptions,
    /// Statistics to keep while the recording goes on.
    pub statistics: Option<LiveStatistics>,
    /// Samples of the GPUs' activity, to be recorded.
    pub gpus: Option<GpuSamples>,
    pub choice: ProbeChoice,
    /// Ops whose messages are measured, with [`Level::Steps`].
    pub sampling: Sampling,
    /// Receiver of rows as they come, if nothing is written.
    pub watcher: Option<LiveStacks>,
    /// `None`: until stopped, or until the targets have exited.
    pub duration: Option<Duration>,
    pub buffer: Buffer,
    pub links: LinkKind,
    /// Most bytes of records that wait to be written into the recording.
    pub queue_bytes: usize,
    /// Path of the NCCL library as the target maps it, where its name does not show that it is NCCL.
    pub library: Option<PathBuf>,
    /// Places of debugging information that a library itself does not have.
    pub debug_files: DebugFiles,
    /// Folder where resolved libraries are kept and looked up.
    pub cache: Option<PathBuf>,
    /// Parts of the recording with folders of their own.
    pub windows: Option<WindowOptions>,
    /// Dump the processes when there is no hit for so long.
    pub on_hang: Option<Duration>,
    /// Most bytes that the output folder may take on the disk.
    pub max_size: Option<u64>,
    /// Greatest age of what is in the output folder.
    pub max_age: Option<Duration>,
    /// Compress line files when nothing more is added to them.
    pub compress: bool,
    /// Sources of the job's ranks besides the processes themselves.
    pub who: Arc<WhoOptions>,
    /// Print the eBPF side's development log on standard error.
    pub development_log: bool,
    /// Health of the session's threads. Each session has its own.
    pub health: Health,
}

impl RecordOptions {
    /// Returns options for ops of these targets, until stopped, through buffers of 16 MiB in all and a queue
    /// of 32 MiB. Nothing is written.
    pub fn new(started: Instant, targets: Targets, buffer: BufferKind, links: LinkKind) -> Self {
        let processes = match &targets {
            Targets::Pids(pids) => Some(pids.len()),
            Targets::All(_) => None,
        };
        Self {
            started,
            targets,
            output: None,
            files: FilesOptions { when: FilesWhen::End, limit_bytes: None },
            statistics: None,
            gpus: None,
            choice: ProbeChoice {
                level: Level::Flow,
                strategy: None,
                detail: StepDetail::default(),
                api: false,
                returns: false,
                stacks: None,
            },
            sampling: Sampling::default(),
            watcher: None,
            duration: None,
            buffer: Buffer { kind: buffer, bytes: 16 << 20, rings: Buffer::rings_for(processes) },
            links,
            queue_bytes: 32 << 20,
            library: None,
            debug_files: DebugFiles::default(),
            cache: None,
            windows: None,
            on_hang: None,
            max_size: None,
            max_age: None,
            compress: false,
            who: Arc::default(),
            development_log: false,
            health: Health::default(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct WindowOptions {
    /// Flag file: a window is open while it exists. Where a process sees one at this path in a container of
    /// its own, the window is that container's. `None`: a window is always open.
    pub flag: Option<PathBuf>,
    /// Most ops on a channel, or calls of the API, over all processes.
    pub max_ops: Option<u64>,
    pub max_duration: Option<Duration>,
    /// Length of a window in training iterations.
    pub iterations: Option<u64>,
}

/// Ends a recording from another thread.
#[derive(Clone, Debug)]
pub struct StopHandle {
    stop: Arc<AtomicBool>,
    /// The recording is whole, and its files are not yet.
    finishes_files: Arc<AtomicBool>,
    leaves_files: Arc<AtomicBool>,
    rotate: Arc<AtomicBool>,
    /// Wakes whoever waits for the end or a rotation.
    pub(super) waker: Waker,
}

impl StopHandle {
    pub fn new() -> Result<Self> {
        let waker = Waker::new().context("making an eventfd")?;
        let [stop, finishes_files, leaves_files, rotate] = Default::default();
        Ok(Self { stop, finishes_files, leaves_files, rotate, waker })
    }

    /// Ends the recording soon. What came until then is written.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Ends the files where they are, if the recording is whole and only files are left. `false`: it is not.
    pub fn leave_files(&self) -> bool {
        self.leaves_files.store(true, Ordering::Release);
        self.finishes_files.load(Ordering::Acquire)
    }

    /// Returns the flag that makes files end where they are.
    pub(super) fn files_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.leaves_files)
    }

    pub(super) fn finishes_files(&self) {
        self.finishes_files.store(true, Ordering::Release);
    }

    /// Closes the window that is open, and opens the next.
    pub fn rotate(&self) {
        self.rotate.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn take_rotation(&self) -> bool {
        self.rotate.swap(false, Ordering::AcqRel)
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// News of a recording while it goes on.
#[derive(Debug)]
pub enum Notice<'a> {
    /// Processes, libraries and probes are known.
    Found(&'a Setup),
    /// The probes are armed.
    Recording {
        probes: usize,
    },
    TargetExited {
        pid: u32,
    },
    /// The process is traced, from now on at the latest, with [`Targets::All`].
    Joined {
        process: &'a Process,
        library: &'a LibraryInUse,
    },
    /// Why a process that has NCCL is not traced, with [`Targets::All`].
    PassedOver(&'a str),
    /// Processes that may not be looked at, with `--all`, and what to do.
    NotSeen(&'a str),
    /// The probes of a library are gone, because its file was changed: why, and the processes concerned.
    LibraryChanged(&'a str),
    /// Why a container's flag file opens no windows.
    FlagNotSeen(&'a str),
    /// Why the call stacks of a process are not known.
    NoStacks {
        pid: u32,
        why: &'a str,
    },
    /// Why a resolved library is not kept for the next time.
    NotCached(&'a str),
    /// Why the changed file of `--rank-map` is not used.
    RankMapBroken(&'a str),
    /// A window's folder was removed, to make room for others or for its age.
    WindowRemoved(&'a str),
    /// The line files in this folder of the recording were removed, to make room or for their age. The root's
    /// name is empty.
    LinesRemoved(&'a str),
    /// The recording is whole. Files are made from `done` of its `of` bytes.
    Finishing {
        done: u64,
        of: u64,
    },
    /// The folder has reached this limit, in bytes. Lines, or windows, are lost from now on.
    OverMaxSize(u64),
    WindowOpened(&'a WindowReport),
    /// The window, and its own `session.json`.
    WindowClosed(&'a WindowReport, &'a SessionReport),
    /// No probe was hit for too long: the dump's verdict.
    Hang(&'a str),
    /// A rotation was asked for, and there are no windows.
    NothingToRotate,
    WriteFailed(&'a str),
    /// The session has failed, and ends: why.
    Failed(&'a str),
    /// The recording is whole. So many probes are still to be detached.
    Detaching {
        left: usize,
    },
    Detached,
}

#[derive(Debug)]
pub struct Outcome {
    pub report: SessionReport,
    pub flow_ranks: FlowRanks,
}
