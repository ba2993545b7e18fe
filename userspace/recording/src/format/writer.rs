//! Writes a recording.

use super::{
    FOLDER,
    carried_records::WhatLasts,
    facts::{Facts, TimedRows, WhoFacts},
    open_block::{OpenBlock, OpenWalks},
    preamble,
    segments::{self, Segment},
};
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    io::{self, Write as _},
    mem,
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use flow::{
    decode::RecordView,
    recording::{
        Batch, Binding, BlockAbout, BlockKind, Event, LostRecords, NewBindings, RemovedRecords, Session,
        append_block, encode_records,
    },
    schema::{GpuRow, LaunchThreadRow, StackRow},
    session::RecordingTotals,
};
use serde::Serialize;

use crate::{
    resource_exhaustion,
    sinks::{DiskBudget, OutputDir, Share, is_over_max_size},
};

/// Time after which a block is closed: what a SIGKILL can cost.
pub const BLOCK_TIME: Duration = Duration::from_secs(1);

/// Bytes of records at which a block is closed.
const BLOCK_RECORDS: usize = 1 << 20;

/// Bytes at which a segment ends; segments are removed as a whole where room is needed. Under a limit it is a
/// 16th of that, within this range.
const SEGMENT_BYTES: RangeInclusive<u64> = 64 << 10..=64 << 20;

/// Part of a segment's bytes that lasting blocks of all removed segments may take (one in so many). Beyond it
/// the oldest go.
const LASTING_PART: u64 = 2;

/// Most bytes of session and bindings that stand before the lasting blocks; they are that large with some
/// hundred libraries.
const LASTING_REST: u64 = 16 << 10;

/// Segments that the time for which records are kept is divided into, at least.
const SEGMENTS_IN_AGE: u32 = 16;

/// Most bindings in one block: they and the decoders of as many libraries stay far below
/// [`flow::recording::MAX_BODY`].
const BINDINGS_IN_BLOCK: usize = 64;

/// Most stacks in one block: each has a kilobyte or so.
const STACKS_IN_BLOCK: usize = 256;

/// Time between two writes of the rows of GPUs, or of threads, which are also written when the recording
/// ends: many rows together take a tenth of the bytes.
const ROWS_TIME: Duration = Duration::from_secs(10);

/// Number of ended processes at which they are looked through.
const MAX_ENDED: usize = 4096;

/// A recording being written. Where a block cannot be written, its records are counted as lost and the next
/// one is tried: one full disk is not the end.
#[derive(Debug)]
pub struct RecordingWriter {
    folder: OutputDir,
    session: Session,
    segment: Segment,
    /// Segments before the open one, oldest first.
    closed: VecDeque<Segment>,
    /// Number of the segment that holds only what lasts of removed ones.
    lasting: Option<u32>,
    /// Parts that are to take the place of that segment, where they could not be written.
    unput: Option<WhatLasts>,
    segment_bytes: u64,
    /// Time for which records are kept.
    max_age: Option<Duration>,
    bindings: Vec<Binding>,
    block: OpenBlock,
    walks: OpenWalks,
    /// Lost records by process, of which the recording does not say so yet.
    unmarked: BTreeMap<u32, u64>,
    /// Watch of communicators, if their facts are recorded.
    who: Option<Box<dyn WhoFacts>>,
    /// Call stacks, if they are recorded.
    stacks: Option<Box<dyn Facts<Arc<StackRow>>>>,
    /// Samples of the GPUs, if they are recorded.
    gpus: Option<TimedRows<GpuRow>>,
    /// Processor time of threads that launch, if it is recorded.
    launch_threads: Option<TimedRows<LaunchThreadRow>>,
    /// Processes that have ended.
    ended: HashSet<u32>,
    /// Used again for each block.
    encoded: Vec<u8>,
    bytes: Vec<u8>,
    totals: RecordingTotals,
}

impl RecordingWriter {
    /// Begins a recording in the new folder [`FOLDER`] of `dir`.
    pub fn create(dir: &OutputDir, session: Session) -> io::Result<Self> {
        let limit = dir.budget().map_or(u64::MAX, DiskBudget::limit);
        let segment_bytes = (limit / 16).clamp(*SEGMENT_BYTES.start(), *SEGMENT_BYTES.end());
        let folder = dir.subfolder(FOLDER)?;
        folder.keep(Share::Lasting, segment_bytes / LASTING_PART + LASTING_REST);
        let mut writer = Self {
            folder,
            session,
            segment: Segment::default(),
            closed: VecDeque::new(),
            lasting: None,
            unput: None,
            segment_bytes,
            max_age: None,
            bindings: Vec::new(),
            block: OpenBlock::default(),
            walks: OpenWalks::default(),
            unmarked: BTreeMap::new(),
            who: None,
            stacks: None,
            gpus: None,
            launch_threads: None,
            ended: HashSet::new(),
            encoded: Vec::new(),
            bytes: Vec::new(),
            totals: RecordingTotals::default(),
        };
        writer.begin_segment()?;
        Ok(writer)
    }

