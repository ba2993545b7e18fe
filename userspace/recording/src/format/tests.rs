use flow::{
    decode::Decoder,
    recording::{Batch, Binding, BlockAbout, BlockKind, Event, Member, Session, append_block},
    schema::{GpuRow, LaunchThreadRow},
    session::RecordingTotals,
    wire::ProbeKind,
};
use std::{
    collections::HashMap,
    fmt::Debug,
    fs::{self, OpenOptions},
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex},
};

use nccl_library::nccl::NameTables;
use ncclflow_common::{RecordHeader, WIRE_VERSION};

use super::*;
use crate::sinks::{OutputDir, Share};

mod removed_segments;

/// Rows that others have found so far.
#[derive(Clone, Debug, Default)]
struct Found<T>(Arc<Mutex<Vec<Arc<T>>>>);

impl<T> Found<T> {
    fn add(&self, rows: impl IntoIterator<Item = T>) {
        self.0.lock().unwrap().extend(rows.into_iter().map(Arc::new));
    }
}

impl<T: Debug + Send + Sync> Facts<Arc<T>> for Found<T> {
    fn since(&self, first: u64) -> (Vec<Arc<T>>, u64) {
        let rows = self.0.lock().unwrap();
        let passed = usize::try_from(first).unwrap_or(usize::MAX).min(rows.len());
        (rows[passed..].to_vec(), rows.len() as u64)
    }
}

/// Makes a record of process 7, 40 bytes behind its header.
fn record(number: u64) -> Vec<u8> {
    let header = RecordHeader {
        len: u16::try_from(RecordHeader::SIZE + 40).unwrap(),
        tgid: 7,
        hit: number,
        ts_ns: 1_000_000 + number * 1000,
        ..RecordHeader::default()
    };
    [&header.to_bytes()[..], &[u8::try_from(number % 251).unwrap(); 40]].concat()
}

fn batch(numbers: std::ops::Range<u64>) -> Arc<Batch> {
    let mut batch = Batch::default();
    numbers.for_each(|number| batch.push(&record(number)));
    Arc::new(batch)
}

fn session() -> Session {
    Session { wire_version: WIRE_VERSION, report: "{}".to_owned(), ..Session::default() }
}

fn decoder() -> Decoder {
    let fields = ["op_count", "channel_id", "nsteps", "nbytes", "chunk_size", "slice_steps", "chunk_steps"];
    let fields = fields.into_iter().chain(["root", "dtype", "red_op", "pattern", "protocol"]);
    let fields: HashMap<&str, _> =
        fields.map(|name| (name, serde_json::json!({"at": 0, "size": 8}))).collect();
    Decoder {
        op_fields: serde_json::from_value(serde_json::json!(fields)).unwrap(),
        names: NameTables::default(),
        plan_fields: None,
        op_work: None,
        symmetric_kernels: Vec::new(),
        communicator: None,
    }
}

/// Writes three blocks of 100 records each, an event before the last, and the end.
fn write(folder: &Path) -> RecordingTotals {
    let mut writer = RecordingWriter::create(&OutputDir::open(folder).unwrap(), session()).unwrap();
    for block in 0..3 {
        writer.push(&batch(block * 100..block * 100 + 50)).unwrap();
        writer.push(&batch(block * 100 + 50..block * 100 + 100)).unwrap();
        if block == 1 {
            writer.push_event(&Event::ProcessEnded { tgid: 7, at_ns: 5 }).unwrap();
        }
        writer.close_block().unwrap();
    }
    let totals = writer.totals();
    writer.write_end("{\"state\":\"complete\"}").unwrap();
    totals
}

/// Reads a recording: records as their numbers, the event as `u64::MAX - 1`, the end as `u64::MAX`.
fn read(folder: &Path, selection: &Selection<'_>) -> anyhow::Result<(Vec<u64>, Damage)> {
    let mut reader = RecordingReader::open(OutputDir::open(&folder.join(FOLDER)).unwrap())?;
    let mut read = Vec::new();
    let mut take = |item: Item<'_>| match item {
        Item::Record(bytes) => {
            let hit = RecordHeader::from_bytes(bytes).unwrap().hit;
            assert_eq!(bytes, record(hit), "a record is what was written");
            read.push(hit);
        }
        Item::Event(event) => {
            assert_eq!(event, Event::ProcessEnded { tgid: 7, at_ns: 5 });
            read.push(u64::MAX - 1);
        }
        Item::End(report) => {
            assert_eq!(report, "{\"state\":\"complete\"}");
            read.push(u64::MAX);
        }
        Item::Bindings(_) | Item::Gap => {}
    };
    while reader.read_next(selection, &mut take)? == Progress::Read {}
    Ok((read, reader.damage()))
}

