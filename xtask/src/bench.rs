//! `cargo xtask bench`: builds `tests/bench`, which measures, and what it measures, and becomes it. xtask
//! itself must build without the crate `ncclflow`, which refuses to build while the committed eBPF object is
//! out of date.

use std::{os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{prerequisites, programs, root, tool};

const PROGRAMS: [&str; 4] = ["ncclflow", "ncclflow-bed", "ncclflow-nvml-double", "ncclflow-bench"];

/// Benches of files that are there, which need no root.
const OF_FILES: [&str; 4] = ["resolve", "volume", "fleet", "report"];

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Passed to `ncclflow-bench`; `--help` says what there is
    #[arg(value_name = "BENCH", trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let asks_for = |word: &str| args.rest.iter().any(|given| given == word);
    let is_help = args.rest.is_empty() || ["-h", "--help", "help"].into_iter().any(asks_for);
    let needs_root = !is_help && !OF_FILES.into_iter().any(asks_for);
    if needs_root {
        root::ask("this benchmark")?;
    }
    let program = programs::build_release(&PROGRAMS)?.join("ncclflow-bench");
    let mut command = if needs_root { root::command(program) } else { Command::new(program) };
    if asks_for("fleet") && !is_help {
        let spark: &[_] = if asks_for("--spark") { &[prerequisites::SPARK] } else { &[] };
        command.env("PYTHONPATH", prerequisites::python_path(spark)?);
    }
    if asks_for("peers") && !is_help {
        command.env("NCCLFLOW_PY_SPY", prerequisites::py_spy()?);
    }
    if asks_for("report") && !is_help {
        prerequisites::commands()?;
    }
    // It has this program fetch the library of an NCCL version.
    command.env("NCCLFLOW_XTASK", tool::own_program()?).args(&args.rest);
    Err(command.exec()).context("starting ncclflow-bench")
}
