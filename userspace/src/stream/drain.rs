//! Drains the ring buffer: sleeps until there is enough or a timer ends, then takes all there is.

use std::{
    fmt, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use aya::maps::{MapData, RingBuf};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};

/// Records taken between two looks at the other descriptors, so that a flood does not keep the session from ending.
const MAX_RECORDS_PER_WAKE: usize = 65_536;

/// Wakes a sleeping [`Drain`] from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Wakes the drain now, and each time it would sleep again.
    pub fn wake(&self) {
        // The counter of an eventfd can only be full, and then the drain is awake.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// The reading end of the records.
pub struct Drain {
    records: RingBuf<MapData>,
}

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain").finish_non_exhaustive()
    }
}

/// Why [`Drain::wait`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// There may be records, or the timer ended.
    Over,
    /// The waker was used.
    Woken,
    /// A watched descriptor is readable.
    Watched,
}

impl Drain {
    pub fn new(records: RingBuf<MapData>) -> Self {
        Self { records }
    }

    /// Gives every record that is there to `take`, up to a bound; says how many there were.
    pub fn take(&mut self, mut take: impl FnMut(&[u8])) -> usize {
        let mut taken = 0;
        while taken < MAX_RECORDS_PER_WAKE
            && let Some(item) = self.records.next()
        {
            take(&item);
            taken += 1;
        }
        taken
    }

    /// Sleeps until the kernel says that much has gathered, at most `timeout`, or until `waker` or one of `watched` speaks.
    pub fn wait(&self, waker: &Waker, watched: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Pause> {
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.records.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(waker.0.as_fd(), PollFlags::IN),
        ];
        fds.extend(watched.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        Ok(match fds.as_slice() {
            [_, waker, ..] if ready(waker) => Pause::Woken,
            [_, _, watched @ ..] if watched.iter().any(ready) => Pause::Watched,
            _ => Pause::Over,
        })
    }
}
