//! The perf event array: a buffer per CPU, put into one order (see [`super::order`]).
//!
//! The records of a thread thus keep their order although it changes its CPU. Never more than one round
//! waits.

use std::os::fd::{AsFd as _, BorrowedFd};

use anyhow::Result;
use aya::maps::{
    MapData, PerfEventArray,
    perf::{PerfEvent, PerfEventArrayBuffer},
};

use rustix::time::ClockId;

use super::{order::made_at, source::records_of};
use inspect::clock::now_ns;

/// Records that were read and are not given out yet.
#[derive(Debug, Default)]
struct Window {
    bytes: Vec<u8>,
    /// Time of each record, and its place in `bytes`.
    records: Vec<(u64, std::ops::Range<usize>)>,
}

impl Window {
    fn push(&mut self, head: &[u8], tail: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(tail);
        let range = start..self.bytes.len();
        let ts_ns = self.bytes.get(range.clone()).map_or(0, made_at);
        self.records.push((ts_ns, range));
    }

    /// Gives out the records that are not younger than `until`, in the order of time. Returns how many they
    /// were.
    fn give(&mut self, until: u64, take: &mut impl FnMut(&[u8])) -> usize {
        // Stable: one CPU's records of the same nanosecond stay as they are.
        self.records.sort_by_key(|(ts_ns, _)| *ts_ns);
        let old = self.records.partition_point(|(ts_ns, _)| *ts_ns <= until);
        let mut given = 0;
        for (_, range) in self.records.drain(..old) {
            given += self.bytes.get(range).map_or(0, |item| records_of(item).map(&mut *take).count());
        }
        let mut rest = Self::default();
        for (_, range) in &self.records {
            if let Some(record) = self.bytes.get(range.clone()) {
                rest.push(record, &[]);
            }
        }
        if self.records.is_empty() {
            self.bytes.clear(); // and keep the room
        } else {
            *self = rest;
        }
        given
    }
}

#[expect(missing_debug_implementations, reason = "aya's maps have none")]
pub struct PerfBuffers {
    buffers: Vec<PerfEventArrayBuffer>,
    window: Window,
}

impl PerfBuffers {
    /// Opens a buffer of `pages` (a power of two) on each of `cpus`. The kernel finds them through the map
    /// while the map is open.
    pub fn open(mut array: PerfEventArray<&mut MapData>, cpus: &[u32], pages: usize) -> Result<Self> {
        let mut open = |cpu: u32| -> Result<_> {
            let buffer = PerfEventArrayBuffer::open(cpu, pages)?;
            array.set(cpu, &buffer)?;
            Ok(buffer)
        };
        let buffers = cpus.iter().map(|cpu| open(*cpu)).collect::<Result<_>>()?;
        Ok(Self { buffers, window: Window::default() })
    }

    pub(super) fn take(&mut self, mut take: impl FnMut(&[u8])) -> usize {
        let now = now_ns(ClockId::Monotonic);
        let window = &mut self.window;
        for buffer in &mut self.buffers {
            buffer.for_each(|event| match event {
                PerfEvent::Sample { head, tail } => window.push(head, tail),
                // The program that could not send a record counts it.
                PerfEvent::Lost { .. } => {}
            });
        }
        window.give(now, &mut take)
    }

    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.buffers.iter().map(|buffer| buffer.as_fd()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::order::TS_NS, *};

    fn record(ts_ns: u64, content: u8) -> Vec<u8> {
        let mut record = vec![content; 60];
        record[TS_NS].copy_from_slice(&ts_ns.to_le_bytes());
        record
    }

    #[test]
    fn what_is_old_enough_comes_in_the_order_of_time() {
        let mut window = Window::default();
        // CPU 0, then CPU 1; one record straddles the end of its buffer.
        for (ts, content) in [(10, 0), (30, 1), (50, 2), (20, 3), (40, 4)] {
            let record = record(ts, content);
            let (head, tail) = record.split_at(usize::from(content) * 7);
            window.push(head, tail);
        }
        let mut given = Vec::new();
        let mut take = |record: &[u8]| given.push(*record.last().unwrap_or(&99));
        assert_eq!(window.give(35, &mut take), 3);
        window.push(&record(45, 5), &[]);
        assert_eq!(window.give(44, &mut take), 1);
        assert_eq!(window.give(100, &mut take), 2);
        assert_eq!(window.give(200, &mut take), 0);
        assert_eq!(given, [0, 3, 1, 4, 5, 2]);
        assert!(window.bytes.is_empty() && window.records.is_empty());
    }
}
