//! Judges a communicator from the reports of its ranks. Pure: no process, no clock.
//!
//! A verdict comes from a list of [`RULES`]. Each rule is a file of this folder: it looks at one [`Case`] and
//! answers, or leaves the case to the next rule. A new verdict is a new file and a line in the list; for a
//! new kind, also a variant of [`Kind`], which is in this file, too.
//!
//! torch's notes are weighed afterwards ([`noted`]): they decide where NCCL's memory cannot, and else stand
//! beside it.
//!
//! Nothing is called stuck unless it stood still over all readings. If ops are in flight, [`in_flight`]
//! follows each rank to the ranks that it waits for ([`waits`]). The waiting ends at a rank that has not
//! joined, is stopped, was not read, or makes no progress by itself ([`causes`]).

mod case;
mod causes;
mod circle;
mod circles;
mod common_calls;
mod disagreement;
mod failed;
mod gone;
mod gpu_work;
mod idle;
mod in_flight;
mod inside_calls;
mod job;
mod job_ranks;
mod known_bugs;
mod left;
mod lines;
mod moving;
mod never_match;
mod nic;
mod not_begun;
mod not_joined;
mod not_judged;
mod noted;
mod one_sided;
mod op_waits;
mod other_operation;
mod pending_calls;
mod pipelines;
mod setting_up;
mod steps;
mod store_waits;
mod topology;
mod torch_set_up;
mod waiting;
mod waits;

use std::{collections::BTreeSet, fmt::Display};

use serde::{Deserialize, Serialize};

pub(super) use self::{case::named, job::over as over_all, noted::COUNTED};
use self::{
    case::{BE, Case, MAX_SENTENCES, subject},
    common_calls::CommonCall,
};
pub use self::{job::JobVerdict, known_bugs::KnownBug};
use super::{CommunicatorReport, ProcessReport, ProcessState, RankReport};
use flow::text::joined;

/// State of a communicator, in the order of severity: of several communicators the highest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The communicator moves, or NCCL has nothing to do.
    Healthy,
    /// The readings do not tell.
    #[default]
    Unknown,
    /// Ranks wait for one that still makes progress elsewhere: on its GPU, on the CPU, or with files.
    Waiting,
    /// Ops are in flight, or some ranks launched fewer collectives than others, and nothing moved over all
    /// readings.
    Stuck,
}

/// Reason why ranks wait: for scripts, beside the sentences for people. Kinds may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// The culprits have launched fewer collectives.
    NotJoined,
    /// The culprits have launched other collectives, with other sizes, or in another order.
    OtherOperation,
    /// The GPUs of the culprits run another kernel.
    Computing,
    /// The GPUs of the culprits run a kernel that is not NCCL's and uses no memory.
    OtherKernel,
    /// The GPUs of the culprits run nothing, though others wait for them.
    GpuIdle,
    /// An op of the culprits is in flight, and they do nothing for it.
    NoProgress,
    /// The processes of the culprits are gone.
    Gone,
    /// The processes of the culprits live, and have no such communicator any more.
    Left,
    /// The culprits were not read.
    NotRead,
    /// The processes of the culprits are stopped: by a signal, a debugger, or the freezer of their cgroup.
    Stopped,
    /// The processes of the culprits are writing their core, or exiting.
    Dying,
    /// The processes of the culprits are ready to run, and get no processor.
    Starved,
    /// The culprits have not made a call that all ranks of the communicator must make.
    CallNotMade,
    /// The culprits have not made the send or the receive that others wait for.
    NoCounterpart,
    /// The culprits have not come to the communicator's set-up, in which the others wait.
    SettingUp,
    /// The culprits try to connect during the set-up, and nobody answers: an interface that cannot be
    /// reached, or a firewall.
    Unreachable,
    /// The culprits' processes may open too few files for NCCL's proxy thread, which the set-up waits for.
    FileLimit,
    /// The others wait in torch's store, and the culprit is the only rank of the job that does not.
    StoreWait,
    /// The set-up can never end: the ranks have other unique ids, sizes or one number twice.
    NeverMatches,
    /// Others wait in a call for the culprits to connect.
    Connecting,
    /// NCCL reports a failure, or a connection has broken.
    Failed,
    /// A GPU has stopped with an error (Xid).
    GpuError,
    /// Ops of the culprits go over a network adapter that has no link.
    LinkDown,
}

impl Kind {
    /// Returns the kind of a process that runs no code of its own now.
    fn of_halted(state: ProcessState) -> Option<Self> {
        state.is_halted().then_some(match state {
            ProcessState::Dying => Self::Dying,
            ProcessState::Starved => Self::Starved,
            _ => Self::Stopped,
        })
    }

