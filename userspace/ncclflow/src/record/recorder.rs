//! A recording from beginning to end.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail};
use ncclflow_common::WIRE_VERSION;
use rustix::time::ClockId;

use super::{
    accounts::Baseline,
    follow::Follower,
    limit,
    mailbox::Events,
    options::{Notice, Outcome, ProbeChoice, RecordOptions, StopHandle, Targets},
    pipeline::{Following, Pipeline},
    processes::Traced,
    report::{complete_report, first_report, write_results},
    setup::{Bindings, Setup, Wanted},
    threads::{Keeping, Taken, Threads},
    watch::Watch,
    windows::Windows,
};
use crate::{
    capture::{CaptureHeader, CaptureWriter},
    clock::now_ns,
    kernel::{
        loader::{Attachment, Program},
        probe::{Level, ProbeStrategy},
    },
    layout_cache::LayoutCache,
    recording::{self, RecordingWriter},
    sinks::{
        Aggregated, ApiOutputOptions, AttachReport, OutputDir, SessionFiles, SessionReport, TargetReport,
    },
    who::Who,
};
use flow::model::Sampling;

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
    let wanted = Wanted { options, cache: cache.as_ref() };
    let mut times = AttachReport { links: Some(options.links), ..AttachReport::default() };
    let (setup, attachment) = find_and_load(&wanted, &mut times);
    let setup = setup?;
    notice(Notice::Found(&setup));
    if stop.is_stopped() {
        bail!("stopped before anything was attached");
    }
    let bindings = Bindings::default();
    let mut follower = match &options.targets {
        Targets::Pids(_) => None,
        Targets::All(filter) => Some(Follower::new(wanted, filter, bindings.clone())?),
    };
    raise_descriptor_limit();
    let (mut recording, capture) = Recording::prepare(wanted, &setup, attachment, times, &bindings, notice)?;
    let keeping = recording.keeping(&bindings)?;
    let pipeline = recording.pipeline(bindings, follower.is_some())?;
    let taken = recording.run(stop, follower.as_mut(), pipeline, keeping, capture)?;
    let aggregated = recording.complete(taken)?;
    let Recording { mut attachment, report, notice, .. } = recording;
    if let Some(follower) = follower {
        attachment.keep(follower.into_links());
    }
    attachment.detach(|left| notice(Notice::Detaching { left }));
    Ok(Outcome { report, aggregated })
}

/// A recording whose probes are attached: what its parts work with and write to.
pub(super) struct Recording<'a> {
    pub(super) options: &'a RecordOptions,
    pub(super) setup: &'a Setup,
    /// Where what was resolved is kept, once the session is open.
    cache: Option<&'a LayoutCache>,
    pub(super) attachment: Attachment,
    pub(super) report: SessionReport,
    /// The folder of `session.json`.
    pub(super) dir: Option<OutputDir>,
    /// The report has changed since it was last written.
    pub(super) is_outdated: bool,
    pub(super) who: Who,
    pub(super) notice: &'a mut (dyn FnMut(Notice<'_>) + 'a),
}

