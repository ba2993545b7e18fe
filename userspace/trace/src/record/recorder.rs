//! A recording from beginning to end.

use super::{
    direct::Watching,
    ending::Closed,
    find_and_load::{find_and_load, ms},
    follow::Follower,
    keeper::{Keeping, OpenRecording},
    limit,
    mailbox::{EventSender, Events},
    make_lines::LinesRequest,
    options::{FilesOptions, FilesWhen, Notice, Outcome, RecordOptions, StopHandle, Targets},
    own_limits::{self, SpareDescriptors},
    report::first_report,
    row_watch::{RowWatch, WatchRequest, WindowLimits},
    setup::{Setup, Wanted, stack_binding},
    stacks::Stacks,
    threads::{FirstTaker, Threads},
    watch::Watch,
    windows::Windows,
};
use crate::{
    kernel::loader::{Attachment, tells_returns_apart},
    who::Who,
};
use inspect::{
    clock::now_ns, gpu::GpuSamples, identity::WhoOptions, layout_cache::LayoutCache, privileges,
    process::in_first_pid_namespace,
};
use recording::{
    format::RecordingWriter,
    rows::{Following, Pipeline, SharedBindings, Traced},
    sinks::{OutputDir, SessionFiles, write_session},
};
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context as _, Result, anyhow, bail};
use ncclflow_common::WIRE_VERSION;
use rustix::{thread::CapabilitySet, time::ClockId};

use flow::{
    model::Sampling,
    session::{AttachReport, ChangedLibrary, Level, SessionReport, SessionState, TargetReport, WindowReport},
};

