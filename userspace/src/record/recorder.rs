//! The recording itself.

use std::{
    num::NonZeroU32,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use ncclflow_common::WIRE_VERSION;
use rustix::time::{ClockId, clock_gettime};

use super::{
    intake::Intake,
    pipeline::{Binding, Pipeline},
    setup::{Setup, Wanted},
};
use crate::{
    capture::{CaptureHeader, CaptureWriter},
    layout_cache::LayoutCache,
    loader::Attachment,
    probe::Level,
    sink::{
        Aggregated, ApiFormat, ApiOutputOptions, AttachReport, ClockReport, CommunicatorReport, HostInfo,
        LossReport, OutputDir, ProbeReport, SessionFiles, SessionReport, SessionState, TargetReport,
        aggregate_directory,
    },
    stream::{Drain, Waker},
    symbols::DebugFiles,
};

/// Longest sleep of the drain: how late a record can come that does not fill the buffer to the wake-up mark.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// How often the files are brought up to date for whoever reads along.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// Larger `flow_steps` files are not aggregated when the recording ends: the aggregate has three times their size, and few
/// readers take a JSON document of gigabytes. `ncclflow aggregate` does it on request.
pub(super) const MAX_AGGREGATED: u64 = 256 << 20;

/// How long the end waits for records that a CPU is still putting together.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

/// What to record.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// When the program began; what the report counts from.
    pub started: Instant,
    pub pids: Vec<u32>,
    pub output: PathBuf,
    pub level: Level,
    /// Trace the returns of the exported functions too; with [`Level::Api`].
    pub returns: bool,
    /// How calls are written, with [`Level::Api`].
    pub format: ApiFormat,
    /// `None`: until stopped, or until the targets have exited.
    pub duration: Option<Duration>,
    /// Bytes of the ring buffer; rounded up to a power of two of pages.
    pub buffer_bytes: u32,
    /// The NCCL library's path as the target maps it, where its name does not show that it is one.
    pub library: Option<PathBuf>,
    /// Where to look for debugging information that a library itself has not.
    pub debug_files: DebugFiles,
    /// Keep what is resolved of a library in this folder, and use what is there.
    pub cache: Option<PathBuf>,
    /// Keep the raw records in this new file, for [`super::replay`].
    pub capture: Option<PathBuf>,
    /// Print the eBPF side's development log on standard error.
    pub development_log: bool,
}

/// Ends a recording from another thread.
#[derive(Clone, Debug)]
pub struct StopHandle {
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl StopHandle {
    pub fn new() -> Result<Self> {
        Ok(Self { stop: Arc::default(), waker: Waker::new().context("making an eventfd")? })
    }

    /// Ends the recording soon; what came until then is written.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
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
    /// What was resolved is not kept for the next time: why.
    NotCached(&'a str),
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
    // It is no failure not to have one.
    let cache = options.cache.as_deref().and_then(|path| {
        LayoutCache::open(path).inspect_err(|error| notice(Notice::NotCached(&format!("{error:#}")))).ok()
    });
    let wanted = Wanted {
        library: options.library.as_deref(),
        debug_files: &options.debug_files,
        level: options.level,
        returns: options.returns,
        cache: cache.as_ref(),
    };
    let mut times = AttachReport::default();
    let (setup, attachment) = find_and_load(options, &wanted, &mut times);
    let mut setup = setup?;
    notice(Notice::Found(&setup));
    if stop.is_stopped() {
        bail!("stopped before anything was attached");
    }
    raise_descriptor_limit();
    let dir = OutputDir::create(&options.output)?;
    let mut report = first_report(&setup, options.level, &rustix::system::uname());
    let prepared =
        attachment.and_then(|attachment| prepare(options, attachment, &setup, &report.host, &mut times));
    let (mut attachment, bindings) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            dir.discard();
            return Err(error);
        }
    };
    let api = ApiOutputOptions { format: options.format, realtime_offset_ns: report.clock.offset_ns };
    let capture =
        match options.capture.as_ref().map(|path| start_capture(path, &bindings, &report, api)).transpose() {
            Ok(capture) => capture,
            Err(error) => {
                dir.discard();
                return Err(error);
            }
        };
    report.write(&dir).with_context(|| format!("cannot write to `{}`", dir.path().display()))?;
    let mut drain = Drain::new(attachment.take_records()?);
    let mut intake = Intake::new(Pipeline::new(bindings, SessionFiles::new(dir, api)), capture);
    attachment.arm()?;
    times.armed_ms = ms_since(options.started);
    times.armed_monotonic_ns = Some(now_ns(ClockId::Monotonic));
    report.attach = times;
    notice(Notice::Recording { probes: attachment.probes().len() });
    for library in &mut setup.libraries {
        if let Some(error) = cache.as_ref().and_then(|cache| library.keep(cache).err()) {
            notice(Notice::NotCached(&format!("{error:#}")));
        }
    }

    run(options, stop, &setup, &mut drain, &mut intake, &mut report, notice)?;

