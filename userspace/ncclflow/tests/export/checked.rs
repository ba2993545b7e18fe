//! `check` and `summary` say the same of a recording as of its lines.

use std::{fs, path::PathBuf};

use ncclflow::{
    check::{CheckReport, SummaryReport},
    export::{Choice, Format},
};
use serde_json::Value;

use crate::traces::{captured, run};

fn check(dirs: &[PathBuf]) -> anyhow::Result<CheckReport> {
    ncclflow::check::check(dirs, &mut |_, _| ())
}

fn summarize(dirs: &[PathBuf]) -> anyhow::Result<SummaryReport> {
    ncclflow::check::summarize(dirs, &mut |_, _| ())
}

#[test]
fn a_recording_is_judged_as_its_lines_are() {
    let captured = captured("net_steps.cap.gz");
    let captured = captured.cut_to(80_000);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    captured.record(&path("recorded"), 0..captured.len());
    run(&[&path("recorded")], &path("lines"), Format::Jsonl, Choice::default());
    let report = |name: &str| {
        let mut report = serde_json::to_value(check(&[path(name)]).unwrap()).unwrap();
        report.as_object_mut().unwrap().remove("recordings").unwrap();
        report
    };
    let (recorded, lines) = (report("recorded"), report("lines"));
    assert_eq!(recorded, lines);
    let communicators = lines["communicators"].as_array().unwrap();
    assert!(communicators.len() >= 2);
    assert!(communicators.iter().any(|comm| comm["verdict"]["messages"].as_u64().unwrap() > 1000), "{lines}");
    let summary = |name: &str| serde_json::to_value(summarize(&[path(name)]).unwrap()).unwrap();
    let (recorded, lines): (Value, Value) = (summary("recorded"), summary("lines"));
    assert_eq!(recorded, lines);
    assert!(lines["ranks"].as_array().unwrap().len() >= 4);
}

/// Where both are there, and the lines have ended early, the recording is read; a cut one says so.
#[test]
fn the_recording_counts_where_lines_have_ended_early() {
    let captured = captured("net_steps.cap.gz");
    let captured = captured.cut_to(60_000);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    captured.record(&path("both"), 0..60_000);
    run(&[&path("both")], &path("lines"), Format::Jsonl, Choice::default());
    let expected = check(&[path("lines")]).unwrap();
    for entry in
        fs::read_dir(path("lines")).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
    {
        let to = path("both").join(entry.file_name().unwrap());
        fs::create_dir(&to).unwrap();
        for file in fs::read_dir(entry).unwrap().map(|entry| entry.unwrap().path()) {
            let text = fs::read_to_string(&file).unwrap();
            let half: String = text.split_inclusive('\n').take(text.lines().count() / 2).collect();
            fs::write(to.join(file.file_name().unwrap()), half).unwrap();
        }
    }
    let ops =
        |report: &CheckReport| -> u64 { report.communicators.iter().map(|comm| comm.collectives).sum() };
    let found = check(&[path("both")]).unwrap();
    assert_eq!(ops(&found), ops(&expected));
    assert!(found.notes.is_empty(), "{:?}", found.notes);
    let segment = path("both/recording/000001.nfr");
    let whole = fs::read(&segment).unwrap();
    fs::write(&segment, &whole[..whole.len() / 2]).unwrap();
    let cut = check(&[path("both")]).unwrap();
    assert!(cut.notes.iter().any(|note| note.contains("has no end")), "{:?}", cut.notes);
    assert!(ops(&cut) > 0 && ops(&cut) < ops(&expected));
}

/// Folders are read side by side; what is said does not depend on which is read first. A rank that two folders have
/// counts once.
#[test]
fn several_folders_are_judged_in_their_order() {
    let captured = captured("net_steps.cap.gz");
    let captured = captured.cut_to(40_000);
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> =
        ["long", "short", "middle"].iter().map(|name| folder.path().join(name)).collect();
    for (path, records) in paths.iter().zip([40_000, 8_000, 20_000]) {
        captured.record(path, 0..records);
    }
    let alone = check(&paths[..1]).unwrap();
    for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
        let dirs = order.map(|at| paths[at].clone());
        let first = check(&dirs[..1]).unwrap();
        let mut shown = 0;
        let all = ncclflow::check::check(&dirs, &mut |bytes, of| {
            assert!(bytes >= shown && bytes <= 2 * of, "{bytes} of {of}");
            shown = bytes;
        })
        .unwrap();
        assert!(shown > 0);
        for (all, first) in all.communicators.iter().zip(&first.communicators) {
            assert_eq!((all.collectives, &all.measured), (first.collectives, &first.measured), "{order:?}");
            assert_eq!(all.verdict.messages, first.verdict.messages);
            let twice = all.findings.iter().filter(|finding| finding.text.contains("in two of the folders"));
            assert_eq!(twice.count(), 4, "two ranks, in two further folders: {:?}", all.findings);
        }
    }
    assert!(alone.communicators.len() >= 2);
}
