//! A recording from beginning to end.

use super::{
    arrivals::Arrivals,
    ending::Closed,
    find_and_load::{find_and_load, ms},
    follow::Follower,
    limit,
    mailbox::{EventSender, SessionEvent},
    make_lines::LinesRequest,
    options::{FilesOptions, FilesWhen, Notice, Outcome, RecordOptions, StopHandle, Targets, WindowOptions},
    own_limits::{raise_descriptors, spare_descriptors},
    report::first_report,
    row_watch::{RowWatch, WatchRequest, WindowLimits},
    setup::{Setup, Wanted, stack_binding},
    stacks::Stacks,
    taker::{OpenRecording, Taking},
    threads::Threads,
    watch::Watch,
    windows::Windows,
};
use crate::{
    identity::Who,
    kernel::{
        loader::{Attachment, Gate, tells_returns_apart},
        stream::Mailbox,
    },
};
use inspect::{
    clock::now_ns, gpu::GpuSamples, identity::WhoOptions, layout_cache::LayoutCache,
    process::in_first_pid_namespace,
};
use recording::{
    format::RecordingWriter,
    rows::{Following, Pipeline, SharedBindings, Traced},
    sinks::{OutputDir, ReservedFile, SessionFiles, write_session},
};
use std::{
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
};

use anyhow::{Context as _, Result, anyhow, bail};
use ncclflow_common::WIRE_VERSION;
use rustix::time::ClockId;

use flow::{
    recording::{Event, FirstHit},
    session::{
        AttachReport, ChangedLibrary, Level, SessionReport, SessionState, TargetReport, WindowEnd,
        WindowReport,
    },
};

/// Descriptors reserved for the end of a recording, so that it ends whole where no others are left:
/// `session.json` and its temporary, a segment and its successor; the rest for threads.
const DESCRIPTORS: usize = 8;

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
    raise_descriptors();
    let mut follower = match &options.targets {
        Targets::Pids(_) => None,
        Targets::All(filter) => Some(Follower::new(options, filter)?),
    };
    // The first read of per-CPU counters opens a file, and that may be at the end.
    let _ = aya::util::nr_cpus();
    // If there are fewer, the recording ends less whole.
    let spare: Vec<File> = spare_descriptors(DESCRIPTORS).flatten().collect();
    let mut recording = Recording::prepare(wanted, &setup, attachment, times, stop, notice)?;
    options.health.wakes(&stop.waker);
    let mut closed = recording.run(follower.as_mut(), spare)?;
    if let Some(follower) = &follower {
        follower.report_shares(&mut recording);
    }
    if let Err(error) = recording.end(&mut closed) {
        // What was recorded is there all the same, and the probes go.
        recording.fail(&format!("ending the recording: {error:#}"));
    }
    // Files are made meanwhile: the job does not wait for them.
    let files = recording.start_files(&closed)?;
    recording.detach(follower);
    let flow_ranks = recording.complete(closed, files)?;
    Ok(Outcome { report: recording.report, flow_ranks })
}

