//! Several recordings in one folder.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use analysis::export::{Choice, Format};
use parquet::{
    file::reader::{FileReader as _, SerializedFileReader},
    record::{Field, Row},
};

use crate::traces::{lines, recorded, run};

#[test]
fn a_rank_that_comes_twice_is_told_and_kept_apart() {
    let recorded = recorded("net_steps");
    let recorded = recorded.cut_to(20_000);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["a", "b"] {
        recorded.record(&path(name), 0..20_000);
    }
    let one = run(&[&path("a")], &path("one"), Format::Jsonl, Choice::default());
    let both = run(&[&path("a"), &path("b")], &path("both"), Format::Jsonl, Choice::default());
    assert!(one.twice.is_empty() && one.rows.ops > 100);
    assert_eq!(both.rows.ops, 2 * one.rows.ops);
    let names = |folder: &str| -> HashSet<String> {
        lines(&path(folder), "proxy_flow").into_iter().map(|(file, _)| file).collect()
    };
    assert_eq!(both.twice.len(), names("one").len());
    for name in names("one") {
        let (comm, file) = name.split_once('/').unwrap();
        let text = |name: &str| fs::read_to_string(path("both").join(name)).unwrap();
        let first = fs::read_to_string(path("one").join(&name)).unwrap();
        assert!(text(&name) == first, "{name} is the first's");
        assert!(text(&format!("{comm}-1/{file}")) == first, "{name} has the second's");
    }
}

#[test]
fn the_same_recording_is_not_taken_twice() {
    let recorded = recorded("net_steps");
    let folder = tempfile::tempdir().unwrap();
    recorded.cut_to(1000).record(&folder.path().join("a"), 0..1000);
    let twice = [folder.path().join("a"), folder.path().to_path_buf()];
    let error = analysis::export::sources(&twice).unwrap_err().to_string();
    assert!(error.contains("given twice"), "{error}");
}

/// Windows of one session follow each other. They are found in the session's folder.
#[test]
fn windows_go_on_in_the_same_files() {
    let recorded = recorded("net_steps");
    let recorded = recorded.cut_to(30_000);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("session")).unwrap();
    // A window begins with what the kernel side sends once, and numbers sends and receives from 0: the same
    // again, later.
    recorded.record(&path("session/window-1"), 0..30_000);
    recorded.shifted(100_000_000_000).record(&path("session/window-2"), 0..30_000);
    let single = |window: &str| {
        run(
            &[&path("session").join(window)],
            &path(&format!("{window}-alone")),
            Format::Jsonl,
            Choice::default(),
        )
    };
    let (first, second) = (single("window-1"), single("window-2"));
    let both = run(&[&path("session")], &path("both"), Format::Jsonl, Choice::default());
    assert!(both.twice.is_empty(), "{:?}", both.twice);
    assert_eq!(both.sources.len(), 2);
    assert_eq!(both.rows.ops, first.rows.ops + second.rows.ops);
    assert_eq!(first.rows, second.rows);
    let ops = lines(&path("both"), "proxy_flow");
    assert_eq!(ops.len() as u64, both.rows.ops);
    // The number of a send or receive names it in its file: one for each peer and channel.
    let is_p2p = |line: &serde_json::Value| matches!(line["pattern"].as_str().unwrap(), "SEND" | "RECV");
    let mut seen = HashSet::new();
    for (file, line) in ops.iter().filter(|(_, line)| is_p2p(line)) {
        let name = (file.clone(), line["seq"].as_u64(), line["channel"].as_u64());
        assert!(seen.insert(name), "{file} {line}");
    }
    assert!(seen.len() > 20, "{}", seen.len());
    let local = ops.iter().filter(|(_, line)| line["seqLocal"] == true).count();
    assert_eq!(local, seen.len() / 2, "the second window's say that they are numbered on");
}

/// Rows of the files below a folder.
fn rows(folder: &Path) -> Vec<Row> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(rows(&entry));
        } else {
            let reader = SerializedFileReader::new(fs::File::open(entry).unwrap()).unwrap();
            found.extend(reader.get_row_iter(None).unwrap().map(Result::unwrap));
        }
    }
    found
}

fn value(row: &Row, key: &str) -> Option<i64> {
    match row.get_column_iter().find(|(name, _)| *name == key).unwrap().1 {
        Field::Long(value) => Some(*value),
        Field::Int(value) => Some((*value).into()),
        Field::Null => None,
        other => panic!("{key}: {other:?}"),
    }
}

