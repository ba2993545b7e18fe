//! How often `check` names who makes a job slow, and how often it accuses somebody of a healthy one: jobs on
//! the bed with faults that the seed chooses. The tool under test sees its own recording and nothing else. What
//! is found are figures: a wrong verdict is no failure of the bench.

mod answer;
mod draw;
mod figures;
mod fleets;
mod traced;
mod trial;

use std::{
    path::PathBuf,
    process::{Child, Command},
};

use anyhow::Result;
use serde_json::{Value, json};

use self::{
    answer::Answer,
    draw::{Case, FaultKind},
    figures::{Judged, Outcome},
    fleets::Fleets,
    traced::Traced,
    trial::{Kept, Trial},
};
use crate::{bench::Bench, table::Table};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What the jobs and their faults are drawn from
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seed: u64,

    /// Number of jobs
    #[arg(long, value_name = "N", default_value_t = 24)]
    runs: u64,

    /// Number of the first of them
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,

    /// Seconds of each recording
    #[arg(long, value_name = "SECS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=600))]
    seconds: u64,

    /// Keeps the recordings in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,

    /// Judges the recordings of this folder again, which were kept, in the place of running their jobs
    #[arg(long, value_name = "DIR", conflicts_with = "keep")]
    again: Option<PathBuf>,

    /// Jobs with this fault alone
    #[arg(long, value_enum, value_name = "KIND")]
    only: Option<FaultKind>,

    /// Programs beside the jobs that compute all the time
    #[arg(long, value_name = "N", default_value_t = 0)]
    load: u32,

    /// Recordings of real jobs on GPUs, with samples of their counters: they are cut into others
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,

    /// Cuts of each of those
    #[arg(long, value_name = "N", default_value_t = 3)]
    cuts: u64,

    /// Jobs of `--fleet-ranks` that are made of one of those, some with a host that launches late
    #[arg(long, value_name = "N", default_value_t = 0, requires = "traces")]
    fleets: u64,

    #[arg(long, value_name = "N", default_value_t = 1024)]
    fleet_ranks: u32,
}

pub(crate) fn run(bench: &mut Bench, args: &Args) -> Result<Value> {
    let _load = Load::start(args.load)?;
    let (mut table, mut judged) = (Table::default(), Vec::new());
    let ncclflow = bench.programs.join("ncclflow");
    let kept =
        |folder: &Option<PathBuf>, run| folder.as_ref().map(|folder| Kept::new(folder, args.seed, run));
    for run in args.first..args.first + args.runs {
        let case = Case::draw(args.seed, run, args.only);
        let trial = match kept(&args.again, run) {
            Some(kept) => kept.again(&ncclflow, &case),
            None => trial::run(bench, &case, args.seconds, kept(&args.keep, run).as_ref()),
        };
        let trial = trial
            .map(|trial| trial.map(|trial| Judged::new(&case.truth(), case.put_in(trial.healthy_ms), trial)));
        let one = judged_row(&mut table, run, &case.job(), &case.fault.to_string(), trial);
        judged.extend(one);
    }
    if let Some(folder) = &args.traces {
        let traced = Traced::read_all(folder)?;
        for cut in 0..args.cuts {
            for (number, trace) in (0..).zip(&traced) {
                let run = args.first + args.runs + cut * 8 + number;
                let output = bench.fresh("cut");
                let mut length = 0.0;
                let trial = trace
                    .cut(&mut draw::random(args.seed, run), &output)
                    .inspect(|seconds| length = *seconds)
                    .and_then(|_| trial::check(&ncclflow, &[output]))
                    .map(|check| {
                        let [healthy_ms, iteration_ms] = trace.iterations_ms;
                        let trial = Trial { answer: Answer::read(&check), healthy_ms, iteration_ms };
                        Some(Judged::new(&trace.truth, None, trial))
                    });
                let job = format!("{length:.1} s of {}", trace.name);
                let fault = format!("{} {:?}", trace.truth.kind, trace.truth.ranks);
                judged.extend(judged_row(&mut table, run, &job, &fault, trial));
            }
        }
    }
    if let Some(folder) = args.traces.as_ref().filter(|_| args.fleets > 0) {
        let fleets = Fleets::read(folder)?;
        for run in 100_000..100_000 + args.fleets {
            let made = fleets.run(&ncclflow, &bench.fresh("fleet"), args.fleet_ranks, [args.seed, run]);
            let fault = made.as_ref().map_or_else(|_| String::new(), |large| large.fault.to_string());
            let trial = made.map(|large| {
                let percent = large.fault.percent;
                let healthy_ms = fleets.iteration_ms;
                let iteration_ms = healthy_ms * (1.0 + percent / 100.0);
                let trial = Trial { answer: Answer::read(&large.check), healthy_ms, iteration_ms };
                Some(Judged::new(&large.truth, Some(percent), trial))
            });
            let job = format!("{} made of 4", args.fleet_ranks);
            judged.extend(judged_row(&mut table, run, &job, &fault, trial));
        }
    }
    let accused = judged.iter().filter(|one| one.outcome == Outcome::FalselyAccused).count();
    eprintln!("{accused} false accusations in {} jobs without a fault", figures::healthy(&judged));
    Ok(json!({
        "seed": args.seed,
        "runs": table.into_json(),
        "precision": figures::precision(&judged),
        "calibration": figures::calibration(&judged),
        "recall": figures::recall(&judged),
        "confusion": figures::confusion(&judged),
    }))
}

/// Programs that compute until this is dropped.
struct Load(Vec<Child>);

impl Load {
    fn start(programs: u32) -> Result<Self> {
        let mut load = Self(Vec::new());
        for _ in 0..programs {
            load.0.push(Command::new("sh").args(["-c", "while :; do :; done"]).spawn()?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for program in &mut self.0 {
            // One that is gone needs no end.
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

/// Adds a run's line. A job that did not run says nothing of the tool: it has a line, and is not counted.
fn judged_row(
    table: &mut Table,
    run: u64,
    job: &str,
    fault: &str,
    trial: Result<Option<Judged>>,
) -> Option<Judged> {
    let (one, cells) = match trial {
        Ok(Some(one)) => {
            let cells = one.cells();
            (Some(one), cells)
        }
        Ok(None) => (None, Judged::no_cells("cannot run here")),
        Err(error) => (None, Judged::no_cells(&format!("{error:#}"))),
    };
    let row = [("run", json!(run)), ("job", json!(job)), ("fault", json!(fault))];
    table.add(row.into_iter().chain(cells));
    one
}
