//! What the GPUs do, in recordings, metrics and `top`: against the file in which the bed notes it for the NVML
//! double.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::FileExt as _;

use ncclflow_e2e::harness::{
    job::Shape,
    prelude::*,
    scrape::{self, Sample},
};

const RANKS: Shape = Shape { ranks: 2, processes: true, tree: false };
const VERSION: &str = "2.28.9-cu13";
/// Bytes of a GPU's slot in the file, and where its counters of sent and received bytes are, and its last error.
const SLOT: u64 = 128;
const SENT: u64 = 24;
const RECEIVED: u64 = 32;
const XID: u64 = 48;

fn word(states: &Path, gpu: u64, at: u64) -> u64 {
    let mut bytes = [0; 8];
    File::open(states).unwrap().read_exact_at(&mut bytes, gpu * SLOT + at).unwrap();
    u64::from_le_bytes(bytes)
}

fn rows(folder: &Path) -> Vec<Value> {
    read_lines(&folder.join("gpus.jsonl"))
}

fn sum_of(rows: &[&Value], key: &str) -> u64 {
    rows.iter().filter_map(|row| row[key].as_u64()).sum()
}

/// Bytes that each GPU has sent and received, as the bed notes them.
fn moved(states: &Path) -> Vec<[u64; 2]> {
    (0..2).map(|gpu| [SENT, RECEIVED].map(|at| word(states, gpu, at))).collect()
}

/// The same as it is scraped, over the readings until then.
fn moved_of(samples: &[Sample]) -> Vec<[u64; 2]> {
    let count = |gpu: u32, direction| {
        let labels = [("gpu", &*gpu.to_string()), ("direction", direction)];
        scrape::count(samples, "ncclflow_gpu_nvlink_bytes_total", &labels)
    };
    (0..2).map(|gpu| ["send", "recv"].map(|direction| count(gpu, direction))).collect()
}

fn xids_of(samples: &[Sample]) -> u64 {
    scrape::count(samples, "ncclflow_gpu_xids_total", &[("gpu", "1")])
}

/// Scrapes until it is as is wanted.
fn scrape_until(address: &str, what: &str, mut is_as_wanted: impl FnMut(&[Sample]) -> bool) -> Vec<Sample> {
    let mut samples = Vec::new();
    wait_until(what, Duration::from_mins(1), || {
        samples = scrape::parse(&scrape::fetch(address).unwrap()).unwrap();
        is_as_wanted(&samples)
    });
    samples
}

