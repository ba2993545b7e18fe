//! `ncclflow mem`

use std::{io::Write as _, time::Duration};

use anyhow::{Result, bail};
use clap::Args;

use super::{
    Versioned,
    exit::Exit,
    progress::reading,
    quantities::{each, seconds},
    shared_args::{DebugArgs, LookedAtArgs},
    terminal,
    whom::{by_reason, one_is_there},
    write_report,
};
use dump::{
    DumpOptions,
    mem::{self, MemReport, ProcessMemory},
};
use flow::text::joined;
use inspect::memory::ScanLimits;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow mem                            all processes of this host with NCCL
  ncclflow mem -p 4242
  ncclflow mem --json | jq '.processes[] | {pid, gpuBytes, hostBytes}'

NCCL's own structs are read from memory; nothing is stopped, and no probe is set. They have the buffers of \
connections and the FIFO of work: not those of NVLink SHARP, and nothing that kernels or CUDA take. \
docs/OUTPUT.md has the JSON's schema. Needs root, or CAP_SYS_PTRACE.
Exit codes: 0 something was read; 1 nothing was, or an error; 2 wrong usage.")]
#[command(group = clap::ArgGroup::new("here").args(["pids", "all"]))]
pub struct MemArgs {
    #[command(flatten)]
    pub whom: LookedAtArgs,

    /// All that was read, as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub debug: DebugArgs,

    /// Longest time to look through the memory of each process
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = seconds)]
    pub max_seconds: Duration,
}

pub(super) fn run(args: &MemArgs) -> Result<Exit> {
    one_is_there(&each(&args.whom.pids))?;
    let options = DumpOptions {
        interval: Duration::ZERO,
        first_only: false,
        limits: ScanLimits { time: args.max_seconds, ..ScanLimits::default() },
        debug_files: args.debug.apply(),
        stacks: false,
    };
    let choice = args.whom.choice();
    let report: MemReport =
        reading("", |line| mem::mem(&choice, &options, &mut |progress| line.scan(progress)))?;
    write_report(args.json, &Versioned::first(&report), |out| {
        Ok(write!(out, "{}", mem::render(&report, terminal::report_width()))?)
    })?;
    let is_told = |process: &ProcessMemory| process.communicators.iter().any(|one| !one.parts.is_empty());
    if !report.processes.iter().any(is_told) {
        bail!("nothing can be told: {}", joined(by_reason(report.processes.iter().map(reason)), "; "));
    }
    Ok(Exit::Done)
}

/// Returns why nothing is told of a process.
fn reason(process: &ProcessMemory) -> (u32, String) {
    let remark = || process.communicators.iter().find_map(|one| one.remarks.first().cloned());
    let why = process.error.clone().or_else(remark);
    (process.pid, why.unwrap_or_else(|| "it has no communicator".to_owned()))
}
