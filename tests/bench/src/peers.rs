//! What three tools say of the same hangs, of jobs of Python programs on the bed: `dump`, NCCL's own reliability service
//! (RAS) and py-spy. Each is judged by one rule: whether the processes that it points at are the one that is to blame.

mod answer;
mod kind;
mod py_spy;
mod ras;

use std::{
    env, fs,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use self::{
    answer::{Answer, Verdict},
    kind::{KINDS, Kind, Then},
};
use crate::{
    bench::{Bench, of_tests},
    dump::Ended,
    table::Table,
};

const RANKS: u32 = 4;
/// A job whose GPUs stood still for so long has come to its hang.
const REST: Duration = Duration::from_secs(3);
/// Time in which ranks work before something is done to them, or at least until they stand.
const WORK: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these kinds of hangs
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    kinds: Vec<String>,
}

pub(crate) fn run(bench: &mut Bench, args: &Args) -> Result<Value> {
    let known = |name: &String| KINDS.iter().any(|kind| kind.name == name);
    ensure!(args.kinds.iter().all(known), "kinds are {}", KINDS.map(|kind| kind.name).join(", "));
    let py_spy = env::var_os("NCCLFLOW_PY_SPY").map(PathBuf::from).filter(|program| program.exists());
    if py_spy.is_none() {
        eprintln!("SKIPPED: py-spy is not there, and nothing is compared with it");
    }
    let (mut table, mut said, mut worse) = (Table::default(), Vec::new(), Vec::new());
    for kind in
        KINDS.iter().filter(|kind| args.kinds.is_empty() || args.kinds.iter().any(|name| name == kind.name))
    {
        for _ in 0..bench.rounds {
            let job = Job::start(bench, kind)?;
            let culprit = job.pid(kind.culprit);
            let dump = timed(|| job.dump(bench))?;
            let ras = timed(|| ras::ask(job.ras_port))?;
            let py_spy = py_spy.as_ref().map(|program| timed(|| py_spy::ask(program, &job.pids())));
            let py_spy = py_spy.transpose()?;
            let [dump, ras] = [dump, ras].map(|(ms, answer)| (ms, answer.judge(culprit), answer));
            let py_spy = py_spy.map(|(ms, answer)| (ms, answer.judge(culprit), answer));
            let best = py_spy.iter().chain([&ras]).map(|(_, verdict, _)| *verdict).max();
            if best.is_some_and(|best| best > dump.1) {
                worse.push(kind.name);
            }
            let ms = |ms: f64| json!(ms.round());
            let of = |verdict: Option<Verdict>| json!(verdict.map_or("skipped", Verdict::name));
            table.add([
                ("kind", json!(kind.name)),
                ("culprit", json!(kind.culprit)),
                ("dump", of(Some(dump.1))),
                ("ras", of(Some(ras.1))),
                ("py_spy", of(py_spy.as_ref().map(|(_, verdict, _)| *verdict))),
                ("dump_ms", ms(dump.0)),
                ("ras_ms", ms(ras.0)),
                ("py_spy_ms", py_spy.as_ref().map_or(Value::Null, |(took, ..)| ms(*took))),
            ]);
            said.push(json!({
                "kind": kind.name,
                "dump": dump.2.said,
                "ras": ras.2.said,
                "py_spy": py_spy.map(|(.., answer)| answer.said),
            }));
        }
    }
    match &*worse {
        [] => eprintln!("dump is never worse than RAS and py-spy together"),
        worse => eprintln!("dump is worse than RAS or py-spy: {}", worse.join(", ")),
    }
    Ok(json!({ "rows": table.into_json(), "said": said, "worse": worse }))
}

/// A job that has come to its hang.
struct Job {
    ranks: Ended,
    ras_port: u16,
    variables: [(&'static str, PathBuf); 2],
}

impl Job {
    fn start(bench: &mut Bench, kind: &Kind) -> Result<Self> {
        let folder = bench.fresh("peers");
        fs::create_dir(&folder)?;
        let ras_port = free_port()?;
        let [bed, nvml] =
            ["libncclflow_bed.so", "libnvidia_ml.so"].map(|library| bench.programs.join(library));
        let gpus = folder.join("gpus");
        let place = folder.display().to_string();
        let options = format!(
            "--gpu-states {{}}/gpus --env NCCL_RAS_ENABLE=1 --env NCCL_RAS_ADDR=127.0.0.1:{ras_port} {}",
            kind.options
        );
        let options: Vec<String> =
            options.split_whitespace().map(|word| word.replace("{}", &place)).collect();
        let mut job = Self {
            ranks: Ended(Vec::new()),
            ras_port,
            variables: [("NCCLFLOW_NVML", nvml.clone()), ("NVML_DOUBLE_STATES", gpus.clone())],
        };
        for rank in 0..RANKS {
            let mut command = Command::new("python3");
            command.arg("-I").arg(of_tests("bench/src/peers/rank.py"));
            command
                .args([&bed, &bench.library, &nvml, &folder])
                .args([rank, RANKS].map(|number| number.to_string()));
            command.args([kind.name, &kind.culprit.to_string()]).args(&options);
            command.stdin(Stdio::null()).stderr(fs::File::create(folder.join(format!("{rank}.err")))?);
            job.ranks.0.push(command.stdout(Stdio::null()).spawn().context("starting `python3`")?);
        }
        let begun = Instant::now();
        let is_up = || folder.join(format!("ready{}", RANKS - 1)).exists();
        while !is_up() {
            let ended = job.ranks.0.iter_mut().any(|rank| !matches!(rank.try_wait(), Ok(None)));
            let said = || fs::read_to_string(folder.join("0.err")).unwrap_or_default();
            ensure!(!ended && begun.elapsed() < PATIENCE, "the job does not come up: {}", said());
            thread::sleep(Duration::from_millis(50));
        }
        thread::sleep(WORK);
        match kind.then {
            Then::Nothing => {}
            Then::Touch(name) => _ = fs::File::create(folder.join(name))?,
            Then::Kill => job.ranks.0.get_mut(kind.culprit as usize).map_or(Ok(()), Child::kill)?,
        }
        let (mut last, mut since) = (Vec::new(), Instant::now());
        while since.elapsed() < REST {
            let now = fs::read(&gpus)?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
            ensure!(begun.elapsed() < PATIENCE, "{}: the job does not come to rest", kind.name);
            thread::sleep(Duration::from_millis(100));
        }
        Ok(job)
    }

    fn pid(&self, rank: u32) -> u32 {
        self.ranks.0.get(rank as usize).map_or(0, Child::id)
    }

    fn pids(&self) -> Vec<u32> {
        self.ranks.0.iter().map(Child::id).collect()
    }

    fn dump(&self, bench: &Bench) -> Result<Answer> {
        let pids = self.pids().iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new(bench.programs.join("ncclflow"));
        command
            .args(["dump", "--json", "-p", &pids])
            .envs(self.variables.iter().map(|(name, path)| (name, path)));
        let output = command.output().context("starting ncclflow")?;
        let dump: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        Ok(Answer::of_dump(&dump))
    }
}

/// Asks, and returns how long the answer took, in milliseconds.
fn timed(ask: impl FnOnce() -> Result<Answer>) -> Result<(f64, Answer)> {
    let begun = Instant::now();
    let answer = ask()?;
    Ok((begun.elapsed().as_secs_f64() * 1e3, answer))
}

/// Finds a port of this host that nobody listens at.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("finding a free port")?;
    Ok(listener.local_addr()?.port())
}
