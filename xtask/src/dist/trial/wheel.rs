//! Tries the wheel: installs it into a virtual environment of its own, and removes it again.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{prerequisites, tool};

/// Folder of the environment in the scratch folder.
const ENVIRONMENT: &str = "venv";

/// Installs the wheel. Returns its program.
pub(super) fn install(wheel: &Path, scratch: &Path) -> Result<PathBuf> {
    prerequisites::debian_packages(&[(&["python3", "-c", "import ensurepip, venv"], "python3-venv")])?;
    let environment = scratch.join(ENVIRONMENT);
    let mut make = Command::new("python3");
    tool::run(make.args(["-m", "venv", "--clear"]).arg(&environment), "an environment for the wheel")?;
    tool::run(pip(scratch).args(["install", "--quiet", "--no-index"]).arg(wheel), "installing the wheel")?;
    let program = environment.join("bin/ncclflow");
    let page = environment.join("share/man/man1/ncclflow.1");
    if !page.exists() {
        bail!("the wheel has no man page: `{}` is not there", page.display());
    }
    let version = tool::output(Command::new(&program).arg("--version"))?;
    eprintln!("of the wheel: {}", String::from_utf8_lossy(&version).trim_end());
    Ok(program)
}

/// Fails if pip leaves anything of the wheel.
pub(super) fn remove(scratch: &Path) -> Result<()> {
    tool::run(pip(scratch).args(["uninstall", "--quiet", "--yes", "ncclflow"]), "removing the wheel")?;
    let mut left = Vec::new();
    find(&scratch.join(ENVIRONMENT), &mut left)?;
    if !left.is_empty() {
        bail!("after the wheel was removed, these are left: {left:?}");
    }
    Ok(())
}

fn pip(scratch: &Path) -> Command {
    let mut pip = Command::new(scratch.join(ENVIRONMENT).join("bin/python"));
    pip.args(["-m", "pip", "--disable-pip-version-check"]);
    pip
}

/// Finds the files and folders of our name. Everything that the wheel has is named so, or is in a folder that
/// is.
fn find(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("listing `{}`", folder.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().contains("ncclflow") {
            found.push(entry.path());
        } else if entry.file_type()?.is_dir() {
            find(&entry.path(), found)?;
        }
    }
    Ok(())
}