    /// Has communicators looked at as they come, and writes the facts about processes and communicators.
    #[must_use]
    pub fn telling_who(self, who: impl WhoFacts + 'static) -> Self {
        Self { who: Some(Box::new(who)), ..self }
    }

    /// Writes call stacks.
    #[must_use]
    pub fn telling_stacks(self, stacks: Option<impl Facts<Arc<StackRow>> + 'static>) -> Self {
        Self { stacks: stacks.map(|stacks| Box::new(stacks) as _), ..self }
    }

    /// Writes the activity of the GPUs from now on.
    #[must_use]
    pub fn telling_gpus(self, gpus: Option<impl Facts<Arc<GpuRow>> + 'static>) -> Self {
        Self { gpus: gpus.map(TimedRows::new), ..self }
    }

    /// Writes the processor time of threads that launch from now on.
    #[must_use]
    pub fn telling_launch_threads(self, threads: impl Facts<Arc<LaunchThreadRow>> + 'static) -> Self {
        Self { launch_threads: Some(TimedRows::new(threads)), ..self }
    }

    /// Removes records, by segments, when they are older than `max_age`.
    #[must_use]
    pub fn keeping_for(self, max_age: Option<Duration>) -> Self {
        Self { max_age, ..self }
    }

    /// Tells whether there is work although no records come: then [`Self::idle`] must be called from time to
    /// time.
    pub fn has_idle_work(&self) -> bool {
        self.max_age.is_some() || self.gpus.is_some() || self.launch_threads.is_some()
    }

    /// Does the work that does not wait for records, at this moment of the records' clock.
    pub fn idle(&mut self, now_ns: u64) -> io::Result<()> {
        self.write_rows(ROWS_TIME)?;
        self.remove_old(now_ns)
    }

    /// Removes the segments of which all records are too old at this moment of the records' clock. Fails if a
    /// segment could not be removed, or begun.
    pub(super) fn remove_old(&mut self, now_ns: u64) -> io::Result<()> {
        let Some(max_age) = self.max_age else { return Ok(()) };
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let age = now_ns.saturating_sub(self.segment.first_ns);
        if self.segment.records > 0 && age >= ns(max_age / SEGMENTS_IN_AGE) {
            self.begin_segment()?;
        }
        let oldest = now_ns.saturating_sub(ns(max_age));
        while self.closed.front().is_some_and(|segment| segment.last_ns < oldest) {
            self.remove_oldest()?;
        }
        Ok(())
    }

    /// Adds bindings of further cookies, before the first of their records. They are written with records, so
    /// that attaching does not wait for them.
    pub fn bind(&mut self, update: impl FnOnce(&mut Vec<Binding>)) {
        update(&mut self.bindings);
    }

    /// Adds a batch of records. Fails if a block could not be written.
    pub fn push(&mut self, batch: &Arc<Batch>) -> io::Result<()> {
        let added = OpenBlock::of(batch, &self.bindings, &mut self.walks, self.who.as_deref_mut());
        if !added.is_lasting {
            self.block.append(added);
            return if self.block.bytes >= BLOCK_RECORDS { self.close_block() } else { Ok(()) };
        }
        // Lasting records are a block of their own: the room for all that lasts can be less than a whole
        // block takes.
        let before = self.close_block();
        self.block = added;
        before.and(self.close_block())
    }

    /// Adds an event after the records so far.
    pub fn push_event(&mut self, event: &Event) -> io::Result<()> {
        self.close_block()?;
        if let Event::ProcessEnded { tgid, .. } = event {
            self.ended.insert(*tgid);
            self.forget_ended();
        }
        self.write_json(BlockKind::Event, event)
    }

    /// Forgets ended processes of which nothing is known any more, so that nothing of them can be repeated.
    fn forget_ended(&mut self) {
        if self.ended.len() < MAX_ENDED {
            return;
        }
        match &self.who {
            Some(who) => who.retain_known(&mut self.ended),
            None => self.ended.clear(),
        }
    }

    /// Writes the records so far.
    pub fn close_block(&mut self) -> io::Result<()> {
        if self.block.batches.is_empty() {
            return Ok(());
        }
        let block = mem::take(&mut self.block);
        let written = self.write_records(&block);
        if written.is_ok() {
            self.totals.records += block.records;
        } else {
            self.totals.lost += block.records;
            let records = block.batches.iter().flat_map(|batch| batch.records());
            for view in records.filter_map(|record| RecordView::new(record).ok()) {
                *self.unmarked.entry(view.header.tgid).or_default() += 1;
            }
        }
        written
    }

