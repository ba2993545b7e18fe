use ncclflow_common::WIRE_VERSION;

use super::*;
use crate::format::{Item, Progress, RecordingReader, Selection};
use flow::identity::ProcessFacts;

/// Processes that are known from the beginning.
#[derive(Debug)]
struct Processes<const N: usize>([u32; N]);

impl<const N: usize> Facts<(u64, Event)> for Processes<N> {
    fn since(&self, first: u64) -> (Vec<(u64, Event)>, u64) {
        let process =
            |pid: &u32| Event::Process(Box::new(ProcessFacts { pid: *pid, ..ProcessFacts::default() }));
        let numbered = (0..).zip(self.0.iter().map(process));
        (numbered.filter(|(number, _)| *number >= first).collect(), N as u64)
    }
}

impl<const N: usize> WhoFacts for Processes<N> {
    fn note(&mut self, _: &Binding, _: &RecordView<'_>) {}

    fn retain_known(&self, pids: &mut HashSet<u32>) {
        pids.retain(|pid| self.0.contains(pid));
    }
}

/// Each segment can be read alone, and a day of short processes does not fill the later ones.
#[test]
fn each_segment_says_who_the_processes_are_that_have_not_ended() {
    let folder = tempfile::tempdir().unwrap();
    let session = Session { wire_version: WIRE_VERSION, ..Session::default() };
    let writer = RecordingWriter::create(&OutputDir::open(folder.path()).unwrap(), session);
    let mut writer = writer.unwrap().telling_who(Processes([1, 2, 3]));
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
    let mut reader = RecordingReader::open(OutputDir::open(&folder.path().join(FOLDER)).unwrap()).unwrap();
    let mut read = Vec::new();
    let mut take = |item: Item<'_>| match item {
        Item::Event(Event::Process(facts)) => read.push(facts.pid),
        Item::Record(_) => read.push(0),
        _ => {}
    };
    while reader.read_next(&Selection::ALL, &mut take).unwrap() == Progress::Read {}
    assert_eq!(read, [1, 2, 3, 0, 0, 1, 3, 0, 1, 3, 0]);
}

/// The memory of ended processes does not grow with their number.
#[test]
fn processes_that_ended_long_ago_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let session = Session { wire_version: WIRE_VERSION, ..Session::default() };
    let writer = RecordingWriter::create(&OutputDir::open(folder.path()).unwrap(), session);
    let mut writer = writer.unwrap().telling_who(Processes([7]));
    for tgid in 0..20_000 {
        writer.push_event(&Event::ProcessEnded { tgid, at_ns: u64::from(tgid) }).unwrap();
    }
    assert!(writer.ended.len() <= MAX_ENDED, "{} are remembered", writer.ended.len());
    assert!(writer.ended.contains(&7), "something is known of it that a later segment would repeat");
}
