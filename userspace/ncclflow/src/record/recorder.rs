//! The recording itself.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use ncclflow_common::WIRE_VERSION;

use super::{
    accounts::Baseline,
    bindings::SharedBindings,
    follow::Follower,
    limit,
    live::{self, Live},
    origins::Traced,
    pipeline::{Following, Pipeline},
    report::{complete_report, first_report},
    results::write_results,
    setup::{LibraryInUse, ProbeChoice, Setup, Wanted},
    windows::WindowOptions,
};
use crate::{
    capture::{Binding, CaptureHeader, CaptureWriter},
    kernel::{
        loader::{Attachment, Buffer, LinkKind, Program, StoredParts},
        probe::{Level, Way},
        stream::Waker,
    },
    layout_cache::LayoutCache,
    sinks::{
        Aggregated, ApiFormat, ApiOutputOptions, AttachReport, LiveStatistics, OutputDir, SessionFiles,
        SessionReport, WindowReport,
    },
    target::{Filter, Process},
};
use flow::{decode::Decoder, model::Sampling, schema::HostInfo, wire::ProbeKind};
use nccl_library::symbols::DebugFiles;

/// Which processes to record.
#[derive(Clone, Debug)]
pub enum Targets {
    /// These, which are there now.
    Pids(Vec<u32>),
    /// All of this node that the filter admits, also those that come later.
    All(Filter),
}

/// What to record.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// When the program began; what the report counts from.
    pub started: Instant,
    pub targets: Targets,
    /// `None`: nothing is written, the session is only watched.
    pub output: Option<PathBuf>,
    /// Statistics to keep while the session goes on.
    pub live: Option<LiveStatistics>,
    pub choice: ProbeChoice,
    /// Of which ops messages are measured, with [`crate::kernel::probe::Level::Steps`].
    pub sampling: Sampling,
    /// How calls are written, with [`crate::kernel::probe::Level::Api`].
    pub format: ApiFormat,
    /// `None`: until stopped, or until the targets have exited.
    pub duration: Option<Duration>,
    pub buffer: Buffer,
    /// How probes are attached.
    pub links: LinkKind,
    /// Most bytes of records that wait to be decoded and written. As much again may wait for the capture.
    pub queue_bytes: usize,
    /// The NCCL library's path as the target maps it, where its name does not show that it is one.
    pub library: Option<PathBuf>,
    /// Where to look for debugging information that a library itself has not.
    pub debug_files: DebugFiles,
    /// Keep what is resolved of a library in this folder, and use what is there.
    pub cache: Option<PathBuf>,
    /// Parts with folders of their own.
    pub windows: Option<WindowOptions>,
    /// Dump the processes when there is no hit for so long.
    pub on_hang: Option<Duration>,
    /// Most bytes that the output folder may take on the disk.
    pub max_size: Option<u64>,
    /// Compress files of lines when nothing more comes to them.
    pub compress: bool,
    /// Keep the raw records in this new file, for [`super::replay`].
    pub capture: Option<PathBuf>,
    /// Print the eBPF side's development log on standard error.
    pub development_log: bool,
}

/// Ends a recording from another thread.
#[derive(Clone, Debug)]
pub struct StopHandle {
    stop: Arc<AtomicBool>,
    rotate: Arc<AtomicBool>,
    waker: Waker,
}

impl StopHandle {
    pub fn new() -> Result<Self> {
        Ok(Self {
            stop: Arc::default(),
            rotate: Arc::default(),
            waker: Waker::new().context("making an eventfd")?,
        })
    }

