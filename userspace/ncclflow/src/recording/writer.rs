//! Writes a recording.

use std::{
    collections::{BTreeMap, HashSet},
    io::{self, Write as _},
    mem,
    sync::Arc,
    time::Duration,
};

use flow::{
    decode::RecordView,
    recording::{BlockAbout, BlockKind, Members, append_block, encode_records},
    wire::ProbeKind,
};
use ncclflow_common::LOSS_MARK;
use serde::Serialize;

use super::{FOLDER, MAJOR, MINOR, SEGMENT_MAGIC, contents::NewBindings, segments};
use crate::{
    capture::Binding,
    kernel::stream::Batch,
    recording::{Event, LostRecords, Session},
    sinks::{OutputDir, OutputFile},
    who::CommunicatorWatch,
};

/// A block is closed after so long: what a SIGKILL can cost.
pub const BLOCK_TIME: Duration = Duration::from_secs(1);

/// A block is closed when it has so many bytes of records.
const BLOCK_RECORDS: usize = 1 << 20;

/// Bytes at which a segment ends: what is removed at a time where room is needed.
const SEGMENT_BYTES: u64 = 64 << 20;

/// Bindings in one block: they and the decoders of as many libraries stay far below
/// [`flow::recording::MAX_BODY`].
const BINDINGS_IN_BLOCK: usize = 64;

/// What was written; `recording` of `session.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordingTotals {
    pub bytes: u64,
    pub records: u64,
    pub blocks: u64,
    pub segments: u64,
    /// Records that could not be written.
    pub lost: u64,
}

/// A recording being written. Where a block cannot be written, its records are counted as lost and the next
/// one is tried: one full disk is not the end.
#[derive(Debug)]
pub struct RecordingWriter {
    folder: OutputDir,
    session: Session,
    segment: Segment,
    bindings: Vec<Binding>,
    block: OpenBlock,
    /// Records that were lost and of which the recording does not say so yet, by process.
    unmarked: BTreeMap<u32, u64>,
    /// Who is who, if anybody asks.
    who: Option<CommunicatorWatch>,
    /// Processes that have ended.
    ended: HashSet<u32>,
    /// Used again for each block.
    encoded: Vec<u8>,
    bytes: Vec<u8>,
    totals: RecordingTotals,
}

#[derive(Debug, Default)]
struct Segment {
    number: u32,
    /// Nothing: it could not be made, or a half block stands at its end.
    file: Option<OutputFile>,
    len: u64,
    /// Bindings that it has.
    bindings: usize,
    /// Of what became known of processes and communicators, what it has; and what the segments before it
    /// have.
    who: u64,
    who_before: u64,
}

/// Records that are not written yet.
#[derive(Debug, Default)]
struct OpenBlock {
    batches: Vec<Arc<Batch>>,
    /// Bytes of the batches.
    bytes: usize,
    records: u64,
    members: Members,
    is_lasting: bool,
    first_ns: u64,
    last_ns: u64,
}

impl RecordingWriter {
    /// Begins a recording in the new folder [`FOLDER`] of `dir`.
    pub fn create(dir: &OutputDir, session: Session) -> io::Result<Self> {
        let mut writer = Self {
            folder: dir.subfolder(FOLDER)?,
            session,
            segment: Segment::default(),
            bindings: Vec::new(),
            block: OpenBlock::default(),
            unmarked: BTreeMap::new(),
            who: None,
            ended: HashSet::new(),
            encoded: Vec::new(),
            bytes: Vec::new(),
            totals: RecordingTotals::default(),
        };
        writer.begin_segment()?;
        Ok(writer)
    }

    /// Has communicators looked at as they come, and writes who is who.
    #[must_use]
    pub(crate) fn telling_who(self, who: CommunicatorWatch) -> Self {
        Self { who: Some(who), ..self }
    }

    /// Adds bindings of further cookies: before the first of their records. They are written with records, so
    /// that attaching does not wait for them.
    pub fn bind(&mut self, update: impl FnOnce(&mut Vec<Binding>)) {
        update(&mut self.bindings);
    }

    /// Adds a batch of records. An error is of a block that could not be written.
    pub fn push(&mut self, batch: &Arc<Batch>) -> io::Result<()> {
        for record in batch.records() {
            self.block.note(record, &self.bindings, self.who.as_mut());
        }
        self.block.bytes += batch.bytes().len();
        self.block.records += batch.len() as u64;
        self.block.batches.push(Arc::clone(batch));
        if self.block.bytes >= BLOCK_RECORDS { self.close_block() } else { Ok(()) }
    }

    /// Adds what happened after the records that are there.
    pub fn push_event(&mut self, event: &Event) -> io::Result<()> {
        self.close_block()?;
        if let Event::ProcessEnded { tgid, .. } = event {
            self.ended.insert(*tgid);
        }
        self.write_json(BlockKind::Event, event)
    }

    /// Writes the records that are there.
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

    /// Adds the session's report, which says that the recording is whole. One that comes later takes its
    /// place.
    pub fn write_end(&mut self, report: &str) -> io::Result<()> {
        let closed = self.close_block().and_then(|()| self.write_who());
        let ended = self.write_block(&BlockAbout::json(BlockKind::End), report.as_bytes());
        closed.and(ended)
    }

    pub fn totals(&self) -> RecordingTotals {
        self.totals
    }