#[test]
fn what_gpus_do_is_recorded_once_a_second() {
    let Some(double) = programs::nvml_double() else { return };
    let workload = "--env NCCL_SHM_DISABLE=0 --gpu-states {}/gpus --iters 1000000 --sync";
    let Some(job) = World::going(VERSION, RANKS, workload).unwrap() else { return };
    if !scrape::can_parse() {
        return;
    }
    let states = job.path("gpus");
    let (double, states_text) = (double.display().to_string(), states.display().to_string());
    let environment = [("NCCLFLOW_NVML", &*double), ("NVML_DOUBLE_STATES", &*states_text)];
    let output = job.out();
    let (begun, before) = (Instant::now(), moved(&states));
    let options = ["--metrics", "127.0.0.1:0"];
    let pids = job.bed.pid_list();
    let recorder = Recorder::start_in(&job.ncclflow, &pids, &output, &options, &environment).unwrap();
    let address = recorder.metrics_address().unwrap();
    // Each wait is for one reading more at least.
    let mut last = vec![[0; 2]; 2];
    let mut next_reading = || {
        let samples = scrape_until(address, "the GPUs were read again", |samples| {
            let all = moved_of(samples);
            all.iter().flatten().zip(last.iter().flatten()).all(|(now, last)| now > last)
        });
        last = moved_of(&samples);
        last.clone()
    };
    let first_scraped = next_reading();
    // What is moved from here until the error comes lies between two readings that are recorded.
    let first = moved(&states);
    for _ in 0..3 {
        next_reading();
    }
    let between = moved(&states);
    let file = File::options().write(true).open(&states).unwrap();
    file.write_all_at(&79u64.to_le_bytes(), SLOT + XID).unwrap();
    let samples = scrape_until(address, "the error is counted", |samples| xids_of(samples) > 0);
    recorder.interrupt().unwrap();
    let (after, seconds) = (moved(&states), begun.elapsed().as_secs());

    let all = rows(&output);
    for gpu in 0..2u64 {
        let own: Vec<&Value> = all.iter().filter(|row| row["gpu"] == gpu).collect();
        assert!(own.len() >= 4 && own.len() as u64 <= seconds + 2, "{} rows in {seconds} s", own.len());
        let at = usize::try_from(gpu).unwrap();
        assert_eq!(own[1]["bus_id"], format!("0000:{:02x}:00.0", 0x10 + gpu));
        assert_eq!(own[1]["processes"][0]["pid"], job.bed.ready.pids[at], "{}", own[1]);
        assert!(own.iter().any(|row| row["sm_percent"] == 99), "its kernels run: {own:?}");
        for (key, counter) in [("nvlink_sent", 0), ("nvlink_received", 1)] {
            let least = between[at][counter] - first[at][counter];
            let most = after[at][counter] - before[at][counter];
            let seen = sum_of(&own, key);
            // In whole KiB.
            assert!(seen + 1024 >= least && seen <= most + 1024, "{key}: {seen} of {least} to {most}");
            // What was read before it was recorded is scraped, too.
            let scraped = moved_of(&samples)[at][counter] - first_scraped[at][counter];
            assert!(scraped > 0 && scraped <= seen, "{key}: {scraped} scraped, {seen} in rows");
        }
        let xids: Vec<&Value> =
            own.iter().flat_map(|row| row["xids"].as_array().into_iter().flatten()).collect();
        assert_eq!(xids, if gpu == 1 { vec![79] } else { Vec::new() });
        // A reading that comes late is followed by one that comes soon.
        let mut periods: Vec<u64> = own.iter().skip(1).map(|row| number(&row["period_ns"])).collect();
        periods.sort_unstable();
        assert!(periods[periods.len() / 2] > 500_000_000, "{periods:?}");
        let times: Vec<u64> = own.iter().map(|row| number(&row["ts_ns"])).collect();
        let intervals: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(intervals.iter().all(|interval| *interval >= 500_000_000), "{times:?}");
        assert!(intervals.iter().any(|interval| *interval < 3_000_000_000), "{times:?}");
    }
    assert_eq!(xids_of(&samples), 1);
    job.check_export();

    // Of a part of the time, the rows of that part.
    let middle = number(&all[all.len() / 2]["ts_ns"]);
    let from = middle - 100_000_000 + number(&job.session()["clock"]["offset_ns"]);
    let from = format!("@{}.{:09}", from / 1_000_000_000, from % 1_000_000_000);
    let part = job.path("part");
    ncclflow_of(&format!("export -f jsonl --from {from} -o"), &[&part, &output]).ok();
    let later: Vec<Value> = all.iter().filter(|row| row["ts_ns"].as_u64() >= Some(middle)).cloned().collect();
    assert!(!later.is_empty() && later.len() < all.len(), "{} of {}", later.len(), all.len());
    assert_eq!(rows(&part), later);
}

#[test]
fn a_driver_that_hangs_or_is_not_wanted_costs_the_recording_nothing() {
    let Some(double) = programs::nvml_double() else { return };
    let Some(job) = World::going(VERSION, RANKS, "--iters 1000000 --sync").unwrap() else { return };
    let double = double.display().to_string();
    for (name, options, variable) in
        [("hangs", &[][..], "NVML_DOUBLE_HANGS"), ("unwanted", &["--no-gpus"], "NVML_DOUBLE_STATES")]
    {
        let output = job.path(name);
        let environment = [("NCCLFLOW_NVML", &*double), (variable, "1")];
        let pids = job.bed.pid_list();
        let recorder = Recorder::start_in(&job.ncclflow, &pids, &output, options, &environment).unwrap();
        thread::sleep(Duration::from_millis(1500));
        recorder.interrupt().unwrap();
        let session = session(&output);
        assert_eq!(
            (&session["state"], &session["loss"]["records_lost"]),
            (&json!("complete"), &json!(0)),
            "{name}"
        );
        assert!(sum(&session["probes"], "delivered") > 0, "{name}: the job goes on");
        assert!(!output.join("gpus.jsonl").exists(), "{name}");
    }
}
