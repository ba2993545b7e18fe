//! A taker's end of the drain: its queue, and the records that did not fit into it.

use flow::recording::Batch;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ncclflow_common::{LOSS_MARK, RecordHeader};

use super::{
    probe_counts::ProbeCounts,
    queue::{Popped, Queue, Room},
    shares::Shares,
};

/// Most processes over their share that are named.
const MAX_NAMED: usize = 1024;

#[expect(missing_debug_implementations, reason = "callbacks have none")]
pub struct Outlet {
    queue: Arc<Queue>,
    dropped: Arc<Mutex<ProbeCounts>>,
    /// Dropped records by process, which the taker has not been told of yet.
    untold: BTreeMap<u32, u64>,
    shares: Shares,
    /// Records, by process, that were dropped because they were over the share of their process.
    over_share: BTreeMap<u32, u64>,
    /// Set when records go on after some were dropped, until the callback has run.
    resumes: bool,
    on_resumption: Option<Box<dyn Fn() + Send>>,
}

impl Outlet {
    pub fn new(queue: Arc<Queue>) -> Self {
        Self {
            queue,
            dropped: Arc::default(),
            untold: BTreeMap::new(),
            shares: Shares::default(),
            over_share: BTreeMap::new(),
            resumes: false,
            on_resumption: None,
        }
    }

    /// Has `then` called each time that records go on after some were dropped. It must not wait.
    #[must_use]
    pub fn on_resumption(mut self, then: impl Fn() + Send + 'static) -> Self {
        self.on_resumption = Some(Box::new(then));
        self
    }

    /// Passes a batch on. If there is no room, its records are dropped and counted, and the taker is told in
    /// the place where they would have been. Where that is not waited for and the queue is more than half
    /// full, records of a process that has taken its share are dropped.
    pub(super) fn push(&mut self, batch: &Arc<Batch>, room: Room) {
        let is_told = self.tell(room);
        let within = if is_told && room == Room::Now { self.within_shares(batch) } else { None };
        let within = within.map(Arc::new);
        let batch = within.as_ref().unwrap_or(batch);
        let is_added = is_told && (batch.is_empty() || self.queue.push(batch, room));
        if !is_added {
            self.drop_batch(batch);
        }
    }

    /// Returns the part of a batch within the shares of its processes, or `None` if that is all.
    fn within_shares(&mut self, batch: &Batch) -> Option<Batch> {
        if !self.queue.is_crowded() {
            self.shares.renew();
            if std::mem::take(&mut self.resumes)
                && let Some(then) = &self.on_resumption
            {
                then();
            }
            return None;
        }
        let Self { shares, dropped, untold, over_share, queue, .. } = self;
        let mut dropped = dropped.lock().unwrap_or_else(PoisonError::into_inner);
        shares.cut(batch, queue.limit() / 2, |header| {
            dropped.count(header.probe, header.cpu);
            *untold.entry(header.tgid).or_insert(0) += 1;
            // Only so many processes are named.
            if over_share.len() < MAX_NAMED || over_share.contains_key(&header.tgid) {
                *over_share.entry(header.tgid).or_insert(0) += 1;
            }
        })
    }

    /// Returns the records, by process, that were dropped because their process had taken its share of the
    /// queue.
    pub fn over_share(&self) -> &BTreeMap<u32, u64> {
        &self.over_share
    }

    fn drop_batch(&mut self, batch: &Batch) {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let headers = batch.records().filter_map(RecordHeader::from_bytes);
        for header in headers.filter(|header| header.probe != LOSS_MARK) {
            dropped.count(header.probe, header.cpu);
            *self.untold.entry(header.tgid).or_insert(0) += 1;
        }
    }

    /// Drops and counts what a taker that has failed left in the queue.
    pub fn drop_what_is_left(&mut self) {
        self.queue.close();
        while let Popped::Batch(batch) = self.queue.pop(Some(Duration::ZERO)) {
            self.drop_batch(&batch);
        }
    }

    /// Notes that the kernel lost `lost` records of a process after the last that came. The taker is told
    /// with the next records.
    pub(super) fn note_lost(&mut self, tgid: u32, lost: u64) {
        *self.untold.entry(tgid).or_insert(0) += lost;
    }

    /// Closes the queue: no more records come. `lost` says how many records of a process the kernel lost
    /// after the last that came.
    pub(super) fn close(&mut self, lost: impl IntoIterator<Item = (u32, u64)>) {
        for (tgid, lost) in lost {
            self.note_lost(tgid, lost);
        }
        self.tell(Room::Awaited);
        self.queue.close();
    }

    pub fn dropped(&self) -> ProbeCounts {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the counts of dropped records, for other threads to look at.
    pub fn shared_dropped(&self) -> Arc<Mutex<ProbeCounts>> {
        Arc::clone(&self.dropped)
    }

    /// Returns the most bytes that waited for the taker at a time.
    pub fn peak(&self) -> usize {
        self.queue.peak()
    }

    /// Tells the taker what was dropped, if there is room for it. Returns whether nothing is left to tell.
    fn tell(&mut self, room: Room) -> bool {
        let Some(marks) = self.marks() else { return true };
        if !self.queue.push(&marks, room) {
            return false;
        }
        self.untold.clear();
        // The callback runs when the queue is empty enough: what is sent again should not be dropped again.
        self.resumes = true;
        true
    }

    /// Makes a batch with a mark for each process that lost records, if there is one.
    fn marks(&self) -> Option<Arc<Batch>> {
        let mut marks = Batch::default();
        self.untold.iter().for_each(|(tgid, lost)| marks.push_mark(*tgid, *lost));
        (!marks.is_empty()).then(|| Arc::new(marks))
    }
}
