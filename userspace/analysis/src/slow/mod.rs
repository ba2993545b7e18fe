//! Who holds a running job back, where nothing is stuck: a rank's GPU, a rank's host, a stage, a link, or
//! nobody.
//!
//! [`gathered`] takes rows of a folder, as they come. [`evidence`] puts those of all folders side by side,
//! for each job. [`verdict`] judges: it is pure, and says what it could not see.
//!
//! Three kinds of evidence are independent of each other:
//!
//! - What GPUs do, by NVML's GPM counters. A kernel of NCCL that waits keeps its GPU busy, but few of its
//!   multiprocessors. So of ranks with equal work, the one that the others wait for is the one whose
//!   multiprocessors are busiest; and a GPU that has nothing to run while the others' kernels wait has a late
//!   host.
//! - When ranks launch the same collective, by one host's clock, or by several that messages bound.
//! - What messages waited for, where they were measured ([`crate::check`]), and how long they were in the
//!   network, by the clocks of both ends.
//!
//! [`parts`] says where an iteration's time goes, as far as that was seen.
//!
//! [`counted`] has the first kind alone judged, without a recording.

mod activity;
mod change;
mod clocks;
mod counted;
mod evidence;
mod gathered;
mod hosts;
mod late_ranks;
mod launches;
mod longest_waits;
mod messages;
mod parts;
mod pauses;
mod processor;
mod sets;
mod shares;
mod text;
mod thinned;
mod together;
mod transits;
mod verdict;

pub(crate) use clocks::{Offset, clock_offsets};
pub use counted::{Counted, CountedRank};
pub(crate) use gathered::Gathered;
pub use gathered::ProcessorTime;
pub use hosts::HostClock;
pub use longest_waits::RankWaits;
pub use parts::IterationParts;
pub(crate) use parts::Stall;
pub(crate) use shares::Shares;
pub use verdict::{Cause, Kind, RankName, Slow};

/// Most messages that are kept for the hosts at their other ends, of a communicator over all hosts.
const MAX_BETWEEN_HOSTS: usize = 1 << 19;

/// Keeps what is kept for other hosts within bounds, as folders come.
pub(crate) fn bound(folders: &mut [Gathered]) {
    let number = folders.len();
    if number.is_power_of_two() {
        for folder in folders {
            folder.thin(MAX_BETWEEN_HOSTS / number);
        }
    }
}

/// Judges the jobs of folders that were read side by side.
pub(crate) fn judge(folders: &[Gathered]) -> Vec<Slow> {
    let of_job = |evidence: evidence::Evidence| {
        let slow = Slow::of(&evidence);
        Slow {
            iteration_parts: parts::of(&evidence, &slow),
            stalls: parts::stalls(&evidence, &slow),
            lengths: evidence.lengths,
            ..slow
        }
    };
    evidence::of_jobs(folders).into_iter().map(of_job).collect()
}
