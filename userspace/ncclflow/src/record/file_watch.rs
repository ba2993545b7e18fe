//! Sees that files with probes on them are changed.
//!
//! inotify tells of writes at once, but of none that is made through a mapping, nor below an overlay. So the
//! files are looked at as well, each [`INTERVAL`]: their identity, and the instructions at the probes.
//!
//! Files on disks of the host and in memory are looked at without a child (`resolver::at_once`), so an idle
//! tracer is woken five times a second.

use std::{
    collections::HashMap,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

/// Between two looks. It is promised that probes go within half a second, and the kernel needs up to 0.15 s to take them
/// away.
pub(super) const INTERVAL: Duration = Duration::from_millis(350);
/// After an event the next ones are not waited for, but not each of them causes a look.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct FileWatch {
    /// `None`: the kernel gives none. Files are looked at all the same.
    inotify: Option<Arc<OwnedFd>>,
    next: Instant,
}

impl FileWatch {
    pub(super) fn new() -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok().map(Arc::new);
        Self { inotify, next: Instant::now() + INTERVAL }
    }

    /// Watches a file. A thread that may be lost does it: the file's system is asked for it.
    pub(super) fn add(&self, held: io::Result<OwnedFd>) {
        let (Some(inotify), Ok(held)) = (self.inotify.as_ref().map(Arc::clone), held) else { return };
        let watch = move || {
            use std::os::fd::AsRawFd as _;
            let path = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
            let changes = WatchFlags::MODIFY | WatchFlags::ATTRIB;
            let _ = inotify::add_watch(&*inotify, path, changes);
        };
        // Without it the file is looked at all the same.
        let _ = thread::Builder::new().name("ncclflow-inotify".to_owned()).spawn(watch);
    }

    /// Readable when something was changed.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(|inotify| inotify.as_fd())
    }

    /// Until the next look.
    pub(super) fn timeout(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Whether to look at the files now.
    pub(super) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        if self.has_event() {
            self.next = self.next.min(now + PAUSE);
        }
        if now < self.next {
            return false;
        }
        self.next = now + INTERVAL;
        true
    }

    /// Takes what the kernel has told. Which file it was does not matter.
    fn has_event(&self) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&**inotify, &mut space);
        let mut any = false;
        // More than so many are left for the next time.
        for _ in 0..1024 {
            match reader.next() {
                Ok(event) => any |= !event.events().contains(ReadFlags::IGNORED),
                Err(_) => break,
            }
        }
        any
    }
}

/// Files that were changed while they were watched, by device and inode: since when, as a process's start is
/// counted, and how often.
#[derive(Debug, Default)]
pub(super) struct ChangedFiles(HashMap<(u64, u64), (u64, u32)>);

/// How often one file may change; then it is not traced any more.
const MAX_CHANGES: u32 = 16;
/// Files that are remembered.
const MAX_FILES: usize = 4096;

impl ChangedFiles {
    /// `since`: a process that was started before it can have mapped the former content.
    pub(super) fn add(&mut self, file: (u64, u64), since: u64) {
        if self.0.len() >= MAX_FILES {
            self.0.clear();
        }
        let known = self.0.entry(file).or_default();
        *known = (known.0.max(since), known.1.saturating_add(1));
    }

    pub(super) fn since(&self, file: (u64, u64)) -> Option<u64> {
        self.0.get(&file).map(|(since, _)| *since)
    }

    /// It changes too often to be followed.
    pub(super) fn is_restless(&self, file: (u64, u64)) -> bool {
        self.0.get(&file).is_some_and(|(_, times)| *times >= MAX_CHANGES)
    }
}

/// This moment, as the start of processes is counted: ticks since the system was started, rounded up.
pub(super) fn ticks_now() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, nanoseconds) =
        (u64::try_from(now.tv_sec).unwrap_or_default(), u64::try_from(now.tv_nsec).unwrap_or_default());
    let per_second = rustix::param::clock_ticks_per_second();
    seconds * per_second + (nanoseconds * per_second).div_ceil(1_000_000_000)
}

/// The clock of files advances with the kernel's timer, every 10 ms at the slowest.
const COARSE: u64 = 2;

/// A moment of the system's clock (seconds and nanoseconds since 1970), counted likewise. Rounded up by what
/// the ctime's clock is coarser.
pub(super) fn ticks_of(moment: (i64, i64)) -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Realtime);
    let ago_ns = (i128::from(now.tv_sec) - i128::from(moment.0)) * 1_000_000_000 + i128::from(now.tv_nsec)
        - i128::from(moment.1);
    let ago = ago_ns * i128::from(rustix::param::clock_ticks_per_second()) / 1_000_000_000;
    u64::try_from(i128::from(ticks_now()) - ago).unwrap_or_default() + COARSE
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write as _};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_write_is_told_at_once() {
        let mut watch = FileWatch::new();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        watch.add(File::open(file.path()).map(Into::into));
        // The thread that watches has to come up.
        test_support::wait_until("the watch is there", Duration::from_secs(10), || {
            file.write_all(b"x").unwrap();
            file.flush().unwrap();
            let mut fds = [PollFd::from_borrowed_fd(watch.fd().unwrap(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 })).unwrap() > 0
        });
        assert!(watch.has_event() && !watch.has_event(), "it is taken");
        watch.next = Instant::now() + Duration::from_mins(1);
        assert!(!watch.is_due());
        file.write_all(b"x").unwrap();
        file.flush().unwrap();
        watch.is_due();
        assert!(watch.timeout() <= PAUSE);
        thread::sleep(PAUSE);
        let begun = Instant::now();
        assert!(watch.is_due() && watch.next >= begun + INTERVAL);
    }

    #[test]
    fn a_file_that_never_rests_is_left_alone() {
        let mut changed = ChangedFiles::default();
        assert_eq!((changed.since((1, 2)), changed.is_restless((1, 2))), (None, false));
        (0..u64::from(MAX_CHANGES)).for_each(|at| changed.add((1, 2), at));
        assert_eq!((changed.since((1, 2)), changed.is_restless((1, 2))), (Some(15), true));
        assert!(!changed.is_restless((1, 3)));
    }

    #[test]
    fn this_process_was_started_before_now() {
        let started = crate::target::Process::open(std::process::id()).unwrap().started().unwrap();
        assert!(started <= ticks_now());
        for (seconds, ticks) in [(0, 0), (10, 1000)] {
            let before = ticks_now();
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
            let of_now = ticks_of((now.tv_sec - seconds, now.tv_nsec)) + ticks;
            let after = ticks_now();
            assert!((before..=after + COARSE + 1).contains(&of_now), "{before}, {of_now}, {after}");
        }
    }
}
