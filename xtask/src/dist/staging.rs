//! The folder from which the tarball and the package are made.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{repository, tool};

/// Files that are copied from the repository without change.
const FILES: [&str; 7] = [
    "README.md",
    "README.zh-CN.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "LICENSE-GPL-2.0",
];
const FOLDERS: [&str; 2] = ["docs", "dist"];

/// Fills the folder.
pub(super) fn fill(tree: &Path, program: &Path, generated: &Path) -> Result<()> {
    let root = repository::root();
    fs::create_dir_all(tree).with_context(|| format!("making `{}`", tree.display()))?;
    copy(program, &tree.join("ncclflow"), 0o755)?;
    for file in FILES {
        copy(&root.join(file), &tree.join(file), 0o644)?;
    }
    for folder in FOLDERS {
        copy_folder(&root.join(folder), &tree.join(folder))?;
    }
    for folder in ["man", "completions"] {
        copy_folder(&generated.join(folder), &tree.join(folder))?;
    }
    Ok(())
}

/// Makes the tarball. The same sources give the same tarball: files are sorted, belong to user 0, and have
/// the time of the last commit.
pub(super) fn pack(tree: &Path, output: &Path) -> Result<PathBuf> {
    let (scratch, name) = (tree.parent().unwrap_or(tree), tree.file_name().unwrap_or_default());
    let tarball = output.join(format!("{}.tar.gz", name.to_string_lossy()));
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--use-compress-program=gzip -9n",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--format=gnu",
    ]);
    tar.arg(format!("--mtime=@{}", source_time()?)).arg("--file").arg(&tarball);
    tar.arg("--directory").arg(scratch).arg(name);
    tool::run(&mut tar, "the tarball")?;
    Ok(tarball)
}

/// Returns the time of the last commit in seconds since 1970.
pub(super) fn source_time() -> Result<String> {
    let output = Command::new("git")
        .args(["log", "-1", "--format=%ct"])
        .current_dir(repository::root())
        .output()
        .context("starting git")?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    // A tarball of the sources has no git history.
    Ok(if text.is_empty() { "0".to_owned() } else { text })
}

pub(super) fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let context = || format!("copying `{}` to `{}`", from.display(), to.display());
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(context)?;
    }
    fs::copy(from, to).with_context(context)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).with_context(context)
}

pub(super) fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("making `{}`", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("listing `{}`", from.display()))? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        if path.is_dir() {
            copy_folder(&path, &to.join(name))?;
        } else {
            copy(&path, &to.join(name), 0o644)?;
        }
    }
    Ok(())
}
