//! The probes of a session: stored, attached, armed, disarmed, counted, detached.

use flow::{
    session::{LinkKind, ProbePlace},
    wire::ProbeKind,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    num::NonZeroU32,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context as _, Result};
use ncclflow_common::{
    FetchPlan, MAX_PROBES, MAX_RINGS, ProbeCounters, PythonWalk, ReturnSlots, STACK_COOKIE, Walk,
};

use super::{
    buffer::Buffer,
    link::{Link, LinkError, Place, Site, detach},
    object::{Gate, LoadedObject},
    programs::Program,
};
use crate::kernel::{
    probe::{Probe, WalkProgram},
    stream::Source,
};

/// Error: the kernel refused a probe.
#[derive(Debug)]
pub struct AttachError {
    function: String,
    library: PathBuf,
    pid: Option<u32>,
    source: LinkError,
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

/// A stored probe.
#[derive(Debug)]
pub struct ArmedProbe {
    /// Number that the probe's records carry, and index in [`Attachment::probes`].
    pub cookie: u32,
    pub function: String,
    pub symbol: String,
    pub place: ProbePlace,
    /// Name of the plan, if this is a plan that walking probes run and no probe itself.
    pub part: Option<&'static str>,
    /// Process that the probe is limited to. `None` for parts, and for all probes under `--all`, which serve
    /// all processes that use the library.
    pub pid: Option<u32>,
    /// Index of the library among the session's libraries.
    pub library: usize,
}

/// The cookies of the stored plans of a walk.
#[derive(Clone, Copy, Debug)]
pub struct StoredParts {
    head: u32,
    first: u32,
}

/// The probes of a session.
pub struct Attachment {
    object: LoadedObject,
    probes: Vec<ArmedProbe>,
    /// Links that are kept, with the index of their library where they are of a named process.
    links: Vec<(Option<usize>, Link)>,
    first_link: Option<Instant>,
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment").field("probes", &self.probes).finish_non_exhaustive()
    }
}

impl Attachment {
    /// Loads the eBPF object. With `stacks`, call stacks are recorded; they have the first cookie.
    pub fn new(buffer: Buffer, links: LinkKind, development_log: bool, stacks: bool) -> Result<Self> {
        let object = LoadedObject::load(buffer, links, development_log, stacks)?;
        let stacks = stacks.then(|| ArmedProbe {
            cookie: STACK_COOKIE,
            function: "call stacks".to_owned(),
            symbol: String::new(),
            place: ProbePlace::Entry,
            part: Some("stack"),
            pid: None,
            library: 0,
        });
        Ok(Self { object, probes: stacks.into_iter().collect(), links: Vec::new(), first_link: None })
    }

    /// Starts walking the call stacks of this process (in the initial PID namespace).
    pub fn walk_stacks(&mut self, tgid: u32, walk: &PythonWalk) -> Result<()> {
        self.object.set_python(tgid, walk)
    }

    /// Returns the map that tells the eBPF side which words tell native stacks apart, to write to.
    pub(crate) fn return_slots(&self) -> Result<impl FnMut(u64, &ReturnSlots) -> bool + Send + use<>> {
        self.object.return_slots()
    }

    /// Stops walking the call stacks of this process, which has ended.
    pub fn leave_stacks(&mut self, tgid: u32) -> Result<()> {
        self.object.remove_python(tgid)
    }

    /// Stores the plans that a library's walking probe runs for nodes and rows, the head plan first. Each has
    /// a cookie and counters of its own. `stored` is called for each plan in their order; if one cannot be
    /// stored, those before it keep their cookies.
    pub fn store_parts(
        &mut self,
        probe: &Probe,
        program: &WalkProgram,
        library: usize,
        mut stored: impl FnMut(&ProbeKind),
    ) -> Result<StoredParts> {
        let mut store = |plan: &FetchPlan, part, kind: &ProbeKind| -> Result<u32> {
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
            stored(kind);
            Ok(cookie)
        };
        let head = store(&program.head, "head", &ProbeKind::Head)?;
        for part in &program.parts {
            store(&part.plan, part.name, &part.kind)?;
        }
        Ok(StoredParts { head, first: head + 1 })
    }

