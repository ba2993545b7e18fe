//! Tests that docs/WATCH.md lists exactly what `watch` exports, and that its dashboard and rules ask for no
//! more.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
    time::Duration,
};

use dump::watched::Counts;
use inspect::gpu::GpuSamples;
use watch::{
    Book, CommKey, HostReading, OwnState, ProcessInfo, ProcessKey, ProcessReading, RankCounts, RankInfo,
    RankReading,
};

use super::super::{Expose as _, Watched, WatchedMetrics};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

fn text_of(book: &Book) -> String {
    let metrics = WatchedMetrics::new(GpuSamples::default());
    metrics.put(Watched::of(book, &OwnState::default(), Duration::from_secs(100)));
    metrics.text().unwrap()
}

/// Readings of a job with an iteration of ten seconds.
fn text() -> String {
    let comm = Arc::new(CommKey { hash: "0x1".into(), n_ranks: 2, ..CommKey::default() });
    let mut book = Book::default();
    let mut launched = 0;
    for second in 0..100 {
        launched += u64::from(second % 10 < 3);
        let process = |rank: u32| {
            let counts = Counts {
                by_function: vec![0, launched - u64::from(rank)],
                is_set_up: true,
                ..Counts::default()
            };
            let info = RankInfo {
                comm: Arc::clone(&comm),
                name: Some("dp \"1\"\n".into()),
                rank,
                functions: vec!["Broadcast".into(), "AllReduce".into()],
                ..RankInfo::default()
            };
            let state = RankCounts::Read(counts);
            let rank_reading = RankReading { info: Arc::new(info), state, steps: None, failure: None };
            let key = ProcessKey { pid: 7 + rank, started: 1 };
            let info = ProcessInfo { key, job: Some("17".into()), ..ProcessInfo::default() };
            ProcessReading { info: Arc::new(info), is_live: true, ranks: vec![rank_reading], processor: None }
        };
        book.take(&[process(0), process(1)], &HostReading::default(), Duration::from_secs(second));
    }
    text_of(&book)
}

/// A process that claims ranks of these communicators, by hash and size.
fn process(pid: u32, user: &str, comms: &[(&str, u32)]) -> ProcessReading {
    let rank = |(hash, n_ranks): &(&str, u32)| RankReading {
        info: Arc::new(RankInfo {
            comm: Arc::new(CommKey { hash: (*hash).into(), n_ranks: *n_ranks, ..CommKey::default() }),
            functions: vec!["All Reduce".into(), "All\nReduce".into(), "3".into()],
            ..RankInfo::default()
        }),
        state: RankCounts::Read(Counts { by_function: vec![1, u64::MAX, 1, 1], ..Counts::default() }),
        steps: None,
        failure: None,
    };
    let key = ProcessKey { pid, started: 1 };
    let (job, user) = (Some("4711".into()), user.into());
    let info = ProcessInfo { key, job, user, ..ProcessInfo::default() };
    let ranks = comms.iter().map(rank).collect();
    ProcessReading { info: Arc::new(info), is_live: true, ranks, processor: None }
}

/// Tenants choose names of jobs and functions, and what their communicators look like.
#[test]
fn no_scrape_has_a_series_twice() {
    let mut book = Book::default();
    let readings = [process(1, "ann", &[("0x1", 2)]), process(2, "bob", &[("0x2", 2), ("0x2", 3)])];
    book.take(&readings, &HostReading::default(), Duration::from_secs(1));
    let text = text_of(&book);
    let mut series = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (one, _) = line.rsplit_once(' ').unwrap();
        assert!(series.insert(one), "{one} stands there twice:\n{text}");
    }
    let hangs = series.iter().filter(|one| one.contains("watch_alert{") && one.contains("hang"));
    assert_eq!(hangs.count(), 2, "{text}");
    assert!(text.contains(&format!("function=\"All_Reduce\"}} {}\n", u64::MAX)), "{text}");
}

#[test]
fn a_flood_of_one_tenants_ranks_leaves_others_theirs() {
    let hashes: Vec<String> = (0..600).map(|number| format!("0x{number:04}")).collect();
    let forged: Vec<(&str, u32)> = hashes.iter().map(|hash| (hash.as_str(), 2)).collect();
    let mut book = Book::default();
    let readings = [process(1, "eve", &forged), process(2, "ann", &[("0x9999", 2)])];
    book.take(&readings, &HostReading::default(), Duration::from_secs(1));
    let text = text_of(&book);
    assert!(text.contains("ncclflow_watch_in_flight{job=\"4711\",comm=\"0x9999\""), "{text}");
    assert!(text.contains("ncclflow_watch_still_seconds{job=\"4711\",job_number=\"2\",comm=\"0x9999\""));
    assert!(text.contains("ncclflow_watch_ranks_left_out 89.0\n"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("ncclflow_watch_in_flight{")).count(), 512);
}

/// Returns the metrics with their labels, as docs/WATCH.md has them.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let quoted =
        |text: &str| -> Vec<String> { text.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let text = read("docs/WATCH.md");
    let rows = text.lines().filter(|line| line.starts_with("| `ncclflow_watch_"));
    let cells = rows.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    cells.map(|cells| (quoted(cells[1])[0].clone(), quoted(cells[2]).into_iter().collect())).collect()
}

#[test]
fn the_documentation_has_what_is_exported_and_nothing_else() {
    let (text, documented) = (text(), documented());
    let mut exported = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("ncclflow_watch_")) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels: BTreeSet<String> =
            labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned())).collect();
        assert_eq!(Some(&labels), documented.get(name), "{series}");
        exported.insert(name.to_owned());
    }
    assert_eq!(exported, documented.into_keys().collect());
    // What a program chose is a plain label.
    assert!(text.contains("group=\"dp__1__\"") && text.contains("function=\"AllReduce\""), "{text}");
    assert!(text.contains("ncclflow_watch_iteration_seconds{job=\"17\",job_number=\"1\"} 10"), "{text}");
}

#[test]
fn the_dashboard_and_the_rules_ask_for_metrics_that_are_exported() {
    let documented = documented();
    for path in ["dist/grafana/ncclflow-watch.json", "dist/prometheus/ncclflow.rules.yml"] {
        let text = read(path);
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let named: BTreeSet<&str> = text
            .split(|letter| !is_word(letter))
            .filter(|word| word.starts_with("ncclflow_watch_"))
            .collect();
        assert!(named.len() > 4, "{path}");
        for name in named {
            assert!(documented.contains_key(name), "{name} of {path} is not exported");
        }
    }
}
