//! `cargo xtask make python-offsets`: makes the table of CPython's struct layouts that ncclflow ships for
//! versions that do not state them themselves (before 3.13).
//!
//! A C program is compiled against each interpreter's own headers and prints its line of the table.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    programs, repository,
    tool::{self, say},
};

const FOLDER: &str = "userspace/cpython/src/shipped";
/// First version of CPython that states its layouts itself.
const STATES_THEM: (u64, u64) = (3, 13);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Interpreters with their headers, like ~/.pyenv/versions/3.11.7/bin/python
    #[arg(long, value_name = "PROGRAM", num_args = 1.., required = true)]
    python: Vec<PathBuf>,
    /// Only compare the table with these interpreters
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let table = repository::root().join(FOLDER).join("offsets.jsonl");
    let mut rows: BTreeMap<(u64, u64), String> = BTreeMap::new();
    for line in fs::read_to_string(&table).context("reading the table")?.lines() {
        rows.insert(version_of(line)?, line.to_owned());
    }
    for python in &args.python {
        let row = row_of(python)?;
        let version = version_of(&row)?;
        if version >= STATES_THEM {
            say(&format!("{}: {}.{} states its layouts itself", python.display(), version.0, version.1));
            continue;
        }
        let old = rows.insert(version, row.clone());
        if args.check && old.as_deref().map(without_release) != Some(without_release(&row)) {
            bail!(
                "`{}` has other layouts than the table:\n{row}\n{}",
                python.display(),
                old.unwrap_or_default()
            );
        }
        say(&format!("{}: {}.{}", python.display(), version.0, version.1));
    }
    if !args.check {
        let lines: String = rows.into_values().map(|row| row + "\n").collect();
        fs::write(&table, lines).with_context(|| format!("writing `{}`", table.display()))?;
    }
    Ok(())
}

/// Makes the line of the table for an interpreter.
fn row_of(python: &Path) -> Result<String> {
    let script = "import sysconfig as s; print(s.get_path('include')); print(s.get_path('platinclude'))";
    let includes = tool::output(Command::new(python).args(["-c", script]))?;
    let program = programs::target_folder()?.join("python-offsets");
    let mut compile = Command::new("cc");
    compile.arg("-o").arg(&program).arg(repository::root().join(FOLDER).join("offsets.c"));
    for include in String::from_utf8_lossy(&includes).lines() {
        compile.arg(format!("-I{include}")).arg(format!("-I{include}/internal"));
    }
    tool::run(&mut compile, "the table; CPython's headers must be installed")?;
    Ok(String::from_utf8_lossy(&tool::output(&mut Command::new(&program))?).trim_end().to_owned())
}

/// `{"made_from":"3.8.18",…` without the release, which may be another one.
fn without_release(row: &str) -> &str {
    row.split_once(",\"version\"").map_or(row, |(_, rest)| rest)
}

fn version_of(row: &str) -> Result<(u64, u64)> {
    let value: serde_json::Value = serde_json::from_str(row).context("a line of the table")?;
    let number =
        |key: &str| value["version"][key].as_u64().context("a line of the table without its version");
    Ok((number("major")?, number("minor")?))
}
