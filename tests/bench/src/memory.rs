//! Memory of `record`, with 8 processes and 4 communicators in each.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    bench::Bench,
    process::Peak,
    table::{Spread, Table},
};

/// Upper limit of the peak.
const BUDGET_MIB: f64 = 64.0;

const JOB: &str = "--ranks 8 --mode processes --comms 4 --ops allreduce,sendrecv --bytes 65536 --iters 40 \
                   --channels 1 --timeout 300";

pub(crate) fn run(bench: &mut Bench) -> Result<Value> {
    let (mut table, mut highest) = (Table::default(), 0.0_f64);
    for (level, buffer) in [("flow", "ring"), ("steps", "ring"), ("steps", "perf")] {
        let (mut peaks, mut own, mut records, mut kernel_buffer_mib) = (Vec::new(), Vec::new(), 0, 0.0);
        for _ in 0..bench.rounds {
            let job = bench.job(JOB)?;
            let recording = bench.record(&job.pid_list(), &format!("--level {level} --buffer {buffer}"))?;
            job.go()?;
            let peak = Peak::watch(recording.pid(), Duration::from_mins(5));
            job.summary()?;
            let session = recording.finish()?;
            let number_of = |key: &str| session.json[key].as_array().map_or(0, Vec::len);
            let seen = (number_of("targets"), number_of("communicators"));
            ensure!(seen == (8, 32), "{} processes and {} ranks were seen, and not 8 and 32", seen.0, seen.1);
            #[expect(clippy::cast_precision_loss, reason = "mebibytes, for people")]
            let mib = |kib: u64| kib as f64 / 1024.0;
            peaks.push(mib(peak.resident_kib));
            own.push(mib(peak.anonymous_kib));
            kernel_buffer_mib = mib(session.json["buffer"]["bytes"].as_u64().unwrap_or(0) / 1024);
            records = session.records_delivered();
        }
        let peak_mib = Spread::of(peaks);
        highest = highest.max(peak_mib.max);
        table.add([
            ("level", json!(level)),
            ("buffer", json!(buffer)),
            // Resident memory of all kinds. It includes pages of the kernel's buffer that `ncclflow` has
            // mapped, as far as `RssFile` and `RssShmem` count them.
            ("peak_mib", json!(peak_mib)),
            // Of this, what the program itself has allocated.
            ("anonymous_mib", json!(Spread::of(own))),
            // By `session.json`, whether counted above or not.
            ("kernel_buffer_mib", json!(kernel_buffer_mib)),
            ("records", json!(records)),
            ("ratio", json!(peak_mib.max / BUDGET_MIB)),
        ]);
    }
    ensure!(highest <= BUDGET_MIB, "more than {BUDGET_MIB} MiB");
    Ok(table.into_json())
}
