//! Where the recording has reached its limit or its age, the oldest segments go, and what lasts of them
//! stays.

use std::time::Duration;

use flow::wire::{ConnectorsSpans, Span};

use super::*;

/// Cookie of a probe whose records last: a block with one of them does.
const LASTING: u16 = 1;
const OTHER: u16 = 0;

/// Distance of lasting records, for most tests: every record with such a number lasts.
const LASTS: u64 = 20_000;

/// Makes a record whose bytes hardly predict those of the next.
fn noise(number: u64, probe: u16) -> Vec<u8> {
    let header = RecordHeader {
        len: u16::try_from(RecordHeader::SIZE + 64).unwrap(),
        probe,
        tgid: 7,
        hit: number,
        ts_ns: 1_000_000_000 * (number + 1),
        ..RecordHeader::default()
    };
    let mut bytes = header.to_bytes().to_vec();
    let mut state = number + 1;
    for _ in 0..8 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    bytes
}

fn bindings() -> Vec<Binding> {
    let connectors = ConnectorsSpans { channel: Span { at: 0, len: 8, rests_on: 0 }, connectors: Vec::new() };
    let binding = |kind| Binding { kind, decoder: Arc::new(decoder()), host: None };
    vec![binding(ProbeKind::Head), binding(ProbeKind::Connectors(connectors))]
}

/// A writer of blocks of 100 records, of which some last.
struct Blocks {
    writer: RecordingWriter,
    number: u64,
    /// Every record whose number is a multiple of this lasts.
    lasts: u64,
}

impl Blocks {
    fn new(dir: &OutputDir, max_age: Option<Duration>) -> Self {
        let mut writer = RecordingWriter::create(dir, session()).unwrap().keeping_for(max_age);
        writer.bind(|known| *known = bindings());
        Self { writer, number: 0, lasts: LASTS }
    }

    fn write(&mut self, blocks: u64) {
        for _ in 0..blocks {
            self.push(100);
            self.writer.close_block().unwrap();
        }
    }

    /// Pushes a batch of records, to which more can come in a block.
    fn push(&mut self, records: u64) {
        let mut batch = Batch::default();
        for _ in 0..records {
            let lasts = self.number.is_multiple_of(self.lasts);
            batch.push(&noise(self.number, if lasts { LASTING } else { OTHER }));
            self.number += 1;
        }
        self.writer.push(&Arc::new(batch)).unwrap();
    }
}

fn lasts(number: u64) -> bool {
    number.is_multiple_of(LASTS)
}

/// Reads all that is there, and returns the numbers of the records.
fn read_on(reader: &mut RecordingReader) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut take = |item: Item<'_>| {
        if let Item::Record(bytes) = item {
            let header = RecordHeader::from_bytes(bytes).unwrap();
            assert_eq!(bytes, noise(header.hit, header.probe), "a record is what was written");
            numbers.push(header.hit);
        }
    };
    while reader.read_next(&Selection::ALL, &mut take).unwrap() == Progress::Read {}
    numbers
}

fn reader(dir: &OutputDir) -> RecordingReader {
    RecordingReader::open(OutputDir::open(&dir.path().join(FOLDER)).unwrap()).unwrap()
}

/// Checks what was read: the latest records without a gap, before them whole blocks that last, and no record
/// twice.
fn assert_latest(numbers: &[u64], written: u64) -> u64 {
    assert_eq!(numbers.last(), Some(&(written - 1)));
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "in their order, none twice");
    let gap = numbers.windows(2).rposition(|pair| pair[0] + 1 != pair[1]);
    let whole_from = gap.map_or(numbers[0], |gap| numbers[gap + 1]);
    let lasting: Vec<u64> = numbers.iter().copied().take_while(|number| *number < whole_from).collect();
    assert!(lasting.chunks(100).all(|block| lasts(block[0]) && block.len() == 100), "{lasting:?}");
    whole_from
}

/// Returns the records before the first gap.
fn blocks_before_the_gap(numbers: &[u64]) -> &[u64] {
    let gap = numbers.windows(2).position(|pair| pair[0] + 1 != pair[1]).unwrap();
    &numbers[..=gap]
}

