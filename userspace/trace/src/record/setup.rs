//! Things to trace: processes, their libraries (each inode once), the probes that each library allows, and
//! their attachment.

use crate::kernel::{
    loader::{Attachment, Link, detach},
    probe::{self, Probe, ProbeSet},
};
use inspect::{
    clock::now_ns,
    layout_cache::{CacheKey, LayoutCache},
    process::{MappedLibrary, Process, no_return_probes},
    resolver::{self, ResolverError, Status, What},
};
use recording::rows::SharedBindings;
use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use rustix::time::ClockId;

use super::{
    options::{ProbeChoice, RecordOptions},
    recorder::Recording,
};
use flow::{
    decode::{CommunicatorPlaces, Decoder, LaunchKernel, OpWorkFields, PlanFields, ProxyOpFields},
    recording::Binding,
    schema::HostInfo,
    session::{Level, LibraryReport},
    wire::ProbeKind,
};
use nccl_library::{
    elf::Machine,
    nccl::NameTables,
    symbols::{PLACE_BYTES, Resolved, refuses_probe},
};

/// Options and cache for finding targets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) options: &'a RecordOptions,
    /// Cache of resolved libraries between sessions.
    pub(super) cache: Option<&'a LayoutCache>,
}

/// A process and the libraries that it uses, as indexes into [`Setup::libraries`].
#[derive(Debug)]
pub struct Target {
    pub process: Process,
    pub libraries: Vec<usize>,
    /// Why launches of CUDA graphs are not recorded.
    pub no_graph_launches: Option<String>,
}

/// A library that a target has mapped, resolved.
#[derive(Debug)]
pub struct LibraryInUse {
    pub file: MappedLibrary,
    pub resolved: Resolved,
    pub probes: ProbeSet,
    pub decoder: Arc<Decoder>,
    /// The resolution came from the cache.
    pub cached: bool,
    /// Key of the resolution in the cache, if it is to be kept.
    to_keep: Option<CacheKey>,
}

/// Everything that a recording needs to know before it touches the kernel.
#[derive(Debug, Default)]
pub struct Setup {
    pub targets: Vec<Target>,
    pub libraries: Vec<LibraryInUse>,
    /// Reasons why a process, or a library that looks like NCCL, cannot be traced beside others that can.
    pub passed_over: Vec<String>,
}

