//! Reads a recording, whole or while it is written. It can come from anywhere: nothing in it is believed.

use std::{
    fmt,
    fs::File,
    io::{self, Read as _},
    mem,
    os::unix::fs::FileExt as _,
};

use anyhow::{Context as _, Result, bail};
use flow::recording::{
    Binding, Block, BlockHeader, BlockKind, Event, HEADER_BYTES, Member, Members, NewBindings,
    RemovedRecords, Session, decode_records,
};
use memchr::memmem;
use ncclflow_common::WIRE_VERSION;

use super::{MAJOR, PREAMBLE, SEGMENT_MAGIC, segments};
use crate::sinks::OutputDir;

/// Most bytes of records in a block: the memory that a reader takes for them. A writer closes a block long
/// before.
const MAX_RECORD_BYTES: usize = 64 << 20;

/// Oldest [`WIRE_VERSION`] whose records are read as those of today: 6 has new steps of plans, and the same records.
const OLDEST_RECORDS: u32 = 5;

/// Bytes that are searched at a time for the next block behind a damaged one.
const SEARCH: usize = 64 << 10;

/// Choice of records. Blocks that it leaves out are not even decompressed.
pub struct Selection<'a> {
    /// First and last time, by the records' clock, in nanoseconds.
    pub from_ns: u64,
    pub to_ns: u64,
    /// Choice of processes and communicators; `None` for all.
    pub member: Option<&'a dyn Fn(&Member) -> bool>,
}

impl Selection<'_> {
    /// All records.
    pub const ALL: Self = Self { from_ns: 0, to_ns: u64::MAX, member: None };

    /// No records: only bindings, events and the end.
    pub const NOTHING: Self = Self { from_ns: u64::MAX, to_ns: 0, member: None };

    /// Tells whether the records of a block can be asked for, or needed to understand those that are.
    fn is_of_its_time(&self, header: &BlockHeader) -> bool {
        let BlockHeader { first_ns, last_ns, is_lasting, .. } = *header;
        // Marks of lost records have no time, and a block can have nothing else.
        first_ns <= self.to_ns && (last_ns >= self.from_ns || is_lasting || last_ns == 0)
    }

    fn takes(&self, block: &Block<'_>) -> bool {
        self.is_of_its_time(&block.header)
            && self.member.is_none_or(|is_asked_for| Members::from_bytes(block.index).may_have(is_asked_for))
    }
}

impl fmt::Debug for Selection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from_ns, to_ns, member } = self;
        write!(f, "Selection({from_ns}..={to_ns}, {} members)", if member.is_some() { "some" } else { "all" })
    }
}

/// Parts of a recording that could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Blocks that differ from what was written.
    pub blocks: u64,
    /// Bytes that belong to no block.
    pub bytes: u64,
    /// Blocks and events of a kind that this version does not know.
    pub unknown: u64,
    /// Records that were removed before they were read, to make room or for their age.
    pub removed: u64,
    /// Number of removed records that later ones need.
    pub removed_lasting: u64,
    /// Segments that are missing without an event that says why.
    pub missing_segments: u64,
}

/// The next item of a recording.
#[derive(Debug)]
pub enum Item<'a> {
    /// Bindings, which give the records of further cookies their meaning.
    Bindings(&'a [Binding]),
    Record(&'a [u8]),
    /// Records were passed over, or could not be read, between those before and those that come.
    Gap,
    Event(Event),
    /// The session's report, which shows that the recording is whole.
    End(String),
}

/// State after a step of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A block was read, or passed over.
    Read,
    /// There is no more now. A recording that nobody writes any more and that has no end was cut off.
    AtEnd,
}

