//! Moves records out of the kernel.

use flow::recording::Batch;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ncclflow_common::{RecordHeader, STACK_PIECE};

use super::{
    consumer_queue::Outlet, mailbox::Mailbox, moved::Moved, probe_counts::ProbeCounts, queue::Room,
    source::Source, waker::wait_for,
};
use inspect::failpoint;

/// Longest pause while records come: the longest delay of a record that does not fill the buffer to the mark
/// at which the kernel wakes us.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest pause while none come.
pub const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Time after the end of a process within which its last records come: longer than any pause.
const STRAGGLE: Duration = Duration::from_secs(1);

/// Shortest pause where every record would wake us.
const SHORT_PAUSE: Duration = Duration::from_millis(1);

/// Records in one round after which there is no pause at all: at 0.5 KiB each, a sixth of the default buffer.
const FLOOD: usize = 4096;

/// The process of the last record, and its losses.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    tgid: u32,
    /// The kernel's count of its lost records.
    lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainMessage {
    /// Look for records at once, whatever the pause.
    LookNow,
    /// This process has ended, or is not there any more; the kernel has lost `lost` of its records.
    ProcessEnded {
        tgid: u32,
        lost: u64,
    },
    Stop,
}

type TakePiece = dyn Fn(&[u8]) + Send;

#[expect(missing_debug_implementations, reason = "callbacks have none")]
pub struct Drain {
    pub(super) source: Box<dyn Source>,
    pub outlet: Outlet,
    each_pass: Option<Box<dyn Fn() + Send>>,
    pieces: Option<Box<TakePiece>>,
    /// Counts of the records taken.
    pub taken: ProbeCounts,
    taken_total: Arc<AtomicU64>,
    lost: HashMap<u32, u64>,
    /// Processes that have ended, the kernel's count of their lost records, and when it was seen.
    ended: VecDeque<(Instant, u32, u64)>,
    /// The process of the previous record, mostly that of the next one too.
    last: Process,
    /// When processes moved, and those that did in this pass.
    moved: Moved,
    moving: HashSet<u32>,
}

impl Drain {
    pub fn new(source: Box<dyn Source>, outlet: Outlet) -> Self {
        Self {
            source,
            outlet,
            each_pass: None,
            pieces: None,
            taken: ProbeCounts::default(),
            taken_total: Arc::default(),
            lost: HashMap::new(),
            ended: VecDeque::new(),
            last: Process::default(),
            moved: Moved::default(),
            moving: HashSet::new(),
        }
    }

    /// Has `then` called after each look for records, at least every [`MAX_PAUSE`]. It must not wait.
    #[must_use]
    pub fn each_pass(mut self, then: impl Fn() + Send + 'static) -> Self {
        self.each_pass = Some(Box::new(then));
        self
    }

    /// Gives pieces of stacks to `take` and to nobody else: they are memory of the processes, are of use for
    /// a moment, and belong into no recording. It must not wait.
    #[must_use]
    pub fn giving_pieces(mut self, take: impl Fn(&[u8]) + Send + 'static) -> Self {
        self.pieces = Some(Box::new(take));
        self
    }

    /// Moves records until a message stops it. Never waits for a taker.
    pub fn run(&mut self, mailbox: &Mailbox<DrainMessage>) -> io::Result<()> {
        let mut pause = PAUSE;
        loop {
            failpoint::here("drain")?;
            let taken = self.take(Room::Now);
            if let Some(then) = &self.each_pass {
                then();
            }
            pause = if taken > 0 { PAUSE } else { (pause * 2).min(MAX_PAUSE) };
            let mut fds = vec![mailbox.as_fd()];
            let timeout = if self.source.wakes_for_each_record() && taken > 0 {
                // Read in rounds and not record by record; only in peace do we wait to be woken.
                if taken > FLOOD { Duration::ZERO } else { SHORT_PAUSE }
            } else {
                fds.extend(self.source.fds());
                pause
            };
            let ready = wait_for(&fds, Some(timeout))?;
            let is_told = ready.first() == Some(&true);
            if is_told {
                let mut is_over = false;
                for message in mailbox.take() {
                    match message {
                        DrainMessage::LookNow => {}
                        DrainMessage::ProcessEnded { tgid, lost } => {
                            self.ended.push_back((Instant::now(), tgid, lost));
                        }
                        DrainMessage::Stop => is_over = true,
                    }
                }
                if is_over {
                    return Ok(());
                }
            }
            self.forget_ended(Instant::now());
        }
    }

