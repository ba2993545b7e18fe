//! Watches files with probes on them for changes.
//!
//! inotify tells of writes at once, but not of writes through a mapping or below an overlay. So the files'
//! identity and the probed instructions are compared as well, each [`INTERVAL`].
//!
//! Files on disks of the host and in memory are looked at without a child (`resolver::nonblocking_read`), so
//! an idle tracer is woken five times a second.

use std::{
    collections::HashMap,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use inspect::clock::now_ns;
use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    param::clock_ticks_per_second,
    time::ClockId,
};

/// Interval between two looks. Documented: probes go within half a second, of which the kernel takes up to
/// 0.15 s.
pub(super) const INTERVAL: Duration = Duration::from_millis(350);
/// Pause after an event, so that a burst of events causes few looks.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct FileWatch {
    /// `None`: the kernel gives none. Files are still compared at each interval.
    inotify: Option<Arc<OwnedFd>>,
    next: Instant,
}

impl FileWatch {
    pub(super) fn new() -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok().map(Arc::new);
        Self { inotify, next: Instant::now() + INTERVAL }
    }

    /// Watches a file, from a thread that may be lost: the file system may block.
    pub(super) fn add(&self, held: io::Result<OwnedFd>) {
        let (Some(inotify), Ok(held)) = (self.inotify.as_ref().map(Arc::clone), held) else { return };
        let watch = move || {
            let path = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
            let changes = WatchFlags::MODIFY | WatchFlags::ATTRIB;
            let _ = inotify::add_watch(&*inotify, path, changes);
        };
        // Without the watch the file is still compared.
        let _ = thread::Builder::new().name("ncclflow-inotify".to_owned()).spawn(watch);
    }

    /// Returns a descriptor that is readable when a file was changed.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(|inotify| inotify.as_fd())
    }

    /// Returns the time until the next look.
    pub(super) fn timeout(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Tells whether to look at the files now.
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

    /// Drains the kernel's events; which file changed does not matter.
    fn has_event(&self) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&**inotify, &mut space);
        let mut any = false;
        // Bounded; what is left is read the next time.
        for _ in 0..1024 {
            match reader.next() {
                Ok(event) => any |= !event.events().contains(ReadFlags::IGNORED),
                Err(_) => break,
            }
        }
        any
    }
}

/// Files changed while they were watched, by device and inode: the latest change, in ticks as process starts
/// are counted, and the number of changes.
#[derive(Debug, Default)]
pub(super) struct ChangedFiles(HashMap<(u64, u64), (u64, u32)>);

/// Number of changes after which a file is not traced any more.
const MAX_CHANGES: u32 = 16;
/// Most files that are remembered.
const MAX_FILES: usize = 4096;

impl ChangedFiles {
    /// Notes a change. Processes that were started before `since` can have mapped the former content.
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

    /// Tells whether the file changes too often to be followed.
    pub(super) fn is_restless(&self, file: (u64, u64)) -> bool {
        self.0.get(&file).is_some_and(|(_, times)| *times >= MAX_CHANGES)
    }
}

/// Returns the current time as process starts are counted: clock ticks since boot, rounded up.
pub(super) fn ticks_now() -> u64 {
    let ticks = u128::from(now_ns(ClockId::Boottime)) * u128::from(clock_ticks_per_second());
    u64::try_from(ticks.div_ceil(1_000_000_000)).unwrap_or(u64::MAX)
}

/// Ticks by which file times can lag: their clock advances every 10 ms at the slowest.
const COARSE: u64 = 2;

/// Converts a wall time (seconds and nanoseconds since 1970) to ticks since boot, rounded up by [`COARSE`].
pub(super) fn ticks_of((seconds, nanoseconds): (i64, i64)) -> u64 {
    let moment_ns = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    let ago_ns = i128::from(now_ns(ClockId::Realtime)) - moment_ns;
    let ago = ago_ns * i128::from(clock_ticks_per_second()) / 1_000_000_000;
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
        // The watching thread has to come up first.
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
        let started = inspect::process::Process::open(std::process::id()).unwrap().started().unwrap();
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
