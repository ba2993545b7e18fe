//! Events, as the readers of all formats tell them.
//!
//! Readers report events in the order of the file and keep nothing. The consumer decides what to keep, so the
//! window bounds the memory.

use std::{collections::HashMap, hash::Hash, io};

use anyhow::{Error, Result, anyhow};

/// The timeline that a slice is on: a thread of a process, or a stream of a device. Numbers are given as
/// tracks are met, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TrackId(pub(super) u32);

/// Most threads and streams of a trace.
pub(super) const MAX_TRACKS: usize = 1 << 20;

/// Numbers of tracks, by what a format knows them by.
#[derive(Debug, Default)]
pub(super) struct TrackIds<K>(pub(super) HashMap<K, TrackId, foldhash::quality::RandomState>);

impl<K: Eq + Hash> TrackIds<K> {
    /// Returns the number of a track, which is given if it is new; `None` if there are too many.
    pub(super) fn id(&mut self, track: K) -> Option<TrackId> {
        let next = self.0.len();
        if let Some(id) = self.0.get(&track) {
            return Some(*id);
        }
        let id = TrackId(u32::try_from(next).ok().filter(|_| next < MAX_TRACKS)?);
        self.0.insert(track, id);
        Some(id)
    }
}

/// An arrow between slices. It can have several ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowId(pub(super) u64);

/// Kind of a slice, by its category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A kernel on a device.
    Kernel,
    /// Something else on a device.
    Device,
    /// A call of CUDA's runtime or driver.
    CudaCall,
    /// Something else on a thread.
    Cpu,
}

impl Kind {
    /// Returns the kind of a category, by the names that Kineto has, and had before torch 1.12.
    pub(super) fn of(category: &str) -> Self {
        if category.eq_ignore_ascii_case("kernel") {
            Self::Kernel
        } else if category.starts_with("gpu_") || matches!(category, "cuda_sync" | "Memcpy" | "Memset") {
            Self::Device
        } else if matches!(category, "cuda_runtime" | "cuda_driver" | "Runtime") {
            Self::CudaCall
        } else {
            Self::Cpu
        }
    }

    pub(super) fn is_on_device(self) -> bool {
        matches!(self, Self::Kernel | Self::Device)
    }
}

/// An event on a track that goes from one time to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice<'a> {
    pub(super) track: TrackId,
    pub(super) kind: Kind,
    pub(super) name: &'a str,
    pub(super) begin: i64,
    /// End of the slice; `i64::MAX` if it had not ended when the trace did.
    pub(super) end: i64,
    /// CUPTI's number of a call of CUDA, and of what it launched.
    pub(super) correlation: Option<u64>,
    /// Flows that begin, pass or end here.
    pub(super) flows: &'a [FlowId],
    /// Set if the slice is told at its end, after those that it encloses. Otherwise it is told before them.
    pub(super) is_after_inner: bool,
}

/// An end of a flow, where it is not told with its slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowEnd {
    pub(super) flow: FlowId,
    pub(super) track: TrackId,
    pub(super) at: i64,
    /// Set if the flow comes to the slice that encloses this time; otherwise it goes out from it.
    pub(super) is_incoming: bool,
}

/// Metadata of a trace, beside its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Kineto's `baseTimeNanoseconds`: the Unix time that its times are counted from.
    pub base_ns: Option<u64>,
    /// Kineto's `distributedInfo.rank`: the rank of the job.
    pub rank: Option<i32>,
    /// Kineto's `distributedInfo.world_size`: the number of ranks of the job.
    pub world_size: Option<i32>,
}

impl About {
    pub fn take(&mut self, more: Self) {
        self.base_ns = more.base_ns.or(self.base_ns);
        self.rank = more.rank.or(self.rank);
        self.world_size = more.world_size.or(self.world_size);
    }
}

/// Takes the events of a trace, in the order of the file.
pub(super) trait Consumer {
    /// Takes metadata. It can come before the events or after them.
    fn about(&mut self, _: About) {}

    fn slice(&mut self, slice: &Slice<'_>) -> Result<()>;

    /// Tells whether the consumer takes flows that are events of their own. Others are not told of them.
    fn takes_flows(&self) -> bool {
        false
    }

    fn flow(&mut self, _: FlowEnd) -> Result<()> {
        Ok(())
    }
}

/// Counts of events that a reader could not make sense of, and left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Events without a usable time.
    pub(super) without_time: u64,
    /// Ends of slices that have no beginning.
    pub(super) ends_alone: u64,
    /// Perfetto's packets that need others, which were lost before the trace was written.
    pub(super) without_state: u64,
}

/// Explains an error of reading after so many events or packets.
pub(super) fn explained(error: io::Error, count: u64, what: &str) -> Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return anyhow!(
            "the trace is cut: it ends in the middle, after {count} {what}; write or copy it again"
        );
    }
    Error::from(error).context(format!("after {count} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The categories of Kineto (`libkineto/src/ActivityType.cpp`), and those that it had before torch 1.12.
    #[test]
    fn what_runs_on_a_device_is_known_by_its_category() {
        for category in ["gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync", "Memcpy", "Memset"] {
            assert_eq!(Kind::of(category), Kind::Device, "{category}");
        }
        for category in ["kernel", "Kernel"] {
            assert_eq!(Kind::of(category), Kind::Kernel, "{category}");
        }
        for category in ["cpu_op", "Operator", "user_annotation", "python_function", "ac2g", "overhead", ""] {
            assert_eq!(Kind::of(category), Kind::Cpu, "{category}");
        }
    }
}