    /// Says what to do, or where to look next. `pids` are those of the culprits, as far as they are known;
    /// the first of them are said as `-p` takes them.
    pub(super) fn next_step(self, pids: impl IntoIterator<Item = u32>) -> String {
        let pids = joined(pids.into_iter().take(MAX_SENTENCES), ",");
        let of = |text: &str| if pids.is_empty() { String::new() } else { format!("{text}{pids}") };
        match self {
            Self::NotJoined
            | Self::SettingUp
            | Self::CallNotMade
            | Self::StoreWait
            | Self::NoCounterpart
            | Self::Connecting
            | Self::NoProgress
            | Self::GpuIdle
            | Self::Computing
            | Self::OtherKernel => format!("see where it is: ncclflow dump --stacks{}", of(" -p ")),
            Self::OtherOperation => "compare what the ranks called last: ncclflow history --all".to_owned(),
            Self::Gone => "find out why it ended: the launcher's log, `dmesg -T` (out of memory, Xid)".to_owned(),
            Self::Left => "look into its log for the error before".to_owned(),
            Self::NotRead if !pids.is_empty() => format!("dump it, too: add{} to the PIDs", of(" ")),
            Self::NotRead => "give its PID, or merge the dump of its host (--merge)".to_owned(),
            Self::Stopped => format!("let it go on: kill -CONT{}, or thaw its cgroup", of(" ")),
            Self::Starved => {
                "give it processors: see the CPU limit of its cgroup (cpu.stat), and what else runs on its cores"
                    .to_owned()
            }
            Self::Dying => "wait until its core is written, or see what the kernel waits for: /proc/PID/stack".to_owned(),
            Self::Unreachable => {
                "check the interface (NCCL_SOCKET_IFNAME) and the firewall between the two hosts".to_owned()
            }
            Self::FileLimit => {
                "let the processes open more files (ulimit -n, LimitNOFILE=, docker run --ulimit nofile), and start \
                 the job again"
                    .to_owned()
            }
            Self::NeverMatches => {
                "give all ranks one unique id and size, and each its own number: MASTER_ADDR, MASTER_PORT, \
                 WORLD_SIZE, RANK"
                    .to_owned()
            }
            Self::Failed => "look into the logs of these ranks, with NCCL_DEBUG=WARN at the next start".to_owned(),
            Self::LinkDown => "look at the adapter, its cable and the switch: ibstat, mlxlink, `dmesg -T`".to_owned(),
            Self::GpuError => "take the GPU out of use; NVIDIA's catalogue of Xids says what each asks for".to_owned(),
        }
    }

    /// Tells whether the culprits only have to go on with something else, and come: while they make progress
    /// there, nobody is stuck.
    fn is_absence(self) -> bool {
        matches!(
            self,
            Self::NotJoined
                | Self::NoProgress
                | Self::GpuIdle
                | Self::NoCounterpart
                | Self::Connecting
                | Self::CallNotMade
                | Self::SettingUp
        )
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub state: State,
    /// Reason why ranks wait, for scripts; null where nobody does, or where nothing says why.
    pub kind: Option<Kind>,
    /// Ranks that the others wait for, and that wait for no rank themselves.
    pub culprits: Vec<u32>,
    pub victims: Vec<u32>,
    /// Sentences, each with the numbers that support it.
    pub evidence: Vec<String>,
    /// The bug of NCCL that explains it.
    #[serde(rename = "knownBug", alias = "known_bug", default, skip_serializing_if = "Option::is_none")]
    pub known_bug: Option<KnownBug>,
}

impl Verdict {
    fn new(state: State, evidence: impl Into<String>) -> Self {
        Self { state, evidence: vec![evidence.into()], ..Self::default() }
    }

    /// Makes the verdict that the victims wait for the culprits.
    fn stuck(
        kind: Kind,
        culprits: impl IntoIterator<Item = u32>,
        victims: impl IntoIterator<Item = u32>,
        evidence: Vec<String>,
    ) -> Self {
        let (culprits, victims) = (culprits.into_iter().collect(), victims.into_iter().collect());
        Self { state: State::Stuck, kind: Some(kind), culprits, victims, evidence, known_bug: None }
    }

    fn with(mut self, evidence: impl IntoIterator<Item = String>) -> Self {
        self.evidence.extend(evidence);
        self
    }

    /// Tells whether the driver of the GPUs alone told that ranks wait, or that operations differ.
    fn is_by_gpus<'a>(&self, ranks: impl Iterator<Item = &'a RankReport> + Clone) -> bool {
        match self.kind {
            Some(Kind::GpuIdle) => true,
            Some(Kind::OtherOperation) => other_operation::only_gpus_tell(ranks),
            _ => false,
        }
    }

    fn cannot_tell(why: impl Display) -> Self {
        Self::new(State::Unknown, format!("cannot tell, because {why}"))
    }
}

/// Processes (host and PID) of communicators.
type Moving = BTreeSet<BTreeSet<(String, u32)>>;

