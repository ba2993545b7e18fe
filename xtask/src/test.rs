//! `cargo xtask test`: everything that the tests need, then all tests, then what was skipped.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{nccl, prerequisites, programs, pythons, repository};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Things whose absence fails a test instead of skipping it, like root, nccl, mount; `all`: no test may
    /// be skipped
    #[arg(long, value_name = "THINGS", default_value = "nccl,programs")]
    require: String,

    /// Passed on to `cargo test`
    #[arg(last = true)]
    cargo_arguments: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    prerequisites::commands()?;
    let python_path = prerequisites::python_path(&[])?;
    let pythons = pythons::pythons()?;
    let torch_analyser = prerequisites::torch_analyser()?;
    let inspector_exporter = prerequisites::inspector_exporter()?;
    prerequisites::rust_target(prerequisites::STATIC_TARGET)?;
    for version in nccl::tested_versions() {
        nccl::library_path(version)?;
    }
    programs::build(&programs::TESTED)?;
    println!("running the tests; required: {}", args.require);
    let skips = programs::target_folder()?.join("skipped-tests");
    fs::write(&skips, "").with_context(|| format!("making `{}`", skips.display()))?;
    let status = Command::new(programs::cargo())
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(&args.cargo_arguments)
        .current_dir(repository::root())
        .env("NCCLFLOW_REQUIRE", &args.require)
        .env("NCCLFLOW_SKIPS", &skips)
        .env("PYTHONPATH", python_path)
        .env("NCCLFLOW_PYTHONS", pythons)
        .env("NCCLFLOW_TORCH_ANALYSER", torch_analyser)
        .env("NCCLFLOW_INSPECTOR_EXPORTER", inspector_exporter)
        .status()
        .context("starting cargo test")?;
    let skipped = skipped(&skips)?;
    println!("{} skipped", skipped.len());
    for line in skipped {
        println!("  {line}");
    }
    if !status.success() {
        bail!("tests failed ({status})");
    }
    Ok(())
}

/// What tests have recorded by `test_support::skip`: the test, the thing that it lacks, and the remedy; each
/// once.
fn skipped(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading `{}`", path.display()))?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines.dedup();
    Ok(lines)
}
