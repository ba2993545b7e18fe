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
    io,
    num::NonZeroU32,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Error, Result};
use aya::{
    programs::{ProbeKind, UProbe},
    sys::{UProbeMultiFeature, is_uprobe_multi_supported},
};
use flow::session::LinkKind;
use ncclflow_common::COOKIE_BITS;

use super::{link_call, warm_up::warm_up};
use inspect::{
    process::{fuse_connections_that_owe_an_answer, in_first_pid_namespace},
    unresponsive::within,
};

/// Returns links to many, where the kernel has them (6.6) and limits them to a process. Before 46ba0e49b642
/// ("bpf: fix multi-uprobe PID filtering logic", 6.10 and stable kernels) the kernel limited them to a
/// thread.
pub fn best_links() -> LinkKind {
    match is_uprobe_multi_supported(UProbeMultiFeature::ProcessScopedPidFilter) {
        Ok(true) => LinkKind::Multi,
        Ok(false) | Err(_) => LinkKind::Perf,
    }
}

/// Tells whether the probe on a return sees only returns of its own process, see [`COOKIE_BITS`]. If not, no
/// return may be probed.
pub fn tells_returns_apart(links: LinkKind) -> bool {
    links == LinkKind::Multi || in_first_pid_namespace().is_ok_and(|is_first| is_first)
}

/// Prepares the kernel for the first link, in a thread of its own. Where there are many CPUs this takes 25
/// ms, as long as all else, so a recording does it first.
#[must_use]
pub fn prepared(links: LinkKind) -> LinkKind {
    if links == LinkKind::Multi {
        warm_up();
    }
    links
}

/// Keeps probes attached until it is dropped.
#[derive(Debug)]
pub struct Link {
    kind: LinkKind,
    probes: usize,
    _attached: OwnedFd,
}

const NO_EVENT: &str = "perf_event_open (uprobe) failed";

/// File and process that the probes of one link share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) path: &'a Path,
    /// Open descriptor of the file, where there is one: the link is made to it, whatever the path is.
    pub(super) held: Option<BorrowedFd<'a>>,
    pub(super) pid: Option<NonZeroU32>,
}

/// A probe: its offset in the file, and its cookie.
pub(super) type Place = (u64, u32);

impl Link {
    /// Returns the number of probes that the link keeps attached.
    pub fn probes(&self) -> usize {
        self.probes
    }

    /// Makes one link to all of these places. A link to a performance event has exactly one place.
    fn new(attaching: &Attaching, places: &[Place]) -> Result<Self> {
        let Attaching { kind, program, is_return, path, pid, .. } = attaching;
        let program = program.as_fd();
        let number = pid.map(NonZeroU32::get);
        let attached = match (kind, places) {
            (LinkKind::Multi, places) => {
                let (offsets, cookies): (Vec<u64>, Vec<u64>) =
                    places.iter().map(|(offset, cookie)| (*offset, u64::from(*cookie))).unzip();
                link_call::multi(program, path, &offsets, &cookies, number.unwrap_or(0), *is_return)
                    .context("BPF_LINK_CREATE (uprobe_multi) failed")?
            }
            (LinkKind::Perf, [(offset, cookie)]) => {
                let mark = number.filter(|_| *is_return).map_or(0, |pid| u64::from(pid) << COOKIE_BITS);
                let event = link_call::event(path, *offset, number, *is_return);
                let event = event.context(NO_EVENT)?;
                link_call::to_event(program, event.as_fd(), u64::from(*cookie) | mark)
                    .context("BPF_LINK_CREATE (perf_event) failed")?
            }
            (LinkKind::Perf, _) => {
                return Err(io::Error::from(io::ErrorKind::InvalidInput)).context(NO_EVENT);
            }
        };
        Ok(Self { kind: *kind, probes: places.len(), _attached: attached })
    }
}

/// Owned inputs of a thread that makes links, because the thread may be left behind.
struct Attaching {
    kind: LinkKind,
    program: OwnedFd,
    is_return: bool,
    path: CString,
    /// Descriptor that keeps `path` valid where that is a path of ours below /proc/self/fd.
    _held: Option<OwnedFd>,
    pid: Option<NonZeroU32>,
}

