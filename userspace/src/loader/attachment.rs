//! Probes on their way through the kernel: attached, armed, disarmed, detached.

use std::{
    fmt,
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use aya::{
    maps::{MapData, PerCpuArray},
    programs::{
        ProgramError,
        uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope},
    },
};
use ncclflow_common::{FetchPlan, MAX_PROBES, ProbeCounters, Walk};

use super::{
    buffer::Buffer,
    object::{CountersValue, LoadedObject, Program},
};
use crate::{
    probe::{Probe, ProbePlace, WalkProgram},
    stream::Source,
};

/// Keeps a probe attached.
pub type Link = UProbeLink;

/// A probe could not be attached.
#[derive(Debug)]
pub struct AttachError {
    function: String,
    library: PathBuf,
    pid: Option<u32>,
    source: ProgramError,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { function, library, pid, source: _ } = self;
        let whose = pid.map_or_else(|| "all processes".to_owned(), |pid| format!("process {pid}"));
        write!(
            f,
            "the kernel refused a uprobe on `{function}` of `{}` in {whose} (run as root, or with CAP_SYS_ADMIN besides; \
             `ncclflow doctor` tells)",
            library.display()
        )
    }
}

impl std::error::Error for AttachError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// A probe in the kernel.
#[derive(Debug)]
pub struct ArmedProbe {
    /// What its records carry; also its index in [`Attachment::probes`].
    pub cookie: u32,
    pub function: String,
    pub symbol: String,
    pub place: ProbePlace,
    /// What it reads, if it is no probe but a part of those that walk lists.
    pub part: Option<&'static str>,
    /// Process that it is limited to; parts, and all probes under `--all`, serve all processes that use the library.
    pub pid: Option<u32>,
    /// Which of the session's libraries it is on.
    pub library: usize,
}

/// The plans of a walk, stored: what the walk of a probe names by their numbers.
#[derive(Clone, Copy, Debug)]
pub struct StoredParts {
    head: u32,
    first: u32,
}

/// The probes of a session.
pub struct Attachment {
    object: LoadedObject,
    counters: PerCpuArray<MapData, CountersValue>,
    probes: Vec<ArmedProbe>,
    links: Vec<Link>,
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment").field("probes", &self.probes).finish_non_exhaustive()
    }
}

impl Attachment {
    /// Loads the eBPF object.
    pub fn new(buffer: Buffer, development_log: bool) -> Result<Self> {
        let mut object = LoadedObject::load(buffer, development_log)?;
        let counters = object.take_counters()?;
        Ok(Self { object, counters, probes: Vec::new(), links: Vec::new() })
    }

    /// Stores the plans that a library's walking probe runs for nodes and rows; they have cookies and counters of their own,
    /// first the head plan's.
    pub fn store_parts(
        &mut self,
        probe: &Probe,
        program: &WalkProgram,
        library: usize,
    ) -> Result<StoredParts> {
        let mut store = |plan: &FetchPlan, part| -> Result<u32> {
            let cookie = self.next_cookie()?;
            self.object.set_plan(cookie, plan)?;
            self.probes.push(ArmedProbe {
                cookie,
                function: probe.function.clone(),
                symbol: probe.symbol.clone(),
                place: probe.place(),
                part: Some(part),
                pid: None,
                library,
            });
            Ok(cookie)
        };
        let head = store(&program.head.plan, "head")?;
        for part in &program.parts {
            store(&part.plan.plan, part.name)?;
        }
        Ok(StoredParts { head, first: head + 1 })
    }

    /// Attaches a probe to the inode behind `path`, for one process only: in no other does the kernel place a breakpoint.
    /// It sends nothing before [`Attachment::arm`].
    pub fn attach(
        &mut self,
        probe: &Probe,
        parts: Option<StoredParts>,
        library: usize,
        path: &Path,
        shown: &Path,
        pid: NonZeroU32,
    ) -> Result<()> {
        let cookie = self.store(probe, parts, library, Some(pid))?;
        let link = self.link(probe, cookie, path, shown, Some(pid))?;
        self.links.push(link);
        Ok(())
    }

