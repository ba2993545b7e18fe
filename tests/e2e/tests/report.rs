//! `ncclflow report` of a recording of the real NCCL, as a browser shows it, against its lines and `check`.

use ncclflow_e2e::harness::{
    prelude::*,
    traced_run::{Plugin, TracedRun},
};
use test_support::has_browser;

#[test]
fn a_page_of_two_ranks_shows_what_their_lines_say() {
    if !has_browser() {
        return;
    }
    let workload = "--ranks 2 --mode processes --ops allreduce,allgather,sendrecv \
         --bytes 262144 --iters 20 --comms 2";
    let Some(run) = TracedRun::new("--level steps", "2.27.5-cu12", Plugin::No, workload) else { return };
    let (page, check) = (run.folder().join("report.html"), run.folder().join("check.json"));
    ncclflow_of("report --open-section delays -o", &[&page, &run.out()]).ok();
    fs::write(&check, ncclflow_of("check --json", &[run.out()]).stdout).unwrap();
    let script: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "report", "report_page.py"].iter().collect();
    let mut python = Command::new("python3");
    python.arg(script).args([&page, &run.out()]).arg("--check").arg(check).args(["--seconds", "20"]);
    let compared = crate::run(&mut python).ok().json();
    let of = |key: &str| compared[key].as_u64().unwrap_or(0);
    // On each rank and in each iteration: two collectives, a send and a receive.
    assert_eq!(of("bars"), 2 * 20 * 4, "{compared}");
    assert_eq!(of("measured"), of("bars"), "{compared}");
    assert!(of("messages") > 100 && of("rings") >= 2 && of("merge") == 1, "{compared}");
}
