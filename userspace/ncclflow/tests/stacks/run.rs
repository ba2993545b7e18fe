//! Runs ncclflow, and the Python programs of `tests/stacks`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use test_support::need;

/// A trace: torch.profiler with stacks, of a DDP training (`ddp`), and of the same with replays of a graph
/// (`graph`).
pub(crate) fn kineto(name: &str) -> PathBuf {
    repository().join(format!("tests/traces/kineto_{name}_rank0.json.gz"))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub(crate) fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    need("python", found.is_ok_and(|status| status.success()), "install python3, 3.8 or later")
}

/// What one of the Python programs writes.
pub(crate) fn python(program: &str, arguments: &[&str]) -> String {
    let script = repository().join("tests/stacks").join(program);
    let output = Command::new("python3").arg(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `ncclflow stacks` without a terminal.
pub(crate) fn stacks(trace: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ncclflow"))
        .arg("stacks")
        .arg(trace)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// What it writes, and what it says beside.
pub(crate) fn written(trace: &Path, arguments: &[&str]) -> (String, String) {
    let output = stacks(trace, arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{} {arguments:?}: {said}", trace.display());
    (String::from_utf8(output.stdout).unwrap(), said)
}

pub(crate) fn json(trace: &Path, arguments: &[&str]) -> Value {
    let (text, _) = written(trace, &[arguments, &["--json"]].concat());
    let mut document: Value = serde_json::from_str(&text).unwrap();
    // Each has these two.
    for key in ["schema", "ncclflow"] {
        document.as_object_mut().unwrap().remove(key).unwrap();
    }
    document
}

/// What it says when it refuses.
pub(crate) fn refused(trace: &Path, arguments: &[&str], code: i32) -> String {
    let output = stacks(trace, arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    said
}
