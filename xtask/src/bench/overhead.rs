//! `cargo xtask bench overhead`: the same job untraced and under each way of tracing, in turn.
//!
//! On the bed, ratios of times say little: launches are slow, kernels are emulated on the same cores,
//! and a uprobe hit costs several times what it costs on a real host. The figure to read is *traps per
//! kernel launch*, by the kernel's own counts: it is the same on every machine. tests/gpu/overhead.py
//! measures the same on GPUs.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{spread::Spread, traced_job::Bench, tracefs::Tracefs};
use crate::tool;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// NCCL version to run, like 2.27.5 or 2.28.9-cu13
    #[arg(long, value_name = "VERSION", default_value = "2.28.9-cu13")]
    nccl: String,

    /// How often each way has its turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// Ways of tracing, in this order; see the names in the default
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
}

/// A turn of a way.
#[derive(Debug, Default)]
struct Turn {
    us_per_op: f64,
    /// Median time of a call of ncclAllReduce, as the program measured it.
    host_us: f64,
    /// Hits by probe.
    hits: BTreeMap<String, u64>,
    /// Times that the job's threads trapped into the kernel for these hits.
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

pub(crate) fn run(args: &Args) -> Result<Value> {
    let mut bench = Bench::prepare(&args.nccl, "overhead")?;
    let mount = bench.fresh("tracefs");
    let tracefs = args.ways.iter().any(|way| way == "tracefs").then(|| Tracefs::open(&mount)).transpose()?;
    let (ranks, bytes, ops) = (args.ranks.to_string(), args.bytes.to_string(), args.ops.to_string());
    let workload = ["--mode", "processes", "--ranks", &ranks, "--bytes", &bytes, "--iters", &ops];
    let mut turns: BTreeMap<&str, Vec<Turn>> = BTreeMap::new();
    for round in 0..args.rounds {
        // Each round begins with another way, as the first turn finds the machine in another state.
        for step in 0..args.ways.len() {
            let way = &args.ways[(round + step) % args.ways.len()];
            eprintln!("round {} of {}: {way}", round + 1, args.rounds);
            let turn = turn(&mut bench, &workload, way, tracefs.as_ref());
            turns.entry(way).or_default().push(turn.with_context(|| format!("the turn of {way}"))?);
        }
    }
    let base = turns.get("untraced").map(Vec::as_slice).unwrap_or_default();
    let ways: BTreeMap<&str, Value> = turns.iter().map(|(way, turns)| (*way, report(turns, base))).collect();
    Ok(json!({
        "bench": "overhead",
        "machine": "bed: emulated GPU; read traps_per_launch, not the ratios",
        "nccl": args.nccl,
        "workload": { "op": "allreduce", "bytes": args.bytes, "ranks": args.ranks, "ops": args.ops },
        "rounds": args.rounds,
        "ways": ways,
    }))
}

fn turn(bench: &mut Bench, workload: &[&str], way: &str, tracefs: Option<&Tracefs>) -> Result<Turn> {
    let folder = bench.fresh("calls");
    fs::create_dir(&folder)?;
    let calls = folder.join("calls").display().to_string();
    let job = bench.job(&[workload, &["--call-log", &calls]].concat())?;
    let mut turn = Turn::default();
    let summary = match (way, tracefs) {
        ("untraced", _) => {
            job.go()?;
            job.summary()?
        }
        ("tracefs", Some(tracefs)) => {
            let events = tracefs.arm(&bench.library, &offsets(bench)?)?;
            job.go()?;
            let summary = job.summary()?;
            turn.traps = events.hits()?;
            summary
        }
        _ => {
            let recording = bench.record(&job, &[record_arguments(way)?, &["--no-cache"]].concat())?;
            job.go()?;
            let summary = job.summary()?;
            turn.count(&recording.finish()?.session);
            summary
        }
    };
    let (seconds, ops) = (summary["seconds"].as_f64(), summary["ops"].as_f64());
    turn.us_per_op =
        seconds.zip(ops).map(|(seconds, ops)| seconds * 1e6 / ops).context("the bed's account")?;
    turn.launches = summary["launches"].as_u64().context("the bed's launches")?;
    turn.host_us = host_us(&folder)?;
    Ok(turn)
}

impl Turn {
    /// Adds hits, traps and losses by the kernel's own counts.
    fn count(&mut self, session: &Value) {
        let probes = session["probes"].as_array().map(Vec::as_slice).unwrap_or_default();
        // Parts of a walk run inside the hit of its probe.
        let probes: Vec<&Value> = probes.iter().filter(|probe| probe["part"].is_null()).collect();
        for probe in &probes {
            let at = probe["at"].as_str().unwrap_or("?");
            let count = probe["hits"].as_u64().unwrap_or(0);
            let name = format!("{} {at}", probe["function"].as_str().unwrap_or("?"));
            *self.hits.entry(name).or_insert(0) += count;
            // A return is diverted by a breakpoint at the entry, which may serve another probe, too.
            let entry = |other: &&Value| {
                other["symbol"] == probe["symbol"] && other["pid"] == probe["pid"] && other["at"] == "entry"
            };
            self.traps += if at == "return" && !probes.iter().any(entry) { 2 * count } else { count };
        }
        self.records_lost = session["loss"]["records_lost"].as_u64().unwrap_or(0);
    }
}

/// Finds the file offsets of the functions that every proxy op goes through, which are those that are probed
/// per call.
fn offsets(bench: &Bench) -> Result<Vec<u64>> {
    let mut program = Command::new(bench.programs.join("ncclflow"));
    let output = tool::output(program.args(["symbols", "--json"]).arg(&bench.library))?;
    let symbols: Value = serde_json::from_slice(&output).context("reading `ncclflow symbols`")?;
    let copies =
        ["ncclProxySaveOp", "SaveProxy"].iter().filter_map(|name| symbols["functions"][name].as_array());
    let offsets: Vec<u64> =
        copies.flatten().filter_map(|function| function["file_offset"].as_u64()).collect();
    if offsets.is_empty() {
        bail!("the library has none of the functions");
    }
    Ok(offsets)
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
        for line in fs::read_to_string(entry?.path())?.lines() {
            let call: Call = serde_json::from_str(line)?;
            if call.function == "ncclAllReduce" {
                #[expect(clippy::cast_precision_loss, reason = "a time span")]
                times.push((call.end_ns - call.begin_ns) as f64 / 1e3);
            }
        }
    }
    Ok(Spread::of(times).median)
}