fn processes_of<'a>(ranks: impl Iterator<Item = &'a RankReport>) -> BTreeSet<(String, u32)> {
    ranks.map(|rank| (rank.host.clone(), rank.pid)).collect()
}

type Rule = fn(&Case<'_>) -> Option<Verdict>;

/// All rules; the first one that answers decides.
const RULES: &[Rule] = &[
    never_match::one_rank_twice,
    not_judged::duplicate_rank,
    not_judged::read_once,
    setting_up::setting_up,
    // NCCL's own report counts more than motion: a failed rank's other ops can still move.
    |case| failed::failed(case, false),
    moving::moving,
    // An aborted communicator that moves is shutting down.
    |case| failed::failed(case, true),
    gpu_work::gpu_error,
    nic::link_down,
    in_flight::in_flight,
    // From here on no rank has an op in flight.
    one_sided::owed,
    not_judged::ops_unreadable,
    gone::gone,
    other_operation::other_operation,
    not_joined::not_joined,
    idle::halted,
    common_calls::common_call,
    pending_calls::pending_calls,
    setting_up::file_limit,
    inside_calls::inside_calls,
    one_sided::standing,
    idle::over_nvlink,
];

/// Judges one communicator. All `ranks` belong to it; `processes` are all that the dump was asked to read.
/// The ranks of the processes `explained` (host and PID) wait in another communicator, which explains what
/// their GPUs do. `moving`: processes of each communicator that moves.
fn judge_beside(
    ranks: &[RankReport],
    processes: &[ProcessReport],
    explained: &BTreeSet<(String, u32)>,
    moving: &Moving,
    common_call: Option<&CommonCall>,
) -> Verdict {
    let Some(case) = Case::new(ranks, processes, explained, common_call) else { return Verdict::default() };
    let verdict = RULES.iter().find_map(|rule| rule(&case)).unwrap_or_else(|| idle::idle(&case));
    let verdict = noted::weigh(&case, verdict, moving);
    let mut verdict = waiting::or_stuck(&case, verdict);
    case.explain_halted(&mut verdict);
    lines::add(&case, &mut verdict);
    one_sided::add(&case, &mut verdict);
    nic::add(&case, &mut verdict);
    known_bugs::add(&case, &mut verdict);
    verdict
}

/// Judges all communicators. A GPU's driver does not tell what the GPU waits for: so a communicator about
/// which only the GPUs tell is judged after those that counters, ops in flight and calls tell of.
pub(super) fn judge_all(communicators: &mut [CommunicatorReport], processes: &[ProcessReport]) {
    let calls = common_calls::find(communicators, processes);
    let mut explained = BTreeSet::new();
    let moves = |rank: &RankReport| rank.motion.steps_moved || rank.motion.counters_moved;
    let has_twins = communicators.iter().flat_map(|one| &one.ranks).any(|rank| !rank.noted_twins.is_empty());
    let that_move = communicators.iter().filter(|one| has_twins && one.ranks.iter().any(moves));
    let moving: Moving = that_move.map(|one| processes_of(one.ranks.iter())).collect();
    for (at, communicator) in communicators.iter_mut().enumerate() {
        communicator.verdict =
            judge_beside(&communicator.ranks, processes, &explained, &moving, calls.get(&at));
    }
    inside_calls::leave_out_those_that_pass(communicators);
    for one in communicators.iter() {
        let (verdict, is_measured) = (&one.verdict, !one.is_by_gpus());
        // Kernels of a communicator that moves run and wait, as long as it moves. If operations differ, the
        // culprits wait, too.
        let differs = is_measured && verdict.kind == Some(Kind::OtherOperation);
        let all_wait = differs || one.ranks.iter().any(moves);
        let waits = |rank: &&RankReport| all_wait || (is_measured && verdict.victims.contains(&rank.rank));
        explained.extend(one.ranks.iter().filter(waits).map(|rank| (rank.host.clone(), rank.pid)));
    }
    if !explained.is_empty() {
        for (at, communicator) in communicators.iter_mut().enumerate().filter(|(_, one)| one.is_by_gpus()) {
            communicator.verdict =
                judge_beside(&communicator.ranks, processes, &explained, &moving, calls.get(&at));
        }
        inside_calls::leave_out_those_that_pass(communicators);
    }
    never_match::explain(communicators, processes);
}

impl CommunicatorReport {
    /// Tells whether only the GPUs tell what is pending, or nothing does.
    fn is_by_gpus(&self) -> bool {
        !matches!(self.verdict.state, State::Stuck | State::Waiting)
            || matches!(self.verdict.kind, Some(Kind::Computing | Kind::OtherKernel))
            || self.verdict.is_by_gpus(self.ranks.iter())
    }
}

#[cfg(test)]
pub(crate) use tests::made::judge;
#[cfg(test)]
pub(crate) mod tests;
