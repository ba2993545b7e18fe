//! The project's own programs, built when they are needed.

use std::{env, ffi::OsString, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::{repository, root, tool};

/// Returns the cargo that runs this program.
pub(crate) fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Returns a command of this cargo in the repository's root.
pub(crate) fn cargo_command(command: &str) -> Command {
    let mut cargo = Command::new(cargo());
    root::as_user(&mut cargo);
    cargo.args([command, "--quiet", "--locked"]).current_dir(repository::root());
    cargo
}

/// Builds these packages. Returns the folder that their programs are in.
pub(crate) fn build(packages: &[&str]) -> Result<PathBuf> {
    build_with(packages, &[])?;
    // cargo put this program there, too, in the same profile.
    own_folder()
}

/// Builds the programs, libraries and examples of the whole workspace. Returns the folder of the programs.
/// They have the features that `cargo test --workspace` gives them, which builds none of them again.
pub(crate) fn build_all() -> Result<PathBuf> {
    eprintln!("building all programs");
    let mut cargo = cargo_command("build");
    tool::run(cargo.args(["--workspace", "--lib", "--bins", "--examples"]), "the programs")?;
    own_folder()
}

/// Returns options by which cargo runs tests through these words.
pub(crate) fn run_by(words: &[impl Serialize]) -> Result<[String; 2]> {
    // TOML has strings and lists as JSON has them.
    let words = serde_json::to_string(words).context("the words of the runner")?;
    Ok(["--config".to_owned(), format!("target.'cfg(all())'.runner={words}")])
}

/// Builds all tests.
pub(crate) fn build_tests() -> Result<()> {
    tool::run(cargo_command("test").args(["--workspace", "--no-run"]), "the tests")
}

/// Builds an example with optimisation. Returns the program.
pub(crate) fn build_release_example(package: &str, example: &str) -> Result<PathBuf> {
    build_with(&[package], &["--release", "--example", example])?;
    Ok(own_folder()?.with_file_name("release").join("examples").join(example))
}

/// Builds these packages with optimisation, whichever profile this program has.
pub(crate) fn build_release(packages: &[&str]) -> Result<PathBuf> {
    build_with(packages, &["--release"])?;
    // The folders of all profiles are in the same folder.
    Ok(own_folder()?.with_file_name("release"))
}

/// Returns cargo's target folder.
pub(crate) fn target_folder() -> Result<PathBuf> {
    // This program is in it, in the folder of a profile.
    Ok(own_folder()?.parent().context("our own folder is in none")?.to_path_buf())
}

fn own_folder() -> Result<PathBuf> {
    let here = tool::own_program()?;
    Ok(here.parent().context("our own program is in no folder")?.to_path_buf())
}

fn build_with(packages: &[&str], arguments: &[&str]) -> Result<()> {
    eprintln!("building {}", packages.join(", "));
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    tool::run(cargo_command("build").args(arguments).args(packages), "the programs")
}
