use std::{
    collections::HashSet,
    fs,
    io::Write as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use flow::{
    made::rows::{message_rows, op_row},
    schema::{MessageRow, OpRow},
};
use serde_json::Value;

use super::*;
use crate::sinks::{FlowRanks, flow_rank::FlowRank, json_lines::JsonLinesFile, output_file::Source};

/// Bytes kept for the report of a window.
const REPORT: u64 = 20_000;

/// Bytes on disk: blocks of files, each once, and one of each folder.
fn taken(path: &Path) -> u64 {
    let (mut sum, mut seen, mut folders) = (0, HashSet::new(), vec![path.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        sum += 4096;
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if seen.insert(metadata.ino()) {
                sum += metadata.len().div_ceil(4096) * 4096;
            }
        }
    }
    sum
}

fn limited(limit: u64, compress: bool) -> (tempfile::TempDir, OutputDir) {
    let parent = tempfile::tempdir().unwrap();
    let dir = OutputDir::create(&parent.path().join("out")).unwrap();
    (parent, dir.limited(limit, compress).unwrap())
}

fn head(seq: u64) -> OpRow {
    OpRow { seq, peers: Vec::new(), ..op_row() }
}

fn step(seq: u64) -> MessageRow {
    MessageRow { seq, ..message_rows().remove(0) }
}

/// Returns a message's line, so much longer than it is.
fn long_line(row: &MessageRow, length: usize) -> Value {
    let mut line = serde_json::to_value(row).unwrap();
    line["rest"] = "x".repeat(length).into();
    line
}

/// Files of a rank.
struct Rank {
    flows: JsonLinesFile,
    steps: JsonLinesFile,
    aggregate: FlowRank,
    lines: u64,
}

impl Rank {
    fn new(dir: &OutputDir) -> Option<Self> {
        let folder = dir.subfolder("0x1").ok()?;
        let file = |name: &str, source| folder.create_source(name, source).ok().map(JsonLinesFile::new);
        let flows = file("proxy_flow_rank0.jsonl", Source::ProxyFlow)?;
        let steps = file("flow_steps_rank0.jsonl", Source::FlowSteps)?;
        Some(Self { flows, steps, aggregate: FlowRank::default(), lines: 0 })
    }

    fn push(&mut self, length: usize) {
        self.lines += 1;
        let (op, message) = (head(self.lines), step(self.lines));
        let before = (self.flows.bytes(), self.steps.bytes());
        self.flows.push(|line| serde_json::to_writer(line, &op)).unwrap();
        self.steps.push(|line| serde_json::to_writer(line, &long_line(&message, length))).unwrap();
        if self.flows.bytes() > before.0 {
            self.aggregate.add_op(&op).unwrap();
        }
        if self.steps.bytes() > before.1 {
            self.aggregate.add_message(&message, self.steps.bytes());
        }
    }

    fn flush(&mut self) {
        self.flows.flush().unwrap();
        self.steps.flush().unwrap();
    }

    fn lost(&self) -> u64 {
        let lost = [self.flows.lost(), self.steps.lost()];
        assert!(lost.iter().all(|lost| lost.lines == lost.over_max_size));
        lost.iter().map(|lost| lost.lines).sum()
    }
}

/// Writes the files of a window's end.
fn finish(dir: &OutputDir, rank: Rank, report: u64) {
    let written = rank.aggregate.write(&dir.open_subfolder("0x1").unwrap(), 0).unwrap();
    assert_eq!(written, FlowRanks { written: 1, ..FlowRanks::default() });
    let report = vec![b' '; usize::try_from(report).unwrap()];
    dir.replace_file(Share::Report, "session.json", |file| file.write_all(&report)).unwrap();
    dir.open_subfolder("0x1").unwrap().link("flow_rank0.json", "flow_rank0_pid7_1.json").unwrap();
}

#[test]
fn a_folder_never_takes_more_than_its_limit_whatever_is_written() {
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut removed, mut lost, mut finished) = (0, 0, 0);
    for limit in [300_000, 500_001, 1 << 20, 3_000_000] {
        let (_parent, dir) = limited(limit, false);
        let path = dir.path().to_path_buf();
        dir.keep(Share::Report, 2 * REPORT);
        dir.keep(Share::Opening, 2 * REPORT);
        for number in 0..30 {
            let Ok(window) = dir.window(&format!("window_{number}"), REPORT, "") else {
                panic!("room for the next window is kept");
            };
            let rank = Rank::new(&window);
            let size = random(limit);
            let length = usize::try_from(random(2000)).unwrap();
            if let Some(mut rank) = rank {
                for _ in 0..size / (length as u64 + 500) {
                    rank.push(length);
                    if random(20) == 0 {
                        rank.flush();
                    }
                    if random(50) == 0 {
                        assert!(taken(&path) <= limit, "{number}: {} {limit}", taken(&path));
                    }
                }
                rank.flush();
                assert!(taken(&path) <= limit, "{number}: {} {limit}", taken(&path));
                lost += rank.lost();
                finish(&window, rank, random(REPORT));
                finished += 1;
                assert!(taken(&path) <= limit, "{number}: {} {limit}", taken(&path));
            }
            window.complete();
            let main = vec![b' '; usize::try_from(random(REPORT)).unwrap()];
            dir.replace_file(Share::Report, "session.json", |file| file.write_all(&main)).unwrap();
            assert!(taken(&path) <= limit, "{number}: {} {limit}", taken(&path));
            assert!(taken(&path) <= dir.budget().unwrap().report().used_bytes);
        }
        removed += dir.budget().unwrap().report().windows_removed;
    }
    assert!(removed > 20 && lost > 20 && finished > 100, "{removed} {lost} {finished}");
}

