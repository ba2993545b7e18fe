//! `cargo xtask bench overhead`: the same job untraced and under each way of tracing, in turn.
//!
//! On the bed a ratio of times says little: its launches are slow, its kernels are emulated on the same cores, and a uprobe hit costs
//! several times what it costs on a real host. What says much is *traps per kernel launch*, by the kernel's own counts: it is the
//! same on every machine. tests/gpu/overhead.py is the same on GPUs.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    job::{Job, Summary},
    spread::{median_of, spread},
    tracefs::Tracefs,
};
use crate::{nccl, programs};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// NCCL version to run, like 2.27.5 or 2.28.9-cu13
    #[arg(long, value_name = "VERSION", default_value = "2.28.9-cu13")]
    nccl: String,

    /// How often each way has its turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// Ways of tracing, in this order; what this ncclflow does not know is left out and said
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "untraced,api,api-returns,flow,flow-per-call,steps,tracefs"
    )]
    ways: Vec<String>,

    /// Ranks, each a process
    #[arg(long, default_value_t = 2)]
    ranks: u32,

    /// Bytes of each all-reduce
    #[arg(long, default_value_t = 4096)]
    bytes: u32,

    /// All-reduces of a turn
    #[arg(long, default_value_t = 400)]
    ops: u32,

    /// Use the programs in this folder, and build nothing
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

/// One turn of one way.
#[derive(Debug, Default)]
struct Turn {
    us_per_op: f64,
    /// Median time of a call of ncclAllReduce, as the program measured it.
    host_us: f64,
    /// By probe.
    hits: BTreeMap<String, u64>,
    /// Times that the job's threads ran into the kernel for them.
    traps: u64,
    launches: u64,
    records_lost: u64,
}

/// A line of the bed's `--call-log`.
#[derive(Deserialize)]
struct Call {
    function: String,
    begin_ns: u64,
    end_ns: u64,
}

struct Bench {
    programs: PathBuf,
    library: PathBuf,
    scratch: PathBuf,
    workload: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<Value> {
    let programs = match &args.programs {
        Some(folder) => folder.clone(),
        None => programs::build_release(&["ncclflow", "ncclflow-bed", "ncclflow-nvml-double"])?,
    };
    let scratch = std::env::temp_dir().join(format!("ncclflow-bench-{}", std::process::id()));
    fs::create_dir(&scratch).with_context(|| format!("making `{}`", scratch.display()))?;
    let (ranks, bytes, ops) = (args.ranks.to_string(), args.bytes.to_string(), args.ops.to_string());
    let workload = ["--mode", "processes", "--ranks", &ranks, "--bytes", &bytes, "--iters", &ops];
    let workload = workload.map(str::to_owned).to_vec();
    let bench = Bench { programs, library: nccl::library_path(&args.nccl)?, scratch, workload };
    let result = bench.rounds(args);
    // A scratch folder that stays is no failure of the bench.
    let _ = fs::remove_dir_all(&bench.scratch);
    result
}

impl Bench {
    fn rounds(&self, args: &Args) -> Result<Value> {
        let tracefs =
            args.ways.iter().any(|way| way == "tracefs").then(|| Tracefs::open(&self.scratch)).transpose()?;
        let help = Command::new(self.programs.join("ncclflow")).args(["record", "--help"]).output()?;
        let knows_probes = String::from_utf8_lossy(&help.stdout).contains("--probes");
        let (known, left_out): (Vec<&String>, Vec<&String>) =
            args.ways.iter().partition(|way| *way != "flow-per-call" || knows_probes);
        let mut turns: BTreeMap<&str, Vec<Turn>> = BTreeMap::new();
        for round in 0..args.rounds {
            // Another first one in every round: what comes first finds another machine.
            for step in 0..known.len() {
                let way = known[(round + step) % known.len()];
                eprintln!("round {} of {}: {way}", round + 1, args.rounds);
                let turn = self.turn(way, tracefs.as_ref()).with_context(|| format!("the turn of {way}"))?;
                turns.entry(way).or_default().push(turn);
            }
        }
        let base = turns.get("untraced").map(Vec::as_slice).unwrap_or_default();
        let ways: BTreeMap<&str, Value> =
            turns.iter().map(|(way, turns)| (*way, report(turns, base))).collect();
        Ok(json!({
            "bench": "overhead",
            "machine": "bed: emulated GPU; read traps_per_launch, not the ratios",
            "nccl": args.nccl,
            "workload": { "op": "allreduce", "bytes": args.bytes, "ranks": args.ranks, "ops": args.ops },
            "rounds": args.rounds,
            "left_out": left_out,
            "ways": ways,
        }))
    }

    fn turn(&self, way: &str, tracefs: Option<&Tracefs>) -> Result<Turn> {
        let folder = self.scratch.join("turn");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder)?;
        let calls = folder.join("calls").display().to_string();
        let mut arguments: Vec<&str> = self.workload.iter().map(String::as_str).collect();
        arguments.extend(["--call-log", &calls]);
        let job = Job::start(&self.programs, &self.library, &folder, &arguments)?;
        let (summary, hits, traps, records_lost) = match (way, tracefs) {
            ("untraced", _) => {
                job.go()?;
                (job.finish()?, BTreeMap::new(), 0, 0)
            }
            ("tracefs", Some(tracefs)) => {
                let events = tracefs.arm(&self.library, &self.offsets()?)?;
                job.go()?;
                let summary = job.finish()?;
                let hits = events.hits()?;
                (summary, BTreeMap::from([("all".to_owned(), hits)]), hits, 0)
            }
            _ => self.traced(job, record_arguments(way)?, &folder)?,
        };
        #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
        let us_per_op = summary.seconds * 1e6 / summary.ops.max(1) as f64;
        Ok(Turn {
            us_per_op,
            host_us: host_us(&folder)?,
            hits,
            traps,
            launches: summary.launches,
            records_lost,
        })
    }