    /// Stores a probe's plan under a cookie of its own. `pid`: the only process that it will be attached to.
    pub fn store(
        &mut self,
        probe: &Probe,
        parts: Option<StoredParts>,
        library: usize,
        pid: Option<NonZeroU32>,
    ) -> Result<u32> {
        let cookie = self.next_cookie()?;
        self.object.set_plan(cookie, &probe.plan.plan)?;
        if let (Some(program), Some(parts)) = (&probe.walk, parts) {
            self.object.set_walk(cookie, &stored_walk(&program.walk, parts)?)?;
        }
        self.probes.push(ArmedProbe {
            cookie,
            function: probe.function.clone(),
            symbol: probe.symbol.clone(),
            place: probe.place(),
            part: None,
            pid: pid.map(NonZeroU32::get),
            library,
        });
        Ok(cookie)
    }

    /// Attaches a stored probe to the inode behind `path`: for one process, or for all that have it mapped now and later. The
    /// link keeps it attached.
    pub fn link(
        &mut self,
        probe: &Probe,
        cookie: u32,
        path: &Path,
        shown: &Path,
        pid: Option<NonZeroU32>,
    ) -> Result<Link> {
        let program = match probe.place() {
            ProbePlace::Return => Program::Return,
            ProbePlace::Entry if probe.walk.is_some() => Program::Walk,
            ProbePlace::Entry => Program::Fetch,
        };
        let program = self.object.program(program)?;
        let point = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(probe.file_offset.0),
            cookie: Some(cookie.into()),
        };
        let scope = pid.map_or(UProbeScope::AllProcesses, UProbeScope::OneProcess);
        program.attach(point, path, scope).and_then(|id| program.take_link(id)).map_err(|source| {
            AttachError {
                function: probe.function.clone(),
                library: shown.to_path_buf(),
                pid: pid.map(NonZeroU32::get),
                source,
            }
            .into()
        })
    }

    /// Keeps links until [`Attachment::detach`].
    pub fn keep(&mut self, links: impl IntoIterator<Item = Link>) {
        self.links.extend(links);
    }

    fn next_cookie(&self) -> Result<u32> {
        let cookie = u32::try_from(self.probes.len()).ok().filter(|cookie| *cookie < MAX_PROBES);
        cookie.with_context(|| {
            format!("more than {MAX_PROBES} probes would be needed: trace fewer processes in one session")
        })
    }

    /// Opens the session: from here on hits are recorded.
    pub fn arm(&mut self) -> Result<()> {
        self.object.set_armed(true)
    }

    /// Closes the session: hits are counted and no longer recorded, however long detaching takes.
    pub fn disarm(&mut self) -> Result<()> {
        self.object.set_armed(false)
    }

    /// By cookie.
    pub fn probes(&self) -> &[ArmedProbe] {
        &self.probes
    }

    /// What the kernel counted for a probe, by CPU.
    pub fn counters(&self, probe: &ArmedProbe) -> Result<Vec<ProbeCounters>> {
        let per_cpu = self.counters.get(&probe.cookie, 0);
        let per_cpu =
            per_cpu.with_context(|| format!("reading the counters of the probe on `{}`", probe.function))?;
        Ok(per_cpu.iter().map(|CountersValue(counters)| *counters).collect())
    }

    /// Records of this process (in the initial PID namespace) that the kernel side could not send.
    pub fn lost_by_process(&self, tgid: u32) -> Result<u64> {
        self.object.lost_by_process(tgid)
    }

    /// What walks send only once is sent again: some of it was dropped on its way.
    pub fn forget_what_was_sent(&mut self) -> Result<()> {
        self.object.forget_seen()
    }

    /// Prints what the eBPF side has logged, if it was asked to.
    pub fn print_log(&mut self) {
        self.object.print_log();
    }

    /// The reading end of the records. Can be taken once.
    pub fn take_source(&mut self) -> Result<Source> {
        self.object.take_source()
    }

    /// Takes the probes out of the kernel, one by one: each waits about 0.1 s for the kernel on 6.12 and later.
    pub fn detach(mut self, mut before_each: impl FnMut(usize)) {
        while let Some(link) = self.links.pop() {
            before_each(self.links.len() + 1);
            drop(link);
        }
    }
}

/// The walk with its plans' numbers as they are stored.
fn stored_walk(walk: &Walk, parts: StoredParts) -> Result<Walk> {
    let mut walk = *walk;
    walk.head_plan = parts.head;
    for queue in &mut walk.queues {
        queue.plan += parts.first;
    }
    let first = u16::try_from(parts.first).context("too many probes")?;
    for fan in walk.gates.iter_mut().flat_map(|gate| &mut gate.fans) {
        fan.first_plan += first;
    }
    Ok(walk)
}
