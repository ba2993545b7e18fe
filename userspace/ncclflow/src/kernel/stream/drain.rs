//! Moves records out of the kernel.

use std::{
    collections::HashMap,
    io,
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ncclflow_common::RecordHeader;

use super::{
    batch::Batch, mailbox::Mailbox, outlet::Outlet, probe_counts::ProbeCounts, source::Source,
    waker::wait_for,
};

/// Longest pause while records come: how late one can be that does not fill the buffer to the mark at which
/// the kernel wakes us.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest pause while none come.
pub const MAX_PAUSE: Duration = Duration::from_millis(400);

/// Shortest pause where every record would wake us.
const SHORT_PAUSE: Duration = Duration::from_millis(1);

/// Records in one round after which there is no such pause: at 0.5 KiB each, a sixth of the default buffer.
const FLOOD: usize = 4096;

/// What became of the last record of a process.
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
    Stop,
}

#[derive(Debug)]
pub struct Drain {
    source: Source,
    outlets: Vec<Outlet>,
    taken: ProbeCounts,
    taken_total: Arc<AtomicU64>,
    lost: HashMap<u32, u64>,
    /// The process of the record before, which mostly is that of the next one too.
    last: Process,
}

impl Drain {
    pub fn new(source: Source, outlets: Vec<Outlet>) -> Self {
        Self {
            source,
            outlets,
            taken: ProbeCounts::default(),
            taken_total: Arc::default(),
            lost: HashMap::new(),
            last: Process::default(),
        }
    }

    /// Moves records until it is told to stop. Never waits for a taker.
    pub fn run(&mut self, mailbox: &Mailbox<DrainMessage>) -> io::Result<()> {
        let mut pause = PAUSE;
        loop {
            let taken = self.take(Outlet::push);
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
            if is_told && mailbox.take().any(|message| message == DrainMessage::Stop) {
                return Ok(());
            }
        }
    }

    /// Moves what is there. Never waits for a taker.
    #[cfg(test)]
    pub(super) fn round(&mut self) -> usize {
        self.take(Outlet::push)
    }

    /// What the double gives out next.
    #[cfg(test)]
    pub(super) fn give(&mut self, items: std::collections::VecDeque<Vec<u8>>) {
        self.source = Source::Double(items);
    }

    /// Moves what is there, waiting for takers where needed: for the end, when nothing more can come. Says
    /// how much there was.
    pub fn take_all(&mut self) -> usize {
        self.take(Outlet::push_when_there_is_room)
    }

    /// Nothing more comes. `lost`: the kernel's count of a process's lost records.
    pub fn close(&mut self, lost: impl Fn(u32) -> u64) {
        self.lost.insert(self.last.tgid, self.last.lost);
        self.lost.remove(&0); // no process's: where the first record had none before it
        let after_last: Vec<(u32, u64)> = self
            .lost
            .iter()
            .map(|(tgid, known)| (*tgid, lost(*tgid).saturating_sub(*known)))
            .filter(|(_, lost)| *lost > 0)
            .collect();
        for outlet in &mut self.outlets {
            outlet.close(after_last.iter().copied());
        }
    }

    pub fn taken(&self) -> &ProbeCounts {
        &self.taken
    }

    /// How much that is in all, for other threads to look at. It is with the takers, or dropped, when it is
    /// counted here.
    pub fn taken_total(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.taken_total)
    }

    pub fn outlets(&self) -> &[Outlet] {
        &self.outlets
    }

    fn take(&mut self, pass_on: impl Fn(&mut Outlet, &Arc<Batch>)) -> usize {
        let Self { source, outlets, taken: account, taken_total, lost, last } = self;
        let mut batch = Batch::default();
        let mut pass_on = |batch: &mut Batch| {
            if !batch.is_empty() {
                let batch = Arc::new(std::mem::take(batch));
                for outlet in outlets.iter_mut() {
                    pass_on(outlet, &batch);
                }
            }
        };
        let taken = source.take(|item| {
            if let Some(header) = RecordHeader::from_bytes(item) {
                account.count(header.probe, header.cpu);
                if header.tgid != last.tgid {
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
        taken_total.fetch_add(taken as u64, Ordering::Release);
        taken
    }
}