    /// Attaches stored probes to the inode behind `path`, in one process: the kernel places no breakpoint in
    /// others. The probes send nothing before [`Attachment::arm`].
    pub fn attach(
        &mut self,
        probes: &[(&Probe, u32)],
        path: &Path,
        shown: &Path,
        pid: NonZeroU32,
    ) -> Result<()> {
        let links = self.link(probes, path, shown, Some(pid))?;
        self.keep(links);
        Ok(())
    }

    /// Stores a probe's plan under a new cookie. `pid` is the only process to which the probe will be
    /// attached.
    pub fn store(
        &mut self,
        probe: &Probe,
        parts: Option<StoredParts>,
        library: usize,
        pid: Option<NonZeroU32>,
    ) -> Result<u32> {
        let cookie = self.next_cookie()?;
        self.object.set_plan(cookie, &probe.plan)?;
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

    /// Attaches stored probes, with their cookies, to the inode behind `path`: in one process, or in all that
    /// have it mapped now and later. They stay attached while the links live. If the kernel refuses a probe,
    /// none is attached.
    pub fn link(
        &mut self,
        probes: &[(&Probe, u32)],
        path: &Path,
        shown: &Path,
        pid: Option<NonZeroU32>,
    ) -> Result<Vec<Link>> {
        self.link_at(probes, Site { path, held: None, pid }, shown)
    }

    /// Attaches stored probes as [`Attachment::link`] does, to the file that `held` has open.
    pub(crate) fn link_to(
        &mut self,
        probes: &[(&Probe, u32)],
        held: BorrowedFd<'_>,
        shown: &Path,
        pid: Option<NonZeroU32>,
    ) -> Result<Vec<Link>> {
        self.link_at(probes, Site { path: shown, held: Some(held), pid }, shown)
    }

    fn link_at(&mut self, probes: &[(&Probe, u32)], site: Site<'_>, shown: &Path) -> Result<Vec<Link>> {
        let pid = site.pid;
        let of_each = Program::ALL.map(|program| {
            let of_it = probes.iter().filter(|(probe, _)| program_of(probe) == program);
            (program, of_it.copied().collect::<Vec<_>>())
        });
        let needed = of_each.iter().filter(|(_, probes)| !probes.is_empty());
        self.object.load_programs(&needed.clone().map(|(program, _)| *program).collect::<Vec<_>>())?;
        let mut links = Vec::new();
        for (program, probes) in needed {
            let places: Vec<Place> =
                probes.iter().map(|(probe, cookie)| (probe.file_offset.0, *cookie)).collect();
            match self.object.link(*program, site, &places) {
                Ok(made) => {
                    links.extend(made);
                    self.first_link.get_or_insert_with(Instant::now);
                }
                Err((at, source)) => {
                    detach(links, |_| {});
                    let function = probes.get(at).map(|(probe, _)| probe.function.clone());
                    return Err(AttachError {
                        function: function.unwrap_or_default(),
                        library: shown.to_path_buf(),
                        pid: pid.map(NonZeroU32::get),
                        source,
                    }
                    .into());
                }
            }
        }
        Ok(links)
    }

    /// Loads programs that are likely to be needed. A refusal is reported when the program is needed.
    pub fn load_ahead(&mut self, programs: &[Program]) {
        let _ = self.object.load_programs(programs);
    }

    /// Returns when the first link was made.
    pub fn first_link(&self) -> Option<Instant> {
        self.first_link
    }

    /// Keeps links until [`Attachment::detach`].
    pub fn keep(&mut self, links: impl IntoIterator<Item = Link>) {
        self.links.extend(links.into_iter().map(|link| (None, link)));
    }

    /// Keeps links to a library, by its index, until [`Attachment::take_of`] or [`Attachment::detach`].
    pub fn keep_of(&mut self, library: usize, links: impl IntoIterator<Item = Link>) {
        self.links.extend(links.into_iter().map(|link| (Some(library), link)));
    }

    /// Takes back the links to a library that were kept.
    pub fn take_of(&mut self, library: usize) -> Vec<Link> {
        self.links.extract_if(.., |(of, _)| *of == Some(library)).map(|(_, link)| link).collect()
    }

    fn next_cookie(&self) -> Result<u32> {
        let cookie = u32::try_from(self.probes.len()).ok().filter(|cookie| *cookie < MAX_PROBES);
        cookie.with_context(|| {
            format!("more than {MAX_PROBES} probes would be needed: trace fewer processes in one session")
        })
    }

    /// Opens the session: hits are recorded from now on.
    pub fn arm(&mut self) -> Result<()> {
        self.object.set_gate(Gate::Open)
    }

    /// Opens the session to these processes only (in the initial PID namespace), or changes to whom it is
    /// open. Hits of other processes are only counted.
    pub fn arm_for(&mut self, tgids: &BTreeSet<u32>) -> Result<()> {
        self.object.admit(tgids)?;
        self.object.set_gate(Gate::ToAdmitted)
    }

    /// Closes the session: hits are only counted from now on, until the probes are detached.
    pub fn disarm(&mut self) -> Result<()> {
        self.object.set_gate(Gate::Closed)
    }

    /// Returns the stored probes, by cookie.
    pub fn probes(&self) -> &[ArmedProbe] {
        &self.probes
    }

    /// Returns what the eBPF side counted for a probe, by CPU.
    pub fn counters(&self, probe: &ArmedProbe) -> Result<Vec<ProbeCounters>> {
        let per_cpu = self.object.counters(probe.cookie);
        per_cpu.with_context(|| format!("reading the counters of the probe on `{}`", probe.function))
    }

    /// Returns the number of records of this process (in the initial PID namespace) that the eBPF side could
    /// not send.
    pub fn lost_by_process(&self, tgid: u32) -> Result<u64> {
        self.object.lost_by_process(tgid)
    }

    /// Stores the tenant of a process (in the initial PID namespace). Tenants have shares of ring buffers
    /// that are more than half full.
    pub fn set_tenant(&mut self, tgid: u32, tenant: u32) -> Result<()> {
        self.object.set_tenant(tgid, tenant)
    }

    /// Removes the tenant of a process that has ended.
    pub fn remove_tenant(&mut self, tgid: u32) -> Result<()> {
        self.object.remove_tenant(tgid)
    }

    /// Shares the ring buffers out to the tenants of these processes, each with its tenant.
    pub fn share_out(&mut self, processes: impl IntoIterator<Item = (u32, u32)>) -> Result<()> {
        let mut tenants = vec![BTreeSet::new(); MAX_RINGS as usize];
        for (tgid, tenant) in processes {
            if let Some(of_ring) = tenants.get_mut(self.object.ring_of(tgid) as usize) {
                of_ring.insert(tenant);
            }
        }
        let counts: Vec<u64> = tenants.iter().map(|tenants| tenants.len() as u64).collect();
        self.object.share_out(&counts)
    }

    /// Returns how often each tenant was refused room in a ring buffer, by its number. Each time it was a
    /// record, or some that travel together.
    pub fn refused(&self) -> Result<BTreeMap<u32, u64>> {
        self.object.refused()
    }

    /// Returns the number of cookies that are left.
    pub fn cookies_left(&self) -> usize {
        (MAX_PROBES as usize).saturating_sub(self.probes.len())
    }

    /// Makes walks send again what they send only once, and call stacks their frames, because some of them
    /// were lost.
    pub fn forget_what_was_sent(&mut self) -> Result<()> {
        self.object.forget_stacks()?;
        self.object.forget_seen()
    }

    /// Makes walks send again what they send only once. The frames of call stacks are not sent again: their
    /// reader keeps them.
    pub fn forget_what_walks_sent(&mut self) -> Result<()> {
        self.object.forget_seen()
    }

    /// Prints the eBPF side's development log, if it is on.
    pub fn print_log(&mut self) {
        self.object.print_log();
    }

    /// Returns the buffers to read records from, for one reader.
    pub fn source(&mut self) -> Result<Source> {
        self.object.source()
    }

    /// Detaches all probes, see [`detach`].
    pub fn detach(&mut self, before_each: impl FnMut(usize)) {
        let links = std::mem::take(&mut self.links).into_iter().map(|(_, link)| link);
        detach(links.collect(), before_each);
    }
}

fn program_of(probe: &Probe) -> Program {
    let program = match probe.place() {
        ProbePlace::Return => Program::Return,
        ProbePlace::Entry if probe.walk.is_some() => Program::Walk,
        ProbePlace::Entry => Program::Fetch,
    };
    if probe.takes_stack { program.with_stack() } else { program }
}

/// Returns the walk with its plans' indices replaced by their cookies.
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
