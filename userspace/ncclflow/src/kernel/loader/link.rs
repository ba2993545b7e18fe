//! Links, which keep probes attached: one to many uprobes, or one to each.
//!
//! Programs return 0: some kernels (6.6) take what a program returns at a link to many for what a uprobe's handler returns, where 1 removes the
//! breakpoint from the process.
//!
//! A link to many (`BPF_TRACE_UPROBE_MULTI`) is made and taken away at once, however many probes it has: the kernel waits once for all that
//! may still be in one of them. Of links to performance events each waits for itself: about 0.1 s on Linux 6.12 and later, one after the other.

use std::{
    ffi::CString,
    fmt, fs, io,
    num::NonZeroU32,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    thread,
};

use ncclflow_common::COOKIE_BITS;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::bpf::{self, Code, Places};
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
    /// Links to many, where the kernel has them and counts hits of a whole process.
    pub fn best() -> Self {
        if has_multi() { Self::Multi } else { Self::Perf }
    }

    /// Whether a return is seen by the probe of its own process alone, see [`COOKIE_BITS`]. Else none may be linked.
    pub fn tells_returns_apart(self) -> bool {
        self == Self::Multi || in_first_pid_namespace().is_ok_and(|is_first| is_first)
    }

    /// Gets the kernel ready for the first link, beside whatever comes next.
    pub fn prepare(self) {
        if self == Self::Multi {
            warm_up();
        }
    }
}

/// Whether the kernel has links to many uprobes (6.6) that can be limited to a process. They were limited to a thread before
/// 46ba0e49b642 ("bpf: fix multi-uprobe PID filtering logic", 6.10 and stable kernels), which also made -1 an invalid process: so libbpf
/// finds it out (src/features.c, `probe_uprobe_multi_link`).
fn has_multi() -> bool {
    let Ok(program) = idle_program() else { return false };
    // A folder has no code: EBADF. -1 is looked at before, where it is no process.
    let says = |pid: u32| {
        let places = Places { path: c"/", offsets: &[0], cookies: &[0], pid, at_return: false };
        bpf::link_many(program.as_fd(), places).err().and_then(|error| error.raw_os_error())
    };
    says(0) == Some(libc::EBADF) && says(u32::MAX) == Some(libc::EINVAL)
}

/// A program for a link to many that does nothing.
fn idle_program() -> io::Result<OwnedFd> {
    /// `r0 = 0; exit`.
    const NOTHING: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let instructions = aya_obj::copy_instructions(&NOTHING).map_err(io::Error::other)?;
    bpf::load_program(
        Code { name: "", license: c"GPL", instructions: &instructions, types: None },
        true,
        &mut [],
    )
}

/// The first uprobe waits for an RCU grace period (of `dup_mmap_sem`, kernel/events/uprobes.c), those that follow soon do not. So one that is in no
/// process, on a file of our own that nobody maps, comes and goes while the object is being loaded. It is no failure that it does not.
fn warm_up() {
    let come_and_go = || -> io::Result<()> {
        let program = idle_program()?;
        let file = memfd_create(c"ncclflow", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, 16)?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(io::Error::other)?;
        let places =
            Places { path: &path, offsets: &[0], cookies: &[0], pid: std::process::id(), at_return: false };
        bpf::link_many(program.as_fd(), places).map(drop)
    };
    let _ = thread::Builder::new().name("ncclflow-warm-up".to_owned()).spawn(come_and_go);
}

/// Keeps probes attached until it is dropped.
#[derive(Debug)]
pub struct Link {
    kind: LinkKind,
    probes: usize,
    _descriptor: OwnedFd,
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
    fn of(call: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self { call, error }
    }
}

/// Where probes are, beside their offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) path: &'a Path,
    pub(super) pid: Option<NonZeroU32>,
    pub(super) at_return: bool,
}

/// A probe: its offset in the file, and its cookie.
pub(super) type Place = (u64, u32);

impl Link {
    /// How many it keeps.
    pub fn probes(&self) -> usize {
        self.probes
    }

    /// One link to all of these.
    pub(super) fn many(program: BorrowedFd<'_>, site: Site<'_>, places: &[Place]) -> Result<Self, LinkError> {
        const CALL: &str = "BPF_LINK_CREATE (uprobe_multi)";
        let path = c_path(site.path).map_err(LinkError::of(CALL))?;
        let (offsets, cookies): (Vec<u64>, Vec<u64>) =
            places.iter().map(|(offset, cookie)| (*offset, u64::from(*cookie))).unzip();
        let places = Places {
            path: &path,
            offsets: &offsets,
            cookies: &cookies,
            pid: site.pid.map_or(0, NonZeroU32::get),
            at_return: site.at_return,
        };
        let descriptor = bpf::link_many(program, places).map_err(LinkError::of(CALL))?;
        Ok(Self { kind: LinkKind::Multi, probes: offsets.len(), _descriptor: descriptor })
    }

    /// A link to one performance event.
    pub(super) fn one(
        program: BorrowedFd<'_>,
        site: Site<'_>,
        (offset, cookie): Place,
    ) -> Result<Self, LinkError> {
        const OPEN: &str = "perf_event_open (uprobe)";
        let path = c_path(site.path).map_err(LinkError::of(OPEN))?;
        let unit = unit(site.at_return).map_err(LinkError::of("reading the performance unit `uprobe`"))?;
        let event = bpf::open_event(unit, &path, offset, site.pid.map(NonZeroU32::get))
            .map_err(LinkError::of(OPEN))?;
        let only = site.pid.filter(|_| site.at_return);
        let cookie = u64::from(cookie) | only.map_or(0, |pid| u64::from(pid.get()) << COOKIE_BITS);
        // The link holds the event.
        let descriptor = bpf::link_event(program, event.as_fd(), cookie)
            .map_err(LinkError::of("BPF_LINK_CREATE (perf_event)"))?;
        Ok(Self { kind: LinkKind::Perf, probes: 1, _descriptor: descriptor })
    }
}

/// Detaches probes; tells before each step how many are left.
pub fn detach(links: Vec<Link>, mut before_each: impl FnMut(usize)) {
    /// Those to many wait side by side, and there can be some for each process of a node.
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
                // Where there is no thread, it is dropped here.
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

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// Number and configuration of the performance unit `uprobe` (Documentation/ABI/testing/sysfs-bus-event_source-devices-format).
fn unit(at_return: bool) -> io::Result<(u32, u64)> {
    const FOLDER: &str = "/sys/bus/event_source/devices/uprobe";
    let kind = fs::read_to_string(format!("{FOLDER}/type"))?;
    let kind = kind.trim().parse().map_err(io::Error::other)?;
    if !at_return {
        return Ok((kind, 0));
    }
    let bit = fs::read_to_string(format!("{FOLDER}/format/retprobe"))?;
    let bit: Option<u32> = bit.trim().strip_prefix("config:").and_then(|bit| bit.parse().ok());
    let config = bit.and_then(|bit| 1u64.checked_shl(bit));
    let config = config.ok_or_else(|| io::Error::other("no bit of `config` for returns"))?;
    Ok((kind, config))
}