fn all() -> Vec<u64> {
    (0..200).chain([u64::MAX - 1]).chain(200..300).chain([u64::MAX]).collect()
}

fn segment(folder: &Path) -> std::path::PathBuf {
    folder.join(FOLDER).join("000001.nfr")
}

#[test]
fn what_was_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let totals = write(folder.path());
    assert_eq!(read(folder.path(), &Selection::ALL).unwrap(), (all(), Damage::default()));
    let bytes = fs::metadata(segment(folder.path())).unwrap().len();
    assert_eq!((totals.records, totals.blocks, totals.segments, totals.lost), (300, 5, 1, 0));
    assert!(totals.bytes < bytes && bytes < 1200, "{totals:?} of {bytes}");
}

#[test]
fn a_part_is_read_by_its_time() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let selection = Selection { from_ns: 1_110_000, to_ns: 1_150_000, ..Selection::ALL };
    let (read, _) = read(folder.path(), &selection).unwrap();
    assert_eq!(read, (100..200).chain([u64::MAX - 1, u64::MAX]).collect::<Vec<_>>());
}

/// What is known of things that come and go does not hold any longer.
#[test]
fn what_is_passed_over_or_damaged_is_told_before_what_follows() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let gaps = |selection: &Selection<'_>| {
        let dir = OutputDir::open(&folder.path().join(FOLDER)).unwrap();
        let (mut reader, mut gaps, mut last) = (RecordingReader::open(dir).unwrap(), Vec::new(), None);
        let mut take = |item: Item<'_>| match item {
            Item::Record(bytes) => last = Some(RecordHeader::from_bytes(bytes).unwrap().hit),
            Item::Gap => gaps.push(last),
            _ => {}
        };
        while reader.read_next(selection, &mut take).unwrap() == Progress::Read {}
        gaps
    };
    assert_eq!(gaps(&Selection::ALL), []);
    assert_eq!(gaps(&Selection { to_ns: 1_110_000, ..Selection::ALL }), []);
    assert_eq!(gaps(&Selection { from_ns: 1_110_000, ..Selection::ALL }), [None]);
    let mut bytes = fs::read(segment(folder.path())).unwrap();
    let magic = flow::recording::BlockHeader::MAGIC;
    let blocks: Vec<usize> = memchr::memmem::find_iter(&bytes, &magic).collect();
    // The first is the session's; the last byte of the second block of records.
    bytes[blocks[3] - 1] ^= 1;
    fs::write(segment(folder.path()), &bytes).unwrap();
    assert_eq!(gaps(&Selection::ALL), [Some(99)]);
}

#[test]
fn cut_anywhere_whole_blocks_are_read() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let whole = fs::read(segment(folder.path())).unwrap();
    let (expected, mut longest) = (all(), 0);
    for len in 0..whole.len() {
        fs::write(segment(folder.path()), &whole[..len]).unwrap();
        let Ok((read, damage)) = read(folder.path(), &Selection::ALL) else {
            assert_eq!(longest, 0, "cut at {len}");
            continue;
        };
        assert_eq!((read.as_slice(), damage), (&expected[..read.len()], Damage::default()), "cut at {len}");
        assert!(read.len() >= longest);
        longest = read.len();
    }
    assert_eq!(longest, 301);
}

#[test]
fn a_bit_that_changed_costs_its_block_and_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let whole = fs::read(segment(folder.path())).unwrap();
    let mut intact = 0;
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        fs::write(segment(folder.path()), &changed).unwrap();
        // Without the first block nothing can be read.
        let Ok((read, damage)) = read(folder.path(), &Selection::ALL) else { continue };
        if damage == Damage::default() {
            intact += 1;
            assert_eq!(read, all(), "byte {at}");
        } else {
            assert!(damage.blocks + damage.bytes >= 1);
            assert!(read.len() >= 202, "byte {at}: {} of {damage:?}", read.len());
        }
    }
    assert_eq!(intact, 2, "of the preamble the minor version can change");
}

