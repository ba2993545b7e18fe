//! A job that never pauses, for a long time: delivered + lost = hits, exactly, by two counts of the kernel's.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    bench::Bench,
    fleet::size_of,
    process::{Peak, Statistics, program_runs},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long
    #[arg(long, value_name = "SECS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

pub(crate) fn run(bench: &mut Bench, args: &Args) -> Result<Value> {
    let seconds = args.seconds;
    let _statistics = Statistics::on()?;
    let job = bench.job(&format!(
        "--ranks 4 --ops allreduce --bytes 65536 --iters 1000000000 --timeout {}",
        seconds + 120
    ))?;
    let recording = bench.record(&job.pid_list(), "--level steps")?;
    job.go()?;
    let output = recording.output.clone();
    eprintln!("a job of 4 ranks that never pauses, for {seconds} s; it writes to {}", output.display());
    let peak = Peak::watch(recording.pid(), Duration::from_secs(seconds));
    // There are no hits after this, so both counts are of the same hits.
    for pid in &job.pids {
        let pid = Pid::from_raw(i32::try_from(*pid)?).context("no process")?;
        kill_process(pid, Signal::STOP).context("stopping the job")?;
    }
    thread::sleep(Duration::from_millis(200));
    let (runs, _) = program_runs(recording.pid())?;
    let output_bytes = size_of(&output)?;
    let session = recording.interrupt()?.json;
    let number = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
    // Records of a walk are counted one by one, beside the probe's own record; a walk is one run.
    let (mut all_hits, mut records, mut sums) = (0, 0, [0; 4]);
    for probe in session["probes"].as_array().context("the session has no probes")? {
        let hits = number(&probe["hits"]);
        let fates = ["delivered", "lost", "dropped", "disarmed"].map(|key| number(&probe[key]));
        ensure!(
            hits == fates.iter().sum::<u64>(),
            "delivered + lost + dropped + disarmed is not hits: {probe}"
        );
        all_hits += if probe["part"].is_null() { hits } else { 0 };
        records += hits;
        sums.iter_mut().zip(fates).for_each(|(sum, fate)| *sum += fate);
    }
    let unaccounted = number(&session["loss"]["records_unaccounted"]);
    ensure!(
        all_hits == runs && unaccounted == 0,
        "{all_hits} hits, {runs} runs by the kernel's statistics, {unaccounted} unaccounted"
    );
    eprintln!("delivered + lost + dropped + disarmed = hits = runs");
    let [delivered, lost, dropped, disarmed] = sums;
    Ok(json!({
        "seconds": seconds,
        "hits": all_hits,
        "records": records,
        "delivered": delivered,
        "lost": lost,
        "dropped": dropped,
        "disarmed": disarmed,
        "hits_per_second": all_hits / seconds,
        "peak_rss_mib": peak.resident_kib / 1024,
        "queue_peak_bytes": session["buffer"]["queue_peak_bytes"],
        "output_bytes": output_bytes,
    }))
}
