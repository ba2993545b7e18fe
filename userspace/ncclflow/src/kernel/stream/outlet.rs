//! One taker's end of the drain: its queue, and what did not fit into it.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ncclflow_common::{LOSS_MARK, RecordHeader};

use super::{
    batch::Batch,
    probe_counts::ProbeCounts,
    queue::{Popped, Queue},
};

#[derive(Debug)]
pub struct Outlet {
    queue: Arc<Queue>,
    dropped: Arc<Mutex<ProbeCounts>>,
    /// Dropped records by process that the taker has not been told of.
    untold: BTreeMap<u32, u64>,
    on_resumption: Option<OnResumption>,
}

/// What is done when records go on after some were dropped. It must not wait.
struct OnResumption(Box<dyn Fn() + Send>);

impl fmt::Debug for OnResumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnResumption")
    }
}

impl Outlet {
    pub fn new(queue: Arc<Queue>) -> Self {
        Self { queue, dropped: Arc::default(), untold: BTreeMap::new(), on_resumption: None }
    }

    /// Does this each time that records go on after some were dropped. It must not wait.
    #[must_use]
    pub fn on_resumption(mut self, then: impl Fn() + Send + 'static) -> Self {
        self.on_resumption = Some(OnResumption(Box::new(then)));
        self
    }

    /// Passes a batch on if there is room. If not, its records are dropped and counted, and the taker is told
    /// in the place where they would have been.
    pub(super) fn push(&mut self, batch: &Arc<Batch>) {
        if !self.tell() || !self.queue.push(batch) {
            self.drop_batch(batch);
        }
    }

    fn drop_batch(&mut self, batch: &Batch) {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let headers = batch.records().filter_map(RecordHeader::from_bytes);
        for header in headers.filter(|header| header.probe != LOSS_MARK) {
            dropped.count(header.probe, header.cpu);
            *self.untold.entry(header.tgid).or_insert(0) += 1;
        }
    }

    /// Passes a batch on when there is room.
    pub(super) fn push_when_there_is_room(&mut self, batch: &Arc<Batch>) {
        self.tell_when_there_is_room();
        if !self.queue.push_when_there_is_room(batch) {
            self.drop_batch(batch);
        }
    }

    /// The taker has failed: what it has left in the queue is dropped, and counted.
    pub fn drop_what_is_left(&mut self) {
        self.queue.close();
        while let Popped::Batch(batch) = self.queue.pop(Some(Duration::ZERO)) {
            self.drop_batch(&batch);
        }
    }

    /// The kernel lost so many records of a process after the last that came. The taker is told with the next
    /// records.
    pub(super) fn note_lost(&mut self, tgid: u32, lost: u64) {
        *self.untold.entry(tgid).or_insert(0) += lost;
    }

    /// Nothing more comes. `lost` says how many records of a process the kernel lost after the last that
    /// came.
    pub(super) fn close(&mut self, lost: impl IntoIterator<Item = (u32, u64)>) {
        for (tgid, lost) in lost {
            *self.untold.entry(tgid).or_insert(0) += lost;
        }
        self.tell_when_there_is_room();
        self.queue.close();
    }

    pub fn dropped(&self) -> ProbeCounts {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, for other threads to look at.
    pub fn shared_dropped(&self) -> Arc<Mutex<ProbeCounts>> {
        Arc::clone(&self.dropped)
    }

    /// Most bytes that waited for the taker at a time.
    pub fn peak(&self) -> usize {
        self.queue.peak()
    }

    /// Tells the taker what was dropped, if there is something to tell and room for it.
    fn tell(&mut self) -> bool {
        let Some(marks) = self.marks() else { return true };
        if !self.queue.push(&marks) {
            return false;
        }
        self.untold.clear();
        if let Some(OnResumption(then)) = &self.on_resumption {
            then();
        }
        true
    }

    fn tell_when_there_is_room(&mut self) {
        if let Some(marks) = self.marks()
            && self.queue.push_when_there_is_room(&marks)
        {
            self.untold.clear();
        }
    }

    /// A mark for each process that lost something.
    fn marks(&self) -> Option<Arc<Batch>> {
        let mut marks = Batch::default();
        self.untold.iter().for_each(|(tgid, lost)| marks.push_mark(*tgid, *lost));
        (!marks.is_empty()).then(|| Arc::new(marks))
    }
}