impl Setup {
    /// Finds the processes and resolves their libraries.
    pub(super) fn find(pids: &[u32], wanted: &Wanted<'_>) -> Result<Self> {
        let (mut setup, mut last_error) = (Self::default(), None);
        for &pid in pids {
            if setup.targets.iter().any(|target| target.process.pid() == pid) {
                continue;
            }
            match setup.add(pid, wanted) {
                Ok(()) => {}
                // Several pids: trace those that can be. `-p $(pgrep train.py)` names launchers and shells
                // too.
                Err(error) if pids.len() > 1 => {
                    setup.passed_over.push(format!("{error:#}"));
                    last_error = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        match last_error {
            Some(error) if setup.targets.is_empty() => {
                Err(error.context("none of the processes can be traced"))
            }
            _ => Ok(setup),
        }
    }

    /// Adds a process and its mapped libraries.
    fn add(&mut self, pid: u32, wanted: &Wanted<'_>) -> Result<()> {
        let process = Process::open(pid)?;
        let (mut libraries, mut refused) = (Vec::new(), Vec::new());
        for file in resolver::libraries(&process, wanted.options.library.as_deref())? {
            let known = self.position(&file);
            let index = known.unwrap_or(self.libraries.len());
            if known.is_none() {
                let resolved = LibraryInUse::resolve(file, wanted);
                match resolved.and_then(|library| library.with_probes(wanted.options.choice)) {
                    Ok(library) => self.libraries.push(library),
                    Err(error) => {
                        refused.push(error);
                        continue;
                    }
                }
            }
            libraries.push(index);
        }
        if libraries.is_empty()
            && let Some(error) = refused.pop()
        {
            return Err(error);
        }
        self.passed_over.extend(refused.iter().map(|error| format!("{error:#}")));
        let no_graph_launches = match self.driver_of(&process, &libraries, wanted) {
            Ok(driver) => {
                libraries.extend(driver);
                None
            }
            Err(why) => Some(format!("{why:#}")),
        };
        self.targets.push(Target { process, libraries, no_graph_launches });
        Ok(())
    }

    /// Returns the library of a file, if it is known, and known as what the file's name says.
    fn position(&self, file: &MappedLibrary) -> Option<usize> {
        let is_it = |known: &MappedLibrary| known.id == file.id && known.is_driver() == file.is_driver();
        self.libraries.iter().position(|library| is_it(&library.file))
    }

    /// Returns CUDA's driver in a process; none where launches of graphs are not asked for.
    fn driver_of(&mut self, process: &Process, nccl: &[usize], wanted: &Wanted<'_>) -> Result<Option<usize>> {
        if wanted.options.choice.level == Level::Api {
            return Ok(None);
        }
        let mut libraries = nccl.iter().filter_map(|index| self.libraries.get(*index));
        if !libraries.any(LibraryInUse::ties_graphs) {
            bail!("{NO_TIES}");
        }
        let file = resolver::driver(process)?.context(NO_DRIVER)?;
        let known = self.position(&file);
        if known.is_none() {
            let library = LibraryInUse::resolve(file, wanted)?.with_probes(wanted.options.choice)?;
            self.libraries.push(library);
        }
        Ok(Some(known.unwrap_or(self.libraries.len() - 1)))
    }
}

/// Why a process launches no CUDA graphs that could be seen.
pub(super) const NO_DRIVER: &str = "it has not mapped CUDA's driver, libcuda.so";

/// Why it could not be known what they replay.
pub(super) const NO_TIES: &str =
    "its NCCL does not tell which operations a graph captures (`missing_probes` of the library)";

impl Recording<'_> {
    /// Attaches every probe of every library to every named target that uses it.
    pub(super) fn attach_named(&mut self) -> Result<()> {
        let Self { setup: Setup { targets, libraries, .. }, attachment, bindings, report, .. } = self;
        let mut walks = Vec::new();
        for (index, library) in libraries.iter().enumerate() {
            walks.push(library.store_walks(index, attachment, bindings)?);
        }
        // What graphs launch comes last: there may not be cookies for all.
        for (target, is_driver) in
            [false, true].into_iter().flat_map(|of| targets.iter().map(move |it| (it, of)))
        {
            let pid = target.process.pid();
            let number = NonZeroU32::new(pid).context("0 is not a process")?;
            if self.options.choice.returns
                && let Some(why) = no_return_probes(pid)
            {
                bail!("`--returns` cannot be used with process {pid}: {why}; it works without `--returns`");
            }
            for &index in &target.libraries {
                let (Some(library), Some(walks)) = (libraries.get(index), walks.get(index)) else {
                    continue;
                };
                if library.is_driver() != is_driver {
                    continue;
                }
                let whose = HostInfo { host: report.host.as_str().into(), pid };
                if is_driver && attachment.cookies_left() < library.cookies() {
                    report.no_graph_launches(pid, "too many processes are traced in this session");
                    continue;
                }
                let cookies = library.store_probes(walks, index, Some(&whose), attachment, bindings)?;
                match library.link(&cookies, Some(number), attachment) {
                    Err(_) if target.process.has_exited() => break,
                    Err(why) if is_driver => report.no_graph_launches(pid, &format!("{why:#}")),
                    links => attachment.keep(Some(index), links?),
                }
            }
            if target.process.has_exited() {
                bail!("process {pid} exited before it could be traced");
            }
        }
        Ok(())
    }
}

/// Why a library's file is no longer what was resolved.
#[derive(Debug)]
pub(super) enum Change {
    /// The size or the mtime differs.
    Changed,
    /// The instructions differ, although size and mtime are the same.
    OtherCode,
    /// A probe's place has no instruction to compare.
    NotKept,
    /// Could not be checked.
    Unanswered(ResolverError),
}

/// Time that probes stay on a file that cannot be looked at. Whoever can cause that may write to the file
/// meanwhile.
const UNSEEN: Duration = Duration::from_secs(60);

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed => f.write_str("the file was changed in place after it was resolved"),
            Self::OtherCode => f.write_str("the file has other instructions than those that were resolved"),
            Self::NotKept => f.write_str("it is not known which instruction stands at a probe's place"),
            Self::Unanswered(error) => write!(f, "the file cannot be looked at again: {error}"),
        }
    }
}

