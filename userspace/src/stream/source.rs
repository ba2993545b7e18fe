//! The kernel's buffer, of either kind.

use std::{
    fmt,
    os::fd::{AsFd as _, BorrowedFd},
};

use aya::maps::{MapData, RingBuf};

use super::perf::PerfBuffers;

/// Records taken in one round, so that a flood does not keep the drain from ending.
const MAX_RECORDS_PER_ROUND: usize = 65_536;

/// Where records come from, in the order in which they were made.
pub enum Source {
    Ring(RingBuf<MapData>),
    Perf(PerfBuffers),
    /// No kernel: for tests. Gives out all it has, once.
    #[cfg(test)]
    Double(std::collections::VecDeque<Vec<u8>>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring(_) => "Ring",
            Self::Perf(_) => "Perf",
            #[cfg(test)]
            Self::Double(_) => "Double",
        })
    }
}

impl Source {
    /// Gives every record that is there to `take`, up to a bound; says how many there were.
    pub fn take(&mut self, mut take: impl FnMut(&[u8])) -> usize {
        match self {
            Self::Ring(records) => {
                let mut taken = 0;
                while taken < MAX_RECORDS_PER_ROUND
                    && let Some(item) = records.next()
                {
                    take(&item);
                    taken += 1;
                }
                taken
            }
            Self::Perf(buffers) => buffers.take(take),
            #[cfg(test)]
            Self::Double(items) => items.drain(..).map(|item| take(&item)).count(),
        }
    }

    /// Readable when there is something worth being woken for: the ring buffer's program says so when much has gathered, the
    /// perf event array of every record.
    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Ring(records) => vec![records.as_fd()],
            Self::Perf(buffers) => buffers.fds(),
            #[cfg(test)]
            Self::Double(_) => Vec::new(),
        }
    }

    /// Every single record wakes whoever watches [`Source::fds`].
    pub(super) fn wakes_for_each_record(&self) -> bool {
        matches!(self, Self::Perf(_))
    }
}
