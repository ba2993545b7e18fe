//! Tries the systemd unit, as far as that is possible without systemd: its own command line, with its
//! variables and its capabilities, on a job.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Output},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::repository;

use super::{debian_root::DebianRoot, short_list::bounded, unit::Unit};
use crate::job::Job;

/// Time that the unit's command line runs: `--all` finds a job within two seconds.
const SECONDS: u64 = 6;
/// Drop-in for metrics on this host alone, and most exposure with it, in tenths, as systemd counts it.
const LOOPBACK: &str = "loopback-metrics.conf";
const MOST_EXPOSURE: u32 = 25;

/// Lets systemd, where it is installed, verify a copy of the unit that names the program where it is now.
pub(super) fn check_unit(root: &Path) -> Result<()> {
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/ncclflow-record.service"))?;
    let copy = root.join("ncclflow-record.service");
    fs::write(&copy, unit.replace("=/usr/bin/", &format!("={}/usr/bin/", root.display())))?;
    let mut verify = Command::new("systemd-analyze");
    match verify.args(["verify", "--man=no"]).arg(&copy).status() {
        Ok(status) if status.success() => eprintln!("systemd finds nothing wrong with the unit"),
        Ok(status) => bail!("systemd-analyze verify ended with {status}"),
        Err(_) => eprintln!("there is no systemd-analyze: the unit was not verified"),
    }
    check_exposure(&root.join("exposure"))
}

/// Lets systemd, where it is installed, say how much each unit lets happen where metrics are for this host alone.
fn check_exposure(folder: &Path) -> Result<()> {
    let dist = repository::root().join("dist/systemd");
    for unit in ["ncclflow-watch.service", "ncclflow-record.service"] {
        let units = folder.join("etc/systemd/system");
        let drop_ins = units.join(format!("{unit}.d"));
        fs::create_dir_all(&drop_ins).context("making a folder for units")?;
        fs::copy(dist.join(unit), units.join(unit))?;
        fs::copy(dist.join(LOOPBACK), drop_ins.join(LOOPBACK))?;
        let mut analyse = Command::new("systemd-analyze");
        analyse.args(["security", "--offline=true", &format!("--threshold={MOST_EXPOSURE}"), "--no-pager"]);
        match analyse.arg(format!("--root={}", folder.display())).arg(unit).output() {
            Ok(said) if said.status.success() => {
                eprintln!("systemd's exposure of {unit}: {:.1} at most", f64::from(MOST_EXPOSURE) / 10.0);
            }
            Ok(said) => bail!("{unit} lets more happen: {}", String::from_utf8_lossy(&said.stdout)),
            Err(_) => eprintln!("there is no systemd-analyze: the exposure of {unit} is not known"),
        }
    }
    Ok(())
}

/// Runs the unit without files, for its metrics, and with files.
pub(super) fn try_unit(unit: &Unit, root: &DebianRoot, job: &Job) -> Result<()> {
    let metrics = run(unit, root, ("NCCLFLOW_NO_FILES", "true"))?;
    for pid in &job.pids {
        let label = format!("pid=\"{pid}\"");
        let counts = |line: &&str| line.starts_with("ncclflow_calls_total{") && line.contains(&label);
        let counted = metrics.lines().find(counts).and_then(|line| line.rsplit_once(' '));
        match counted.map(|(_, count)| count.parse::<f64>()) {
            Some(Ok(count)) if count > 0.0 => eprintln!("process {pid}: {count} calls in the metrics"),
            _ => bail!("process {pid} is not in the metrics:\n{metrics}"),
        }
    }
    run(unit, root, ("NCCLFLOW_ROTATE", "2"))?;
    let lines = recorded_lines(&root.path().join("var/lib/ncclflow"))?;
    eprintln!("{lines} calls in the files");
    if lines == 0 {
        bail!("there is no call in the files");
    }
    Ok(())
}

/// Runs the command line with the unit's capabilities and variables, and with `files` in place of the
/// variable for no files. Returns the metrics that it served just before its end.
fn run(unit: &Unit, root: &DebianRoot, files: (&str, &str)) -> Result<String> {
    let folder = "var/lib/ncclflow";
    fs::create_dir_all(root.path().join(folder))?;
    // A free port is used, as the unit's own can be in use.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let variables = unit.variables(port, files)?;
    eprintln!("/{} {} with {variables:?}", unit.program, unit.arguments.join(" "));
    let mut words = root.enter();
    words.extend(["env".into(), format!("--chdir=/{folder}").into()]);
    words.extend(bounded(&unit.capabilities));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(Path::new("/").join(&unit.program)).args(&unit.arguments).envs(variables);
    command.args(["--duration", &SECONDS.to_string(), "--json"]);
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
        bail!("the unit's command line ended with {}: {said}{report}", output.status);
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

/// Counts the lines of all files of calls and operations below a folder. A file that is there under two names
/// counts twice.
pub(super) fn recorded_lines(folder: &Path) -> Result<usize> {
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
