//! The JSON that ncclflow wrote: reports, lines, and values in them.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "part of tests, which fail by panicking")]

use std::{fs, path::Path};

use serde_json::Value;

use super::schemas;

/// A file of JSON.
#[track_caller]
pub fn read_json(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

/// The report of the recording in this folder.
#[track_caller]
pub fn session(out: &Path) -> Value {
    let mut printed = read_json(&out.join("session.json"));
    let session = printed.clone();
    // As `record --json` prints it.
    printed.as_object_mut().unwrap().insert("schema".to_owned(), 1.into());
    schemas::assert_valid("record", &printed);
    session
}

/// The same of a recording that may not have begun, whose report is `null`.
pub fn session_so_far(out: &Path) -> Value {
    let text = fs::read(out.join("session.json")).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// The lines of a file. Each must be whole.
#[track_caller]
pub fn read_lines(path: &Path) -> Vec<Value> {
    lines(&fs::read_to_string(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display())))
}

/// The values of lines of JSON.
#[track_caller]
pub fn lines(text: &str) -> Vec<Value> {
    assert!(text.is_empty() || text.ends_with('\n'), "it ends in the middle of a line: {text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// The elements of an array.
#[track_caller]
pub fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no array: {value}"))
}

#[track_caller]
pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[track_caller]
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// The sum of a number of all elements of an array.
#[track_caller]
pub fn sum(values: &Value, key: &str) -> u64 {
    list(values).iter().map(|value| number(&value[key])).sum()
}

/// Asserts that nothing was lost, of whatever is counted.
#[track_caller]
pub fn assert_no_loss(session: &Value) {
    let loss = &session["loss"];
    assert!(loss.as_object().unwrap().values().all(|count| count == 0), "{loss:#}");
}

/// What the report has of a process.
pub fn target(session: &Value, pid: u32) -> Option<&Value> {
    session["targets"].as_array()?.iter().find(|target| target["pid"] == pid)
}

/// Whether all these processes are in the report as traced ones.
pub fn are_traced(session: &Value, pids: &[u32]) -> bool {
    pids.iter().all(|pid| target(session, *pid).is_some_and(|target| target["untraced"].is_null()))
}