#[test]
fn at_its_limit_a_recording_keeps_the_latest_records_and_what_they_need() {
    const LIMIT: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let dir = OutputDir::open(folder.path()).unwrap().limited(LIMIT, false).unwrap();
    let mut blocks = Blocks::new(&dir, None);
    // A reader that follows, and one that has not read on for long.
    let (mut follower, mut follower_read) = (reader(&dir), Vec::new());
    let (mut late, mut late_read) = (reader(&dir), Vec::new());
    for round in 0..60 {
        blocks.write(10);
        follower_read.extend(read_on(&mut follower));
        if round == 3 {
            late_read.extend(read_on(&mut late));
        }
        let used: u64 = fs::read_dir(folder.path().join(FOLDER))
            .unwrap()
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum();
        assert!(used <= LIMIT, "{used}");
    }
    let (written, totals) = (blocks.number, blocks.writer.totals());
    blocks.writer.write_end("{}").unwrap();
    assert_eq!((totals.lost, totals.records), (0, written));
    assert!(totals.removed_records > 20_000 && totals.removed_segments > 5, "{totals:?}");

    assert_eq!(follower_read, (0..written).collect::<Vec<_>>());
    assert_eq!(follower.damage(), Damage::default());

    let mut whole = reader(&dir);
    let numbers = read_on(&mut whole);
    let whole_from = assert_latest(&numbers, written);
    let lasting = numbers.iter().filter(|number| **number < whole_from).count() as u64;
    assert_eq!(lasting, whole_from.div_ceil(LASTS) * 100, "all that lasts is there");
    assert_eq!(whole_from, totals.removed_records);
    assert_eq!(whole.damage(), Damage { removed: written - numbers.len() as u64, ..Damage::default() });

    late_read.extend(read_on(&mut late));
    // This reader reads to the end of the segment that it had open, although that is removed.
    let known = late_read.iter().zip(0..).take_while(|(number, expected)| *number == expected).count();
    assert!(known >= 4000);
    assert_latest(&late_read[known..], written);
    assert_eq!(late.damage(), Damage { removed: written - late_read.len() as u64, ..Damage::default() });
}

#[test]
fn records_that_are_too_old_go_by_segments() {
    let folder = tempfile::tempdir().unwrap();
    let dir = OutputDir::open(folder.path()).unwrap().limited(u64::MAX, false).unwrap();
    // Records come once a second, by their clock.
    let mut blocks = Blocks::new(&dir, Some(Duration::from_secs(16_000)));
    for _ in 0..500 {
        blocks.write(1);
        blocks.writer.remove_old(1_000_000_000 * blocks.number).unwrap();
    }
    let written = blocks.number;
    let numbers = read_on(&mut reader(&dir));
    let whole_from = assert_latest(&numbers, written);
    assert!((written - 17_100..=written - 16_000).contains(&whole_from), "{whole_from} of {written}");
    // No more records come: in the end all of them are too old.
    blocks.writer.remove_old(1_000_000_000 * (written + 17_001)).unwrap();
    let numbers = read_on(&mut reader(&dir));
    assert!(!numbers.is_empty() && numbers.chunks(100).all(|block| lasts(block[0])), "{numbers:?}");
    blocks.write(1);
    assert_latest(&read_on(&mut reader(&dir)), blocks.number);
}

/// Lasting records came with many that do not last: together more than there is room for what lasts.
#[test]
fn what_lasts_stays_whatever_came_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let dir = OutputDir::open(folder.path()).unwrap().limited(1 << 20, false).unwrap();
    let mut blocks = Blocks { number: 1, ..Blocks::new(&dir, None) };
    // Five batches, 70 KB, which no limit of time or size makes into blocks.
    for _ in 0..5 {
        blocks.push(100);
    }
    let first = blocks.number - 1;
    blocks.lasts = first + 1;
    for _ in 0..5 {
        blocks.push(100);
    }
    blocks.lasts = u64::MAX;
    while blocks.writer.totals().removed_segments < 3 {
        blocks.write(1);
    }
    let mut reader = reader(&dir);
    let numbers = read_on(&mut reader);
    let lasting = blocks_before_the_gap(&numbers);
    assert_eq!(
        lasting,
        (first + 1..first + 101).collect::<Vec<_>>(),
        "the batch with what lasts, and no other"
    );
    assert_eq!((reader.damage().removed_lasting, blocks.writer.totals().removed_lasting), (0, 0));
}