/// Returns the figures of a way; ratios to the untraced turn of the same round.
fn report(turns: &[Turn], untraced: &[Turn]) -> Value {
    let of = |value: &dyn Fn(&Turn) -> f64| turns.iter().map(value).collect::<Vec<f64>>();
    let ratios = |value: &dyn Fn(&Turn) -> f64| {
        turns.iter().zip(untraced).map(|(turn, base)| value(turn) / value(base)).collect::<Vec<f64>>()
    };
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    let per_launch = |turn: &Turn| turn.traps as f64 / turn.launches.max(1) as f64;
    let (us_per_op, host_us) = (&|turn: &Turn| turn.us_per_op, &|turn: &Turn| turn.host_us);
    json!({
        "us_per_op": Spread::of(of(us_per_op)),
        "us_per_op_ratio": Spread::of(ratios(us_per_op)),
        "host_us_per_call": Spread::of(of(host_us)),
        "host_us_per_call_ratio": Spread::of(ratios(host_us)),
        "traps_per_launch": Spread::of(of(&per_launch)),
        "launches": turns.iter().map(|turn| turn.launches).sum::<u64>(),
        "hits": turns.last().map(|turn| &turn.hits),
        "records_lost": turns.iter().map(|turn| turn.records_lost).sum::<u64>(),
    })
}