/// A recording whose probes are attached, and what its parts share.
pub(super) struct Recording<'a> {
    pub(super) options: &'a RecordOptions,
    pub(super) setup: &'a Setup,
    pub(super) stop: &'a StopHandle,
    /// Cache for resolved libraries, filled once the session is open.
    pub(super) cache: Option<&'a LayoutCache>,
    pub(super) attachment: Attachment,
    pub(super) bindings: SharedBindings,
    /// Events from the other threads, and the sender that these get.
    pub(super) mailbox: Mailbox<SessionEvent>,
    pub(super) events: EventSender,
    pub(super) report: SessionReport,
    /// Folder of `session.json`.
    pub(super) dir: Option<OutputDir>,
    /// Room for the last `session.json`, where the file system can reserve it.
    pub(super) last_word: Option<ReservedFile>,
    /// The report has changed since it was last written.
    pub(super) is_outdated: bool,
    /// Processes of which the first record has come.
    pub(super) new_processes: Vec<u32>,
    /// The number of a window that has reached its limit of ops.
    pub(super) full_window: Option<u32>,
    /// Records go on after some were dropped.
    pub(super) has_resumed: bool,
    /// Files with probes could not be seen the last time.
    has_unseen_files: bool,
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
        stop: &'a StopHandle,
        notice: &'a mut (dyn FnMut(Notice<'_>) + 'a),
    ) -> Result<Self> {
        let dir = options.output.as_deref().map(|path| limit::create_folder(path, options)).transpose()?;
        let report = first_report(setup, options);
        let begun = attachment.and_then(|attachment| {
            let (events, mailbox) = EventSender::new(dir.as_ref(), options.health.clone())?;
            let who = Who::new(WhoOptions::clone(&options.who), report.host.clone(), &options.health);
            let mut recording = Self {
                options,
                setup,
                stop,
                cache,
                attachment,
                bindings: SharedBindings::default(),
                mailbox,
                events,
                report,
                dir: None,
                last_word: None,
                is_outdated: false,
                new_processes: Vec::new(),
                full_window: None,
                has_resumed: false,
                has_unseen_files: false,
                failures_told: 0,
                who,
                stacks: None,
                notice,
            };
            if let Some(choice) = options.choice.stacks {
                recording.stacks = Some(Stacks::start(choice, &recording.attachment, &options.debug_files)?);
            }
            recording.attach(times)?;
            if let Some(dir) = &dir {
                let probes = recording.attachment.probes().len();
                limit::check(dir, &recording.report, probes, options.windows.is_some())?;
            }
            Ok(recording)
        });
        match (begun, dir) {
            (Ok(recording), Some(dir)) => {
                let written = write_session(&dir, &recording.report);
                written.with_context(|| format!("cannot write to `{}`", dir.path().display()))?;
                let room = limit::report_room(&recording.report, recording.attachment.probes().len());
                Ok(Self { last_word: ReservedFile::new(&dir, room).ok(), dir: Some(dir), ..recording })
            }
            (begun, None) => begun,
            (Err(error), Some(dir)) => {
                dir.discard();
                Err(error)
            }
        }
    }

    /// Attaches every probe of every named process's libraries, and begins the report.
    fn attach(&mut self, mut times: AttachReport) -> Result<()> {
        if self.options.choice.stacks.is_some() {
            self.bindings.push(stack_binding());
        }
        self.attach_named()?;
        let Self { options, attachment, report, .. } = self;
        if let Some(first) = attachment.first_link {
            times.first_probe_ms = ms(first.saturating_duration_since(options.started));
        }
        times.attached_ms = ms(options.started.elapsed());
        report.attach = times;
        Ok(())
    }

    /// Begins a recording of this session, or of a window of it, in a folder. A thread reads it while it is
    /// written, if its rows are wanted at once.
    pub(super) fn begin_recording(
        &self,
        dir: &OutputDir,
        window: Option<(&WindowReport, &[FirstHit])>,
    ) -> Result<OpenRecording> {
        let RecordOptions { choice, sampling, windows, .. } = self.options;
        let session = flow::recording::Session {
            ncclflow: env!("CARGO_PKG_VERSION").to_owned(),
            wire_version: WIRE_VERSION,
            report: match window {
                None => self.report.to_text()?,
                Some((window, _)) => self.report.of_window(window).to_text()?,
            },
            host: self.follows().then(|| self.report.host.clone()),
            steps: choice.level == Level::Steps,
            returns: choice.returns,
            sampling: *sampling,
            ..flow::recording::Session::default()
        };
        let writer = RecordingWriter::create(dir, session)
            .with_context(|| format!("beginning a recording in `{}`", dir.path().display()))?;
        let writer = writer
            .telling_who(self.who.watch())
            .telling_stacks(self.stacks.as_ref().map(|stacks| stacks.book.clone()))
            .telling_gpus(self.options.gpus.clone())
            .telling_launch_threads(self.who.threads.clone())
            .keeping_for(self.options.max_age);
        let (mut writer, mut limits) = (Box::new(writer), None);
        if let (Some((report, hits)), Some(WindowOptions { max_ops, iterations, .. })) = (window, windows) {
            let begun = writer.push_event(&Event::HitsBegin { hits: hits.to_vec() });
            begun.context("beginning a window's recording")?;
            let (number, max_ops, iterations) = (report.number, *max_ops, *iterations);
            let has_limit = max_ops.is_some() || iterations.is_some();
            limits = has_limit.then_some(WindowLimits { number, max_ops, iterations });
        }
        let (live, mut reader) = (self.options.statistics.clone(), None);
        if live.is_some() || limits.is_some() {
            let dir = dir.try_clone().context("keeping the output folder open")?;
            let (has_calls_only, stop) = (choice.level == Level::Api, self.stop.files_flag());
            let request = WatchRequest { dir, live, limits, has_calls_only, stop };
            reader = Some(RowWatch::start(request, &self.events)?);
        }
        Ok(OpenRecording { writer, reader })
    }

    /// Tells whether processes and bindings come while it runs.
    fn follows(&self) -> bool {
        matches!(self.options.targets, Targets::All(_))
    }

    /// Returns the line files wanted of the recording in this folder, to be made when it is whole.
    pub(super) fn lines_request(
        &self,
        dir: &OutputDir,
        max_ops: Option<u64>,
    ) -> Result<Option<LinesRequest>> {
        let RecordOptions { files: FilesOptions { when, limit_bytes }, max_size, compress, .. } =
            *self.options;
        if when == FilesWhen::None {
            return Ok(None);
        }
        let half = max_size.map(|limit| limit / 2);
        let limit_bytes = limit_bytes.into_iter().chain(half).min();
        let dir = dir.try_clone().context("keeping the output folder open")?;
        let stop = self.stop.files_flag();
        Ok(Some(LinesRequest { dir, limit_bytes, max_ops, keeps_names: compress, stop }))
    }

    /// Returns what the first taker of records begins with: a recording, or a pipeline where nothing is
    /// written. Windows begin recordings of their own.
    fn taking(&self) -> Result<Taking> {
        let stacks = self.stacks.as_ref();
        let mut taking = Taking {
            arrivals: self.follows().then(Arrivals::default),
            feed: stacks.map(|stacks| stacks.feed.clone()),
            bindings: self.bindings.clone(),
            stacks: stacks.map(|stacks| stacks.book.clone()),
            ..Taking::default()
        };
        match &self.dir {
            None => taking.watched = Some(self.pipeline()),
            Some(dir) if self.options.windows.is_none() => {
                taking.kept = Some(self.begin_recording(dir, None)?);
            }
            Some(_) => {}
        }
        Ok(taking)
    }

    /// Returns the way from records to statistics alone.
    fn pipeline(&self) -> Pipeline {
        let (options, bindings) = (self.options, self.bindings.clone());
        let files = options.watcher.clone().map(|watcher| SessionFiles::of_sink(Box::new(watcher)));
        let mut pipeline = Pipeline::new(bindings.list(), files.unwrap_or_else(SessionFiles::nowhere));
        if self.follows() {
            let (steps, returns) = (options.choice.level == Level::Steps, options.choice.returns);
            pipeline.traced = Traced { steps, returns, ..Traced::default() };
            pipeline.following = Some(Following { bindings, host: self.report.host.clone() });
        }
        pipeline.traced.sampling = options.sampling;
        pipeline.output.live.clone_from(&options.statistics);
        pipeline
    }

    /// Opens the session, takes records until the end, closes the session, and takes the remaining records.
    fn run(&mut self, mut follower: Option<&mut Follower<'a>>, spare: Vec<File>) -> Result<Closed> {
        for target in &self.setup.targets {
            self.follow_stacks(target.process.pid());
        }
        if let Some(follower) = &mut follower {
            follower.round(self);
        }
        let taking = self.taking()?;
        let mut windows = Windows::new(self)?;
        let source = self.attachment.object.source()?;
        let native = self.stacks.as_ref().and_then(|stacks| stacks.native.clone());
        let threads = Threads::start(source, self.options.queue_bytes, taking, native, &self.events)?;
        let opened = self.open(windows.is_some());
        let watched = opened.and_then(|()| {
            // What was recorded until then is kept, and the probes go, whatever happens to this thread.
            catch_unwind(AssertUnwindSafe(|| Watch::new(self, &threads, follower, windows.as_mut()).run()))
                .unwrap_or_else(|_| Err(anyhow!("the recording's thread panicked")))
        });
        drop(spare);
        let closed = windows.as_mut().map(|windows| windows.close(WindowEnd::Recording, self, &threads));
        let disarmed = self.attachment.object.set_gate(Gate::Closed);
        self.options.health.end_recording();
        let (mut taken, settled) = threads.end(&self.attachment)?;
        self.receive();
        self.note_failures();
        let windows = windows.map(|windows| windows.finish(&mut self.report, &mut taken));
        // The first of several errors is the cause.
        if let Err(error) = watched.and(disarmed).and(settled).and(closed.unwrap_or(Ok(()))) {
            self.fail(&format!("{error:#}"));
        }
        Ok(Closed { taken, windows })
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
            self.attachment.object.set_gate(Gate::Open)?;
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

    /// Notes an error that ends nothing.
    pub(super) fn note_error(&mut self, error: String) {
        self.report.errors.push(error);
        self.is_outdated = true;
    }

    /// Notes why not all files with probes were seen, if so: once, until all are.
    pub(super) fn note_unseen_files(&mut self, why: Option<&str>) {
        if let Some(why) = why.filter(|_| !self.has_unseen_files) {
            self.note_error(format!("probes stay for now on {why}"));
        }
        self.has_unseen_files = why.is_some();
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
            && !stacks.choice.kind.has_native()
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
            // There is no entry where no stacks were walked. The naming thread knows the process until
            // another has its number.
            let _ = self.attachment.object.remove_python(pid);
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