    attachment.disarm()?;
    settle(&attachment, &mut drain, &mut intake)?;
    attachment.print_log();
    intake.pipeline.finish();
    intake.flush();
    tell_errors(&mut intake, &mut report, notice);
    complete_report(&mut report, &attachment, &intake)?;
    let aggregated = write_results(&mut intake, &mut report, notice)?;
    attachment.detach(|left| notice(Notice::Detaching { left }));
    Ok(Outcome { report, aggregated })
}

/// Two files a rank and one descriptor a probe are soon more than the usual soft limit of 1,024.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it there is an error where descriptors run out.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Completes the folder and the capture. What cannot be written is said, and is part of the report.
fn write_results(
    intake: &mut Intake,
    report: &mut SessionReport,
    notice: &mut dyn FnMut(Notice<'_>),
) -> Result<Option<Aggregated>> {
    let mut fail = |report: &mut SessionReport, error: String| {
        notice(Notice::WriteFailed(&error));
        report.errors.push(error);
        report.state = SessionState::WriteFailed;
    };
    report.state = if report.errors.is_empty() { SessionState::Complete } else { SessionState::WriteFailed };
    let aggregated = if intake.pipeline.files().has_no_flows() {
        None
    } else {
        match aggregate_directory(intake.pipeline.files().dir(), MAX_AGGREGATED) {
            Ok(aggregated) => Some(aggregated),
            Err(error) => {
                fail(report, format!("{error:#}"));
                None
            }
        }
    };
    if let Err(error) = intake.finish_capture(&report.to_text()?) {
        fail(report, format!("writing the capture stopped: {error}"));
    }
    if let Err(error) = report.write(intake.pipeline.files().dir()) {
        fail(report, format!("writing `session.json`: {error}"));
    }
    Ok(aggregated)
}

/// Begins the capture with what its records mean.
fn start_capture(
    path: &Path,
    bindings: &[Binding],
    report: &SessionReport,
    api: ApiOutputOptions,
) -> Result<CaptureWriter> {
    let (bindings, report) = (bindings.to_vec(), report.to_text()?);
    let header = CaptureHeader { wire_version: WIRE_VERSION, bindings, report, api };
    CaptureWriter::create(path, &header)
        .with_context(|| format!("cannot write the capture `{}`", path.display()))
}

/// Finds processes, libraries and layouts while the eBPF object goes into the kernel: both take some 20 ms.
fn find_and_load(
    options: &RecordOptions,
    wanted: &Wanted<'_>,
    times: &mut AttachReport,
) -> (Result<Setup>, Result<Attachment>) {
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let attachment = Attachment::new(options.buffer_bytes, options.development_log);
            (attachment, ms_since(options.started))
        });
        let setup = Setup::find(&options.pids, wanted);
        times.resolved_ms = ms_since(options.started);
        let (attachment, loaded_ms) =
            loading.join().unwrap_or_else(|_| (Err(anyhow!("loading the eBPF object failed")), 0.0));
        times.loaded_ms = loaded_ms;
        (setup, attachment)
    })
}

/// Attaches every probe of every library to every target that uses it; the cookie is the index in what comes back.
fn prepare(
    options: &RecordOptions,
    mut attachment: Attachment,
    setup: &Setup,
    host: &str,
    times: &mut AttachReport,
) -> Result<(Attachment, Vec<Binding>)> {
    let mut bindings = Vec::new();
    for target in &setup.targets {
        let pid = target.process.pid();
        let number = NonZeroU32::new(pid).context("0 is no process")?;
        for &index in &target.libraries {
            let Some(library) = setup.libraries.get(index) else { continue };
            for probe in &library.probes.probes {
                let path = library.file.stable_path();
                if let Err(error) = attachment.attach(probe, index, &path, &library.file.path, number) {
                    if target.process.has_exited() {
                        bail!("process {pid} exited before it could be traced");
                    }
                    return Err(error);
                }
                if bindings.is_empty() {
                    times.first_probe_ms = ms_since(options.started);
                }
                bindings.push(Binding {
                    kind: probe.kind,
                    decoder: library.decoder.clone(),
                    host: HostInfo { host: host.to_owned(), pid },
                    delivered: 0,
                });
            }
        }
        if target.process.has_exited() {
            bail!("process {pid} exited before it could be traced");
        }
    }
    times.attached_ms = ms_since(options.started);
    Ok((attachment, bindings))
}

