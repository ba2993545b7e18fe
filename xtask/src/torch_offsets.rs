//! `cargo xtask make torch-offsets`: makes the table of the layouts of torch's flight recorder that ncclflow
//! ships.
//!
//! A C++ program is compiled against each release's own headers and prints its line of the table. The headers
//! come out of the release's wheel (10 MB of some 800), or from a folder.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{
    nccl, programs, repository,
    tool::{self, say},
};

const FOLDER: &str = "userspace/torch/src/shipped";
const HEADERS: &str = include_str!("torch_offsets/headers.py");

/// Releases of PyPI that may differ from those before.
const RELEASES: [&str; 18] = [
    "2.4.0", "2.4.1", "2.5.0", "2.5.1", "2.6.0", "2.7.0", "2.7.1", "2.8.0", "2.9.0", "2.9.1", "2.10.0",
    "2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0",
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Releases to look at, like 2.11.0; all that PyPI has from 2.4 on unless given
    #[arg(long, value_name = "RELEASE", num_args = 1..)]
    release: Vec<String>,
    /// Where the headers are kept: RELEASE/torch/include of each; those that are missing are fetched
    #[arg(long, value_name = "DIR")]
    headers: Option<PathBuf>,
    /// Only compare the table with these releases
    #[arg(long)]
    check: bool,
}

/// A line of the table, with the parts of it that are compared.
struct Row {
    made_from: Vec<String>,
    tried: Value,
    layouts: Value,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let table = repository::root().join(FOLDER).join("offsets.jsonl");
    let headers = match &args.headers {
        Some(folder) => folder.clone(),
        None => nccl::cache_folder("torch")?,
    };
    let mut old: BTreeMap<u64, Row> = BTreeMap::new();
    for line in fs::read_to_string(&table).unwrap_or_default().lines() {
        let (minor, row) = parse(line)?;
        old.insert(minor, row);
    }
    let mut new: BTreeMap<u64, Row> = BTreeMap::new();
    let all: Vec<String> = RELEASES.map(str::to_owned).to_vec();
    for release in if args.release.is_empty() { &all } else { &args.release } {
        let folder = headers.join(release);
        if !folder.join("torch/include").is_dir() {
            fetch(release, &folder)?;
        }
        let (minor, row) = parse(&row_of(release, &folder)?)?;
        say(&format!("{release}: {}", row.made_from.join(", ")));
        if args.check {
            let known = old.get(&minor).with_context(|| format!("the table has no torch 2.{minor}"))?;
            if known.layouts != row.layouts {
                bail!(
                    "torch {release} has other layouts than the table:\n{}\n{}",
                    row.layouts,
                    known.layouts
                );
            }
            continue;
        }
        let Some(first) = new.get_mut(&minor) else {
            let tried =
                old.get(&minor).filter(|known| known.layouts == row.layouts).map(|known| known.tried.clone());
            new.insert(minor, Row { tried: tried.unwrap_or(row.tried), ..row });
            continue;
        };
        if first.layouts != row.layouts {
            bail!("the releases of torch 2.{minor} have different layouts; the table goes by minor versions");
        }
        first.made_from.extend(row.made_from);
    }
    if !args.check {
        old.extend(new);
        let lines: String = old.values().map(|row| row.line() + "\n").collect();
        fs::write(&table, lines).with_context(|| format!("writing `{}`", table.display()))?;
    }
    Ok(())
}

impl Row {
    fn line(&self) -> String {
        let mut line = serde_json::json!({ "made_from": self.made_from, "tried": self.tried });
        if let (Some(line), Some(layouts)) = (line.as_object_mut(), self.layouts.as_object()) {
            line.extend(layouts.clone());
        }
        line.to_string()
    }
}

fn parse(line: &str) -> Result<(u64, Row)> {
    let mut layouts: Value = serde_json::from_str(line).context("a line of the table")?;
    let minor = layouts["version"]["minor"].as_u64().context("a line of the table without its version")?;
    let fields = layouts.as_object_mut().context("a line of the table")?;
    let made_from = serde_json::from_value(fields.remove("made_from").unwrap_or_default())?;
    let tried = fields.remove("tried").unwrap_or_default();
    Ok((minor, Row { made_from, tried, layouts }))
}

fn fetch(release: &str, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating `{}`", folder.display()))?;
    let mut python = Command::new("python3");
    python.arg("-c").arg(HEADERS).arg(release).arg(folder);
    tool::run(&mut python, "torch's headers, out of its wheel")
}

/// Makes the line of the table for a release.
fn row_of(release: &str, folder: &Path) -> Result<String> {
    let minor = release.split('.').nth(1).context("a release is like 2.11.0")?;
    let stated = fs::read_to_string(folder.join("torch/version.py")).context("which torch it is")?;
    let stated = stated.lines().find_map(|line| line.strip_prefix("__version__ = "));
    let stated = stated.context("`torch/version.py` states no version")?.trim_matches('\'');
    // Wheels from 2.8 on state nothing: they have the newer kind.
    let cmake =
        fs::read_to_string(folder.join("torch/share/cmake/Torch/TorchConfig.cmake")).unwrap_or_default();
    let cxx11 = u8::from(!cmake.contains("_GLIBCXX_USE_CXX11_ABI=0"));
    let shipped = repository::root().join(FOLDER);
    let include = folder.join("torch/include");
    let program = programs::target_folder()?.join("torch-offsets");
    let mut compile = Command::new("g++");
    // Some of the fields are private. Functions of torch's libraries are not there, and are not called.
    compile.args([
        "-std=c++20",
        "-w",
        "-fno-access-control",
        "-static",
        "-Wl,--unresolved-symbols=ignore-all",
    ]);
    compile.args([
        "-DUSE_C10D_NCCL",
        &format!("-DMINOR={minor}"),
        &format!("-D_GLIBCXX_USE_CXX11_ABI={cxx11}"),
    ]);
    compile.arg("-I").arg(shipped.join("stand-ins")).arg("-I").arg(&include);
    compile.arg("-I").arg(include.join("torch/csrc/api/include"));
    compile.arg(shipped.join("offsets.cpp")).arg("-o").arg(&program);
    tool::run(&mut compile, "the table")?;
    Ok(String::from_utf8_lossy(&tool::output(Command::new(&program).arg(stated))?).trim_end().to_owned())
}
