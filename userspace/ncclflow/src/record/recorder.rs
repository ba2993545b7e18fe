//! A recording from beginning to end.

use std::{num::NonZeroU32, path::Path, sync::Arc, time::Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use ncclflow_common::WIRE_VERSION;

use super::{
    bindings::SharedBindings,
    follow::Follower,
    libraries::store_walks,
    limit,
    options::{Notice, Outcome, ProbeChoice, RecordOptions, StopHandle, Targets},
    pipeline::{Following, Pipeline},
    processes::Traced,
    report::{Baseline, complete_report, first_report},
    results::write_results,
    session::{Session, Taken},
    setup::{Setup, Wanted},
};
use crate::{
    capture::{Binding, CaptureHeader, CaptureWriter},
    kernel::{
        loader::{Attachment, Program, StoredParts},
        probe::{Level, ProbeStrategy},
    },
    layout_cache::LayoutCache,
    sinks::{Aggregated, ApiOutputOptions, AttachReport, OutputDir, SessionFiles, SessionReport},
};
use flow::{decode::Decoder, model::Sampling, schema::HostInfo, wire::ProbeKind};

/// Records until the time is up, the targets are gone, or `stop` says so. Results are complete before the
/// probes are detached, which can take a while.
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
    // Without a cache everything is resolved anew.
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
    let mut recording = Recording::prepare(options, &setup, attachment, times)?;
    let pipeline = recording.pipeline(follower.is_some().then_some(bindings_to_come))?;
    let capture = recording.capture.take();
    let session = Session {
        options,
        stop,
        setup: &setup,
        cache: cache.as_ref(),
        follower: follower.as_mut(),
        dir: recording.dir.as_ref(),
        attachment: &mut recording.attachment,
        report: &mut recording.report,
        notice,
    };
    let taken = session.run(recording.api, pipeline, capture)?;
    let aggregated = recording.complete(taken, notice)?;
    let Recording { mut attachment, report, .. } = recording;
    if let Some(follower) = follower {
        attachment.keep(follower.into_links());
    }
    attachment.detach(|left| notice(Notice::Detaching { left }));
    Ok(Outcome { report, aggregated })
}

/// A recording whose probes are attached and not armed, and whose folder and capture are begun.
struct Recording<'a> {
    options: &'a RecordOptions,
    attachment: Attachment,
    /// By cookie.
    bindings: Vec<Binding>,
    report: SessionReport,
    dir: Option<OutputDir>,
    api: ApiOutputOptions,
    capture: Option<CaptureWriter>,
}

impl<'a> Recording<'a> {
    /// Makes the folder, attaches, and begins what is written. If any of these fails, the folder is removed.
    fn prepare(
        options: &'a RecordOptions,
        setup: &Setup,
        attachment: Result<Attachment>,
        times: AttachReport,
    ) -> Result<Self> {
        let dir = options.output.as_deref().map(|path| limit::create_folder(path, options)).transpose()?;
        let prepared = Self::prepare_in(dir.as_ref(), options, setup, attachment, times);
        match (prepared, dir) {
            (Ok(prepared), Some(dir)) => {
                let report = &prepared.report;
                report.write(&dir).with_context(|| format!("cannot write to `{}`", dir.path().display()))?;
                Ok(Self { dir: Some(dir), ..prepared })
            }
            (prepared, None) => prepared,
            (Err(error), Some(dir)) => {
                dir.discard();
                Err(error)
            }
        }
    }

    fn prepare_in(
        dir: Option<&OutputDir>,
        options: &'a RecordOptions,
        setup: &Setup,
        attachment: Result<Attachment>,
        mut times: AttachReport,
    ) -> Result<Self> {
        let mut report = first_report(setup, options.choice, options.buffer, options.queue_bytes);
        let (attachment, bindings) = attach(options.started, attachment?, setup, &report.host, &mut times)?;
        report.attach = times;
        report.sampling = (options.sampling != Sampling::default()).then_some(options.sampling);
        if let Some(dir) = dir {
            limit::check(dir, &report, attachment.probes().len(), options.windows.is_some())?;
        }
        let api = ApiOutputOptions { format: options.format, realtime_offset_ns: report.clock.offset_ns };
        let capture = options.capture.as_deref();
        let capture =
            capture.map(|path| start_capture(path, &bindings, &report, api, options.sampling)).transpose()?;
        Ok(Self { options, attachment, bindings, report, dir: None, api, capture })
    }

    /// The way from records to files. `bindings_to_come`: with [`Targets::All`].
    fn pipeline(&mut self, bindings_to_come: Option<SharedBindings>) -> Result<Pipeline> {
        let options = self.options;
        let dir = self.dir.as_ref().map(OutputDir::try_clone).transpose();
        let dir = dir.context("keeping the output folder open")?;
        let files = dir.map_or_else(SessionFiles::nowhere, |dir| SessionFiles::new(dir, self.api));
        let bindings = std::mem::take(&mut self.bindings);
        let pipeline = match bindings_to_come {
            None => Pipeline::new(bindings, files),
            Some(bindings) => {
                let traced = Traced {
                    steps: options.choice.level == Level::Steps,
                    returns: options.choice.returns,
                    ..Traced::default()
                };
                let following = Following { bindings, host: self.report.host.clone() };
                Pipeline::following(following, traced, files)
            }
        };
        Ok(pipeline.sampling(options.sampling).counting(options.statistics.clone()))
    }

    /// Writes what is written at the end. The session is closed.
    fn complete(
        &mut self,
        mut taken: Taken,
        notice: &mut dyn FnMut(Notice<'_>),
    ) -> Result<Option<Aggregated>> {
        let Self { options, attachment, report, dir, .. } = self;
        attachment.print_log();
        complete_report(report, attachment, &mut taken, &Baseline::default())?;
        let budget = dir.as_ref().and_then(OutputDir::budget);
        if let Some(budget) = budget {
            limit::tell(budget, report, notice);
        }
        let aggregated = write_results(taken, report, options.compress, notice)?;
        if let (Some(dir), Some(budget)) = (&*dir, budget)
            && limit::tell(budget, report, notice)
        {
            // Even the last file can have needed the room of a window, which is named in it.
            report.write(dir).context("writing `session.json`")?;
        }
        Ok(aggregated)
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
        (Level::Api, _) | (_, Some(ProbeStrategy::PerCall)) => &[Program::Fetch],
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

/// Attaches every probe of every library to every target that uses it. The bindings come back by cookie.
fn attach(
    started: Instant,
    mut attachment: Attachment,
    setup: &Setup,
    host: &str,
    times: &mut AttachReport,
) -> Result<(Attachment, Vec<Binding>)> {
    let mut bindings = Vec::new();
    let mut bind = |kind: &ProbeKind, decoder: &Arc<Decoder>, host: Option<HostInfo>| {
        bindings.push(Binding { kind: kind.clone(), decoder: Arc::clone(decoder), host });
    };
    let mut stored: Vec<Vec<Option<StoredParts>>> = Vec::new();
    for (index, library) in setup.libraries.iter().enumerate() {
        let bind = |kind: &ProbeKind| bind(kind, &library.decoder, None);
        stored.push(store_walks(library, index, &mut attachment, bind)?);
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