    /// Ends the recording soon; what came until then is written.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Closes the window that is open, and opens the next.
    pub fn rotate(&self) {
        self.rotate.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn take_rotation(&self) -> bool {
        self.rotate.swap(false, Ordering::AcqRel)
    }

    /// Somebody has said so.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }
}

/// What a recording says while it goes on.
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
    /// With [`Targets::All`]: a process is traced from here on, at the latest.
    Joined {
        process: &'a Process,
        library: &'a LibraryInUse,
    },
    /// With [`Targets::All`]: a process that has NCCL is not traced; why.
    PassedOver(&'a str),
    /// What was resolved is not kept for the next time: why.
    NotCached(&'a str),
    /// A window's folder was removed, to make room for others.
    WindowRemoved(&'a str),
    /// The folder has reached its limit: lines, or windows, are lost from now on.
    OverMaxSize(u64),
    WindowOpened(&'a WindowReport),
    /// And what came of it.
    WindowClosed(&'a WindowReport, &'a SessionReport),
    /// Nothing moved: what the dump says.
    Hang(&'a str),
    /// A rotation was asked for, and there are no windows.
    NothingToRotate,
    /// A file could not be written.
    WriteFailed(&'a str),
    /// Everything is written; probes are being taken out of the kernel.
    Detaching {
        left: usize,
    },
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    pub report: SessionReport,
    pub aggregated: Option<Aggregated>,
}

/// Records until the time is up, the targets are gone, or `stop` says so. Results are complete before the probes are
/// detached, which can take a while.
pub fn record(
    options: &RecordOptions,
    stop: &StopHandle,
    notice: &mut dyn FnMut(Notice<'_>),
) -> Result<Outcome> {
    if options.choice.returns && !options.links.tells_returns_apart() {
        bail!(
            "`--returns` with a link for each probe (`--links perf`, or a kernel without uprobe_multi, before Linux 6.6) needs \
             the host's PID namespace: it could not be told whose returns they are; `--level api` works without `--returns`"
        );
    }
    // It is no failure not to have one.
    let cache = options.cache.as_deref().and_then(|path| {
        LayoutCache::open(path).inspect_err(|error| notice(Notice::NotCached(&format!("{error:#}")))).ok()
    });
    let wanted = Wanted {
        library: options.library.as_deref(),
        debug_files: &options.debug_files,
        choice: options.choice,
        cache: cache.as_ref(),
    };
    let mut times = AttachReport { links: Some(options.links), ..AttachReport::default() };
    let (setup, attachment) = find_and_load(options, &wanted, &mut times);
    let setup = setup?;
    notice(Notice::Found(&setup));
    if stop.is_stopped() {
        bail!("stopped before anything was attached");
    }
    let bindings_to_come = SharedBindings::default();
    let mut follower = match &options.targets {
        Targets::Pids(_) => None,
        Targets::All(filter) => Some(Follower::new(wanted, filter, bindings_to_come.clone())?),
    };
    raise_descriptor_limit();
    let dir = options.output.as_deref().map(|path| limit::create_folder(path, options)).transpose()?;
    let mut report = first_report(&setup, options.choice, options.buffer, options.queue_bytes);
    let prepared = attachment
        .and_then(|attachment| prepare(options.started, attachment, &setup, &report.host, &mut times));
    report.attach = times;
    report.sampling = (options.sampling != Sampling::default()).then_some(options.sampling);
    let (mut attachment, bindings) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            discard(dir);
            return Err(error);
        }
    };
    let checked = dir
        .as_ref()
        .map(|dir| limit::check(dir, &report, attachment.probes().len(), options.windows.is_some()));
    if let Some(Err(error)) = checked {
        discard(dir);
        return Err(error);
    }
    let api = ApiOutputOptions { format: options.format, realtime_offset_ns: report.clock.offset_ns };
    let capture = match options
        .capture
        .as_ref()
        .map(|path| start_capture(path, &bindings, &report, api, options.sampling))
        .transpose()
    {
        Ok(capture) => capture,
        Err(error) => {
            discard(dir);
            return Err(error);
        }
    };
    if let Some(dir) = &dir {
        report.write(dir).with_context(|| format!("cannot write to `{}`", dir.path().display()))?;
    }
    let kept_dir =
        dir.as_ref().map(OutputDir::try_clone).transpose().context("keeping the output folder open")?;
    let files = dir.map_or_else(SessionFiles::nowhere, |dir| SessionFiles::new(dir, api));
    let pipeline = if follower.is_some() {
        let traced = Traced {
            steps: options.choice.level == Level::Steps,
            returns: options.choice.returns,
            ..Traced::default()
        };
        let following = Following { bindings: bindings_to_come, host: report.host.clone() };
        Pipeline::following(following, traced, files)
    } else {
        Pipeline::new(bindings, files)
    };
    let pipeline = pipeline.sampling(options.sampling).counting(options.live.clone());
    let live = Live {
        options,
        stop,
        setup: &setup,
        cache: cache.as_ref(),
        follower: follower.as_mut(),
        dir: kept_dir.as_ref(),
        attachment: &mut attachment,
        report: &mut report,
        notice,
    };
    let mut taken = live::run(live, api, pipeline, capture)?;
    attachment.print_log();
    complete_report(&mut report, &attachment, &mut taken, &Baseline::default())?;
    let budget = kept_dir.as_ref().and_then(OutputDir::budget);
    if let Some(budget) = budget {
        limit::tell(budget, &mut report, notice);
    }
    let aggregated = write_results(taken, &mut report, options.compress, notice)?;
    if let (Some(dir), Some(budget)) = (&kept_dir, budget)
        && limit::tell(budget, &mut report, notice)
    {
        // Even the last file can have needed the room of a window, which is named in it.
        report.write(dir).context("writing `session.json`")?;
    }
    if let Some(follower) = follower {
        attachment.keep(follower.into_links());
    }
    attachment.detach(|left| notice(Notice::Detaching { left }));
    Ok(Outcome { report, aggregated })
}

/// Nothing was written to it.
fn discard(dir: Option<OutputDir>) {
    if let Some(dir) = dir {
        dir.discard();
    }
}

/// Two files a rank and one descriptor a probe are soon more than the usual soft limit of 1,024.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it there is an error where descriptors run out.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Begins the capture with what its records mean.
fn start_capture(
    path: &Path,
    bindings: &[Binding],
    report: &SessionReport,
    api: ApiOutputOptions,
    sampling: Sampling,
) -> Result<CaptureWriter> {
    let (bindings, report) = (bindings.to_vec(), report.to_text()?);
    let header = CaptureHeader { wire_version: WIRE_VERSION, bindings, report, api, sampling };
    CaptureWriter::create(path, &header)
        .with_context(|| format!("cannot write the capture `{}`", path.display()))
}

/// Finds processes, libraries and layouts while the eBPF object and its programs go into the kernel.
fn find_and_load(
    options: &RecordOptions,
    wanted: &Wanted<'_>,
    times: &mut AttachReport,
) -> (Result<Setup>, Result<Attachment>) {
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| {
            options.links.prepare();
            let mut attachment = Attachment::new(options.buffer, options.links, options.development_log);
            if let Ok(attachment) = &mut attachment {
                attachment.load_ahead(likely_programs(options.choice));
            }
            (attachment, ms_since(options.started))
        });
        let setup = match &options.targets {
            Targets::Pids(pids) => Setup::find(pids, wanted),
            Targets::All(_) => Ok(Setup::default()),
        };
        times.resolved_ms = ms_since(options.started);
        let (attachment, loaded_ms) =
            loading.join().unwrap_or_else(|_| (Err(anyhow!("loading the eBPF object failed")), 0.0));
        times.loaded_ms = loaded_ms;
        (setup, attachment)
    })
}

/// What the libraries of today need; what others need is loaded with their first probe.
fn likely_programs(choice: ProbeChoice) -> &'static [Program] {
    match (choice.level, choice.way) {
        (Level::Api, _) if choice.returns => &[Program::Fetch, Program::Return],
        (Level::Api, _) | (_, Some(Way::PerCall)) => &[Program::Fetch],
        (Level::Flow, _) => &[Program::Walk],
        (Level::Steps, _) => &[Program::Fetch, Program::Walk],
    }
}

/// Milliseconds, to the microsecond.
pub(super) fn ms_since(start: Instant) -> f64 {
    ms_between(start, Instant::now())
}

fn ms_between(start: Instant, end: Instant) -> f64 {
    (end.saturating_duration_since(start).as_secs_f64() * 1e6).round() / 1e3
}

/// Attaches every probe of every library to every target that uses it; the cookie is the index in what comes back.
fn prepare(
    started: Instant,
    mut attachment: Attachment,
    setup: &Setup,
    host: &str,
    times: &mut AttachReport,
) -> Result<(Attachment, Vec<Binding>)> {
    let mut bindings = Vec::new();
    let mut bind = |kind: &ProbeKind, decoder: &Decoder, host: Option<HostInfo>| {
        bindings.push(Binding { kind: kind.clone(), decoder: decoder.clone(), host });
    };
    let mut stored: Vec<Vec<Option<StoredParts>>> = Vec::new();
    for (index, library) in setup.libraries.iter().enumerate() {
        let mut of_library = Vec::new();
        for probe in &library.probes.probes {
            let Some(program) = &probe.walk else {
                of_library.push(None);
                continue;
            };
            of_library.push(Some(attachment.store_parts(probe, program, index)?));
            bind(&ProbeKind::Head, &library.decoder, None);
            for part in &program.parts {
                bind(&part.kind, &library.decoder, None);
            }
        }
        stored.push(of_library);
    }
    for target in &setup.targets {
        let pid = target.process.pid();
        let number = NonZeroU32::new(pid).context("0 is no process")?;
        for &index in &target.libraries {
            let (Some(library), Some(stored)) = (setup.libraries.get(index), stored.get(index)) else {
                continue;
            };
            let mut probes = Vec::new();
            for (probe, parts) in library.probes.probes.iter().zip(stored) {
                probes.push((probe, attachment.store(probe, *parts, index, Some(number))?));
                bind(&probe.kind, &library.decoder, Some(HostInfo { host: host.into(), pid }));
            }
            let path = library.file.stable_path();
            if let Err(error) = attachment.attach(&probes, &path, &library.file.path, number) {
                if target.process.has_exited() {
                    bail!("process {pid} exited before it could be traced");
                }
                return Err(error);
            }
        }
        if target.process.has_exited() {
            bail!("process {pid} exited before it could be traced");
        }
    }
    if let Some(first) = attachment.first_link() {
        times.first_probe_ms = ms_between(started, first);
    }
    times.attached_ms = ms_since(started);
    Ok((attachment, bindings))
}
