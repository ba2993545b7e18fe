//! `cargo xtask bed`: builds the bed and runs it on a library from the cache.

use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;

use crate::{nccl, programs};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The bed's own options: cargo xtask bed --nccl 2.27.5 -- --help (see also tests/README.md)"
)]
pub(crate) struct Args {
    /// Like 2.27.5 (for CUDA 12) or 2.28.9-cu13; fetched when it is not in the cache
    #[arg(long, value_name = "VERSION", required_unless_present_any = ["library", "build_only"])]
    nccl: Option<String>,

    /// A library outside the cache
    #[arg(long, value_name = "PATH", conflicts_with = "nccl")]
    library: Option<PathBuf>,

    /// Build with optimisation
    #[arg(long)]
    release: bool,

    /// Build, say where the program is, and run nothing
    #[arg(long)]
    build_only: bool,

    /// Passed to the bed, like: --ranks 4 --mode processes --ops allreduce --bytes 1048576
    #[arg(value_name = "BED OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// An artifact that cargo built.
#[derive(Debug)]
struct Built {
    program: PathBuf,
    nvml: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    for own in ["--nccl", "--library", "--release", "--build-only"] {
        if args.rest.iter().any(|arg| arg == own || arg.starts_with(&format!("{own}="))) {
            bail!("`{own}` belongs before the bed's own options");
        }
    }
    let built = build(args.release)?;
    if args.build_only {
        print(&built.program.display().to_string());
        return Ok(());
    }
    let library = match (&args.library, &args.nccl) {
        (Some(library), _) => library.clone(),
        (None, Some(version)) => nccl::library_path(version)?,
        (None, None) => bail!("which library? --nccl VERSION"),
    };
    let mut command = Command::new(&built.program);
    command.arg("--library").arg(library).arg("--nvml").arg(&built.nvml).args(&args.rest);
    // The bed takes this process's place, so that its process id, its streams and its exit status are the
    // caller's.
    Err(command.exec()).with_context(|| format!("running `{}`", built.program.display()))
}

/// A line of `cargo build --message-format=json` that names something built.
#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    target: Option<Target>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
}

fn build(release: bool) -> Result<Built> {
    let mut command = Command::new(programs::cargo());
    command.args(["build", "--quiet", "--message-format=json-render-diagnostics"]);
    command.args(["--package", "ncclflow-bed", "--package", "ncclflow-nvml-double"]);
    if release {
        command.arg("--release");
    }
    let mut child = command.stdout(Stdio::piped()).spawn().context("starting cargo")?;
    let (mut program, mut nvml) = (None, None);
    if let Some(output) = child.stdout.take() {
        for message in serde_json::Deserializer::from_reader(BufReader::new(output)).into_iter::<Message>() {
            let message = message.context("reading cargo's messages")?;
            match message.target {
                Some(target) if message.reason == "compiler-artifact" => match target.name.as_str() {
                    "ncclflow-bed" => program = message.executable,
                    "nvidia_ml" => nvml = message.filenames.into_iter().next(),
                    _ => {}
                },
                _ => {}
            }
        }
    }
    if !child.wait()?.success() {
        bail!("the bed does not build");
    }
    let missing = || anyhow!("cargo did not say where the bed is");
    Ok(Built { program: program.ok_or_else(missing)?, nvml: nvml.ok_or_else(missing)? })
}

#[expect(clippy::print_stdout, reason = "a path for scripts")]
fn print(line: &str) {
    println!("{line}");
}
