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
/// Bytes of a GPU's slot in the file, and where its counters of sent and received bytes are, its last error, what GPM
/// is told to say, and PCIe's bytes.
const SLOT: u64 = 192;
const SENT: u64 = 24;
const RECEIVED: u64 = 32;
const XID: u64 = 48;
const TOLD: u64 = 64;
const PCIE: u64 = 104;

/// Keys of a row in the order in which the file tells them.
const TOLD_KEYS: [&str; 5] = [
    "graphics_active_percent",
    "sm_active_percent",
    "sm_occupancy_percent",
    "tensor_active_percent",
    "dram_active_percent",
];

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

fn set(states: &Path, gpu: u64, at: u64, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    File::options().write(true).open(states).unwrap().write_all_at(&bytes, gpu * SLOT + at).unwrap();
}

/// What a GPU of `number` is told to do at first, and later, in hundredths of a percent; and the mean of both.
fn told(number: u64) -> [[u64; 5]; 3] {
    let first = [9947, 9603, 1419, 7746, 1621].map(|value| value - 20 * number);
    let second = first.map(|value| value - 300 * number - 400);
    [first, second, std::array::from_fn(|at| u64::midpoint(first[at], second[at]))]
}

/// The values of a row, in hundredths of a percent.
fn active(row: &Value) -> Vec<Option<u64>> {
    let hundredths = |key: &&str| {
        let percent = row[*key].as_f64()?;
        format!("{:.0}", percent * 100.0).parse().ok()
    };
    TOLD_KEYS.iter().map(hundredths).collect()
}

/// The counters of Hopper and later: means over the time between two readings, by GPU; one GPU has changed what it does.
#[test]
fn what_gpus_do_by_their_own_counters_is_recorded() {
    let Some(double) = programs::nvml_double() else { return };
    let workload = "--gpu-states {}/gpus --iters 1000000 --sync";
    let Some(job) = World::going(VERSION, RANKS, workload).unwrap() else { return };
    if !scrape::can_parse() {
        return;
    }
    let states = job.path("gpus");
    let tell = |gpu: u64, values: [u64; 5]| set(&states, gpu, TOLD, &values.map(|value| value + 1));
    let (double, states_text) = (double.display().to_string(), states.display().to_string());
    let mut environment = vec![("NCCLFLOW_NVML", &*double), ("NVML_DOUBLE_STATES", &*states_text)];
    for has_gpm in [true, false] {
        if !has_gpm {
            environment.push(("NVML_DOUBLE_WITHOUT_GPM", "1"));
        }
        (0..2).for_each(|gpu| tell(gpu, told(gpu)[0]));
        let output = job.path(if has_gpm { "hopper" } else { "before" });
        let options = ["--metrics", "127.0.0.1:0"];
        let pids = job.bed.pid_list();
        let recorder = Recorder::start_in(&job.ncclflow, &pids, &output, &options, &environment).unwrap();
        let address = recorder.metrics_address().unwrap();
        let of_gpu = |samples: &[Sample], name: &str| {
            samples
                .iter()
                .find(|sample| sample.name == name && sample.labels["gpu"] == "1")
                .map(|sample| sample.value)
        };
        let pcie = |samples: &[Sample]| of_gpu(samples, "ncclflow_gpu_pcie_bytes_total");
        scrape_until(address, "the GPUs were read twice", |samples| pcie(samples) == Some(0.0));
        // 3 GiB over PCIe, in a moment.
        set(&states, 1, PCIE, &[1 << 30, 3 << 30]);
        tell(1, told(1)[1]);
        let later = has_gpm.then(|| format!("0.{:04}", told(1)[1][3]));
        scrape_until(address, "what it does now", |samples| {
            let tensor = of_gpu(samples, "ncclflow_gpu_tensor_active_ratio");
            pcie(samples) > Some(0.0) && tensor.map(|tensor| format!("{tensor:.4}")) == later
        });
        recorder.interrupt().unwrap();

        let all = rows(&output);
        for gpu in 0..2u64 {
            let own: Vec<&Value> = all.iter().filter(|row| row["gpu"] == gpu).collect();
            assert_eq!(active(own[0]), [None; 5], "nothing was before the first reading");
            let has = |row: &&&Value, values: &[u64; 5]| active(row) == values.map(Some);
            let [first, second, mean] = told(gpu);
            let count = |values: &[u64; 5]| own.iter().filter(|row| has(row, values)).count();
            let expected = match (has_gpm, gpu) {
                (false, _) => (own.iter().skip(1).all(|row| active(row) == [None; 5])).then_some(()),
                (true, 0) => (count(&first) == own.len() - 1).then_some(()),
                (true, _) => {
                    let between = count(&mean);
                    let is_each = count(&first) + count(&second) + between == own.len() - 1;
                    (is_each && between == 1 && count(&second) > 0).then_some(())
                }
            };
            assert!(expected.is_some(), "GPM {has_gpm}, GPU {gpu}: {own:?}");
            for (key, bytes) in [("pcie_sent", 1u64 << 30), ("pcie_received", 3 << 30)] {
                let seen = sum_of(&own, key);
                let bytes = if gpu == 1 { bytes } else { 0 };
                assert!(seen.abs_diff(bytes) <= bytes / 20, "GPM {has_gpm}, {key}: {seen} of {bytes}");
            }
        }
        set(&states, 1, PCIE, &[0, 0]);
    }
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
