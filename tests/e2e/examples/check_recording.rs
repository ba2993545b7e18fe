//! Checks a recording of real GPUs: `check_recording RECORDING LOG_DIR [TRUTH_DIR]`. Ends with 1 if anything
//! differs.

use std::{path::Path, process::ExitCode};

use anyhow::{Context as _, Result};
use ncclflow_e2e::{
    compare::{self, Findings},
    tracer::Trace,
    truth::{debug_log::DebugLog, plugin::PluginTruth},
};

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let recording = arguments.first().context("no recording")?;
    let trace = Trace::read(Path::new(recording))?;
    let log = DebugLog::read_directory(Path::new(arguments.get(1).context("no folder of debug logs")?))?;
    let mut checks: Vec<(&str, Findings)> = vec![
        ("identity", compare::identity(&trace)),
        ("symmetry", compare::symmetry(&trace)),
        ("topology against NCCL's log", compare::topology(&trace, &log)),
    ];
    if let Some(truth) = arguments.get(2) {
        let mut truth = PluginTruth::read(Path::new(truth))?;
        // Both stamp CLOCK_MONOTONIC: what began before the recording is none of its business.
        let session = std::fs::read_to_string(Path::new(recording).join("session.json"))?;
        let session: serde_json::Value = serde_json::from_str(&session)?;
        let begun = session["clock"]["started_monotonic_ns"].as_u64().context("session.json has no clock")?;
        for rank in truth.ranks.values_mut() {
            rank.ops.retain(|op| op.start >= begun);
        }
        checks.push((
            "every op and message against NCCL's profiler interface",
            compare::against_plugin(&trace, &truth),
        ));
    }
    let mut clean = true;
    for (name, findings) in &checks {
        clean &= findings.is_clean();
        println!("{name}: {findings}");
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