#[test]
fn newer_kinds_are_counted_and_newer_formats_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let mut newer = Vec::new();
    append_block(&mut newer, &BlockAbout::json(BlockKind::Unknown(77)), b"what will be").unwrap();
    append_block(&mut newer, &BlockAbout::json(BlockKind::Event), br#"{"event":"landed","on":"Mars"}"#)
        .unwrap();
    let path = segment(folder.path());
    OpenOptions::new().append(true).open(&path).unwrap().write_all(&newer).unwrap();
    let mut reader = RecordingReader::open(OutputDir::open(&folder.path().join(FOLDER)).unwrap()).unwrap();
    while reader.read_next(&Selection::ALL, &mut |_| {}).unwrap() == Progress::Read {}
    assert_eq!(reader.damage(), Damage { unknown: 2, ..Damage::default() });

    let mut bytes = fs::read(&path).unwrap();
    bytes[12] += 1;
    fs::write(&path, &bytes).unwrap();
    let error = format!("{:#}", read(folder.path(), &Selection::ALL).unwrap_err());
    assert!(error.contains("recording format 2; this ncclflow reads format 1"), "{error}");
    fs::write(&path, b"something else altogether").unwrap();
    assert!(read(folder.path(), &Selection::ALL).is_err());
}

#[test]
fn what_gpus_and_threads_do_after_the_end_is_not_of_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    let (gpus, threads) = (Found::default(), Found::default());
    let find = |times: &[u64]| {
        gpus.add(times.iter().map(|ts_ns| GpuRow { ts_ns: *ts_ns, ..GpuRow::default() }));
        threads
            .add(times.iter().map(|ts_ns| LaunchThreadRow { ts_ns: *ts_ns, ..LaunchThreadRow::default() }));
    };
    find(&[1]);
    let writer = RecordingWriter::create(&OutputDir::open(folder.path()).unwrap(), session()).unwrap();
    let mut writer = writer.telling_gpus(Some(gpus.clone())).telling_launch_threads(threads.clone());
    find(&[2, 3]);
    writer.push(&batch(0..10)).unwrap();
    writer.write_end("{\"state\":\"makingFiles\"}").unwrap();
    // Files of lines are made between the two ends; the second end takes the place of the first.
    find(&[4]);
    writer.write_end("{\"state\":\"complete\"}").unwrap();
    let mut reader = RecordingReader::open(OutputDir::open(&folder.path().join(FOLDER)).unwrap()).unwrap();
    let mut told = [Vec::new(), Vec::new()];
    let mut take = |item: Item<'_>| match item {
        Item::Event(Event::Gpus { rows }) => told[0].extend(rows.iter().map(|row| row.ts_ns)),
        Item::Event(Event::LaunchThreads { rows }) => told[1].extend(rows.iter().map(|row| row.ts_ns)),
        _ => {}
    };
    while reader.read_next(&Selection::ALL, &mut take).unwrap() == Progress::Read {}
    assert_eq!(told, [[2, 3], [2, 3]]);
}

#[test]
fn bindings_come_before_their_records_and_once_for_each_segment() {
    let folder = tempfile::tempdir().unwrap();
    let binding = Binding { kind: ProbeKind::Head, decoder: Arc::new(decoder()), host: None };
    let dir = OutputDir::open(folder.path()).unwrap();
    let mut writer = RecordingWriter::create(&dir, session()).unwrap();
    writer.bind(|known| known.extend([binding.clone(), binding.clone()]));
    writer.push(&batch(0..10)).unwrap();
    writer.bind(|bindings| bindings.push(binding));
    writer.push(&batch(10..20)).unwrap();
    writer.write_end("{\"state\":\"complete\"}").unwrap();
    let mut reader = RecordingReader::open(OutputDir::open(&folder.path().join(FOLDER)).unwrap()).unwrap();
    let (mut bound, mut records) = (0, 0);
    let mut take = |item: Item<'_>| match item {
        Item::Bindings(new) => bound += new.len(),
        Item::Record(_) => {
            assert_eq!(bound, 3);
            records += 1;
        }
        _ => {}
    };
    while reader.read_next(&Selection::ALL, &mut take).unwrap() == Progress::Read {}
    assert_eq!((bound, records), (3, 20));
    for (tgid, expected) in [(7, 20), (8, 0)] {
        let member = |member: &Member| member.tgid == tgid;
        let selection = Selection { member: Some(&member), ..Selection::ALL };
        let (read, _) = read(folder.path(), &selection).unwrap();
        assert_eq!(read.iter().filter(|hit| **hit < 100).count(), expected);
    }
}