#[test]
fn the_oldest_complete_windows_make_room_and_what_others_made_stays() {
    let (_parent, dir) = limited(2 << 20, false);
    let mut paths: Vec<PathBuf> = Vec::new();
    for number in 0..4 {
        let window = dir.window(&format!("window_{number}"), REPORT, "").unwrap();
        let mut rank = Rank::new(&window).unwrap();
        (0..40).for_each(|_| rank.push(800));
        rank.flush();
        assert_eq!(rank.lost(), 0);
        finish(&window, rank, 1000);
        paths.push(window.path().to_path_buf());
        window.complete();
    }
    // Put there by somebody, and put in the place of something of ours.
    fs::write(paths[0].join("notes.txt"), "precious").unwrap();
    let replaced = paths[1].join("0x1/flow_rank0.json");
    fs::remove_file(&replaced).unwrap();
    fs::write(&replaced, "precious").unwrap();
    // Removed by somebody.
    fs::remove_dir_all(&paths[2]).unwrap();
    fs::create_dir(dir.path().join("foreign")).unwrap();

    let window = dir.window("window_4", REPORT, "").unwrap();
    let mut rank = Rank::new(&window).unwrap();
    let budget = dir.budget().unwrap().clone();
    let mut order = Vec::new();
    while rank.lost() == 0 {
        rank.push(800);
        order.extend(budget.take_news().removed);
    }
    assert_eq!(order, ["window_0", "window_1", "window_2", "window_3"]);
    rank.flush();
    assert_eq!(fs::read_to_string(paths[0].join("notes.txt")).unwrap(), "precious");
    assert_eq!(fs::read_dir(&paths[0]).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(&replaced).unwrap(), "precious");
    assert_eq!(fs::read_dir(paths[1].join("0x1")).unwrap().count(), 1);
    assert!(!paths[2].exists() && !paths[3].exists() && dir.path().join("foreign").is_dir());
    let report = budget.report();
    assert_eq!((report.windows_removed, &*report.folders_removed), (4, &*order));

    // The open window alone has reached the limit: lines are lost, and its last files have the room that was
    // kept for them.
    assert!(dir.has_no_room());
    finish(&window, rank, REPORT);
    assert!(taken(dir.path()) <= 2 << 20);
    // Once it is complete, the next one may take its place.
    window.complete();
    assert!(!dir.has_no_room());
    let next = dir.window("window_5", REPORT, "").unwrap();
    let mut rank = Rank::new(&next).unwrap();
    (0..300).for_each(|_| rank.push(800));
    assert_eq!((rank.lost(), budget.take_news().removed), (0, vec!["window_4".to_owned()]));
}

/// A window with a recording of 40,000 bytes and line files.
fn window_with_lines(dir: &OutputDir, number: u64) -> (OutputDir, Rank) {
    let window = dir.window(&format!("window_{number}"), REPORT, "").unwrap();
    let mut recording = window.subfolder("recording").unwrap().create_file("000001.nfr").unwrap();
    recording.write_all(&vec![7; 40_000]).unwrap();
    let mut rank = Rank::new(&window.for_lines().unwrap()).unwrap();
    (0..40).for_each(|_| rank.push(800));
    rank.flush();
    (window, rank)
}

