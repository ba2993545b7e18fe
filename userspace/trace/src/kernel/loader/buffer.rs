//! The kind and size of the buffer through which records leave the kernel.

use anyhow::{Result, anyhow};
use aya::{maps::MapType, sys::is_map_supported, util::online_cpus};
use flow::session::BufferKind;
use ncclflow_common::MAX_RINGS;
use rustix::param::page_size;

/// Returns the ring buffer, if the kernel has it.
pub fn best_buffer() -> BufferKind {
    // If the kernel refuses the question, loading the object will fail and tell why.
    match is_map_supported(MapType::RingBuf) {
        Ok(false) => BufferKind::Perf,
        Ok(true) | Err(_) => BufferKind::Ring,
    }
}

/// The buffer of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Buffer {
    pub kind: BufferKind,
    /// Bytes of all parts together, as asked for. The parts are equal: one for each ring buffer, or one for
    /// each online CPU. The kernel takes more: each part is at least [`MIN_BYTES_PER_PART`], and rounded up
    /// to a power of two of pages.
    pub bytes: u32,
    /// Number of ring buffers: a power of two, at most [`MAX_RINGS`].
    pub rings: u32,
}

/// Smallest size of a part: enough for some dozens of records.
const MIN_BYTES_PER_PART: usize = 64 * 1024;

impl Buffer {
    /// Returns the number of ring buffers for this number of processes. With `None`, processes come and go,
    /// and there are fewer, so that the ring buffer of a process with many ranks is large.
    pub fn rings_for(processes: Option<usize>) -> u32 {
        let Some(processes) = processes else { return MAX_RINGS / 2 };
        u32::try_from(processes).unwrap_or(MAX_RINGS).clamp(1, MAX_RINGS).next_power_of_two()
    }

    /// Returns the bytes of each ring buffer, before rounding.
    pub(super) fn bytes_per_ring(self) -> u32 {
        self.bytes.div_ceil(self.rings.max(1))
    }

    /// Returns the online CPUs, and the number of pages of each CPU's perf event buffer.
    pub(super) fn pages_per_cpu(self) -> Result<(Vec<u32>, usize)> {
        let cpus = online_cpus().map_err(|(file, error)| anyhow!("reading `{file}`: {error}"))?;
        let bytes = usize::try_from(self.bytes)?;
        let pages = pages(bytes, cpus.len(), page_size());
        Ok((cpus, pages))
    }

    /// Returns the bytes of all parts together, as the kernel allocates them.
    pub fn bytes_taken(self) -> u64 {
        let page = page_size();
        let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        let taken = match self.kind {
            BufferKind::Ring => {
                let rings = usize::try_from(self.rings).unwrap_or(1);
                rings * pages(bytes, rings, page) * page
            }
            BufferKind::Perf => self.pages_per_cpu().map_or(0, |(cpus, pages)| cpus.len() * pages * page),
        };
        taken as u64
    }
}

/// Returns the pages of each part, of a buffer of `bytes` in `parts` parts.
fn pages(bytes: usize, parts: usize, page: usize) -> usize {
    let part = bytes.div_ceil(parts.max(1)).max(MIN_BYTES_PER_PART);
    part.div_ceil(page.max(1)).checked_next_power_of_two().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_share_ring_buffers_where_there_are_many() {
        let rings = |processes| Buffer::rings_for(processes);
        assert_eq!([0, 1, 2, 3, 8, 9, 100].map(|processes| rings(Some(processes))), [1, 1, 2, 4, 8, 8, 8]);
        assert_eq!(rings(None), 4);
        let taken = |rings| Buffer { kind: BufferKind::Ring, bytes: 16 << 20, rings }.bytes_taken();
        assert_eq!([1, 2, 8].map(taken), [16 << 20; 3], "whatever their number");
    }

    #[test]
    fn a_buffer_is_rounded_up_part_by_part() {
        const MIB: usize = 1 << 20;
        assert_eq!(pages(16 * MIB, 1, 4096), 4096);
        assert_eq!(pages(3 * MIB, 1, 4096), 1024);
        assert_eq!(pages(16 * MIB, 2, 4096), 2048);
        assert_eq!(pages(16 * MIB, 96, 4096), 64);
        assert_eq!(pages(16 * MIB, 1024, 4096), 16, "64 KiB at least");
        assert_eq!(pages(MIB, 1, 65536), 16);
    }
}
