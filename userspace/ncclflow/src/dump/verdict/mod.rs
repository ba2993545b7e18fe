//! What is wrong with a communicator, judged from what its ranks report. Pure: no process, no clock.
//!
//! A verdict comes from a list of [`RULES`]. Each rule is a file of this folder: it looks at one [`Case`] and
//! answers, or leaves the case to the next rule. A new verdict is a new file and a line in the list.
//!
//! Nothing is called stuck unless it stood still over all readings. If ops are in flight, [`in_flight`]
//! follows each rank to the ranks that it waits for ([`waits`]). The waiting ends at a rank that has not
//! joined, is stopped, was not read, or makes no progress by itself ([`causes`]).

mod case;
mod causes;
mod circle;
mod disagreement;
mod failed;
mod idle;
mod in_flight;
mod inside_calls;
mod lines;
mod moving;
mod not_joined;
mod not_judged;
mod op_waits;
mod pipelines;
mod steps;
mod topology;
mod waits;

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use self::case::Case;
pub(super) use self::case::named;
use super::{dump_report::ProcessReport, rank_report::RankReport};

/// Whether a communicator hangs. The order is that of severity: of several communicators the highest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It moves, or NCCL has nothing to do.
    Healthy,
    /// What was read does not tell.
    #[default]
    Unknown,
    /// Ops are in flight, or some ranks launched fewer collectives than others, and nothing moved over all
    /// readings.
    Stuck,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub state: State,
    /// Ranks that the others wait for, and that wait for no rank themselves.
    pub culprits: Vec<u32>,
    pub victims: Vec<u32>,
    /// Sentences, each with the numbers that support it.
    pub evidence: Vec<String>,
}

impl Verdict {
    fn new(state: State, evidence: impl Into<String>) -> Self {
        Self { state, evidence: vec![evidence.into()], ..Self::default() }
    }

    fn cannot_tell(why: impl Display) -> Self {
        Self::new(State::Unknown, format!("cannot tell, because {why}"))
    }
}

type Rule = fn(&Case<'_>) -> Option<Verdict>;

/// All rules; the first one that answers decides.
const RULES: [Rule; 12] = [
    not_judged::duplicate_rank,
    not_judged::read_once,
    not_judged::setting_up,
    // What NCCL itself reports counts more than motion: a failed rank's other ops can still move.
    |case| failed::failed(case, false),
    moving::moving,
    // An aborted communicator that moves is shutting down.
    |case| failed::failed(case, true),
    in_flight::in_flight,
    // From here on no rank has an op in flight.
    not_judged::ops_unreadable,
    not_joined::not_joined,
    idle::stopped,
    inside_calls::inside_calls,
    idle::over_nvlink,
];

/// Judges one communicator. All `ranks` belong to it; `processes` are all that the dump was asked to read.
pub fn judge(ranks: &[RankReport], processes: &[ProcessReport]) -> Verdict {
    let Some(first) = ranks.first() else { return Verdict::default() };
    let case = Case::new(ranks, first.n_ranks, processes);
    let mut verdict = RULES.iter().find_map(|rule| rule(&case)).unwrap_or_else(|| idle::idle(&case));
    lines::add(&case, &mut verdict);
    verdict
}

#[cfg(test)]
mod tests;
