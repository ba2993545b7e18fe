//! `check` and `summary` of recordings: what they count is what another reader counts in the lines.

use std::{collections::BTreeMap, fs, path::PathBuf};

use analysis::{
    check::{CheckReport, SummaryReport},
    export::{Choice, Format},
};
use serde_json::Value;

use crate::traces::{lines, recorded, run};

fn check(dirs: &[PathBuf]) -> anyhow::Result<CheckReport> {
    analysis::check::check(dirs, &mut |_, _| ())
}

fn summarize(dirs: &[PathBuf]) -> anyhow::Result<SummaryReport> {
    analysis::check::summarize(dirs, &mut |_, _| ())
}

/// Messages and bytes of a rank, by direction and peer.
type Links = BTreeMap<(String, i64, i64), BTreeMap<(String, i64), (u64, u64)>>;

#[test]
fn links_and_outcomes_are_those_of_the_lines() {
    let recorded = recorded("net_steps");
    let recorded = recorded.cut_to(80_000);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    recorded.record(&path("recorded"), 0..recorded.len());
    run(&[&path("recorded")], &path("lines"), Format::Jsonl, Choice::default());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let number = |value: &Value| value.as_i64().unwrap();

    let mut expected = Links::new();
    for (_, line) in lines(&path("lines"), "flow_steps") {
        let rank = (text(&line["commHash"]), number(&line["rank"]), number(&line["channel"]));
        let link = expected.entry(rank).or_default();
        let (messages, bytes) = link.entry((text(&line["op"]), number(&line["peer"]))).or_default();
        *messages += 1;
        *bytes += line["bytes_measured"].as_u64().unwrap_or(line["bytes"].as_u64().unwrap());
    }
    let mut found = Links::new();
    let summary = serde_json::to_value(summarize(&[path("recorded")]).unwrap()).unwrap();
    for rank in summary["ranks"].as_array().unwrap() {
        for link in rank["links"].as_array().unwrap() {
            let key = (text(&rank["communicator"]), number(&rank["rank"]), number(&link["channel"]));
            let sums = (link["messages"].as_u64().unwrap(), link["bytes"].as_u64().unwrap());
            let of_rank = found.entry(key).or_default();
            of_rank.insert((text(&link["op"]), number(&link["peer"])), sums);
        }
    }
    assert!(expected.len() >= 4, "{expected:?}");
    assert_eq!(found, expected);

    let mut outcomes: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (_, line) in lines(&path("lines"), "proxy_flow") {
        if let Some(outcome) = line["measured"].as_str() {
            let of_comm = outcomes.entry(text(&line["commHash"])).or_default();
            *of_comm.entry(outcome.to_owned()).or_default() += 1;
        }
    }
    let report = serde_json::to_value(check(&[path("recorded")]).unwrap()).unwrap();
    let communicators = report["communicators"].as_array().unwrap();
    assert!(communicators.len() >= 2);
    for comm in communicators {
        let measured: BTreeMap<String, u64> = serde_json::from_value(comm["measured"].clone()).unwrap();
        assert_eq!(
            &measured,
            outcomes.get(comm["communicator"].as_str().unwrap()).unwrap_or(&BTreeMap::new())
        );
    }
    assert!(
        communicators.iter().any(|comm| comm["verdict"]["messages"].as_u64().unwrap() > 1000),
        "{report}"
    );
}

/// A recording that was cut says so; lines without a recording are refused.
#[test]
fn a_cut_recording_says_so_and_lines_alone_are_refused() {
    let recorded = recorded("net_steps");
    let recorded = recorded.cut_to(60_000);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    recorded.record(&path("both"), 0..60_000);
    run(&[&path("both")], &path("lines"), Format::Jsonl, Choice::default());
    for refused in [check(&[path("lines")]).err(), summarize(&[path("lines")]).err()] {
        let why = format!("{:#}", refused.unwrap());
        assert!(why.contains("has no recording") && why.contains("are for other programs"), "{why}");
    }
    let ops =
        |report: &CheckReport| -> u64 { report.communicators.iter().map(|comm| comm.collectives).sum() };
    let whole = check(&[path("both")]).unwrap();
    assert!(whole.notes.is_empty(), "{:?}", whole.notes);
    let segment = path("both/recording/000001.nfr");
    let bytes = fs::read(&segment).unwrap();
    fs::write(&segment, &bytes[..bytes.len() / 2]).unwrap();
    let cut = check(&[path("both")]).unwrap();
    assert!(cut.notes.iter().any(|note| note.contains("is incomplete")), "{:?}", cut.notes);
    assert!(ops(&cut) > 0 && ops(&cut) < ops(&whole));
}

/// Folders are read side by side; what is said does not depend on which is read first. A rank that two
/// folders have counts once.
#[test]
fn several_folders_are_judged_in_their_order() {
    let recorded = recorded("net_steps");
    let recorded = recorded.cut_to(40_000);
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> =
        ["long", "short", "middle"].iter().map(|name| folder.path().join(name)).collect();
    for (path, records) in paths.iter().zip([40_000, 8_000, 20_000]) {
        recorded.record(path, 0..records);
    }
    let alone = check(&paths[..1]).unwrap();
    for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
        let dirs = order.map(|at| paths[at].clone());
        let first = check(&dirs[..1]).unwrap();
        let mut shown = 0;
        let all = analysis::check::check(&dirs, &mut |bytes, of| {
            assert!(bytes >= shown && bytes <= 2 * of, "{bytes} of {of}");
            shown = bytes;
        })
        .unwrap();
        assert!(shown > 0);
        for (all, first) in all.communicators.iter().zip(&first.communicators) {
            assert_eq!((all.collectives, &all.measured), (first.collectives, &first.measured), "{order:?}");
            assert_eq!(all.verdict.messages, first.verdict.messages);
            assert_eq!(all.findings, first.findings, "that a rank was recorded twice is no fault of the job");
        }
        let twice: Vec<&String> = all.notes.iter().filter(|note| note.contains(" both have ")).collect();
        assert_eq!(twice.len(), 2, "one for each further folder: {:?}", all.notes);
        for (note, dir) in twice.into_iter().zip(&dirs[1..]) {
            let named = format!("`{}` and `{}` both have", dirs[0].display(), dir.display());
            assert!(note.starts_with(&named), "{note}");
        }
        // `summary` shows each, and counts a rank once.
        let headline = |dirs: &[PathBuf]| analysis::check::summary_headline(&summarize(dirs).unwrap());
        let count = |headline: &str| headline.split([';', ' ']).next().unwrap().to_owned();
        assert!(headline(&dirs).contains(" in 3 recordings; "), "{}", headline(&dirs));
        assert_eq!(count(&headline(&dirs)), count(&headline(&paths[..1])));
    }
    assert!(alone.communicators.len() >= 2);
}

/// Nothing can be shown of an empty recording, which is said; that ranks agree in it is not known.
#[test]
fn an_empty_recording_is_shown_and_not_judged() {
    let recorded = recorded("net_steps");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty");
    recorded.record(&path, 0..0);
    let summary = summarize(std::slice::from_ref(&path)).unwrap();
    let refused = check(std::slice::from_ref(&path)).unwrap_err().to_string();
    assert_eq!(summary.notes, [&*refused]);
    let expected =
        format!("nothing of NCCL was recorded in `{}`: no operation began and ended", path.display());
    assert!(refused.starts_with(&expected), "{refused}");
}
