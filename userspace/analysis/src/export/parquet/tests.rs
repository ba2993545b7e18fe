use std::{fs, path::Path};

use flow::{
    made::rows::op_row,
    schema::{Op, OpRow, RankKey},
    session::SessionReport,
};
use serde_json::json;

use recording::sinks::OutputDir;

use super::tables::*;
use crate::export::{Row, run::SourceReport};

fn op(number: u64, pid: u32, host: &str) -> Op {
    let rank = RankKey { hash: Some(number), instance: 0, rank: 3, pid };
    let row = OpRow { rank: 3, pid, host: host.into(), seq: 2, ..op_row() };
    Op { rank, row, call_bytes: None }
}

fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.path().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path().display().to_string());
        }
    }
    found
}

/// Tenants choose names: a job can be called anything, and so can the host that a container sees.
#[test]
fn any_names_and_many_communicators_stay_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("inside");
    let job = format!("../../x/\u{1b}[2J{}", "=".repeat(4000));
    let report = json!({"host": "a/b", "targets": [{"pid": 7, "job": {"name": job}}]}).to_string();
    let formats = formats().unwrap();
    let mut tables = ParquetTables::new(
        OutputDir::create(&inside).unwrap(),
        &formats,
        &SessionReport::parse(&report),
        None,
    );
    for number in 0..10_000 {
        tables.row(Row::Op(&op(number, 7, "../host\n="))).unwrap();
    }
    tables.row(Row::Op(&op(0, 8, "."))).unwrap();
    tables.complete().unwrap();
    tables.finish(&SourceReport::default()).unwrap();
    let hidden = files(folder.path());
    assert!(
        hidden.iter().all(|file| file.contains("/.") && file.strip_suffix(".part").is_some()),
        "{hidden:?}"
    );
    tables.publish().unwrap();
    // Ops, communicators, and a row of the recording in each of two partitions.
    assert_eq!(tables.counts().map(|counts| counts.rows).sum::<u64>(), 10_001 + 10_001 + 2);
    assert_eq!(tables.counts().map(|counts| counts.files).sum::<u64>(), 12);
    drop(tables);
    let named = files(folder.path());
    assert_eq!(named.len(), 12);
    for file in &named {
        assert!(file.starts_with(inside.to_str().unwrap()) && file.ends_with(".parquet"), "{file:?}");
        assert!(!file.chars().any(char::is_control), "{file:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Tables that were not completed leave nothing.
#[test]
fn an_export_that_fails_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let formats = formats().unwrap();
    let dir = OutputDir::create(&folder.path().join("tables")).unwrap();
    let mut tables = ParquetTables::new(dir, &formats, &SessionReport::parse("not JSON"), None);
    for place in 0..MAX_PARTITIONS {
        tables.row(Row::Op(&op(1, 9, &format!("host{place}")))).unwrap();
    }
    let error = tables.row(Row::Op(&op(1, 9, "one more"))).unwrap_err().to_string();
    assert!(error.contains("more than 1024 jobs and hosts"), "{error}");
    drop(tables);
    assert_eq!(files(folder.path()), [""; 0]);
}
