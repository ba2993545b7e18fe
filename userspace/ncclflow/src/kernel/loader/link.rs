//! Links, which keep probes attached: one link for many uprobes, or one link for each.
//!
//! A link to many uprobes (`BPF_TRACE_UPROBE_MULTI`) is made and closed in one step, however many probes it
//! has: the kernel waits once until no task can be in any of them. For links to performance events it waits
//! once for each: about 0.1 s on Linux 6.12 and later, one after the other.
//!
//! The programs return 0: some kernels (6.6) take the return value of a program at a link to many for that of
//! a uprobe handler, where 1 removes the breakpoint from the process.

use std::{fmt, io, num::NonZeroU32, path::Path, thread};

use aya::{
    programs::{
        ProbeKind, ProgramError, UProbe,
        uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope},
    },
    sys::{SyscallError, UProbeMultiFeature, is_uprobe_multi_supported},
};
use ncclflow_common::COOKIE_BITS;

use super::warm_up::warm_up;
use crate::target::in_first_pid_namespace;

/// The two kinds of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "program", derive(clap::ValueEnum))]
pub enum LinkKind {
    /// One link to all that run the same program in the same process and library
    Multi,
    /// One performance event each: on Linux 6.12 and later each takes 0.1 s to detach
    Perf,
}

impl LinkKind {
    /// Links to many, where the kernel has them (6.6) and limits them to a process. Before 46ba0e49b642
    /// ("bpf: fix multi-uprobe PID filtering logic", 6.10 and stable kernels) it limited them to a thread.
    pub fn best() -> Self {
        match is_uprobe_multi_supported(UProbeMultiFeature::ProcessScopedPidFilter) {
            Ok(true) => Self::Multi,
            Ok(false) | Err(_) => Self::Perf,
        }
    }

    /// Whether the probe on a return sees only returns of its own process, see [`COOKIE_BITS`]. If not,
    /// no return may be probed.
    pub fn tells_returns_apart(self) -> bool {
        self == Self::Multi || in_first_pid_namespace().is_ok_and(|is_first| is_first)
    }

    /// Prepares the kernel for the first link, in a thread of its own.
    pub fn prepare(self) {
        if self == Self::Multi {
            warm_up();
        }
    }
}

/// Keeps probes attached until it is dropped.
#[derive(Debug)]
pub struct Link {
    kind: LinkKind,
    probes: usize,
    _attached: UProbeLink,
}

/// The kernel made no link.
#[derive(Debug)]
pub struct LinkError {
    call: &'static str,
    pub(super) error: io::Error,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.call)
    }
}

impl std::error::Error for LinkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl LinkError {
    pub(super) fn of(kind: LinkKind, error: ProgramError) -> Self {
        let (call, error) = match error {
            ProgramError::SyscallError(SyscallError { call, io_error }) => (call, io_error),
            error => ("", io::Error::other(error)),
        };
        let call = match (kind, call) {
            (LinkKind::Multi, _) => "BPF_LINK_CREATE (uprobe_multi)",
            (LinkKind::Perf, "perf_event_open") => "perf_event_open (uprobe)",
            (LinkKind::Perf, _) => "BPF_LINK_CREATE (perf_event)",
        };
        Self { call, error }
    }
}

/// What probes of one link share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) path: &'a Path,
    pub(super) pid: Option<NonZeroU32>,
}

/// A probe: its offset in the file, and its cookie.
pub(super) type Place = (u64, u32);

impl Link {
    /// How many probes it keeps attached.
    pub fn probes(&self) -> usize {
        self.probes
    }

    /// Makes one link to all of these places; one to a performance event has one place.
    fn new(
        kind: LinkKind,
        program: &mut UProbe,
        site: Site<'_>,
        places: &[Place],
    ) -> Result<Self, LinkError> {
        let is_marked = kind == LinkKind::Perf && matches!(program.kind(), ProbeKind::Return);
        let mark = site.pid.filter(|_| is_marked).map_or(0, |pid| u64::from(pid.get()) << COOKIE_BITS);
        let points = places.iter().map(|(offset, cookie)| UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(*offset),
            cookie: Some(u64::from(*cookie) | mark),
        });
        let scope = site.pid.map_or(UProbeScope::AllProcesses, UProbeScope::OneProcess);
        let link = program.attach(points, site.path, scope).and_then(|link| program.take_link(link));
        let link = link.map_err(|error| LinkError::of(kind, error))?;
        Ok(Self { kind, probes: places.len(), _attached: link })
    }
}

/// Attaches a program to all of these places, or to none. The error has the index of the place
/// that the kernel refused.
pub(super) fn attach(
    kind: LinkKind,
    program: &mut UProbe,
    site: Site<'_>,
    places: &[Place],
) -> Result<Vec<Link>, (usize, LinkError)> {
    if kind == LinkKind::Multi {
        match Link::new(kind, program, site, places) {
            Ok(link) => return Ok(vec![link]),
            Err(error) if places.len() == 1 => return Err((0, error)),
            // The kernel does not tell which place it refused. Links to one place each do.
            Err(_) => {}
        }
    }
    let mut links = Vec::with_capacity(places.len());
    for (at, place) in places.chunks(1).enumerate() {
        match Link::new(kind, program, site, place) {
            Ok(link) => links.push(link),
            Err(error) => {
                detach(links, |_| {});
                return Err((at, error));
            }
        }
    }
    Ok(links)
}

/// Detaches probes; calls `before_each` before each step with the number of probes that are left.
pub fn detach(links: Vec<Link>, mut before_each: impl FnMut(usize)) {
    /// Links to many wait side by side, each in a thread; a node with many processes has hundreds.
    const AT_A_TIME: usize = 32;
    let mut left: usize = links.iter().map(Link::probes).sum();
    let (mut many, single): (Vec<Link>, Vec<Link>) =
        links.into_iter().partition(|link| link.kind == LinkKind::Multi);
    while !many.is_empty() {
        before_each(left);
        let rest = many.split_off(many.len().min(AT_A_TIME));
        left = left.saturating_sub(many.iter().map(Link::probes).sum());
        let first = many.pop();
        thread::scope(|scope| {
            for link in many {
                // Without a thread, it is dropped here.
                let _ = thread::Builder::new().spawn_scoped(scope, move || drop(link));
            }
            drop(first);
        });
        many = rest;
    }
    for link in single {
        before_each(left);
        left = left.saturating_sub(link.probes);
        drop(link);
    }
}
