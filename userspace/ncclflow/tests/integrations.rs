//! `dist/integrations/ncclflow_dump.py`, which watchdogs call, with scripts in place of ncclflow: whatever
//! that does, the watchdog goes on, in time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use test_support::need;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/integrations");

/// Calls `dump` with this script as ncclflow; gives what it returns, what the log would say, and the words
/// that the script got.
fn call(script: &str) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ncclflow");
    fs::write(&program, format!("#!/bin/sh\necho \"$*\" > '{}/words'\n{script}", folder.path().display()))
        .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let code = format!(
        "import json, ncclflow_dump as n\n\
         code, report = n.dump([7, 8], seconds=3, folder={kept:?}, program=[{program:?}])\n\
         print(json.dumps([code, report, n.sentence(report)]))",
        kept = folder.path().join("kept/below").display().to_string(),
        program = program.display().to_string(),
    );
    let mut python = Command::new("python3");
    let output =
        python.args(["-c", &code]).env("PYTHONPATH", FOLDER).env("PYTHONDONTWRITEBYTECODE", "1").output();
    let output = output.unwrap();
    let words = fs::read_to_string(folder.path().join("words")).unwrap_or_default();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"));
    let kept = fs::read_dir(folder.path().join("kept/below")).map_or(0, Iterator::count);
    assert!(kept <= 1);
    (value, format!("{}; {kept} kept", words.trim()))
}

#[test]
fn a_watchdog_goes_on_whatever_ncclflow_does() {
    let has_python = Command::new("python3").arg("--version").output().is_ok();
    if !need("python3", has_python, "install it") {
        return;
    }
    assert!(Path::new(FOLDER).join("ncclflow_dump.py").exists());
    let (answer, said) = call(r#"echo '{"schema": 1, "job": {"sentence": "stuck: rank 2"}}'; exit 3"#);
    assert_eq!(answer, json!([3, { "schema": 1, "job": { "sentence": "stuck: rank 2" } }, "stuck: rank 2"]));
    assert_eq!(said, "dump --json -p 7,8; 1 kept");
    let unknown = "ncclflow could not tell";
    let (answer, _) = call(r#"echo '{"schema": 1, "job": null}'; exit 4"#);
    assert_eq!(answer, json!([4, { "schema": 1, "job": null }, unknown]));
    for script in ["echo no >&2; exit 1", "head -c 100000 /dev/urandom", "exec kill -9 $$"] {
        let (answer, said) = call(script);
        assert_eq!(answer, json!([null, null, unknown]), "{script}");
        assert!(said.ends_with("0 kept"), "{said}");
    }
    let begun = Instant::now();
    assert_eq!(call("exec sleep 600").0, json!([null, null, unknown]));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}