    /// Adds the session's report, which shows that the recording is whole. A later report takes its place.
    pub fn write_end(&mut self, report: &str) -> io::Result<()> {
        if let Some(stacks) = &self.stacks {
            stacks.settle();
        }
        let closed = self.close_block().and_then(|()| self.write_who()).and_then(|()| self.write_stacks());
        let closed = closed.and_then(|()| self.write_rows(Duration::ZERO));
        // GPUs are still asked while the files are made, and threads looked at. Those rows belong neither to
        // the recording nor to the files.
        (self.gpus, self.launch_threads) = (None, None);
        let ended = self.write_block(&BlockAbout::json(BlockKind::End), report.as_bytes());
        closed.and(ended)
    }

    pub fn totals(&self) -> RecordingTotals {
        self.totals
    }

    fn write_records(&mut self, block: &OpenBlock) -> io::Result<()> {
        if self.segment.len >= self.segment_bytes || self.segment.file.is_none() {
            // Room for the next segment, and meanwhile for what lasts of the oldest.
            while !self.folder.make_room(self.segment_bytes) && self.remove_oldest()? {}
            self.begin_segment()?;
        }
        self.write_bindings()?;
        self.mark_lost()?;
        self.write_who()?;
        self.write_stacks()?;
        let mut encoded = mem::take(&mut self.encoded);
        encoded.clear();
        encode_records(block.batches.iter().flat_map(|batch| batch.records()), &mut encoded);
        let about = BlockAbout {
            kind: BlockKind::Records,
            is_lasting: block.is_lasting,
            records: u32::try_from(block.records).unwrap_or(u32::MAX),
            first_ns: block.first_ns,
            last_ns: block.last_ns,
            index: &block.members.to_bytes(),
        };
        let written = self.write_block(&about, &encoded);
        self.encoded = encoded;
        if written.is_ok() {
            self.segment.note(block);
        }
        written
    }

    /// Writes which records before these are missing.
    fn mark_lost(&mut self) -> io::Result<()> {
        if self.unmarked.is_empty() {
            return Ok(());
        }
        let lost = self.unmarked.iter().map(|(&tgid, &records)| LostRecords { tgid, records });
        let event = Event::RecordsLost { lost: lost.collect() };
        self.write_json(BlockKind::Event, &event)?;
        self.unmarked.clear();
        Ok(())
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        let Segment { number, records, last_ns, .. } = self.segment;
        if self.segment.file.take().is_some() {
            self.closed.push_back(Segment { number, records, last_ns, ..Segment::default() });
        }
        let number = number + 1;
        let name = segments::name(number);
        let mut file = self.folder.create_records(&name)?;
        let preamble = preamble();
        let who_before = self.segment.who.max(self.segment.who_before);
        let before = self.totals;
        let begun = file.write_all(&preamble).and_then(|()| {
            let len = preamble.len() as u64;
            self.segment = Segment { number, file: Some(file), len, who_before, ..Segment::default() };
            self.totals.segments += 1;
            self.totals.bytes += len;
            let session = serde_json::to_vec(&self.session)?;
            self.write_block(&BlockAbout::json(BlockKind::Session), &session)
        });
        // A segment cannot be read without its session.
        begun.inspect_err(|_| {
            self.segment.file = None;
            (self.totals.segments, self.totals.bytes) = (before.segments, before.bytes);
            if self.folder.remove_made(&name).is_ok() {
                // The next segment gets this number, so that none is missing.
                self.segment.number = number - 1;
            }
        })
    }

    /// Removes the oldest closed segment, except for what later records need of it. Returns `false` if there
    /// is none. Fails if it could not be removed: then it stays.
    fn remove_oldest(&mut self) -> io::Result<bool> {
        let Some(oldest) = self.closed.pop_front() else { return Ok(false) };
        let replaced = self.replace(&oldest);
        if replaced.is_err() {
            self.closed.push_front(oldest);
        }
        replaced.map(|()| true)
    }