#[test]
fn lines_go_before_recordings_and_the_oldest_first() {
    let (_parent, dir) = limited(2 << 20, false);
    for number in 0..4 {
        let (window, rank) = window_with_lines(&dir, number);
        assert_eq!(rank.lost(), 0);
        window.complete();
    }
    let (_open, rank) = window_with_lines(&dir, 4);
    let budget = dir.budget().unwrap().clone();
    let names = |dir: &OutputDir| dir.names().unwrap();
    let (mut lines, mut windows) = (Vec::new(), Vec::new());
    let mut file = dir.create_file("recording").unwrap();
    while file.write_all(&[0; 4096]).is_ok() {
        let news = budget.take_news();
        for folder in news.lines_removed {
            assert!(windows.is_empty());
            assert_eq!(names(&dir.open_subfolder(&folder).unwrap()), ["recording"]);
            lines.push(folder);
        }
        windows.extend(news.removed);
        assert!(taken(dir.path()) <= 2 << 20);
    }
    assert_eq!(lines, ["window_0", "window_1", "window_2", "window_3"]);
    assert_eq!(windows, lines);
    assert_eq!(rank.lost(), 0);
    assert_eq!(names(&dir), ["recording", "window_4"]);
    assert_eq!(names(&dir.open_subfolder("window_4").unwrap()), ["0x1", "recording"]);
    let MaxSizeReport { lines_removed, windows_removed, .. } = budget.report();
    assert_eq!((lines_removed, windows_removed), (4, 4));
}

#[test]
fn windows_go_at_their_age() {
    let (_parent, dir) = limited(u64::MAX, false);
    for number in 0..3 {
        window_with_lines(&dir, number).0.complete();
    }
    let budget = dir.budget().unwrap();
    budget.remove_older_than(Duration::from_hours(1));
    assert_eq!(dir.names().unwrap().len(), 3);
    for (_, since) in &mut budget.state().complete {
        *since = since.checked_sub(Duration::from_mins(10)).unwrap();
    }
    let (open, _rank) = window_with_lines(&dir, 3);
    window_with_lines(&dir, 4).0.complete();
    budget.remove_older_than(Duration::from_mins(5));
    assert_eq!(dir.names().unwrap(), ["window_3", "window_4"]);
    open.complete();
    let news = budget.take_news();
    assert_eq!((news.removed.len(), news.lines_removed.len(), news.is_first_refusal), (3, 0, false));
    assert_eq!(budget.report().bytes, None);
}

#[test]
fn a_recording_without_windows_loses_lines_and_can_be_completed() {
    let limit = 1 << 20;
    let (_parent, dir) = limited(limit, true);
    dir.keep(Share::Report, 2 * REPORT);
    let small = vec![b' '; 5000];
    dir.replace_file(Share::Report, "session.json", |file| file.write_all(&small)).unwrap();
    let mut rank = Rank::new(&dir).unwrap();
    (0..5000).for_each(|_| rank.push(500));
    rank.flush();
    assert!(rank.lost() > 0);
    assert_eq!(rank.flows.lines() + rank.steps.lines() + rank.lost(), 10_000);
    let budget = dir.budget().unwrap();
    assert!(budget.has_news() && !budget.has_news());
    assert!(budget.take_news().is_first_refusal && !budget.take_news().is_first_refusal);
    assert!(taken(dir.path()) > limit / 6, "most of what is not used for lines is kept for the aggregate");
    for _ in 0..3 {
        report_again(&dir);
        assert!(taken(dir.path()) <= limit);
    }
    let made = rank.aggregate.write(&dir.open_subfolder("0x1").unwrap(), 0).unwrap();
    assert_eq!(made.written + made.over_max_size, 1);
    report_again(&dir);
    assert!(taken(dir.path()) <= limit);
}

/// Writes `session.json` again, as it is again and again.
fn report_again(dir: &OutputDir) {
    let report = vec![b' '; usize::try_from(REPORT).unwrap()];
    dir.replace_file(Share::Report, "session.json", |file| file.write_all(&report)).unwrap();
}