impl<'a> Recording<'a> {
    /// Makes the folder, attaches, and begins what is written. If any of these fails, the folder is removed.
    fn prepare(
        Wanted { options, cache }: Wanted<'a>,
        setup: &'a Setup,
        attachment: Result<Attachment>,
        times: AttachReport,
        bindings: &Bindings,
        notice: &'a mut (dyn FnMut(Notice<'_>) + 'a),
    ) -> Result<(Self, Option<CaptureWriter>)> {
        let dir = options.output.as_deref().map(|path| limit::create_folder(path, options)).transpose()?;
        let report = first_report(setup, options.choice, options.buffer, options.queue_bytes);
        let begun = attachment.and_then(|attachment| {
            let who = Who::new(Arc::clone(&options.who), report.host.clone());
            let mut recording = Self {
                options,
                setup,
                cache,
                attachment,
                report,
                dir: None,
                is_outdated: false,
                who,
                notice,
            };
            let capture = recording.begin(dir.as_ref(), times, bindings)?;
            Ok((recording, capture))
        });
        match (begun, dir) {
            (Ok((recording, capture)), Some(dir)) => {
                let written = recording.report.write(&dir);
                written.with_context(|| format!("cannot write to `{}`", dir.path().display()))?;
                Ok((Self { dir: Some(dir), ..recording }, capture))
            }
            (begun, None) => begun,
            (Err(error), Some(dir)) => {
                dir.discard();
                Err(error)
            }
        }
    }

    /// Attaches, and begins the report and the capture.
    fn begin(
        &mut self,
        dir: Option<&OutputDir>,
        mut times: AttachReport,
        bindings: &Bindings,
    ) -> Result<Option<CaptureWriter>> {
        let Self { options, setup, attachment, report, .. } = self;
        setup.attach(attachment, &report.host, bindings)?;
        if let Some(first) = attachment.first_link() {
            times.first_probe_ms = ms(first.saturating_duration_since(options.started));
        }
        times.attached_ms = ms(options.started.elapsed());
        report.attach = times;
        report.sampling = (options.sampling != Sampling::default()).then_some(options.sampling);
        if let Some(dir) = dir {
            limit::check(dir, report, attachment.probes().len(), options.windows.is_some())?;
        }
        let Some(path) = &options.capture else { return Ok(None) };
        let header = CaptureHeader {
            wire_version: WIRE_VERSION,
            bindings: bindings.list(),
            report: report.to_text()?,
            api: self.api(),
            sampling: self.options.sampling,
        };
        let capture = CaptureWriter::create(path, &header);
        capture.with_context(|| format!("cannot write the capture `{}`", path.display())).map(Some)
    }

    pub(super) fn api(&self) -> ApiOutputOptions {
        ApiOutputOptions { format: self.options.format, realtime_offset_ns: self.report.clock.offset_ns }
    }

    /// Begins the recording in the output folder, if there is one; windows begin their own.
    fn keeping(&self, bindings: &Bindings) -> Result<Option<Keeping>> {
        let Some(dir) = &self.dir else { return Ok(None) };
        let begin = || self.begin_recording(dir, bindings);
        let recording = self.options.windows.is_none().then(begin).transpose()?;
        Ok(Some(Keeping { recording, bindings: bindings.clone() }))
    }

    /// Begins a recording of this session in a folder.
    pub(super) fn begin_recording(
        &self,
        dir: &OutputDir,
        bindings: &Bindings,
    ) -> Result<Box<RecordingWriter>> {
        let RecordOptions { choice, sampling, targets, .. } = self.options;
        let follows = matches!(targets, Targets::All(_));
        let session = recording::Session {
            ncclflow: env!("CARGO_PKG_VERSION").to_owned(),
            wire_version: WIRE_VERSION,
            report: self.report.to_text()?,
            host: follows.then(|| self.report.host.clone()),
            steps: choice.level == Level::Steps,
            returns: choice.returns,
            sampling: *sampling,
            api: self.api(),
        };
        let writer = RecordingWriter::create(dir, session, bindings.list());
        let writer = writer.map(|writer| Box::new(writer.telling_who(self.who.watch())));
        writer.with_context(|| format!("beginning a recording in `{}`", dir.path().display()))
    }

    /// The way from records to files. `follows`: bindings come while it runs.
    fn pipeline(&self, bindings: Bindings, follows: bool) -> Result<Pipeline> {
        let options = self.options;
        let dir = self.dir.as_ref().map(OutputDir::try_clone).transpose();
        let dir = dir.context("keeping the output folder open")?;
        let files = dir.map_or_else(SessionFiles::nowhere, |dir| SessionFiles::new(dir, self.api()));
        let mut pipeline = Pipeline::new(bindings.list(), files);
        if follows {
            let (steps, returns) = (options.choice.level == Level::Steps, options.choice.returns);
            pipeline.traced = Traced { steps, returns, ..Traced::default() };
            pipeline.following = Some(Following { bindings, host: self.report.host.clone() });
        }
        pipeline.traced.sampling = options.sampling;
        pipeline.output.live.clone_from(&options.statistics);
        Ok(pipeline)
    }

    /// Opens the session, takes records until it is to end, closes it, and takes what is left.
    fn run(
        &mut self,
        stop: &StopHandle,
        mut follower: Option<&mut Follower<'a>>,
        pipeline: Pipeline,
        keeping: Option<Keeping>,
        capture: Option<CaptureWriter>,
    ) -> Result<Taken> {
        let bindings = keeping.as_ref().map(|keeping| keeping.bindings.clone()).unwrap_or_default();
        if let Some(follower) = &mut follower {
            follower.round(self)?;
        }
        let events = Events::new(self.dir.as_ref().and_then(OutputDir::budget).cloned())?;
        let mut windows = Windows::new(self, &pipeline, bindings, &events.sender)?;
        let source = self.attachment.source()?;
        let threads =
            Threads::start(source, self.options.queue_bytes, pipeline, keeping, capture, &events.sender)?;
        let opened = self.open(windows.is_some());
        let watched =
            opened.and_then(|()| Watch::new(self, stop, &events, &threads, follower, windows.as_mut()).run());
        let totals = windows.map(|windows| windows.finish(self, &threads)).transpose();
        let closed = self.attachment.disarm();
        let (mut taken, drained) = threads.end(&self.attachment)?;
        events.receive(self);
        watched.and(closed).and(drained)?;
        if let Some((totals, lost)) = totals? {
            (taken.pipeline, taken.windows_lost) = (totals, lost);
        }
        Ok(taken)
    }

    /// Opens the session, unless windows do.
    fn open(&mut self, has_windows: bool) -> Result<()> {
        if !has_windows {
            self.attachment.arm()?;
        }
        self.report.attach.armed_ms = ms(self.options.started.elapsed());
        self.report.attach.armed_monotonic_ns = Some(now_ns(ClockId::Monotonic));
        let targets = self.report.targets.iter_mut().filter(|target| target.whose.is_none());
        targets.for_each(|target| self.who.describe(target));
        self.is_outdated = true;
        let probes = self.attachment.probes().iter().filter(|probe| probe.part.is_none()).count();
        (self.notice)(Notice::Recording { probes });
        // If what was resolved cannot be kept for the next time, the recording goes on.
        let Some(cache) = self.cache else { return Ok(()) };
        for error in self.setup.libraries.iter().filter_map(|library| library.keep(cache).err()) {
            (self.notice)(Notice::NotCached(&format!("{error:#}")));
        }
        Ok(())
    }

    /// Says that something could not be written, and has it in the report.
    pub(super) fn write_failed(&mut self, error: String) {
        (self.notice)(Notice::WriteFailed(&error));
        self.report.errors.push(error);
    }

    /// Adds a process to the report. Gives its index there.
    pub(super) fn add_target(&mut self, mut target: TargetReport) -> usize {
        self.is_outdated = true;
        self.who.describe(&mut target);
        self.report.targets.push(target);
        self.report.targets.len() - 1
    }

    /// Writes what is written at the end. The session is closed.
    fn complete(&mut self, mut taken: Taken) -> Result<Option<Aggregated>> {
        let Self { options, attachment, report, dir, who, notice, .. } = self;
        attachment.print_log();
        complete_report(report, attachment, &mut taken, &Baseline::default())?;
        who.complete(report);
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

/// Finds processes, libraries and layouts while the eBPF object and its programs go into the kernel.
fn find_and_load(wanted: &Wanted<'_>, times: &mut AttachReport) -> (Result<Setup>, Result<Attachment>) {
    let options = wanted.options;
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| {
            options.links.prepare();
            let mut attachment = Attachment::new(options.buffer, options.links, options.development_log);
            if let Ok(attachment) = &mut attachment {
                attachment.load_ahead(likely_programs(options.choice));
            }
            (attachment, ms(options.started.elapsed()))
        });
        let setup = match &options.targets {
            Targets::Pids(pids) => Setup::find(pids, wanted),
            Targets::All(_) => Ok(Setup::default()),
        };
        times.resolved_ms = ms(options.started.elapsed());
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
        (Level::Flow, _) if !choice.api => &[Program::Walk],
        (Level::Flow | Level::Steps, _) => &[Program::Fetch, Program::Walk],
    }
}

/// Milliseconds, to the microsecond.
fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