impl std::error::Error for Change {}

/// Returns the binding of call stacks: the first, in sessions that have them.
pub(super) fn stack_binding() -> Binding {
    Binding { kind: ProbeKind::Stack, decoder: Arc::new(no_decoder()), host: None }
}

/// Returns the decoder of a library without probes.
fn no_decoder() -> Decoder {
    Decoder {
        op_fields: None,
        names: NameTables::default(),
        plan_fields: None,
        op_work: None,
        symmetric_kernels: Vec::new(),
        communicator: None,
    }
}

impl LibraryInUse {
    /// Identifies a library, before it is known whether it can be traced. It has no probes yet.
    pub(super) fn resolve(file: MappedLibrary, wanted: &Wanted<'_>) -> Result<Self> {
        let RecordOptions { choice, debug_files, .. } = wanted.options;
        let what = if file.is_driver() {
            What::Driver
        } else if choice.returns || choice.level == Level::Api {
            What::Api
        } else {
            What::Ops
        };
        let key = wanted.cache.and_then(|cache| Some((cache, CacheKey::new(file.id, what)?)));
        let known = key.as_ref().and_then(|(cache, key)| cache.load(key));
        let cached = known.is_some();
        let resolved = known.map_or_else(|| resolver::resolve(&file, what, debug_files), Ok);
        let resolved = resolved.with_context(|| format!("reading the library `{}`", file.shown()))?;
        let to_keep = key.filter(|_| !cached).map(|(_, key)| key);
        let (probes, decoder) = (ProbeSet::default(), Arc::new(no_decoder()));
        Ok(Self { file, resolved, probes, decoder, cached, to_keep })
    }

    /// Tells whether it is CUDA's driver.
    pub fn is_driver(&self) -> bool {
        self.file.is_driver()
    }

    /// Tells whether its probes tell what graphs capture.
    pub(super) fn ties_graphs(&self) -> bool {
        self.probes.probes.iter().any(|probe| matches!(probe.kind, ProbeKind::Graph(_)))
    }

