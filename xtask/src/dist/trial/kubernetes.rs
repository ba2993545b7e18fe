//! Checks the files for Kubernetes: lints the Helm chart, renders it with some values, checks the rendered
//! objects against Kubernetes' schema, and runs the container's command line.

use std::{
    collections::BTreeSet,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::short_list::bounded;
use crate::{prerequisites, programs, tool};

/// Values that the chart is rendered with, as arguments of helm in `dist/helm`.
const VALUES: [(&str, &[&str]); 5] = [
    ("default values", &[]),
    ("recording-values.yaml", &["--values", "recording-values.yaml"]),
    ("metrics on loopback", &["--set", "metrics.leavesHost=false"]),
    ("dumps", &["--set", "dumps.enabled=true"]),
    ("a recording without files", &["--set", "recording.enabled=true,recording.files=false"]),
];

/// A value that the chart does not have.
const MISSPELT: &str = "recordings.enabled=true";

/// Package that checks objects against Kubernetes' schema; it brings PyYAML.
const VALIDATOR: &str = "kubernetes-validate==1.37.0";

/// Script that prints the first DaemonSet of a YAML file as JSON.
const TO_JSON: &str = "\
import json, sys, yaml
print(json.dumps(next(o for o in yaml.safe_load_all(open(sys.argv[1])) if o['kind'] == 'DaemonSet')))";

/// Checks `dist` of a tree with a program that runs here (as root, with the DaemonSet's capabilities).
pub(super) fn check(dist: &Path, program: &Path, scratch: &Path) -> Result<()> {
    let unit = unit_capabilities(dist)?;
    let (helm, python) = (prerequisites::helm()?, validator()?);
    fs::create_dir_all(scratch).with_context(|| format!("making `{}`", scratch.display()))?;
    let helm = |arguments: &[&str], values: &[&str]| {
        let mut command = Command::new(&helm);
        command.args(arguments).args(values).current_dir(dist.join("helm"));
        command
    };
    let template = ["template", "ncclflow", "ncclflow"];
    for (name, values) in VALUES {
        tool::run(
            &mut helm(&["lint", "--strict", "--quiet", "ncclflow"], values),
            &format!("the chart, {name}"),
        )?;
        let rendered = scratch.join(format!("{name}.rendered.yaml"));
        let text = tool::output(&mut helm(&template, values))?;
        fs::write(&rendered, text).with_context(|| format!("writing `{}`", rendered.display()))?;
        let python = || {
            let mut command = Command::new("python3");
            command.env("PYTHONPATH", &python);
            command
        };
        let mut validate = python();
        validate.args(["-m", "kubernetes_validate", "--strict", "--quiet"]).arg(&rendered);
        tool::run(&mut validate, &format!("Kubernetes' schema, {name}"))?;
        let object: Value =
            serde_json::from_slice(&tool::output(python().args(["-c", TO_JSON]).arg(&rendered))?)
                .context("reading the DaemonSet")?;
        let container = &object["spec"]["template"]["spec"]["containers"][0];
        let capabilities: BTreeSet<String> = strings(&container["securityContext"]["capabilities"]["add"])?;
        if capabilities != unit {
            bail!("with {name} the DaemonSet has {capabilities:?}, the systemd unit {unit:?}");
        }
        run(program, &strings::<Vec<String>>(&container["args"])?, &capabilities, &scratch.join(name))
            .with_context(|| format!("the command line of the DaemonSet with {name}"))?;
        eprintln!("helm, Kubernetes' schema and ncclflow take the chart with {name}");
    }
    let misspelt = helm(&template, &["--set", MISSPELT]).output().context("starting helm")?;
    if misspelt.status.success() || !String::from_utf8_lossy(&misspelt.stderr).contains("schema") {
        bail!("the chart takes a value that it does not have: {MISSPELT}");
    }
    Ok(())
}

fn strings<T: FromIterator<String>>(list: &Value) -> Result<T> {
    let list = list.as_array().context("no list")?;
    list.iter().map(|text| text.as_str().map(str::to_owned).context("no text")).collect()
}

/// Runs the command line for a second, in a folder of its own, with its metrics on a free port of loopback.
fn run(program: &Path, arguments: &[String], capabilities: &BTreeSet<String>, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making `{}`", folder.display()))?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let capabilities: Vec<String> = capabilities.iter().map(|name| name.to_ascii_lowercase()).collect();
    let [setpriv, bounds @ ..] = bounded(&capabilities);
    let mut command = Command::new(setpriv);
    command.args(bounds).arg(program);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        command.arg(argument);
        if argument == "--metrics" {
            arguments.next().context("no address for the metrics")?;
            command.arg(port.to_string());
        }
    }
    tool::output(command.args(["--duration", "1"]).current_dir(folder))?;
    Ok(())
}

/// Returns the unit's capabilities as the DaemonSet names them: `BPF`.
fn unit_capabilities(dist: &Path) -> Result<BTreeSet<String>> {
    let path = dist.join("systemd/ncclflow-record.service");
    let unit = fs::read_to_string(&path).with_context(|| format!("reading `{}`", path.display()))?;
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let line = line.context("the unit has no CapabilityBoundingSet")?;
    Ok(line.split_whitespace().map(|name| name.trim_start_matches("CAP_").to_owned()).collect())
}

/// Returns `$PYTHONPATH` of the validator, fetched where it is not there.
fn validator() -> Result<PathBuf> {
    let folder = programs::target_folder()?.join("kubernetes-validate");
    if !folder.join("kubernetes_validate/__main__.py").exists() {
        prerequisites::fetch_wheel(VALIDATOR, &folder)?;
    }
    Ok(folder)
}