/// The time between arming and disarming.
fn run(
    options: &RecordOptions,
    stop: &StopHandle,
    setup: &Setup,
    drain: &mut Drain,
    intake: &mut Intake,
    report: &mut SessionReport,
    notice: &mut dyn FnMut(Notice<'_>),
) -> Result<()> {
    let deadline = options.duration.map(|duration| Instant::now() + duration);
    let mut running: Vec<usize> = (0..setup.targets.len()).collect();
    let mut last_flush = Instant::now();
    while !stop.is_stopped() && !running.is_empty() {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            break;
        }
        let taken = drain.take(|item| intake.record(item));
        if last_flush.elapsed() >= FLUSH_INTERVAL {
            intake.flush();
            tell_errors(intake, report, notice);
            last_flush = Instant::now();
        }
        if taken == 0 {
            let exits: Vec<BorrowedFd<'_>> = running
                .iter()
                .filter_map(|&at| setup.targets.get(at))
                .map(|target| target.process.exit_fd())
                .collect();
            let timeout = left.map_or(DRAIN_INTERVAL, |left| left.min(DRAIN_INTERVAL));
            drain.wait(&stop.waker, &exits, timeout).context("waiting for records")?;
        }
        running.retain(|&at| {
            let Some(target) = setup.targets.get(at) else { return false };
            let exited = target.process.has_exited();
            if exited {
                let pid = target.process.pid();
                notice(Notice::TargetExited { pid });
                report
                    .targets
                    .iter_mut()
                    .filter(|target| target.pid == pid)
                    .for_each(|target| target.exited = true);
            }
            !exited
        });
    }
    Ok(())
}

/// Takes what is left: until every hit is accounted for, or it is clear that this will not come true.
fn settle(attachment: &Attachment, drain: &mut Drain, intake: &mut Intake) -> Result<()> {
    let deadline = Instant::now() + SETTLE_LIMIT;
    loop {
        while drain.take(|item| intake.record(item)) > 0 {}
        let mut open = false;
        for probe in attachment.probes() {
            let counters = attachment.counters(probe)?;
            let seen = intake
                .pipeline
                .delivered(probe.cookie)
                .saturating_add(counters.lost_full)
                .saturating_add(counters.disarmed);
            open |= counters.hits > seen;
        }
        if !open || Instant::now() >= deadline {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn tell_errors(intake: &mut Intake, report: &mut SessionReport, notice: &mut dyn FnMut(Notice<'_>)) {
    for error in intake.errors().iter().skip(report.errors.len()) {
        notice(Notice::WriteFailed(error));
    }
    report.errors = intake.errors().to_vec();
}

fn first_report(setup: &Setup, level: Level, host: &rustix::system::Uname) -> SessionReport {
    let (monotonic, realtime) = (now_ns(ClockId::Monotonic), now_ns(ClockId::Realtime));
    SessionReport {
        ncclflow: env!("CARGO_PKG_VERSION"),
        state: SessionState::Recording,
        host: host.nodename().to_string_lossy().into_owned(),
        kernel: host.release().to_string_lossy().into_owned(),
        level,
        clock: ClockReport {
            clock: "CLOCK_MONOTONIC",
            started_monotonic_ns: monotonic,
            started_realtime_ns: realtime,
            offset_ns: realtime.saturating_sub(monotonic),
            ended_monotonic_ns: None,
        },
        attach: AttachReport::default(),
        targets: setup
            .targets
            .iter()
            .map(|target| TargetReport {
                pid: target.process.pid(),
                own_pid: target.process.own_pid(),
                name: target.process.name().to_owned(),
                libraries: target.libraries.clone(),
                exited: false,
            })
            .collect(),
        libraries: setup.libraries.iter().map(super::setup::LibraryInUse::report).collect(),
        communicators: Vec::new(),
        probes: Vec::new(),
        loss: LossReport::default(),
        model: crate::model::ModelCounters::default(),
        first_undecodable: None,
        passed_over: setup.passed_over.clone(),
        errors: Vec::new(),
    }
}

fn complete_report(report: &mut SessionReport, attachment: &Attachment, intake: &Intake) -> Result<()> {
    let pipeline = &intake.pipeline;
    report.clock.ended_monotonic_ns = Some(now_ns(ClockId::Monotonic));
    for probe in attachment.probes() {
        let counters = attachment.counters(probe)?;
        report.probes.push(ProbeReport {
            function: probe.function.clone(),
            symbol: probe.symbol.clone(),
            at: probe.place,
            pid: probe.pid,
            library: probe.library,
            hits: counters.hits,
            delivered: pipeline.delivered(probe.cookie),
            lost: counters.lost_full,
            disarmed: counters.disarmed,
            faulted: counters.faulted,
        });
    }
    let (records_undecodable, first) = pipeline.undecodable();
    report.first_undecodable = first.map(ToString::to_string);
    report.loss = LossReport {
        records_lost: report.probes.iter().map(|probe| probe.lost).sum(),
        records_undecodable,
        lines_lost: pipeline.files().lost_lines(),
        records_not_captured: intake.not_captured(),
    };
    report.model = pipeline.model_counters();
    report.communicators = pipeline
        .files()
        .summaries()
        .into_iter()
        .map(|rank| CommunicatorReport {
            comm_hash: rank.comm_hash,
            folder: rank.folder,
            rank: rank.rank,
            n_ranks: rank.n_ranks,
            pid: rank.pid,
            proxy_flow_lines: rank.records,
            flow_steps_lines: rank.steps,
            api_lines: rank.api_calls,
            lost_lines: rank.lost,
        })
        .collect();
    Ok(())
}

fn ms_since(start: Instant) -> f64 {
    // To the microsecond.
    (start.elapsed().as_secs_f64() * 1e6).round() / 1e3
}

fn now_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}
