//! Several recordings in one folder.

use std::{collections::HashSet, fs};

use analysis::export::{Choice, Format};

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
