//! Tries the package: installs it into a folder, runs the unit's own command line on a job, as far as that is
//! possible without systemd, and removes it.

mod unit;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use self::unit::Unit;
use crate::{job::Job, nccl, programs, tool};

/// The library of the job.
const NCCL: &str = "2.27.5";
/// How long the unit's command line runs: `--all` finds a job within two seconds.
const SECONDS: u64 = 6;

pub(super) fn run(package: &Path, root: &Path) -> Result<()> {
    install(package, root)?;
    check_unit(root)?;
    let unit = Unit::read(root)?;
    let library = nccl::library_path(NCCL)?;
    let folder = programs::build(&["ncclflow-bed", "ncclflow-nvml-double"])?;
    let fixed =
        "--mode processes --ranks 2 --iters 1000000 --interval-ms 20 --bytes 4096 --sync --channels 1";
    let arguments: Vec<&str> = fixed.split(' ').collect();
    let job = Job::start(&folder, &library, &arguments, Stdio::inherit())?;

    let metrics = run_unit(&unit, root, ("NCCLFLOW_NO_FILES", "true"))?;
    for pid in &job.pids {
        let label = format!("pid=\"{pid}\"");
        let counts = |line: &&str| line.starts_with("ncclflow_calls_total{") && line.contains(&label);
        let counted = metrics.lines().find(counts).and_then(|line| line.rsplit_once(' '));
        match counted.map(|(_, count)| count.parse::<f64>()) {
            Some(Ok(count)) if count > 0.0 => eprintln!("process {pid}: {count} calls in the metrics"),
            _ => bail!("process {pid} is not in the metrics:\n{metrics}"),
        }
    }
    run_unit(&unit, root, ("NCCLFLOW_ROTATE", "2"))?;
    let lines = recorded_lines(&root.join("var/lib/ncclflow"))?;
    eprintln!("{lines} calls in the files");
    if lines == 0 {
        bail!("there is no call in the files");
    }
    remove(root)
}

fn dpkg(root: &Path) -> Command {
    let mut dpkg = Command::new("dpkg");
    // The package's scripts run here, with DPKG_ROOT, as there is no shell in the folder.
    dpkg.arg("--root").arg(root).args(["--force-script-chrootless", "--log=/dev/null"]);
    dpkg
}

fn install(package: &Path, root: &Path) -> Result<()> {
    let database = root.join("var/lib/dpkg");
    for folder in ["info", "updates"] {
        fs::create_dir_all(database.join(folder)).context("making dpkg's folders")?;
    }
    fs::write(database.join("status"), "").context("making dpkg's database")?;
    tool::run(dpkg(root).arg("--install").arg(package), "installing the package")?;
    tool::run(dpkg(root).args(["--verify", "ncclflow"]), "verifying what was installed")
}

/// Lets systemd, where it is installed, verify a copy of the unit that names the program where it is now.
fn check_unit(root: &Path) -> Result<()> {
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/ncclflow-record.service"))?;
    let copy = root.join("ncclflow-record.service");
    fs::write(&copy, unit.replace("=/usr/bin/", &format!("={}/usr/bin/", root.display())))?;
    let mut verify = Command::new("systemd-analyze");
    match verify.args(["verify", "--man=no"]).arg(&copy).status() {
        Ok(status) if status.success() => eprintln!("systemd finds nothing wrong with the unit"),
        Ok(status) => bail!("systemd-analyze verify ended with {status}"),
        Err(_) => eprintln!("there is no systemd-analyze: the unit was not verified"),
    }
    Ok(())
}

/// Runs the command line with the unit's capabilities and variables, and with `files` in place of the one for no
/// files. Gives the metrics that it served just before its end.
fn run_unit(unit: &Unit, root: &Path, files: (&str, &str)) -> Result<String> {
    let folder = root.join("var/lib/ncclflow");
    fs::create_dir_all(&folder)?;
    // A free port, as the unit's own port can be in use.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let variables = unit.variables(port, files)?;
    eprintln!("/{} {} with {variables:?}", unit.program, unit.arguments.join(" "));
    let bounds = unit.capabilities.iter().fold("-all".to_owned(), |bounds, name| format!("{bounds},+{name}"));
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--bounding-set={bounds}"))
        .args(["--inh-caps=-all", "--no-new-privs"])
        .arg(root.join(&unit.program))
        .args(&unit.arguments)
        .envs(variables)
        .args(["--duration", &SECONDS.to_string(), "--json"])
        .current_dir(&folder);
    let running = thread::spawn(move || command.output());
    let mut metrics = String::new();
    while !running.is_finished() {
        thread::sleep(Duration::from_millis(200));
        if let Ok(text) = scrape(port) {
            metrics = text;
        }
    }
    let Ok(output) = running.join() else { bail!("the thread that ran it panicked") };
    check(&output.context("starting setpriv")?)?;
    Ok(metrics)
}

fn check(output: &Output) -> Result<()> {
    let (report, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() || !report.contains("\"state\": \"complete\"") {
        bail!("the unit's command line (it needs root) ended with {}: {said}{report}", output.status);
    }
    Ok(())
}

fn scrape(port: u16) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Lines of all files of calls below a folder. A file that is there under two names counts twice.
fn recorded_lines(folder: &Path) -> Result<usize> {
    let mut lines = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("listing `{}`", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            lines += recorded_lines(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "jsonl") {
            lines += fs::read_to_string(&path)?.lines().count();
        }
    }
    Ok(lines)
}

/// Removes the package, and checks that only its recordings are left.
fn remove(root: &Path) -> Result<()> {
    let list = root.join("var/lib/dpkg/info/ncclflow.list");
    let installed = fs::read_to_string(&list).with_context(|| format!("reading `{}`", list.display()))?;
    tool::run(dpkg(root).args(["--purge", "ncclflow"]), "removing the package")?;
    let left: Vec<PathBuf> = installed
        .lines()
        .map(|path| root.join(path.trim_start_matches('/')))
        .filter(|path| path.is_file())
        .collect();
    if !left.is_empty() || !root.join("var/lib/ncclflow").exists() {
        bail!("after the package was purged, these are left, or its recordings are not: {left:?}");
    }
    Ok(())
}
