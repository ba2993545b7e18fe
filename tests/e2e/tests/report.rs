//! `ncclflow report` of a recording of the real NCCL, as a browser shows it, against its lines and `check`.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use ncclflow_e2e::harness::{
    programs,
    traced_run::{Plugin, TracedRun},
};
use serde_json::Value;
use test_support::need;

fn has_browser() -> bool {
    let is_there = |browser: &str| {
        let found =
            Command::new(browser).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    };
    let found = ["chromium-headless-shell", "chromium", "google-chrome"].into_iter().any(is_there);
    need("chromium", found, "run `cargo xtask test`, which installs it, or install chromium")
}

#[test]
fn a_page_of_two_ranks_shows_what_their_lines_say() {
    if !has_browser() {
        return;
    }
    let ops = "allreduce,allgather,sendrecv";
    let arguments = [
        "--ranks",
        "2",
        "--mode",
        "processes",
        "--ops",
        ops,
        "--bytes",
        "262144",
        "--iters",
        "20",
        "--comms",
        "2",
    ];
    let Some(run) = TracedRun::traced(&["--level", "steps"], "2.27.5-cu12", Plugin::No, &arguments) else {
        return;
    };
    let (out, page) = (run.folder().join("out"), run.folder().join("report.html"));
    let ncclflow = || Command::new(programs::ncclflow().unwrap());
    let mut made = ncclflow();
    made.arg("report").arg(&out).arg("-o").arg(&page).args(["--open-section", "delays"]);
    let made = made.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let checked = ncclflow().arg("check").arg("--json").arg(&out).output().unwrap();
    let check = run.folder().join("check.json");
    fs::write(&check, checked.stdout).unwrap();
    let script: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "report", "report_page.py"].iter().collect();
    let output = Command::new("python3")
        .arg(script)
        .args([&page, &out])
        .arg("--check")
        .arg(check)
        .args(["--seconds", "20"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let compared: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |key: &str| compared[key].as_u64().unwrap_or(0);
    // On each rank and in each iteration: two collectives, a send and a receive.
    assert_eq!(of("bars"), 2 * 20 * 4, "{compared}");
    assert_eq!(of("measured"), of("bars"), "{compared}");
    assert!(of("messages") > 100 && of("rings") >= 2 && of("merge") == 1, "{compared}");
}