    /// Forgets processes that have ended so long ago that all their records have come, and tells the takers
    /// how many were lost after the last.
    fn forget_ended(&mut self, now: Instant) {
        while let Some(&(at, tgid, lost)) = self.ended.front()
            && now.saturating_duration_since(at) > STRAGGLE
        {
            self.ended.pop_front();
            self.moved.forget(tgid);
            self.moving.remove(&tgid);
            if self.last.tgid == tgid {
                self.lost.insert(tgid, self.last.lost);
                self.last = Process::default();
            }
            // One that had no record has no op that could lack one.
            let Some(known) = self.lost.remove(&tgid) else { continue };
            let after_last = lost.saturating_sub(known);
            if after_last > 0 {
                self.outlet.note_lost(tgid, after_last);
            }
        }
    }

    /// Closes the outlets: no more records come. `lost`: the kernel's count of a process's lost records.
    pub fn close(&mut self, lost: impl Fn(u32) -> u64) {
        self.lost.insert(self.last.tgid, self.last.lost);
        self.lost.remove(&0); // no process's: where the first record had none before it
        let after_last = self.lost.iter().map(|(tgid, known)| (*tgid, lost(*tgid).saturating_sub(*known)));
        self.outlet.close(after_last.filter(|(_, lost)| *lost > 0));
    }

    /// Returns the total of records taken, for other threads to look at. A record is with the takers, or
    /// dropped, when it is counted here.
    pub fn taken_total(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.taken_total)
    }

    /// Returns when each process moved last, for other threads to look at.
    pub fn moved(&self) -> Moved {
        self.moved.clone()
    }

    /// Moves the records that are there. Returns how many there were. To wait for takers is for the end, when
    /// no more can come.
    pub fn take(&mut self, room: Room) -> usize {
        let Self { source, outlet, pieces, taken: account, taken_total, lost, last, moved, moving, .. } =
            self;
        let mut batch = Batch::default();
        let mut pass_on = |batch: &mut Batch| {
            if !batch.is_empty() {
                outlet.push(&Arc::new(std::mem::take(batch)), room);
            }
        };
        let mut of_stacks = 0;
        let taken = source.take(&mut |item| {
            if let Some(header) = RecordHeader::from_bytes(item) {
                if header.probe == STACK_PIECE {
                    of_stacks += 1;
                    if let Some(take) = pieces {
                        take(item);
                    }
                    return;
                }
                account.count(header.probe, header.cpu);
                if header.tgid != last.tgid {
                    moving.insert(header.tgid);
                    lost.insert(last.tgid, last.lost);
                    *last = Process { tgid: header.tgid, lost: lost.get(&header.tgid).copied().unwrap_or(0) };
                }
                last.lost = last.lost.max(header.lost);
            }
            batch.push(item);
            if batch.is_full() {
                pass_on(&mut batch);
            }
        });
        pass_on(&mut batch);
        if taken > of_stacks {
            moving.insert(last.tgid);
            moved.take(moving, Instant::now());
        }
        // The total does not count pieces.
        taken_total.fetch_add((taken - of_stacks) as u64, Ordering::Release);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::stream::{Popped, Queue};

    fn record(tgid: u32, lost: u64) -> Vec<u8> {
        let header = RecordHeader { len: 96, tgid, lost, ..RecordHeader::default() };
        let mut record = header.to_bytes().to_vec();
        record.resize(96, 0);
        record
    }

    #[test]
    fn processes_that_have_ended_are_forgotten_and_what_they_lost_last_is_told() {
        let queue = Arc::new(Queue::new(64 << 20));
        let mut drain = Drain::new(Box::new(VecDeque::new()), Outlet::new(Arc::clone(&queue)));
        let begun = Instant::now();
        for tgid in 1..=20_000 {
            drain.source = Box::new(VecDeque::from([record(tgid, 2)]));
            drain.take(Room::Now);
            drain.ended.push_back((begun, tgid, if tgid % 1000 == 0 { 5 } else { 2 }));
        }
        drain.forget_ended(begun + STRAGGLE / 2);
        assert!(drain.lost.len() > 19_000, "their last records may still come");
        assert!(drain.moved.last(20_000).is_some_and(|at| at >= begun) && drain.moved.last(1).is_some());
        drain.forget_ended(begun + STRAGGLE * 2);
        // Process 0 stands for none.
        assert!(drain.lost.keys().all(|tgid| *tgid == 0) && drain.ended.is_empty());
        assert_eq!(drain.moved.last(20_000), None);
        drain.source = Box::new(VecDeque::from([record(30_000, 0)]));
        drain.take(Room::Now);
        drain.close(|_| 0);
        let (mut marks, mut records) = (Vec::new(), 0);
        while let Popped::Batch(batch) = queue.pop(Some(Duration::ZERO)) {
            for header in batch.records().filter_map(RecordHeader::from_bytes) {
                if header.probe == ncclflow_common::LOSS_MARK {
                    marks.push((header.tgid, header.lost));
                } else {
                    records += 1;
                }
            }
        }
        let expected: Vec<_> = (1..=20).map(|n| (n * 1000, 3)).collect();
        assert_eq!((marks, records), (expected, 20_001));
    }
}
