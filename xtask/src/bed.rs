//! `cargo xtask bed`: builds the bed and runs it on a library from the cache.

use std::{os::unix::process::CommandExt as _, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{nccl, programs};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The bed's own options: cargo xtask bed --nccl 2.27.5 -- --help (see also tests/README.md)"
)]
pub(crate) struct Args {
    /// Like 2.27.5 (for CUDA 12) or 2.28.9-cu13; fetched when it is not in the cache
    #[arg(long, value_name = "VERSION", required_unless_present = "library")]
    nccl: Option<String>,

    /// A library outside the cache
    #[arg(long, value_name = "PATH", conflicts_with = "nccl")]
    library: Option<PathBuf>,

    /// Build with optimisation
    #[arg(long)]
    release: bool,

    /// Passed to the bed, like: --ranks 4 --mode processes --ops allreduce --bytes 1048576
    #[arg(value_name = "BED OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    for own in ["--nccl", "--library", "--release"] {
        if args.rest.iter().any(|arg| arg == own || arg.starts_with(&format!("{own}="))) {
            bail!("`{own}` belongs before the bed's own options");
        }
    }
    let packages = ["ncclflow-bed", "ncclflow-nvml-double"];
    let build = if args.release { programs::build_release } else { programs::build };
    let program = build(&packages)?.join("ncclflow-bed");
    let library = match (&args.library, &args.nccl) {
        (Some(library), _) => library.clone(),
        (None, Some(version)) => nccl::library_path(version)?,
        (None, None) => bail!("which library? --nccl VERSION"),
    };
    let mut command = Command::new(&program);
    command.arg("--library").arg(library).args(&args.rest);
    // The bed takes this process's place, so that its process id, its streams and its exit status are the
    // caller's.
    Err(command.exec()).with_context(|| format!("running `{}`", program.display()))
}
