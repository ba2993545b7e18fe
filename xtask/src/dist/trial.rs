//! Tries the package: unpacks it and runs the unit's own command line, as far as that goes without systemd.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use super::run_tool;

/// What is added to the unit's command line, so that it ends, and meets no other's port.
const ADDED: [&str; 5] = ["--duration", "2", "--metrics", "0", "--json"];

pub(super) fn run(package: &Path, root: &Path) -> Result<()> {
    let mut dpkg = Command::new("dpkg-deb");
    run_tool(dpkg.arg("--extract").arg(package).arg(root), "unpacking the package")?;
    let read = |name: &str| {
        fs::read_to_string(root.join(name)).with_context(|| format!("reading `{name}` of the package"))
    };
    let unit = read("usr/lib/systemd/system/ncclflow-record.service")?;
    let defaults = read("etc/default/ncclflow")?;
    let value = |text: &str, key: &str| {
        let value =
            text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned));
        value.with_context(|| format!("there is no `{key}`"))
    };
    let arguments = value(&defaults, "NCCLFLOW_ARGS")?;
    let line = value(&unit, "ExecStart")?.replace("$NCCLFLOW_ARGS", arguments.trim_matches('"'));
    let mut words = line.split_whitespace();
    let program = words.next().and_then(|word| word.strip_prefix('/')).context("no program in ExecStart")?;
    let mut words: Vec<&str> = words.collect();
    // The option can be given once.
    if let Some(at) = words.iter().position(|word| *word == "--metrics") {
        words.drain(at..(at + 2).min(words.len()));
    }
    let folder = root.join("var/lib/ncclflow");
    fs::create_dir_all(&folder)?;
    eprintln!("/{program} {} {}", words.join(" "), ADDED.join(" "));
    let mut command = Command::new(root.join(program));
    let output = command.args(&words).args(ADDED).current_dir(&folder).output().context("starting it")?;
    let report = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !report.contains("\"state\": \"complete\"") {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("the unit's command line (it needs root) ended with {}: {said}{report}", output.status);
    }
    Ok(())
}
