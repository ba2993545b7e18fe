//! Probes on their way through the kernel: attached, armed, disarmed, detached.

use std::{
    fmt,
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use aya::{
    maps::{MapData, PerCpuArray, RingBuf},
    programs::{
        ProgramError,
        uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope},
    },
};
use ncclflow_common::{MAX_PROBES, ProbeCounters};

use super::object::{CountersValue, LoadedObject, Program};
use crate::probe::{Probe, ProbePlace};

/// A probe could not be attached.
#[derive(Debug)]
pub struct AttachError {
    function: String,
    library: PathBuf,
    pid: u32,
    source: ProgramError,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { function, library, pid, source: _ } = self;
        write!(
            f,
            "the kernel refused a uprobe on `{function}` of `{}` in process {pid} (run as root)",
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
    /// Process that it is limited to.
    pub pid: u32,
    /// Which of the session's libraries it is on.
    pub library: usize,
}

/// The probes of a session.
pub struct Attachment {
    object: LoadedObject,
    counters: PerCpuArray<MapData, CountersValue>,
    probes: Vec<ArmedProbe>,
    links: Vec<UProbeLink>,
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment").field("probes", &self.probes).finish_non_exhaustive()
    }
}

impl Attachment {
    /// Loads the eBPF object, with a ring buffer of `buffer_bytes`.
    pub fn new(buffer_bytes: u32, development_log: bool) -> Result<Self> {
        let mut object = LoadedObject::load(buffer_bytes, development_log)?;
        let counters = object.take_counters()?;
        Ok(Self { object, counters, probes: Vec::new(), links: Vec::new() })
    }

    /// Attaches a probe to the inode behind `path`, for one process only: in no other does the kernel place a breakpoint.
    /// It sends nothing before [`Attachment::arm`].
    pub fn attach(
        &mut self,
        probe: &Probe,
        library: usize,
        path: &Path,
        shown: &Path,
        pid: NonZeroU32,
    ) -> Result<()> {
        let cookie = u32::try_from(self.probes.len()).ok().filter(|cookie| *cookie < MAX_PROBES);
        let cookie = cookie.with_context(|| {
            format!("more than {MAX_PROBES} probes would be needed: trace fewer processes in one session")
        })?;
        self.object.set_plan(cookie, &probe.plan.plan)?;
        let program = match probe.place() {
            ProbePlace::Return => Program::Return,
            ProbePlace::Entry => Program::Fetch,
        };
        let program = self.object.program(program)?;
        let point = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(probe.file_offset.0),
            cookie: Some(cookie.into()),
        };
        let link = program
            .attach(point, path, UProbeScope::OneProcess(pid))
            .and_then(|id| program.take_link(id))
            .map_err(|source| AttachError {
                function: probe.function.clone(),
                library: shown.to_path_buf(),
                pid: pid.get(),
                source,
            })?;
        self.links.push(link);
        self.probes.push(ArmedProbe {
            cookie,
            function: probe.function.clone(),
            symbol: probe.symbol.clone(),
            place: probe.place(),
            pid: pid.get(),
            library,
        });
        Ok(())
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

    /// What the kernel counted for a probe, over all CPUs.
    pub fn counters(&self, probe: &ArmedProbe) -> Result<ProbeCounters> {
        let per_cpu = self.counters.get(&probe.cookie, 0);
        let per_cpu =
            per_cpu.with_context(|| format!("reading the counters of the probe on `{}`", probe.function))?;
        let mut sum = ProbeCounters::default();
        for CountersValue(cpu) in per_cpu.iter() {
            sum.add(cpu);
        }
        Ok(sum)
    }

    /// Prints what the eBPF side has logged, if it was asked to.
    pub fn print_log(&mut self) {
        self.object.print_log();
    }

    /// The ring buffer. Can be taken once.
    pub fn take_records(&mut self) -> Result<RingBuf<MapData>> {
        self.object.take_records()
    }

    /// Takes the probes out of the kernel, one by one: each waits about 0.1 s for the kernel on 6.12 and later.
    pub fn detach(mut self, mut before_each: impl FnMut(usize)) {
        while let Some(link) = self.links.pop() {
            before_each(self.links.len() + 1);
            drop(link);
        }
    }
}