/// Records until the time is up, the targets are gone, or `stop` says so. The recording is whole before the
/// probes are detached, which can take a while; its files are completed after that.
pub fn record(
    options: &RecordOptions,
    stop: &StopHandle,
    notice: &mut dyn FnMut(Notice<'_>),
) -> Result<Outcome> {
    if options.choice.returns && !tells_returns_apart(options.links) {
        bail!(
            "`--returns` with a link for each probe (`--links perf`, or a kernel without uprobe_multi, before Linux 6.6) needs \
             the host's PID namespace: it could not be told whose returns they are; `--level api` works without `--returns`"
        );
    }
    if options.choice.stacks.is_some() && !in_first_pid_namespace().context("reading our PID namespace")? {
        bail!(
            "--stacks needs the host's PID namespace (docker run --pid=host, Kubernetes hostPID: true): the kernel numbers \
             processes by it"
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
    own_limits::raise_descriptors();
    let bindings = SharedBindings::default();
    let mut follower = match &options.targets {
        Targets::Pids(_) => None,
        Targets::All(filter) => Some(Follower::new(wanted, filter, bindings.clone())?),
    };
    let spare = SpareDescriptors::take();
    let mut recording = Recording::prepare(wanted, &setup, attachment, times, &bindings, notice)?;
    let budget = recording.dir.as_ref().and_then(OutputDir::budget).cloned();
    let is_ours = recording.dir.as_ref().is_none_or(|dir| dir.is_private().unwrap_or(false));
    let writes = if is_ours { CapabilitySet::empty() } else { privileges::WRITES_ELSEWHERE };
    let events = Events::new(budget, options.health.clone(), writes)?;
    options.health.wakes(&stop.waker);
    let mut closed = recording.run(stop, &events, follower.as_mut(), &bindings, spare)?;
    if let Some(follower) = &follower {
        follower.report_shares(&mut recording);
    }
    if let Err(error) = recording.end(&mut closed, stop) {
        // What was recorded is there all the same, and the probes go.
        recording.fail(&format!("ending the recording: {error:#}"));
    }
    // Files are made meanwhile: the job does not wait for them.
    let files = recording.start_files(&closed, stop, &events.sender)?;
    recording.detach(follower);
    let flow_ranks = recording.complete(closed, files, &events)?;
    Ok(Outcome { report: recording.report, flow_ranks })
}

/// A recording whose probes are attached, and what its parts share.
pub(super) struct Recording<'a> {
    pub(super) options: &'a RecordOptions,
    pub(super) setup: &'a Setup,
    /// Cache for resolved libraries, filled once the session is open.
    cache: Option<&'a LayoutCache>,
    pub(super) attachment: Attachment,
    pub(super) report: SessionReport,
    /// Folder of `session.json`.
    pub(super) dir: Option<OutputDir>,
    /// The report has changed since it was last written.
    pub(super) is_outdated: bool,
    /// Number of the health's failures that are in the report already.
    failures_told: usize,
    pub(super) who: Who,
    pub(super) stacks: Option<Stacks>,
    pub(super) notice: &'a mut (dyn FnMut(Notice<'_>) + 'a),
}

impl<'a> Recording<'a> {
    /// Makes the folder, attaches, and begins the output. If any of these fails, the folder is removed.
    fn prepare(
        Wanted { options, cache }: Wanted<'a>,
        setup: &'a Setup,
        attachment: Result<Attachment>,
        times: AttachReport,
        bindings: &SharedBindings,
        notice: &'a mut (dyn FnMut(Notice<'_>) + 'a),
    ) -> Result<Self> {
        let dir = options.output.as_deref().map(|path| limit::create_folder(path, options)).transpose()?;
        let report = first_report(setup, options.choice, options.buffer, options.queue_bytes);
        let begun = attachment.and_then(|attachment| {
            let who = Who::new(WhoOptions::clone(&options.who), report.host.clone(), &options.health);
            let mut recording = Self {
                options,
                setup,
                cache,
                attachment,
                report,
                dir: None,
                is_outdated: false,
                failures_told: 0,
                who,
                stacks: None,
                notice,
            };
            if let Some(choice) = options.choice.stacks {
                recording.stacks = Some(Stacks::start(choice, &recording.attachment, &options.debug_files)?);
            }
            recording.begin(dir.as_ref(), times, bindings)?;
            Ok(recording)
        });
        match (begun, dir) {
            (Ok(recording), Some(dir)) => {
                let written = write_session(&dir, &recording.report);
                written.with_context(|| format!("cannot write to `{}`", dir.path().display()))?;
                Ok(Self { dir: Some(dir), ..recording })
            }
            (begun, None) => begun,
            (Err(error), Some(dir)) => {
                dir.discard();
                Err(error)
            }
        }
    }

    /// Attaches, and begins the report.
    fn begin(
        &mut self,
        dir: Option<&OutputDir>,
        mut times: AttachReport,
        bindings: &SharedBindings,
    ) -> Result<()> {
        let Self { options, setup, attachment, report, .. } = self;
        if options.choice.stacks.is_some() {
            bindings.push(stack_binding());
        }
        setup.attach(attachment, &report.host, bindings, options.choice.returns)?;
        if let Some(first) = attachment.first_link() {
            times.first_probe_ms = ms(first.saturating_duration_since(options.started));
        }
        times.attached_ms = ms(options.started.elapsed());
        report.attach = times;
        report.sampling = (options.sampling != Sampling::default()).then_some(options.sampling);
        if let Some(dir) = dir {
            limit::check(dir, report, attachment.probes().len(), options.windows.is_some())?;
        }
        Ok(())
    }

    /// Begins a recording of this session, or of a window of it, in a folder.
    pub(super) fn begin_recording(
        &self,
        dir: &OutputDir,
        window: Option<&WindowReport>,
    ) -> Result<Box<RecordingWriter>> {
        let RecordOptions { choice, sampling, .. } = self.options;
        let follows = self.follows();
        let session = flow::recording::Session {
            ncclflow: env!("CARGO_PKG_VERSION").to_owned(),
            wire_version: WIRE_VERSION,
            report: match window {
                None => self.report.to_text()?,
                Some(window) => self.report.of_window(window).to_text()?,
            },
            host: follows.then(|| self.report.host.clone()),
            steps: choice.level == Level::Steps,
            returns: choice.returns,
            sampling: *sampling,
            ..flow::recording::Session::default()
        };
        let writer = RecordingWriter::create(dir, session);
        let writer = writer
            .map(|writer| {
                writer
                    .telling_who(self.who.watch())
                    .telling_stacks(self.stacks.as_ref().map(Stacks::book))
                    .telling_gpus(self.options.gpus.clone())
            })
            .map(|writer| Box::new(writer.keeping_for(self.options.max_age)));
        writer.with_context(|| format!("beginning a recording in `{}`", dir.path().display()))
    }

    /// Tells whether processes and bindings come while it runs.
    fn follows(&self) -> bool {
        matches!(self.options.targets, Targets::All(_))
    }

    /// Starts to read the recording in this folder while it is written, if its rows are wanted at once.
    pub(super) fn watch_rows(
        &self,
        dir: &OutputDir,
        stop: &StopHandle,
        events: &EventSender,
        limits: Option<WindowLimits>,
    ) -> Result<Option<RowWatch>> {
        let live = self.options.statistics.clone();
        if live.is_none() && limits.is_none() {
            return Ok(None);
        }
        let dir = dir.try_clone().context("keeping the output folder open")?;
        let has_calls_only = self.options.choice.level == Level::Api;
        let request = WatchRequest { dir, live, limits, has_calls_only, stop: stop.files_flag() };
        RowWatch::start(request, events).map(Some)
    }

    /// Returns the line files wanted of the recording in this folder, to be made when it is whole.
    pub(super) fn lines_request(
        &self,
        dir: &OutputDir,
        max_ops: Option<u64>,
        stop: &StopHandle,
    ) -> Result<Option<LinesRequest>> {
        let RecordOptions { files: FilesOptions { when, limit_bytes }, max_size, compress, .. } =
            *self.options;
        if when == FilesWhen::None {
            return Ok(None);
        }
        let half = max_size.map(|limit| limit / 2);
        let limit_bytes = limit_bytes.into_iter().chain(half).min();
        let dir = dir.try_clone().context("keeping the output folder open")?;
        let stop = stop.files_flag();
        Ok(Some(LinesRequest { dir, limit_bytes, max_ops, keeps_names: compress, stop }))
    }

    /// Returns the first taker of records: the keeper of a recording, or a decoder where nothing is written.
    /// Windows begin recordings of their own.
    fn first_taker(
        &self,
        bindings: &SharedBindings,
        stop: &StopHandle,
        events: &EventSender,
    ) -> Result<(FirstTaker, Option<RowWatch>)> {
        let Some(dir) = &self.dir else {
            return Ok((FirstTaker::Watcher(Box::new(self.watching(bindings.clone()))), None));
        };
        let (mut kept, mut watch) = (None, None);
        if self.options.windows.is_none() {
            let writer = self.begin_recording(dir, None)?;
            watch = self.watch_rows(dir, stop, events, None)?;
            kept = Some(OpenRecording { writer, reader: watch.as_ref().map(RowWatch::feed) });
        }
        let stacks = self.stacks.as_ref().map(Stacks::feed);
        let keeping = Keeping::new(kept, bindings.clone(), self.follows(), stacks);
        Ok((FirstTaker::Keeper(keeping), watch))
    }

    /// Returns the way from records to statistics alone.
    fn watching(&self, bindings: SharedBindings) -> Watching {
        let options = self.options;
        let files = options.watcher.clone().map(|watcher| SessionFiles::of_sink(Box::new(watcher)));
        let mut pipeline = Pipeline::new(bindings.list(), files.unwrap_or_else(SessionFiles::nowhere));
        if self.follows() {
            let (steps, returns) = (options.choice.level == Level::Steps, options.choice.returns);
            pipeline.traced = Traced { steps, returns, ..Traced::default() };
            pipeline.following = Some(Following { bindings, host: self.report.host.clone() });
        }
        pipeline.traced.sampling = options.sampling;
        pipeline.output.live.clone_from(&options.statistics);
        let stacks = self.stacks.as_ref().map(|stacks| (stacks.feed(), stacks.book()));
        Watching::new(pipeline, stacks)
    }

    /// Opens the session, takes records until the end, closes the session, and takes the remaining records.
    fn run(
        &mut self,
        stop: &StopHandle,
        events: &Events,
        mut follower: Option<&mut Follower<'a>>,
        bindings: &SharedBindings,
        spare: SpareDescriptors,
    ) -> Result<Closed> {
        let setup = self.setup;
        for target in &setup.targets {
            self.follow_stacks(target.process.pid());
        }
        if let Some(follower) = &mut follower {
            follower.round(self);
        }
        let (first, watch) = self.first_taker(bindings, stop, &events.sender)?;
        let mut windows = Windows::new(self, stop, &events.sender)?;
        let source = self.attachment.source()?;
        let native = self.stacks.as_ref().and_then(Stacks::native);
        let threads = Threads::start(source, self.options.queue_bytes, first, native, &events.sender)?;
        let opened = self.open(windows.is_some());
        let watched = opened.and_then(|()| {
            // What was recorded until then is kept, and the probes go, whatever happens to this thread.
            catch_unwind(AssertUnwindSafe(|| {
                Watch::new(self, stop, events, &threads, follower, windows.as_mut()).run()
            }))
            .unwrap_or_else(|_| Err(anyhow!("the recording's thread panicked")))
        });
        drop(spare);
        let closed_windows = windows.map(|windows| windows.finish(self, &threads));
        let disarmed = self.attachment.disarm();
        self.options.health.end_recording();
        let (mut taken, settled) = threads.end(&self.attachment)?;
        events.receive(self);
        self.note_failures();
        let (windows, closed) = match closed_windows {
            Some((export, mut accounts, closed)) => {
                // Records of a window that could not be closed.
                accounts.append(&taken.accounts);
                taken.accounts = accounts;
                (Some(export), closed)
            }
            None => (None, Ok(())),
        };
        // The first of several errors is the cause.
        if let Err(error) = watched.and(disarmed).and(settled).and(closed) {
            self.fail(&format!("{error:#}"));
        }
        Ok(Closed { taken, watch, windows })
    }

    /// Takes over new failures from the session's health.
    pub(super) fn note_failures(&mut self) {
        let failures = self.options.health.failures();
        for why in failures.iter().skip(self.failures_told) {
            self.fail(why);
        }
        self.failures_told = failures.len();
    }

    /// Marks the session as failed: it is not what was asked for, although what there is of it is whole.
    pub(super) fn fail(&mut self, why: &str) {
        (self.notice)(Notice::Failed(why));
        self.report.errors.push(why.to_owned());
        self.report.state = SessionState::Failed;
    }

    /// Opens the session, unless windows do.
    fn open(&mut self, has_windows: bool) -> Result<()> {
        if !has_windows {
            self.attachment.arm()?;
        }
        self.options.health.begin_recording();
        self.report.attach.armed_ms = ms(self.options.started.elapsed());
        self.report.attach.armed_monotonic_ns = Some(now_ns(ClockId::Monotonic));
        self.options.gpus.iter().for_each(GpuSamples::begin);
        let targets = self.report.targets.iter_mut().filter(|target| target.whose.is_none());
        targets.for_each(|target| self.who.describe(target));
        self.is_outdated = true;
        let probes = self.attachment.probes().iter().filter(|probe| probe.part.is_none()).count();
        (self.notice)(Notice::Recording { probes });
        // If resolved libraries cannot be kept for the next time, the recording goes on.
        let Some(cache) = self.cache else { return Ok(()) };
        for error in self.setup.libraries.iter().filter_map(|library| library.keep(cache).err()) {
            (self.notice)(Notice::NotCached(&format!("{error:#}")));
        }
        Ok(())
    }

    /// Reports that something could not be written.
    pub(super) fn write_failed(&mut self, error: String) {
        (self.notice)(Notice::WriteFailed(&error));
        self.report.errors.push(error);
    }

    /// Reports that a container's flag file does not open windows.
    pub(super) fn flag_not_seen(&mut self, why: String) {
        (self.notice)(Notice::FlagNotSeen(&why));
        self.report.flags_not_seen.push(why);
        self.is_outdated = true;
    }

    /// Has the stacks of this process recorded, if it runs Python and they are wanted.
    pub(super) fn follow_stacks(&mut self, pid: u32) {
        let Self { stacks: Some(stacks), attachment, report, notice, .. } = self else { return };
        let python = stacks.follow(pid, attachment);
        if let Err(why) = &python
            && !stacks.has_native()
        {
            notice(Notice::NoStacks { pid, why });
        }
        let python = python.unwrap_or_else(|why| Some(format!("not known: {why}")));
        for target in report.targets.iter_mut().filter(|target| target.pid == pid && !target.exited) {
            target.python.clone_from(&python);
        }
        self.is_outdated = true;
    }

    /// Reports that the probes of a library are gone, because its file was changed.
    pub(super) fn library_changed(&mut self, changed: ChangedLibrary) {
        /// Most entries of the report; further ones are only told.
        const MAX: usize = 1000;
        let whose = if changed.pids.is_empty() {
            "no traced process had it mapped".to_owned()
        } else {
            let pids: Vec<String> = changed.pids.iter().map(ToString::to_string).collect();
            format!("process {} had it mapped, and is not traced any more", pids.join(", "))
        };
        let text = format!("`{}`: {}; its probes were removed; {whose}", changed.path, changed.what);
        (self.notice)(Notice::LibraryChanged(&text));
        if self.report.changed_libraries.len() < MAX {
            self.report.changed_libraries.push(changed);
        }
        self.is_outdated = true;
    }

    /// Stops recording the stacks of an ended process.
    pub(super) fn leave_stacks(&mut self, pid: u32) {
        if self.stacks.is_some() {
            Stacks::leave(pid, &mut self.attachment);
        }
    }

    /// Adds a process to the report. Returns its number there.
    pub(super) fn add_target(&mut self, mut target: TargetReport) -> usize {
        self.is_outdated = true;
        self.who.describe(&mut target);
        let number = self.report.targets.push(target);
        self.report.left_out.targets = self.report.targets.forgotten();
        number
    }

    /// Reads `--rank-map` again if it has changed.
    pub(super) fn refresh_ranks(&mut self) {
        match self.who.refresh_ranks(&mut self.report.targets) {
            Ok(has_changed) => self.is_outdated |= has_changed,
            Err(error) => (self.notice)(Notice::RankMapBroken(&error)),
        }
    }
}