#[test]
fn a_file_larger_than_the_limit_is_refused_and_leaves_nothing() {
    let (_parent, dir) = limited(1 << 20, false);
    let used = dir.budget().unwrap().report().used_bytes;
    let large = vec![0; 2 << 20];
    let error = dir.replace_file(Share::Free, "dump.json", |file| file.write_all(&large)).unwrap_err();
    assert!(is_over_max_size(&error));
    assert!(dir.names().unwrap().is_empty());
    assert_eq!(dir.budget().unwrap().report().used_bytes, used);
}

#[test]
fn blocks_are_counted_with_those_that_find_them() {
    let (_parent, dir) = limited(1 << 20, false);
    let budget = dir.budget().unwrap();
    let block = budget.cost(1);
    assert!(BLOCK_SIZES.contains(&block));
    assert_eq!([0, block, block + 1, 4 * block].map(|bytes| budget.cost(bytes) / block), [0, 1, 2, 4]);
    assert_eq!(budget.cost(5 * block), 6 * block);
    assert_eq!(budget.cost(1024 * block), (1024 + 5) * block);
    assert_eq!([1, block, block + 1].map(|bytes| budget.covered(bytes) / block), [1, 1, 2]);
}

/// A complete window of this tenant with a recording of so many bytes.
fn window_of(dir: &OutputDir, number: u64, tenant: &str, bytes: usize) {
    let window = dir.window(&format!("window_{number}"), REPORT, tenant).unwrap();
    let mut recording = window.subfolder("recording").unwrap().create_file("000001.nfr").unwrap();
    recording.write_all(&vec![7; bytes]).unwrap();
    window.complete();
}

#[test]
fn a_tenant_of_many_windows_pushes_out_its_own_and_is_named() {
    let (_parent, dir) = limited(2 << 20, false);
    let names = || dir.names().unwrap();
    window_of(&dir, 0, "user ann (1000)", 40_000);
    for number in 1..100 {
        window_of(&dir, number, "user bob (1001)", 100_000);
    }
    window_of(&dir, 100, "user ann (1000)", 40_000);
    let news = dir.budget().unwrap().take_news();
    assert!(news.removed.len() > 50 && names().len() > 10, "{:?}", names());
    assert!(names().contains(&"window_0".to_owned()), "it is the oldest, and of who has least");
    assert_eq!(news.over_share.len(), news.removed.len());
    assert!(news.over_share.iter().all(|tenant| &**tenant == "user bob (1001)"));
    // Among a tenant's own windows the oldest goes.
    assert_eq!(news.removed.first().map(String::as_str), Some("window_1"));
    assert!(names().contains(&"window_99".to_owned()));
}

#[test]
fn an_open_window_that_takes_most_pushes_out_its_own_tenants_and_then_nothing() {
    let (_parent, dir) = limited(2 << 20, false);
    window_of(&dir, 0, "user ann (1000)", 200_000);
    window_of(&dir, 1, "user bob (1001)", 200_000);
    let window = dir.window("window_2", REPORT, "user bob (1001)").unwrap();
    let mut recording = window.subfolder("recording").unwrap().create_file("000001.nfr").unwrap();
    while recording.write_all(&[7; 4096]).is_ok() {}
    assert_eq!(dir.names().unwrap(), ["window_0", "window_2"]);
    // Files for all processes are the operator's.
    dir.create_file("more").unwrap().write_all(&vec![7; 150_000]).unwrap();
    assert_eq!(dir.names().unwrap(), ["more", "window_2"]);
    assert!(taken(dir.path()) <= 2 << 20);
}

/// `session.json` grows at the end: what it takes beyond what is free is not taken from the recording's
/// lasting facts.
#[test]
fn what_is_kept_for_what_lasts_is_there_although_the_report_has_grown() {
    const LIMIT: u64 = 1 << 20;
    let (_parent, dir) = limited(LIMIT, false);
    dir.keep(Share::Report, 160_000);
    let recording = dir.subfolder("recording").unwrap();
    recording.keep(Share::Lasting, 48 << 10);
    let report = |bytes: usize| {
        let text = vec![b' '; bytes];
        dir.replace_file(Share::Report, "session.json", |file| file.write_all(&text)).unwrap();
    };
    report(4000);
    let mut file = recording.create_records("000002.nfr").unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    report(75_000);
    let lasting = vec![7; 40_000];
    recording.replace_file(Share::Lasting, "000001.nfr", |file| file.write_all(&lasting)).unwrap();
    assert!(taken(dir.path()) <= LIMIT, "{}", taken(dir.path()));
}