    /// Compiles the library's probes. Fails if it cannot be traced.
    pub(super) fn with_probes(self, choice: ProbeChoice) -> Result<Self> {
        if self.is_driver() {
            return self.with_driver_probes();
        }
        let Resolved { resolution, code, .. } = &self.resolved;
        let shown = self.file.shown();
        let context = || format!("reading the NCCL library `{shown}`");
        let mut probes = probe::compile(resolution, choice.level.min(Level::Flow), choice.strategy);
        if choice.level == Level::Steps {
            probe::add_steps(&mut probes, resolution, Some(code), choice.detail);
        }
        if choice.api {
            probe::add_api_calls(&mut probes, resolution);
        }
        if choice.returns {
            probe::add_api_returns(&mut probes, resolution);
        }
        if choice.stacks.is_some() {
            probe::take_stacks(&mut probes);
        }
        if resolution.machine == Machine::X86_64 {
            probes.refuse(|place| code.at(place, PLACE_BYTES).and_then(refuses_probe));
        }
        let is_indispensable = |probe: &Probe| match choice.level {
            Level::Api => matches!(probe.kind, ProbeKind::ApiLine(_) | ProbeKind::ApiArguments(_)),
            Level::Flow | Level::Steps => probe.walk.is_some() || probe.function == "ncclProxySaveOp",
        };
        if !probes.probes.iter().any(is_indispensable) {
            let why = probes.missing.iter().map(|missing| format!("{}: {}", missing.function, missing.why));
            let why = why.collect::<Vec<_>>().join("; ");
            let instead = if choice.level == Level::Api {
                ""
            } else {
                "; `--level api` records the calls of a library whose layouts are not known, too"
            };
            bail!("`{shown}` cannot be traced: {why}. See `ncclflow symbols {shown}`{instead}");
        }
        let op_fields = match ProxyOpFields::find(&resolution.layouts, 0) {
            Err(_) if choice.level == Level::Api => None,
            fields => Some(fields.with_context(context)?),
        };
        let decoder = Arc::new(Decoder {
            op_fields,
            names: NameTables::from_layouts(&resolution.layouts).or_as_declared(),
            plan_fields: PlanFields::from_layouts(&resolution.layouts, resolution.nccl_version),
            op_work: OpWorkFields::from_layouts(&resolution.layouts),
            symmetric_kernels: LaunchKernel::all(&resolution.symmetric_kernels),
            communicator: CommunicatorPlaces::find(&resolution.layouts, 0).ok(),
        });
        Ok(Self { probes, decoder, ..self })
    }

    fn with_driver_probes(self) -> Result<Self> {
        let Resolved { resolution, code, .. } = &self.resolved;
        let mut probes = probe::of_driver(resolution);
        if resolution.machine == Machine::X86_64 {
            probes.refuse(|place| code.at(place, PLACE_BYTES).and_then(refuses_probe));
        }
        let is_launch = |probe: &Probe| probe.function.starts_with("cuGraphLaunch");
        if !probes.probes.iter().any(is_launch) {
            let why = probes.missing.first().map_or("it has no such function", |missing| &missing.why);
            bail!("`cuGraphLaunch` of `{}` cannot be probed: {why}", self.file.shown());
        }
        Ok(Self { probes, ..self })
    }

    /// Gives the programs of its walks their cookies, which serve all processes.
    pub(super) fn store_walks(
        &self,
        index: usize,
        attachment: &mut Attachment,
        bindings: &SharedBindings,
    ) -> Result<Vec<Option<u32>>> {
        let store = |probe: &Probe| {
            let Some(program) = &probe.walk else { return Ok(None) };
            let bind = |kind: &ProbeKind| bindings.push(self.binding(kind, None));
            attachment.store_parts(probe, program, index, bind).map(Some)
        };
        self.probes.probes.iter().map(store).collect()
    }

    /// Gives its probes their cookies: for one process, or for all.
    pub(super) fn store_probes(
        &self,
        walks: &[Option<u32>],
        index: usize,
        whose: Option<&HostInfo>,
        attachment: &mut Attachment,
        bindings: &SharedBindings,
    ) -> Result<Vec<u32>> {
        let pid = whose.and_then(|whose| NonZeroU32::new(whose.pid));
        let store = |(probe, walk): (&Probe, &Option<u32>)| {
            let cookie = attachment.store(probe, *walk, index, pid)?;
            bindings.push(self.binding(&probe.kind, whose.cloned()));
            Ok(cookie)
        };
        self.probes.probes.iter().zip(walks).map(store).collect()
    }

    fn binding(&self, kind: &ProbeKind, host: Option<HostInfo>) -> Binding {
        Binding { kind: kind.clone(), decoder: Arc::clone(&self.decoder), host }
    }

    /// Counts the cookies that its probes need.
    pub(super) fn cookies(&self) -> usize {
        let of_walk = |probe: &Probe| probe.walk.as_ref().map_or(0, |walk| walk.parts.len());
        self.probes.probes.iter().map(|probe| 1 + of_walk(probe)).sum()
    }