    fn traced(
        &self,
        job: Job,
        arguments: &[&str],
        folder: &Path,
    ) -> Result<(Summary, BTreeMap<String, u64>, u64, u64)> {
        let out = folder.join("out");
        let child = Command::new(self.programs.join("ncclflow"))
            .args(["record", "-p", &job.pid_list(), "-o"])
            .arg(&out)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting ncclflow")?;
        let mut recorder = Recorder(child);
        let mut stderr = BufReader::new(recorder.0.stderr.take().context("ncclflow has no standard error")?);
        let mut said = String::new();
        while !said.contains("recording to") {
            if stderr.read_line(&mut said)? == 0 {
                bail!("ncclflow did not begin: {said}");
            }
        }
        job.go()?;
        let summary = job.finish()?;
        stderr.read_to_string(&mut said)?;
        let status = recorder.0.wait()?;
        if !status.success() {
            bail!("ncclflow ended with {status}: {said}");
        }
        let session: Value = serde_json::from_slice(&fs::read(out.join("session.json"))?)?;
        let (mut hits, mut traps) = (BTreeMap::new(), 0);
        let probes = session["probes"].as_array().map(Vec::as_slice).unwrap_or_default();
        for probe in probes {
            let at = probe["at"].as_str().unwrap_or("?");
            let count = probe["hits"].as_u64().unwrap_or(0);
            *hits.entry(format!("{} {at}", probe["symbol"].as_str().unwrap_or("?"))).or_insert(0) += count;
            // A return is diverted by a breakpoint at the entry, which may serve another probe, too.
            let entry = |other: &Value| {
                other["symbol"] == probe["symbol"] && other["pid"] == probe["pid"] && other["at"] == "entry"
            };
            traps += if at == "return" && !probes.iter().any(entry) { 2 * count } else { count };
        }
        Ok((summary, hits, traps, session["loss"]["records_lost"].as_u64().unwrap_or(0)))
    }

    /// Of the functions through which every proxy op goes: those that probing each call needs.
    fn offsets(&self) -> Result<Vec<u64>> {
        let output = Command::new(self.programs.join("ncclflow"))
            .args(["symbols", "--json"])
            .arg(&self.library)
            .output()?;
        let symbols: Value = serde_json::from_slice(&output.stdout).context("reading `ncclflow symbols`")?;
        let copies =
            ["ncclProxySaveOp", "SaveProxy"].iter().filter_map(|name| symbols["functions"][name].as_array());
        let offsets: Vec<u64> =
            copies.flatten().filter_map(|function| function["file_offset"].as_u64()).collect();
        if offsets.is_empty() {
            bail!("the library has none of the functions");
        }
        Ok(offsets)
    }
}

/// Killed by its own process id if the turn fails.
struct Recorder(Child);

impl Drop for Recorder {
    fn drop(&mut self) {
        // Both fail only for one that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn record_arguments(way: &str) -> Result<&'static [&'static str]> {
    Ok(match way {
        "api" => &["--level", "api"],
        "api-returns" => &["--level", "api", "--returns"],
        "flow" => &["--level", "flow"],
        "flow-per-call" => &["--level", "flow", "--probes", "per-call"],
        "steps" => &["--level", "steps"],
        other => bail!("no way of tracing is called `{other}`"),
    })
}

fn host_us(folder: &Path) -> Result<f64> {
    let mut times = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.file_name().unwrap_or_default().to_string_lossy().starts_with("calls.") {
            continue;
        }
        for line in fs::read_to_string(&path)?.lines() {
            let call: Call = serde_json::from_str(line)?;
            if call.function == "ncclAllReduce" {
                #[expect(clippy::cast_precision_loss, reason = "a time span")]
                times.push((call.end_ns - call.begin_ns) as f64 / 1e3);
            }
        }
    }
    Ok(median_of(&times))
}

/// The figures of a way; ratios to the untraced turn of the same round.
fn report(turns: &[Turn], untraced: &[Turn]) -> Value {
    let of = |value: &dyn Fn(&Turn) -> f64| turns.iter().map(value).collect::<Vec<f64>>();
    let ratios = |value: &dyn Fn(&Turn) -> f64| {
        turns.iter().zip(untraced).map(|(turn, base)| value(turn) / value(base)).collect::<Vec<f64>>()
    };
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    let per_launch = |turn: &Turn| turn.traps as f64 / turn.launches.max(1) as f64;
    let (us_per_op, host_us) = (&|turn: &Turn| turn.us_per_op, &|turn: &Turn| turn.host_us);
    json!({
        "us_per_op": spread(&of(us_per_op)),
        "us_per_op_ratio": spread(&ratios(us_per_op)),
        "host_us_per_call": spread(&of(host_us)),
        "host_us_per_call_ratio": spread(&ratios(host_us)),
        "traps_per_launch": spread(&of(&per_launch)),
        "launches": turns.iter().map(|turn| turn.launches).sum::<u64>(),
        "hits": turns.last().map(|turn| &turn.hits),
        "records_lost": turns.iter().map(|turn| turn.records_lost).sum::<u64>(),
    })
}