/// Two hosts, of which the second one's clock is 37 s ahead: messages between them tell it.
#[test]
fn times_of_a_host_whose_clock_is_wrong_are_set_right() {
    const WRONG_NS: u64 = 37_000_000_000;
    let recorded = recorded("net_steps").cut_to(30_000);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let pids = recorded.processes();
    for (folder, wrong_ns) in [("wrong", WRONG_NS), ("right", 0)] {
        fs::create_dir(path(folder)).unwrap();
        for (pid, (host, wrong_ns)) in pids.iter().zip([("node-1", 0), ("node-2", wrong_ns)]) {
            let of_host = recorded.of_process(*pid, host, 5_000_000_000).wrong_by(wrong_ns);
            of_host.record(&path(folder).join(host), 0..usize::MAX);
        }
    }
    let export = |of: &str, name: &str, format| {
        let hosts: [PathBuf; 2] = ["node-1", "node-2"].map(|host| path(of).join(host));
        run(&[&hosts[0], &hosts[1]], &path(name), format, Choice::default())
    };
    let exported = export("wrong", "tables", Format::Parquet);
    let [clock] = &exported.clocks[..] else { panic!("{:?}", exported.clocks) };
    assert_eq!((&*clock.host, &*clock.against), ("node-2", "node-1"));
    let off_ms = (clock.ahead_ms - 37_000.0).abs();
    assert!(off_ms <= clock.error_ms && clock.error_ms < 50.0, "{clock:?}");
    assert!(exported.notes.iter().any(|note| note.contains("by one clock")), "{:?}", exported.notes);

    // The truth: the same with a right clock.
    let all = export("right", "right-tables", Format::Parquet);
    let moments = |name: &str| -> BTreeMap<[i64; 3], i64> {
        let rows = rows(&path(name).join("op"));
        let of = |row: &Row| {
            let key = ["rank", "seq", "channel"].map(|key| value(row, key).unwrap());
            (key, value(row, "wall_ns").unwrap())
        };
        rows.iter().map(of).collect()
    };
    let (set_right, truth) = (moments("tables"), moments("right-tables"));
    assert!(truth.len() > 100 && truth.len() == set_right.len());
    for (key, wall_ns) in &truth {
        let off = Duration::from_nanos(set_right[key].abs_diff(*wall_ns));
        assert!(off.as_secs_f64() * 1e3 <= clock.error_ms + 0.001, "{key:?}: {off:?}");
    }
    let hosts = rows(&path("tables/host"));
    let ahead: Vec<Option<i64>> = hosts.iter().map(|row| value(row, "clock_ahead_ns")).collect();
    assert!(ahead.contains(&None) && ahead.iter().flatten().all(|ns| ns / 1_000_000_000 >= 36), "{ahead:?}");
    // A clock that messages do not contradict is left alone.
    assert!(
        rows(&path("right-tables/host")).iter().all(|row| value(row, "clock_ahead_ns").unwrap_or(0) == 0)
    );
    let begin = |of: &analysis::export::Exported| of.span_unix_ns.unwrap().0;
    assert!(begin(&all).abs_diff(begin(&exported)) < 50_000_000);

    let trace = export("wrong", "job.pftrace", Format::Perfetto);
    assert_eq!(trace.clocks, exported.clocks);
    // What other programs there would have written has their host's times.
    let lines = export("wrong", "lines", Format::Jsonl);
    let span = |of: &analysis::export::Exported| of.span_unix_ns.map(|(first, last)| last - first).unwrap();
    assert!(lines.clocks.is_empty() && span(&lines) > span(&trace) + WRONG_NS / 2);
}

/// Over NVLink no message is measured.
#[test]
fn clocks_that_no_message_tells_are_said_to_be_unknown() {
    let recorded = recorded("nvlink_flow").cut_to(20_000);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (pid, host) in recorded.processes().iter().zip(["node-1", "node-2"]) {
        recorded.of_process(*pid, host, 0).record(&path(host), 0..usize::MAX);
    }
    let inputs = [path("node-1"), path("node-2")];
    let exported = run(&[&inputs[0], &inputs[1]], &path("tables"), Format::Parquet, Choice::default());
    let said = exported.notes.join("; ");
    assert!(
        exported.clocks.is_empty() && said.contains("not known against that of node-1: of node-2"),
        "{said}"
    );
    let one = run(&[&inputs[0]], &path("one"), Format::Parquet, Choice::default());
    assert!(!one.notes.join("; ").contains("clock"), "{:?}", one.notes);
}