    /// Attaches its probes, stored with these cookies: to one process, or to all. Before and after that the
    /// file must be what was resolved: a probe stands on that instruction or nowhere.
    pub(super) fn link(
        &self,
        cookies: &[u32],
        pid: Option<NonZeroU32>,
        attachment: &mut Attachment,
    ) -> Result<Vec<Link>> {
        self.unchanged()?;
        let probes: Vec<_> = self.probes.probes.iter().zip(cookies.iter().copied()).collect();
        let links = attachment.link(&probes, &self.file.path, Some(self.file.held()), pid)?;
        if let Err(change) = self.unchanged() {
            detach(links, |_| {});
            return Err(change.into());
        }
        Ok(links)
    }

    /// Checks that the file is what was resolved: its identity, and the instructions that probes stand on.
    pub(super) fn unchanged(&self) -> Result<Status, Change> {
        let code = &self.resolved.code;
        let kept = |probe: &Probe| Some((probe.file_offset, code.at(probe.file_offset, PLACE_BYTES)?));
        let kept: Option<Vec<_>> = self.probes.probes.iter().map(kept).collect();
        let kept = kept.ok_or(Change::NotKept)?;
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let places: Vec<_> = kept.iter().map(|(at, bytes)| (*at, length(bytes))).collect();
        let (status, found) = resolver::check(&self.file, &places).map_err(Change::Unanswered)?;
        let (was, is) = (self.file.id, status.id);
        if (was.size, was.modified) != (is.size, is.modified) || !was.is_same_file(&is) {
            return Err(Change::Changed);
        }
        // A write through a mapping need not show in the times (tmpfs), or not yet. And what only sets the
        // ctime, another name of the file for instance, changes no instruction.
        let is_same = kept.iter().zip(&found).all(|((_, kept), found)| *kept == &**found);
        if is_same { Ok(status) } else { Err(Change::OtherCode) }
    }

    /// Looks whether the file is what was resolved, as it was at `seen_ns` of the records' clock. `Ok(None)`:
    /// the file was not seen, for a reason that `unseen` gets, and probes stay on it for now.
    pub(super) fn look(
        &self,
        seen_ns: &mut u64,
        unseen: &mut Option<String>,
    ) -> Result<Option<Status>, Change> {
        let (looked, now) = (self.unchanged(), now_ns(ClockId::Monotonic));
        let is_recent = u128::from(now.saturating_sub(*seen_ns)) < UNSEEN.as_nanos();
        match looked {
            Ok(status) => {
                *seen_ns = now;
                Ok(Some(status))
            }
            // Want of descriptors, for instance, says nothing of the file: the next look tells.
            Err(why @ Change::Unanswered(ResolverError::Unavailable(_))) if is_recent => {
                unseen.get_or_insert_with(|| format!("`{}`: {why}", self.file.shown()));
                Ok(None)
            }
            Err(why) => Err(why),
        }
    }

    /// Keeps the resolution for the next time.
    pub(super) fn keep(&self, cache: &LayoutCache) -> Result<()> {
        if let Some(key) = &self.to_keep {
            cache.store(key, &self.resolved)?;
        }
        Ok(())
    }

    pub(super) fn report(&self) -> LibraryReport {
        let Self { file, resolved: Resolved { resolution, .. }, probes, cached, .. } = self;
        LibraryReport {
            path: file.path.display().to_string(),
            deleted: file.deleted,
            device: file.id.device,
            inode: file.id.inode,
            build_id: resolution.build_id.clone(),
            nccl_version: resolution.nccl_version,
            cuda_version: resolution.cuda_version,
            symbols: resolution.symbol_source,
            cached: *cached,
            probes: probes.strategy,
            calls: probes.calls,
            missing_probes: probes.missing.clone(),
        }
    }
}