/// A recording being read.
#[derive(Debug)]
pub struct RecordingReader {
    folder: OutputDir,
    session: Session,
    bindings: Vec<Binding>,
    segment: u32,
    file: File,
    /// Offset of the next block in the segment.
    at: u64,
    damage: Damage,
    /// Times of the earliest and of the latest record in the blocks that were read or passed over.
    span_ns: Option<(u64, u64)>,
    /// Bytes of the segments before this one.
    passed: u64,
    /// Records that were read, passed over or missed.
    records: u64,
    /// Set if the segment holds what lasts of removed ones before it: the time of the latest record read
    /// before. Blocks up to that time are known.
    known_until_ns: Option<u64>,
    /// Number of segments between the previous one and this one, which has to say before its records that
    /// they were removed.
    gap: u64,
    /// Records were passed over, or could not be read, since the last that were given out.
    has_passed: bool,
    /// Index and body of a block, and the body before compression: memory that is used again.
    rest: Vec<u8>,
    raw: Vec<u8>,
}

impl RecordingReader {
    /// Opens the recording in this folder.
    pub fn open(folder: OutputDir) -> Result<Self> {
        let shown = folder.path().display().to_string();
        let numbers = segments::numbers(&folder).with_context(|| format!("listing `{shown}`"))?;
        let Some(segment) = numbers.first().copied() else {
            bail!("`{shown}` has no recording: no file *.nfr")
        };
        let file = open_segment(&folder, segment)?;
        let mut reader = Self {
            folder,
            session: Session::default(),
            bindings: Vec::new(),
            segment,
            file,
            at: PREAMBLE as u64,
            damage: Damage::default(),
            span_ns: None,
            passed: 0,
            records: 0,
            known_until_ns: None,
            // The first segment has number 1.
            gap: u64::from(segment.saturating_sub(1)),
            has_passed: false,
            rest: Vec::new(),
            raw: Vec::new(),
        };
        reader.session = reader.read_session().with_context(|| format!("reading the recording `{shown}`"))?;
        Ok(reader)
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// Returns the times of the earliest and of the latest record in the blocks that were read or passed over
    /// so far.
    pub fn span_ns(&self) -> Option<(u64, u64)> {
        self.span_ns
    }

    /// Returns the bytes that were read or passed over so far.
    pub fn position(&self) -> u64 {
        self.passed.saturating_add(self.at)
    }

    /// Returns the bytes of all its segments now.
    pub fn bytes(&self) -> io::Result<u64> {
        let lengths = segments::numbers(&self.folder)?.into_iter().map(|number| {
            match self.folder.open_file(&segments::name(number)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
                file => file?.metadata().map(|metadata| metadata.len()),
            }
        });
        lengths.sum()
    }

    /// Reads the next block, and gives its contents to `take`.
    pub fn read_next(
        &mut self,
        selection: &Selection<'_>,
        take: &mut dyn FnMut(Item<'_>),
    ) -> Result<Progress> {
        let context = |segment| move || format!("reading segment {segment} of the recording");
        let next = self.next_block(selection).with_context(context(self.segment))?;
        let Some((header, is_passed)) = next else {
            return self.next_segment().with_context(context(self.segment));
        };
        if is_passed {
            return Ok(Progress::Read);
        }
        let rest = mem::take(&mut self.rest);
        let known = match Block::checked(header, &rest) {
            Some(block) => self.take_block(&block, selection, take),
            None => None,
        };
        self.rest = rest;
        if known.is_none() {
            self.damage.blocks += 1;
            self.has_passed = true;
        }
        Ok(Progress::Read)
    }

    /// Passes over all that is left. Returns the session's report at the end, if there is one.
    pub fn read_report(&mut self) -> Result<Option<String>> {
        let mut report = None;
        let mut take = |item: Item<'_>| {
            if let Item::End(text) = item {
                report = Some(text);
            }
        };
        while self.read_next(&Selection::NOTHING, &mut take)? == Progress::Read {}
        Ok(report)
    }

    /// Gives the contents of a block to `take`. Returns `None` if the block is damaged.
    fn take_block(
        &mut self,
        block: &Block<'_>,
        selection: &Selection<'_>,
        take: &mut dyn FnMut(Item<'_>),
    ) -> Option<()> {
        match block.header.kind {
            BlockKind::Records if !selection.takes(block) => return Some(()),
            // Each segment repeats the session.
            BlockKind::Session => return Some(()),
            BlockKind::Unknown(_) => {
                self.damage.unknown += 1;
                return Some(());
            }
            _ => block.inflate(&mut self.raw)?,
        }
        match block.header.kind {
            BlockKind::Records => {
                if mem::take(&mut self.has_passed) {
                    take(Item::Gap);
                }
                decode_records(&self.raw, MAX_RECORD_BYTES, |record| take(Item::Record(record)))
            }
            BlockKind::Bindings => {
                let new: NewBindings = serde_json::from_slice(&self.raw).ok()?;
                let known = self.bindings.len();
                let is_sound = new.add_to(&mut self.bindings);
                if let Some(new) = self.bindings.get(known..).filter(|new| !new.is_empty()) {
                    take(Item::Bindings(new));
                }
                is_sound.then_some(())
            }
            BlockKind::Event => {
                let event: Event = serde_json::from_slice(&self.raw).ok()?;
                self.damage.unknown += u64::from(event == Event::Unknown);
                if let Event::RecordsRemoved(removed) = &event {
                    self.begin_after(*removed);
                }
                take(Item::Event(event));
                Some(())
            }
            BlockKind::End => {
                take(Item::End(String::from_utf8(self.raw.clone()).ok()?));
                Some(())
            }
            BlockKind::Session | BlockKind::Unknown(_) => Some(()),
        }
    }

    fn read_session(&mut self) -> Result<Session> {
        let header = match self.next_block(&Selection::ALL)? {
            Some((header, false)) if header.kind == BlockKind::Session => Some(header),
            _ => None,
        };
        let block = header.and_then(|header| Block::checked(header, &self.rest));
        let Some(()) = block.and_then(|block| block.inflate(&mut self.raw)) else {
            bail!("its first block is missing or damaged")
        };
        let session: Session = serde_json::from_slice(&self.raw).context("its first block is damaged")?;
        if !(OLDEST_RECORDS..=WIRE_VERSION).contains(&session.wire_version) {
            bail!(
                "its records have format {}; this ncclflow reads {OLDEST_RECORDS} to {WIRE_VERSION}",
                session.wire_version
            );
        }
        Ok(session)
    }

    /// Finds the next block of the segment and reads its index and body into `rest`. Returns `None` if no
    /// whole block is left. Also tells whether the block is passed over: records of a time that is not asked
    /// for are not even read.
    fn next_block(&mut self, selection: &Selection<'_>) -> io::Result<Option<(BlockHeader, bool)>> {
        let mut bytes = [0; HEADER_BYTES];
        loop {
            if read_at(&self.file, &mut bytes, self.at)? < HEADER_BYTES {
                return Ok(None);
            }
            let header = BlockHeader::from_bytes(&bytes);
            let Some((header, len)) = header.and_then(|header| Some((header, header.rest_bytes()?))) else {
                let skipped = self.find_block()?;
                self.damage.bytes += skipped;
                self.at += skipped;
                self.has_passed = true;
                continue;
            };
            let begin = self.at + HEADER_BYTES as u64;
            let end = begin + len as u64;
            let is_passed = header.kind == BlockKind::Records && !selection.is_of_its_time(&header);
            if is_passed {
                if self.file.metadata()?.len() < end {
                    return Ok(None);
                }
            } else {
                self.rest.resize(len, 0);
                if read_at(&self.file, &mut self.rest, begin)? < len {
                    return Ok(None);
                }
            }
            self.at = end;
            self.has_passed |= is_passed;
            let is_passed = is_passed | (header.kind == BlockKind::Records && !self.count(&header));
            self.note_times(&header);
            return Ok(Some((header, is_passed)));
        }
    }

    /// Notes that the segment holds what lasts of those before it.
    fn begin_after(&mut self, RemovedRecords { records, lasting, .. }: RemovedRecords) {
        self.gap = 0;
        self.known_until_ns = Some(self.span_ns.map_or(0, |(_, last_ns)| last_ns));
        let missed = records.saturating_sub(self.records);
        self.damage.removed = self.damage.removed.saturating_add(missed);
        self.records = self.records.max(records);
        self.damage.removed_lasting = self.damage.removed_lasting.max(lasting);
    }

    /// Counts a block of records. Returns `false` if it was read before.
    fn count(&mut self, header: &BlockHeader) -> bool {
        let missing = mem::take(&mut self.gap);
        self.damage.missing_segments = self.damage.missing_segments.saturating_add(missing);
        self.has_passed |= missing > 0;
        let records = u64::from(header.records);
        match self.known_until_ns {
            None => self.records = self.records.saturating_add(records),
            Some(known_until_ns) if header.last_ns <= known_until_ns => return false,
            // These records are not missed after all.
            Some(_) => self.damage.removed = self.damage.removed.saturating_sub(records),
        }
        true
    }

    fn note_times(&mut self, header: &BlockHeader) {
        // A block with marks only has no time.
        if header.kind == BlockKind::Records && header.last_ns > 0 {
            let (first, last) = self.span_ns.unwrap_or((header.first_ns, header.last_ns));
            self.span_ns = Some((first.min(header.first_ns), last.max(header.last_ns)));
        }
    }

    /// Returns the bytes from here to what may be the next block.
    fn find_block(&self) -> io::Result<u64> {
        let (mut bytes, mut skipped) = (vec![0; SEARCH], 1);
        loop {
            let len = read_at(&self.file, &mut bytes, self.at + skipped)?;
            let found = bytes.get(..len).unwrap_or_default();
            if let Some(at) = memmem::find(found, &BlockHeader::MAGIC) {
                return Ok(skipped + at as u64);
            }
            if len < SEARCH {
                return Ok(skipped + len as u64);
            }
            // The magic may stand across the end of these bytes.
            skipped += (SEARCH - BlockHeader::MAGIC.len()) as u64;
        }
    }

    /// Goes on to the next segment, if it exists and this one has no more.
    fn next_segment(&mut self) -> Result<Progress> {
        let len = self.file.metadata()?.len();
        let next = segments::numbers(&self.folder)?.into_iter().find(|number| *number > self.segment);
        let Some(next) = next else { return Ok(Progress::AtEnd) };
        // Everything that was written before the next segment was made is there by now.
        if self.file.metadata()?.len() > len {
            return Ok(Progress::Read);
        }
        let cut = len.saturating_sub(self.at);
        self.damage.bytes += cut;
        self.has_passed |= cut > 0;
        self.passed = self.passed.saturating_add(len);
        self.file = match open_segment(&self.folder, next) {
            // The segment was removed in this moment; the one that holds what lasts of it exists.
            Err(error) if is_not_found(&error) => return Ok(Progress::Read),
            opened => opened?,
        };
        self.gap = u64::from(next.saturating_sub(self.segment).saturating_sub(1));
        (self.segment, self.at, self.known_until_ns) = (next, PREAMBLE as u64, None);
        Ok(Progress::Read)
    }
}

fn open_segment(folder: &OutputDir, number: u32) -> Result<File> {
    let name = segments::name(number);
    let shown = || format!("`{}/{name}`", folder.path().display());
    let file = folder.open_file(&name).with_context(|| format!("cannot open {}", shown()))?;
    let mut preamble = [0; PREAMBLE];
    let is_ours = (&file).read_exact(&mut preamble).is_ok() && preamble.starts_with(SEGMENT_MAGIC);
    let [.., major, major_high, _, _] = preamble;
    match u16::from_le_bytes([major, major_high]) {
        _ if !is_ours => bail!("{} is not a segment of an ncclflow recording", shown()),
        MAJOR => Ok(file),
        newer => bail!(
            "{} is of recording format {newer}; this ncclflow reads format {MAJOR}: use the ncclflow that wrote it, or a newer one",
            shown()
        ),
    }
}

fn is_not_found(error: &anyhow::Error) -> bool {
    let causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.into_iter().any(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Reads as many bytes as there are.
pub(super) fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut have = 0;
    while let Some(rest) = bytes.get_mut(have..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at + have as u64) {
            Ok(0) => break,
            Ok(len) => have += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(have)
}
