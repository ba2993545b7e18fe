//! The counters with which kernels report the begin and end of work to profiler plugins of NCCL.

use std::time::{SystemTime, UNIX_EPOCH};

use nccl_library::layouts::Layouts;

use super::layout::{Place, place};
use super::memory;

/// Where kernels write when they begin and end each work, for profiler plugins (2.26 and later).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Profiler {
    /// In the communicator: arrays of `ncclDevProfiler`, one for each channel.
    started: Place,
    completed: Place,
    /// In the channel: works so far.
    work_counter: Place,
    /// In the work structs: a profiler asked for the work.
    pub(super) coll_enabled: Place,
    pub(super) p2p_enabled: Place,
    /// Bytes of an `ncclDevProfiler`, entries in it, bytes of an entry.
    block_size: usize,
    entries: usize,
    entry_size: usize,
    counter: Place,
    timestamp: Place,
}

impl Profiler {
    pub(super) fn find(layouts: &Layouts) -> Option<Self> {
        let data = layouts.field("ncclDevProfiler", "data")?.array?;
        let comm =
            if layouts.struct_size("ncclKernelComm").is_some() { "ncclKernelComm" } else { "ncclDevComm" };
        let find = |strukt, path| place(layouts, strukt, path).ok();
        Some(Self {
            started: find(comm, "workStarted")?,
            completed: find(comm, "workCompleted")?,
            work_counter: find("ncclDevChannel", "workCounter")?,
            coll_enabled: find("ncclDevWorkColl", "profilerEnabled")?,
            p2p_enabled: find("ncclDevWorkP2p", "profilerEnabled")?,
            block_size: usize::try_from(layouts.struct_size("ncclDevProfiler")?).ok()?,
            entries: usize::try_from(data.count).ok().filter(|count| *count > 0)?,
            entry_size: usize::try_from(data.elem_size).ok()?,
            counter: find("ncclDevProfiler", "data[0].counter")?,
            timestamp: find("ncclDevProfiler", "data[0].timestamp")?,
        })
    }

    /// Writes that the works of a batch begin or are complete, and counts them.
    pub(super) fn tell(&self, comm: usize, channel: usize, id: usize, profiled: &[bool], complete: bool) {
        let before = self.work_counter.get(channel);
        let blocks = if complete { self.completed } else { self.started }.get_usize(comm);
        let block = blocks + id * self.block_size;
        for (number, _) in (before + 1..).zip(profiled).filter(|(_, profiled)| **profiled) {
            let entry = block + (number % self.entries as u64) as usize * self.entry_size;
            self.timestamp.set(entry, now());
            memory::store(entry + self.counter.offset, number);
        }
        if complete {
            self.work_counter.set(channel, before + profiled.len() as u64);
        }
    }
}

/// The device's clock: nanoseconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
