//! `cargo xtask verify soak`: the tracer among tenants who do all that tenants do, for as long as is wanted.
//!
//! The program that does it is an example of `ncclflow-e2e`, as that of `conformance` is:
//! `tests/e2e/examples/soak`.

use std::process::Stdio;

use anyhow::Result;

use crate::{nccl, programs, root, tool};

/// NCCL versions: one whose file stays as it is, and two of which files are made that do not. Most tests run
/// others, so that jobs of others on this machine have no probe of the soak's.
const LIBRARIES: [&str; 3] = ["2.24.3", "2.19.3", "2.17.1"];

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask verify soak --minutes 2             as CI does
  cargo xtask verify soak --minutes 600 --release a night, with the program as it is shipped
  cargo xtask verify soak --kills 200             the tracer is killed, 200 times, at any moment of a running job

The last line is PASSED or FAILED; the exit code says the same. `--seed` makes the same choices again; moments differ.")]
pub(crate) struct Args {
    /// How long
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(2..))]
    minutes: u32,
    /// Instead: kill the tracer so often, and look at what is left each time
    #[arg(long, value_name = "N", conflicts_with = "minutes", value_parser = clap::value_parser!(u32).range(1..))]
    kills: Option<u32>,
    /// Of the choices that are made; printed, so that a run can be made again [default: any]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Build with optimisation
    #[arg(long)]
    release: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    for version in LIBRARIES {
        nccl::library_path(version)?;
    }
    let program = if args.release {
        programs::build_release(&["ncclflow", "ncclflow-bed", "ncclflow-nvml-double"])?;
        programs::build_release_example("ncclflow-e2e", "soak")?
    } else {
        programs::build_all()?.join("examples/soak")
    };
    let mut command = root::command(&program);
    match args.kills {
        Some(kills) => command.args(["--kills", &kills.to_string()]),
        None => command.args(["--minutes", &args.minutes.to_string()]),
    };
    if let Some(seed) = args.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    // Missing things are a failure here, and not a test that is skipped.
    tool::run(command.env("NCCLFLOW_REQUIRE", "all").stdin(Stdio::null()), "the soak")
}
