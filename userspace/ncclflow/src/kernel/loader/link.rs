//! Links, which keep probes attached: one link for many uprobes, or one link for each.
//!
//! A link to many uprobes (`BPF_TRACE_UPROBE_MULTI`) is made and closed in one step, however many probes it
//! has: the kernel waits once until no task can be in any of them. For links to performance events it waits
//! once for each: about 0.1 s on Linux 6.12 and later, one after the other.
//!
//! The programs return 0: some kernels (6.6) take the return value of a program at a link to many for that of
//! a uprobe handler, where 1 removes the breakpoint from the process.

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
    /// Links to many, where the kernel has them and can limit them to a process.
    pub fn best() -> Self {
        if has_multi() { Self::Multi } else { Self::Perf }
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

/// Whether the kernel has links to many uprobes (6.6), and limits them to a process. Before 46ba0e49b642
/// ("bpf: fix multi-uprobe PID filtering logic", 6.10 and stable kernels) it limited them to a thread. That
/// commit also made -1 an invalid process, which is how libbpf tells the two apart (src/features.c,
/// `probe_uprobe_multi_link`).
fn has_multi() -> bool {
    let Ok(program) = idle_program() else { return false };
    // A folder is no regular file: EBADF. A kernel with the fix checks the process before the path.
    let refusal = |pid: u32| {
        let places = Places { path: c"/", offsets: &[0], cookies: &[0], pid, at_return: false };
        bpf::link_many(program.as_fd(), places).err().and_then(|error| error.raw_os_error())
    };
    refusal(0) == Some(libc::EBADF) && refusal(u32::MAX) == Some(libc::EINVAL)
}

/// A program for links to many that does nothing.
fn idle_program() -> io::Result<OwnedFd> {
    /// `r0 = 0; exit`.
    const NOTHING: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let instructions = aya_obj::copy_instructions(&NOTHING).map_err(io::Error::other)?;
    bpf::load_program(
        Code { name: "", license: c"GPL", instructions: &instructions, btf: None },
        true,
        &mut [],
    )
}

/// Makes and removes a uprobe, in a thread of its own, while the object is loaded. The first uprobe of a
/// while waits for an RCU grace period (of `dup_mmap_sem`, kernel/events/uprobes.c); those that soon
/// follow do not. This one is on a file that nobody maps, so no process gets a breakpoint. If it fails,
/// the first link only takes longer.
fn warm_up() {
    let attach_and_detach = || -> io::Result<()> {
        let program = idle_program()?;
        let file = memfd_create(c"ncclflow", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, 16)?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(io::Error::other)?;
        let places =
            Places { path: &path, offsets: &[0], cookies: &[0], pid: std::process::id(), at_return: false };
        bpf::link_many(program.as_fd(), places).map(drop)
    };
    let _ = thread::Builder::new().name("ncclflow-warm-up".to_owned()).spawn(attach_and_detach);
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

/// What probes of one link share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) path: &'a Path,
    pub(super) pid: Option<NonZeroU32>,
    pub(super) at_return: bool,
}

/// A probe: its offset in the file, and its cookie.
pub(super) type Place = (u64, u32);

impl Link {
    /// How many probes it keeps attached.
    pub fn probes(&self) -> usize {
        self.probes
    }

    /// Makes one link to all of these places.
    fn many(program: BorrowedFd<'_>, site: Site<'_>, places: &[Place]) -> Result<Self, LinkError> {
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

    /// Makes a link to one performance event.
    fn one(program: BorrowedFd<'_>, site: Site<'_>, (offset, cookie): Place) -> Result<Self, LinkError> {
        const OPEN: &str = "perf_event_open (uprobe)";
        let path = c_path(site.path).map_err(LinkError::of(OPEN))?;
        let unit = unit(site.at_return).map_err(LinkError::of("reading the performance unit `uprobe`"))?;
        let event = bpf::open_event(unit, &path, offset, site.pid.map(NonZeroU32::get))
            .map_err(LinkError::of(OPEN))?;
        let only = site.pid.filter(|_| site.at_return);
        let cookie = u64::from(cookie) | only.map_or(0, |pid| u64::from(pid.get()) << COOKIE_BITS);
        // The link keeps the event open.
        let descriptor = bpf::link_event(program, event.as_fd(), cookie)
            .map_err(LinkError::of("BPF_LINK_CREATE (perf_event)"))?;
        Ok(Self { kind: LinkKind::Perf, probes: 1, _descriptor: descriptor })
    }
}

/// Attaches a program to all of these places, or to none. The error has the index of the place
/// that the kernel refused.
pub(super) fn attach(
    kind: LinkKind,
    program: BorrowedFd<'_>,
    site: Site<'_>,
    places: &[Place],
) -> Result<Vec<Link>, (usize, LinkError)> {
    if kind == LinkKind::Multi {
        match Link::many(program, site, places) {
            Ok(link) => return Ok(vec![link]),
            Err(error) if places.len() == 1 => return Err((0, error)),
            // The kernel does not tell which place it refused. Links to one place each do.
            Err(_) => {}
        }
    }
    let one = |place: &Place| match kind {
        LinkKind::Multi => Link::many(program, site, &[*place]),
        LinkKind::Perf => Link::one(program, site, *place),
    };
    let mut links = Vec::with_capacity(places.len());
    for (at, place) in places.iter().enumerate() {
        match one(place) {
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

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// Number and configuration of the performance unit `uprobe`
/// (Documentation/ABI/testing/sysfs-bus-event_source-devices-format).
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