    /// Puts what lasts of a segment, and of those before it, in its place.
    fn replace(&mut self, oldest: &Segment) -> io::Result<()> {
        let limit = usize::try_from(self.segment_bytes / LASTING_PART).unwrap_or(usize::MAX);
        let mut what_lasts = self.unput.clone().unwrap_or_default();
        if let (None, Some(before)) = (&self.unput, self.lasting) {
            what_lasts.add(&self.folder, before, limit)?;
        }
        what_lasts.add(&self.folder, oldest.number, limit)?;
        let records = self.totals.removed_records + oldest.records;
        let lasting = self.totals.removed_lasting + what_lasts.left_out;
        let removed = RemovedRecords { records, kept: what_lasts.records(), lasting };
        let segment = what_lasts.to_segment(&Event::RecordsRemoved(removed));
        let name = segments::name(oldest.number);
        let put =
            |bytes: &[u8]| self.folder.replace_file(Share::Lasting, &name, |file| file.write_all(bytes));
        // A reader sees the old segment, or the new one in its place.
        let is_put = match segment.as_deref().map(put) {
            Ok(Ok(())) => true,
            Ok(Err(error)) if !resource_exhaustion::is_of_disk(&error) => return Err(error),
            // There is no room for both, or the segment cannot be read and is of no use.
            Ok(Err(_)) | Err(_) => {
                self.remove_segment(oldest.number)?;
                segment.as_deref().is_ok_and(|bytes| put(bytes).is_ok())
            }
        };
        self.totals.removed_segments += 1;
        self.totals.removed_records = records;
        if is_put {
            self.totals.removed_lasting = lasting;
            self.unput = None;
            let before = self.lasting.replace(oldest.number);
            before.map_or(Ok(()), |number| self.remove_segment(number))
        } else {
            // It will be written with what lasts of the next segment. Until then readers see that a segment
            // is missing.
            self.unput = Some(what_lasts);
            self.folder.refuse();
            Ok(())
        }
    }

    fn remove_segment(&self, number: u32) -> io::Result<()> {
        match self.folder.remove_made(&segments::name(number)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Writes the bindings that the segment does not have.
    fn write_bindings(&mut self) -> io::Result<()> {
        while self.segment.bindings < self.bindings.len() {
            let new = NewBindings::of(&self.bindings, self.segment.bindings, BINDINGS_IN_BLOCK);
            self.write_json(BlockKind::Bindings, &new)?;
            self.segment.bindings = self.bindings.len().min(self.segment.bindings + BINDINGS_IN_BLOCK);
        }
        Ok(())
    }

    /// Writes the facts about processes and communicators that the segment does not have. Facts of earlier
    /// segments about processes that have ended are not repeated.
    fn write_who(&mut self) -> io::Result<()> {
        let Some(who) = &self.who else { return Ok(()) };
        let (new, next) = who.since(self.segment.who);
        for (number, event) in new {
            let pid = match &event {
                Event::Process(facts) => {
                    // The number belongs to another process now.
                    if number >= self.segment.who_before {
                        self.ended.remove(&facts.pid);
                    }
                    facts.pid
                }
                Event::Communicator(facts) => facts.pid,
                _ => continue,
            };
            if number >= self.segment.who_before || !self.ended.contains(&pid) {
                self.write_json(BlockKind::Event, &event)?;
            }
            self.segment.who = number + 1;
        }
        self.segment.who = next;
        Ok(())
    }

    /// Writes the stacks that the segment does not have.
    fn write_stacks(&mut self) -> io::Result<()> {
        let Some(stacks) = &self.stacks else { return Ok(()) };
        let (new, next) = stacks.since(self.segment.stacks);
        for stacks in new.chunks(STACKS_IN_BLOCK) {
            let stacks = stacks.iter().map(|facts| StackRow::clone(facts)).collect();
            self.write_json(BlockKind::Event, &Event::Stacks { stacks })?;
        }
        self.segment.stacks = next;
        Ok(())
    }

    /// Writes the rows of GPUs, and of threads, since the last time, if that is at least `at_least`.
    fn write_rows(&mut self, at_least: Duration) -> io::Result<()> {
        let unwritten = self.gpus.as_ref().and_then(|gpus| gpus.unwritten(at_least, |row| row.ts_ns));
        if let Some((rows, next)) = unwritten {
            self.write_json(BlockKind::Event, &Event::Gpus { rows })?;
            self.gpus.iter_mut().for_each(|gpus| gpus.1 = next);
        }
        let threads = self.launch_threads.as_ref();
        if let Some((rows, next)) = threads.and_then(|threads| threads.unwritten(at_least, |row| row.ts_ns)) {
            self.write_json(BlockKind::Event, &Event::LaunchThreads { rows })?;
            self.launch_threads.iter_mut().for_each(|threads| threads.1 = next);
        }
        Ok(())
    }

    fn write_json(&mut self, kind: BlockKind, content: &impl Serialize) -> io::Result<()> {
        let content = serde_json::to_vec(content)?;
        self.write_block(&BlockAbout::json(kind), &content)
    }

    /// Writes a block whole or not at all: half a block is cut off again.
    fn write_block(&mut self, about: &BlockAbout<'_>, body: &[u8]) -> io::Result<()> {
        self.bytes.clear();
        append_block(&mut self.bytes, about, body)?;
        while let Err(error) = self.segment.append(&self.bytes) {
            // There may be room if older records are removed.
            if !is_over_max_size(&error) {
                return Err(error);
            }
            if !self.remove_oldest()? {
                self.folder.refuse();
                return Err(error);
            }
        }
        self.totals.bytes += self.bytes.len() as u64;
        self.totals.blocks += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
