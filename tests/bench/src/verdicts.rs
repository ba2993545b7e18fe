//! How often `check` names who makes a job slow, and how often it accuses somebody of a healthy one: jobs on the
//! bed with faults that the seed chooses. The tool under test sees its own recording and nothing else. What is
//! found are figures: a wrong verdict is no failure of the bench.

mod answer;
mod draw;
mod figures;
mod trial;

use serde_json::{Value, json};

use self::{
    draw::{Case, FaultKind},
    figures::{Judged, Outcome},
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

    /// Jobs with this fault alone
    #[arg(long, value_enum, value_name = "KIND")]
    only: Option<FaultKind>,
}

pub(crate) fn run(bench: &mut Bench, args: &Args) -> Value {
    let (mut table, mut judged) = (Table::default(), Vec::new());
    for run in 0..args.runs {
        let case = Case::draw(args.seed, run, args.only);
        let row = [("run", json!(run)), ("job", json!(case.job())), ("fault", json!(case.fault.to_string()))];
        // A job that did not run says nothing of the tool; it is counted by itself.
        let more = match trial::run(bench, &case) {
            Ok(Some(trial)) => {
                let one = Judged::new(&case, trial);
                let more = one.cells();
                judged.push(one);
                more
            }
            Ok(None) => Judged::no_cells("cannot run here"),
            Err(error) => Judged::no_cells(&format!("{error:#}")),
        };
        table.add(row.into_iter().chain(more));
    }
    let accused = judged.iter().filter(|one| one.outcome == Outcome::FalselyAccused).count();
    eprintln!("{accused} false accusations in {} jobs without a fault", figures::healthy(&judged));
    json!({
        "seed": args.seed,
        "runs": table.into_json(),
        "precision": figures::precision(&judged),
        "recall": figures::recall(&judged),
        "confusion": figures::confusion(&judged),
    })
}