    fn write_records(&mut self, block: &OpenBlock) -> io::Result<()> {
        if self.segment.len >= SEGMENT_BYTES || self.segment.file.is_none() {
            self.begin_segment()?;
        }
        self.write_bindings()?;
        self.mark_lost()?;
        self.write_who()?;
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
        written
    }

    /// Says which records before these are missing.
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
        let number = self.segment.number + 1;
        let name = segments::name(number);
        let mut file = self.folder.create_file(&name)?;
        let mut preamble = SEGMENT_MAGIC.to_vec();
        preamble.extend_from_slice(&MAJOR.to_le_bytes());
        preamble.extend_from_slice(&MINOR.to_le_bytes());
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
        // Nothing can be read of a segment without it.
        begun.inspect_err(|_| {
            (self.segment.file, self.totals) = (None, before);
            let _ = self.folder.remove_made(&name);
        })
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

    /// Writes what became known of processes and communicators and the segment does not have. What earlier
    /// segments have of processes that have ended is not repeated.
    fn write_who(&mut self) -> io::Result<()> {
        let Some(who) = &self.who else { return Ok(()) };
        let (new, next) = who.registry.since(self.segment.who);
        for (number, event) in new {
            let pid = match &event {
                Event::Process(facts) => {
                    // The number is another process's now.
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

    fn write_json(&mut self, kind: BlockKind, content: &impl Serialize) -> io::Result<()> {
        let content = serde_json::to_vec(content)?;
        self.write_block(&BlockAbout::json(kind), &content)
    }

    /// Writes a block whole or not at all: a half one is cut off again.
    fn write_block(&mut self, about: &BlockAbout<'_>, body: &[u8]) -> io::Result<()> {
        self.bytes.clear();
        append_block(&mut self.bytes, about, body)?;
        let Segment { file: Some(file), len, .. } = &mut self.segment else {
            return Err(io::Error::other("the recording's segment could not be made"));
        };
        if let Err(error) = file.write_all(&self.bytes) {
            if file.cut(*len).is_err() {
                self.segment.file = None;
            }
            return Err(error);
        }
        *len += self.bytes.len() as u64;
        self.totals.bytes += self.bytes.len() as u64;
        self.totals.blocks += 1;
        Ok(())
    }
}

impl OpenBlock {
    fn note(&mut self, record: &[u8], bindings: &[Binding], who: Option<&mut CommunicatorWatch>) {
        let Ok(view) = RecordView::new(record) else { return };
        let binding = bindings.get(usize::from(view.header.probe));
        let kind = binding.map(|binding| &binding.kind);
        self.members.note(kind, &view);
        if let (Some(who), Some(binding)) = (who, binding) {
            who.note(binding, &view);
        }
        if view.header.probe == LOSS_MARK {
            return; // it has no time
        }
        let at = view.header.ts_ns;
        self.first_ns = if self.last_ns == 0 { at } else { self.first_ns.min(at) };
        self.last_ns = self.last_ns.max(at);
        self.is_lasting |= kind.is_some_and(|kind| is_lasting(kind, &view));
    }
}

/// Whether later records cannot be understood without this one: the kernel sends channels and connectors once
/// for a communicator, and the plan of a CUDA graph comes when it is captured, not when it is replayed.
fn is_lasting(kind: &ProbeKind, record: &RecordView<'_>) -> bool {
    match kind {
        ProbeKind::Channel(_) | ProbeKind::Connectors(_) => true,
        ProbeKind::Plan(spans) => record.unsigned(&spans.persistent).is_ok_and(|persistent| persistent != 0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use ncclflow_common::WIRE_VERSION;

    use super::*;
    use crate::{
        recording::{Item, Progress, RecordingReader, Selection},
        who::ProcessFacts,
    };

    fn process(pid: u32) -> Event {
        Event::Process(Box::new(ProcessFacts { pid, ..ProcessFacts::default() }))
    }

    /// Each segment can be read alone, and a day of short processes does not fill the later ones.
    #[test]
    fn each_segment_says_who_the_processes_are_that_have_not_ended() {
        let folder = tempfile::tempdir().unwrap();
        let session = Session { wire_version: WIRE_VERSION, ..Session::default() };
        let writer = RecordingWriter::create(&OutputDir::open(folder.path()).unwrap(), session);
        let mut writer = writer.unwrap().telling_who(CommunicatorWatch::knowing([1, 2, 3].map(process)));
        let mut batch = Batch::default();
        batch.push(&[0; 100]);
        let batch = Arc::new(batch);
        let write = |writer: &mut RecordingWriter| {
            writer.push(&batch).unwrap();
            writer.close_block().unwrap();
        };
        write(&mut writer);
        write(&mut writer);
        writer.push_event(&Event::ProcessEnded { tgid: 2, at_ns: 5 }).unwrap();
        writer.begin_segment().unwrap();
        write(&mut writer);
        writer.begin_segment().unwrap();
        write(&mut writer);
        writer.write_end("{}").unwrap();
        let mut reader =
            RecordingReader::open(OutputDir::open(&folder.path().join(FOLDER)).unwrap()).unwrap();
        let mut read = Vec::new();
        let mut take = |item: Item<'_>| match item {
            Item::Event(Event::Process(facts)) => read.push(facts.pid),
            Item::Record(_) => read.push(0),
            _ => {}
        };
        while reader.read_next(&Selection::ALL, &mut take).unwrap() == Progress::Read {}
        assert_eq!(read, [1, 2, 3, 0, 0, 1, 3, 0, 1, 3, 0]);
    }
}
