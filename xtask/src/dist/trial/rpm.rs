//! Tries the RPM package: installs it into a folder, verifies it, and removes it again.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{prerequisites, tool};

/// Folder that the trial keeps as a recording; then the folder of a cache, which must go.
const RECORDING: &str = "var/lib/ncclflow/recording";
const CACHE: &str = "var/cache/ncclflow";

/// Installs the package. Returns its program.
pub(super) fn install(package: &Path, root: &Path) -> Result<PathBuf> {
    prerequisites::debian_packages(&[(&["rpm", "--version"], "rpm")])?;
    fs::create_dir_all(root).with_context(|| format!("making `{}`", root.display()))?;
    tool::run(rpm(root).arg("--initdb"), "making RPM's database")?;
    let mut install = rpm(root);
    install.args(["--install", "--nodeps", "--nosignature"]).args(scripts(root)).arg(package);
    tool::run(&mut install, "installing the RPM package")?;
    let verify = ["--verify", "--nodeps", "--noscripts", "ncclflow"];
    tool::run(rpm(root).args(verify), "verifying what was installed")?;
    Ok(root.join("usr/bin/ncclflow"))
}

/// Fails if anything but recordings is left.
pub(super) fn remove(root: &Path) -> Result<()> {
    let installed = tool::output(rpm(root).args(["--query", "--list", "ncclflow"]))?;
    let recording = root.join(RECORDING);
    for folder in [&recording, &root.join(CACHE)] {
        fs::create_dir_all(folder).with_context(|| format!("making `{}`", folder.display()))?;
    }
    let scripts = scripts(root);
    let mut erase = rpm(root);
    tool::run(erase.args(["--erase", "--nodeps"]).args(scripts).arg("ncclflow"), "removing the RPM package")?;
    let installed = String::from_utf8_lossy(&installed);
    let paths = installed.lines().map(|path| path.trim_start_matches('/'));
    // Only the package's scripts know the cache, so it must be gone where they ran.
    let paths = paths.chain(scripts.is_none().then_some(CACHE));
    let left: Vec<PathBuf> = paths.map(|path| root.join(path)).filter(|path| path.exists()).collect();
    if !left.is_empty() || !recording.exists() {
        bail!("after the package was removed, these are left, or its recordings are not: {left:?}");
    }
    Ok(())
}

fn rpm(root: &Path) -> Command {
    let mut rpm = Command::new("rpm");
    rpm.arg("--root").arg(root).args(["--dbpath", "/var/lib/rpm"]);
    rpm
}

/// Returns rpm's option for no scripts, unless the folder has a shell to run them.
fn scripts(root: &Path) -> Option<&'static str> {
    (!root.join("bin/sh").exists()).then_some("--noscripts")
}
