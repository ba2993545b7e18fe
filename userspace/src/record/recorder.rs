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
    live::{self, Live, Taken},
    pipeline::{Binding, Pipeline},
    report::{complete_report, first_report},
    setup::{ProbeChoice, Setup, Wanted},
};
use crate::{
    capture::{CaptureHeader, CaptureWriter},
    decode::Decoder,
    layout_cache::LayoutCache,
    live::LiveStatistics,
    loader::{Attachment, Buffer, StoredParts},
    probe::ProbeKind,
    sink::{
        Aggregated, ApiFormat, ApiOutputOptions, AttachReport, HostInfo, OutputDir, SessionFiles,
        SessionReport, SessionState, aggregate_directory,
    },
    stream::Waker,
    symbols::DebugFiles,
};

/// Larger `flow_steps` files are not aggregated when the recording ends: the aggregate has three times their size, and few
/// readers take a JSON document of gigabytes. `ncclflow aggregate` does it on request.
pub(super) const MAX_AGGREGATED: u64 = 256 << 20;

/// What to record.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// When the program began; what the report counts from.
    pub started: Instant,
    pub pids: Vec<u32>,
    /// `None`: nothing is written, the session is only watched.
    pub output: Option<PathBuf>,
    /// Statistics to keep while the session goes on.
    pub live: Option<LiveStatistics>,
    pub choice: ProbeChoice,
    /// How calls are written, with [`crate::probe::Level::Api`].
    pub format: ApiFormat,
    /// `None`: until stopped, or until the targets have exited.
    pub duration: Option<Duration>,
    pub buffer: Buffer,
    /// Most bytes of records that wait to be decoded and written. As much again may wait for the capture.
    pub queue_bytes: usize,
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
        choice: options.choice,
        cache: cache.as_ref(),
    };
    let mut times = AttachReport::default();
    let (setup, attachment) = find_and_load(options, &wanted, &mut times);
    let setup = setup?;
    notice(Notice::Found(&setup));
    if stop.is_stopped() {
        bail!("stopped before anything was attached");
    }
    raise_descriptor_limit();
    let dir = options.output.as_deref().map(OutputDir::create).transpose()?;
    let mut report = first_report(&setup, options.choice.level, options.buffer, options.queue_bytes);
    let prepared = attachment
        .and_then(|attachment| prepare(options.started, attachment, &setup, &report.host, &mut times));
    report.attach = times;
    let (mut attachment, bindings) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            discard(dir);
            return Err(error);
        }
    };
    let api = ApiOutputOptions { format: options.format, realtime_offset_ns: report.clock.offset_ns };
    let capture =
        match options.capture.as_ref().map(|path| start_capture(path, &bindings, &report, api)).transpose() {
            Ok(capture) => capture,
            Err(error) => {
                discard(dir);
                return Err(error);
            }
        };
    if let Some(dir) = &dir {
        report.write(dir).with_context(|| format!("cannot write to `{}`", dir.path().display()))?;
    }
    let files = dir.map_or_else(SessionFiles::nowhere, |dir| SessionFiles::new(dir, api));
    let pipeline = Pipeline::new(bindings, files).counting(options.live.clone());
    let live = Live {
        options,
        stop,
        setup: &setup,
        cache: cache.as_ref(),
        attachment: &mut attachment,
        report: &mut report,
        notice,
    };
    let mut taken = live::run(live, pipeline, capture)?;
    attachment.print_log();
    complete_report(&mut report, &attachment, &mut taken)?;
    let aggregated = write_results(taken, &mut report, notice)?;
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

/// Completes the folder and the capture. What cannot be written is said, and is part of the report.
fn write_results(
    taken: Taken,
    report: &mut SessionReport,
    notice: &mut dyn FnMut(Notice<'_>),
) -> Result<Option<Aggregated>> {
    let files = taken.pipeline.files();
    let mut fail = |report: &mut SessionReport, error: String| {
        notice(Notice::WriteFailed(&error));
        report.errors.push(error);
        report.state = SessionState::WriteFailed;
    };
    report.state = if report.errors.is_empty() { SessionState::Complete } else { SessionState::WriteFailed };
    let aggregated = match files.dir().filter(|_| !files.has_no_flows()) {
        None => None,
        Some(dir) => match aggregate_directory(dir, MAX_AGGREGATED) {
            Ok(aggregated) => Some(aggregated),
            Err(error) => {
                fail(report, format!("{error:#}"));
                None
            }
        },
    };
    if let Some(capture) = taken.capture
        && let Err(error) = capture.finish(&report.to_text()?)
    {
        fail(report, format!("writing the capture stopped: {error}"));
    }
    if let Some(dir) = files.dir()
        && let Err(error) = report.write(dir)
    {
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
            let attachment = Attachment::new(options.buffer, options.development_log);
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

/// Milliseconds, to the microsecond.
pub(super) fn ms_since(start: Instant) -> f64 {
    (start.elapsed().as_secs_f64() * 1e6).round() / 1e3
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
            for (probe, parts) in library.probes.probes.iter().zip(stored) {
                let path = library.file.stable_path();
                if let Err(error) = attachment.attach(probe, *parts, index, &path, &library.file.path, number)
                {
                    if target.process.has_exited() {
                        bail!("process {pid} exited before it could be traced");
                    }
                    return Err(error);
                }
                if times.first_probe_ms == 0.0 {
                    times.first_probe_ms = ms_since(started);
                }
                bind(&probe.kind, &library.decoder, Some(HostInfo { host: host.to_owned(), pid }));
            }
        }
        if target.process.has_exited() {
            bail!("process {pid} exited before it could be traced");
        }
    }
    times.attached_ms = ms_since(started);
    Ok((attachment, bindings))
}