impl Attaching {
    fn of(kind: LinkKind, program: &UProbe, site: Site<'_>) -> io::Result<Self> {
        let held = site.held.map(|held| held.try_clone_to_owned()).transpose()?;
        let path = match &held {
            Some(held) => format!("/proc/self/fd/{}", held.as_raw_fd()).into_bytes(),
            None => site.path.as_os_str().as_bytes().to_vec(),
        };
        let fd = program.fd().map_err(io::Error::other)?;
        Ok(Self {
            kind,
            program: fd.as_fd().try_clone_to_owned()?,
            is_return: matches!(program.kind(), ProbeKind::Return),
            path: CString::new(path)?,
            _held: held,
            pid: site.pid,
        })
    }
}

/// Attaches a program to all of these places, or to none. The error has the index of the place
/// that the kernel refused.
///
/// The kernel resolves the path, reads pages of the file and takes locks of the process for it. If one of
/// them keeps it waiting, the thread that asked is left behind, and what it makes in the end goes with it.
pub(super) fn attach(
    kind: LinkKind,
    program: &UProbe,
    site: Site<'_>,
    places: &[Place],
) -> Result<Vec<Link>, (usize, Error)> {
    let attaching = Attaching::of(kind, program, site).context("duplicating descriptors failed");
    let attaching = attaching.map_err(|error| (0, error))?;
    let places = places.to_vec();
    let made = within(LIMIT, "ncclflow-link", move || attach_now(&attaching, &places));
    let made = made.and_then(|made| made.ok_or_else(no_answer)).context("attaching failed");
    made.unwrap_or_else(|error| Err((0, error)))
}

/// Says, for people, what may keep the kernel waiting. To make a uprobe, the kernel takes the lock of the
/// mappings of each process that has the file mapped, and keeps every fork of the host waiting meanwhile
/// (`register_for_each_vma`, kernel/events/uprobes.c, up to 6.18 at least). That lock of a process is held
/// while its memory is read through `/proc/PID/mem` from a file system that does not answer.
fn what_may_keep_it(unanswered: &[u32]) -> String {
    let begin = "it may wait for a process that waits for a file system itself; until that answers, processes of \
                 this host can start no others";
    if unanswered.is_empty() {
        return begin.to_owned();
    }
    let path = |number: &u32| format!("/sys/fs/fuse/connections/{number}/abort");
    let paths: Vec<String> = unanswered.iter().map(path).collect();
    format!(
        "{begin}. File systems in user space (FUSE) that owe an answer are ended by writing 1 to: {}",
        paths.join(", ")
    )
}

fn no_answer() -> io::Error {
    let why = what_may_keep_it(&fuse_connections_that_owe_an_answer());
    let what = format!("the kernel did not answer within {} s; {why}", LIMIT.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, what)
}

/// Longest time to make links. The kernel waits some tenths of a second for the first one after a pause.
const LIMIT: Duration = Duration::from_secs(10);

fn attach_now(attaching: &Attaching, places: &[Place]) -> Result<Vec<Link>, (usize, Error)> {
    if attaching.kind == LinkKind::Multi {
        match Link::new(attaching, places) {
            Ok(link) => return Ok(vec![link]),
            Err(error) if places.len() == 1 => return Err((0, error)),
            // The kernel does not tell which place it refused. Links to one place each do.
            Err(_) => {}
        }
    }
    let mut links = Vec::with_capacity(places.len());
    for (at, place) in places.chunks(1).enumerate() {
        match Link::new(attaching, place) {
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
    /// Most links to many that are closed side by side, each in a thread; a node with many processes has
    /// hundreds.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_the_wait_is_told_where_a_file_system_in_user_space_owes_an_answer() {
        assert!(!what_may_keep_it(&[]).contains("FUSE"));
        let text = what_may_keep_it(&[53, 7]);
        assert!(
            text.ends_with(
                "writing 1 to: /sys/fs/fuse/connections/53/abort, /sys/fs/fuse/connections/7/abort"
            ),
            "{text}"
        );
    }
}
