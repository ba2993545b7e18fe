//! Time that `dump --merge` takes over many hosts. The dump of a job of 8 ranks, one of which stays away, is
//! made into those of a job that is as large as is wanted. On one of its hosts a rank stays away; it must be
//! named.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    bench::Bench,
    table::{Spread, Table},
};

/// Number of ranks of a host, and the rank that stays away.
const RANKS: u64 = 8;
const ABSENT: u64 = 2;
/// Number of ranks that the budget is for.
const BUDGET_RANKS: u64 = 1024;
const BUDGET_MS: f64 = 2000.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Hosts of 8 ranks each; a line of the table each
    #[arg(long, value_delimiter = ',', default_value = "16,64,128", value_parser = clap::value_parser!(u64).range(2..))]
    hosts: Vec<u64>,
}

pub(crate) fn run(bench: &mut Bench, args: &Args) -> Result<Value> {
    let template = template(bench)?;
    let mut table = Table::default();
    for hosts in &args.hosts {
        // The rank that stays away is on the last but one.
        let (chosen, folder) = (hosts - 2, bench.fresh("dumps"));
        fs::create_dir_all(&folder)?;
        let mut bytes = 0;
        for host in 0..*hosts {
            let text = serde_json::to_string_pretty(&of_host(&template, host, *hosts, host == chosen)?)?;
            bytes += text.len();
            fs::write(folder.join(format!("host{host:04}.json")), text)?;
        }
        let mut times = Vec::new();
        for _ in 0..bench.rounds {
            let (ms, merged) = bench.dump(&["--merge", &folder.to_string_lossy()])?;
            times.push(ms);
            let culprits = culprits(&merged);
            ensure!(
                *culprits == json!([chosen * RANKS + ABSENT]),
                "the culprits of {hosts} hosts are {culprits}: {}",
                merged["job"]["sentence"]
            );
        }
        let (ranks, ms) = (hosts * RANKS, Spread::of(times));
        table.add([
            ("hosts", json!(hosts)),
            ("ranks", json!(ranks)),
            ("bytes", json!(bytes)),
            ("ms", json!(ms)),
        ]);
        ensure!(
            ranks != BUDGET_RANKS || ms.median <= BUDGET_MS,
            "{BUDGET_RANKS} ranks take {:.0} ms, and {BUDGET_MS} are allowed",
            ms.median
        );
    }
    Ok(table.into_json())
}

/// Dumps 8 ranks over sockets, one of which has not joined.
fn template(bench: &mut Bench) -> Result<Value> {
    let job = bench.job(&format!(
        "--mode processes --ranks {RANKS} --channels 2 --timeout 300 --absent {ABSENT}@3 --iters 6"
    ))?;
    job.go()?;
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        let (_, dump) = bench.dump(&["-p", &job.pid_list()])?;
        if *culprits(&dump) == json!([ABSENT]) {
            return Ok(dump);
        }
        ensure!(Instant::now() < deadline, "the job does not hang as it should: {}", dump["job"]["sentence"]);
    }
}

fn culprits(dump: &Value) -> &Value {
    &dump["communicators"][0]["verdict"]["culprits"]
}

/// Makes the dump of the `host`th of `hosts`, whose ranks are in one ring. Only on the chosen host does the
/// rank stay away.
fn of_host(template: &Value, host: u64, hosts: u64, is_chosen: bool) -> Result<Value> {
    let mut dump = template.clone();
    let name = json!(format!("host{host:04}"));
    dump["hosts"] = json!([name]);
    for process in list(&mut dump["processes"])? {
        process["host"] = name.clone();
    }
    let all = hosts * RANKS;
    let communicators = list(&mut dump["communicators"])?;
    let communicator = communicators.first_mut().context("the template has no communicator")?;
    communicator["nRanks"] = json!(all);
    let ranks = list(&mut communicator["ranks"])?;
    if !is_chosen {
        // A copy of a rank that has joined, with another number.
        let (from, to) = (usize::try_from(ABSENT + 2)?, usize::try_from(ABSENT)?);
        let mut joined = ranks.get(from).context("the template lacks a rank")?.clone();
        for key in ["rank", "pid", "node", "localRank", "cudaDev", "nvmlDev"] {
            joined[key] = ranks[to][key].clone();
        }
        // The copy's neighbours are two further back.
        move_peers(&mut joined, &|peer| (peer + RANKS - 2) % RANKS)?;
        ranks[to] = joined;
    }
    for (local, rank) in (0..).zip(ranks.iter_mut()) {
        rank["host"] = name.clone();
        rank["rank"] = json!(host * RANKS + local);
        rank["nRanks"] = json!(all);
        rank["node"] = json!(host * RANKS + local);
        rank["nNodes"] = json!(all);
        move_peers(rank, &|peer| {
            // The neighbour is the next rank, or the one before.
            let distance = if (local + 1) % RANKS == peer { 1 } else { all - 1 };
            (host * RANKS + local + distance) % all
        })?;
    }
    Ok(dump)
}

/// Renumbers all ranks that a rank's entry names.
fn move_peers(rank: &mut Value, to: &dyn Fn(u64) -> u64) -> Result<()> {
    let moved = |value: &mut Value| {
        if let Some(peer) = value.as_u64() {
            *value = json!(to(peer));
        }
    };
    for channel in list(&mut rank["channels"])? {
        for key in ["ringPrev", "ringNext"] {
            moved(&mut channel[key]);
        }
        channel["treeUp"] = json!(-1);
        channel["treeDown"] = json!([]);
    }
    for op in list(&mut rank["proxy"]["ops"])? {
        moved(&mut op["peer"]);
    }
    // Its connections include ranks of its trees, at which there are other numbers of steps.
    rank["connections"] = json!([]);
    Ok(())
}

fn list(value: &mut Value) -> Result<&mut Vec<Value>> {
    value.as_array_mut().context("the dump is not as docs/DUMP.md has it")
}