/// Lasting records without room are counted.
#[test]
fn what_lasts_and_has_no_room_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let dir = OutputDir::open(folder.path()).unwrap().limited(1 << 20, false).unwrap();
    let mut blocks = Blocks::new(&dir, None);
    blocks.push(2000);
    blocks.lasts = u64::MAX;
    while blocks.writer.totals().removed_segments < 3 {
        blocks.write(1);
    }
    let mut reader = reader(&dir);
    let numbers = read_on(&mut reader);
    assert!(numbers[0] >= 2000, "{}", numbers[0]);
    assert_eq!((reader.damage().removed_lasting, blocks.writer.totals().removed_lasting), (2000, 2000));
}

/// `session.json` grows and shrinks beside the recording, at every moment: what lasts is never lost for it,
/// and what was removed is said.
#[test]
fn what_lasts_stays_whatever_the_report_takes() {
    const LIMIT: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let dir = OutputDir::open(folder.path()).unwrap().limited(LIMIT, false).unwrap();
    dir.keep(Share::Report, 160_000);
    // As many records last as may.
    let mut blocks = Blocks { lasts: 500, ..Blocks::new(&dir, None) };
    let report = |bytes: usize| {
        let text = vec![b' '; bytes];
        dir.replace_file(Share::Report, "session.json", |file| file.write_all(&text)).unwrap();
    };
    while blocks.writer.totals().removed_segments < 3 {
        blocks.write(1);
    }
    for round in 0..60 {
        // Each round has less room left.
        blocks.write(round % 20);
        report(75_000);
        blocks.write(1);
        let mut reader = reader(&dir);
        let numbers = read_on(&mut reader);
        let gaps = numbers.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
        assert!(numbers[0].is_multiple_of(500) && gaps >= 2, "round {round}: several blocks last");
        assert!(reader.damage().removed > 0 && reader.damage().missing_segments == 0, "round {round}");
        report(2_000);
    }
}

/// A segment of which nothing was kept is counted as missing.
#[test]
fn a_segment_that_is_missing_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let dir = OutputDir::open(folder.path()).unwrap().limited(1 << 20, false).unwrap();
    let mut blocks = Blocks::new(&dir, None);
    while blocks.writer.totals().segments < 5 {
        blocks.write(1);
    }
    let remove = |number: u32| {
        let name = folder.path().join(FOLDER).join(crate::format::segments::name(number));
        fs::remove_file(name).unwrap();
    };
    let missing = || {
        let mut reader = reader(&dir);
        read_on(&mut reader);
        reader.damage().missing_segments
    };
    assert_eq!(missing(), 0);
    remove(3);
    assert_eq!(missing(), 1);
    remove(1);
    assert_eq!(missing(), 2);
    remove(2);
    assert_eq!(missing(), 3);
}

/// Bindings of the first segment stand in several blocks, and in one of the next segment, which is smaller.
/// Later bindings last all the same.
#[test]
fn bindings_that_came_later_last_too() {
    let folder = tempfile::tempdir().unwrap();
    let dir = OutputDir::open(folder.path()).unwrap().limited(1 << 20, false).unwrap();
    let writer = RecordingWriter::create(&dir, session()).unwrap();
    let mut blocks = Blocks { writer, number: 0, lasts: LASTS };
    let bind = |blocks: &mut Blocks| blocks.writer.bind(|known| known.push(bindings().remove(0)));
    for _ in 0..6 {
        bind(&mut blocks);
        blocks.write(1);
    }
    while blocks.writer.totals().segments < 2 {
        blocks.write(1);
    }
    bind(&mut blocks);
    while blocks.writer.totals().removed_segments < 2 {
        blocks.write(1);
    }
    // These are the bindings of the first segment that is left: what lasts stands between two marks.
    let (mut reader, mut bound, mut marks) = (reader(&dir), 0, 0);
    while marks < 2 {
        let mut take = |item: Item<'_>| match item {
            Item::Bindings(new) => bound += new.len(),
            Item::Event(Event::RecordsRemoved(_)) => marks += 1,
            _ => {}
        };
        assert_eq!(reader.read_next(&Selection::ALL, &mut take).unwrap(), Progress::Read);
    }
    assert_eq!(bound, 7);
}
