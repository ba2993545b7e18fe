//! NCCL's own account: the files of the profiler plugin in `tests/profiler`.
//!
//! The plugin writes what NCCL passed and nothing else; units and sums are settled here. NCCL does not pass
//! everything: see [`RankTruth::sees_every_p2p_op`] and [`RankTruth::sees`].

mod line;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::communicator::{CommHash, Member};
use crate::direction::Direction;
use crate::json_lines;
use line::Line;
pub use line::State;

/// States of a step: handed to the device to fill, given to the network; asked of the network, arrived,
/// handed to the device to read. The second and the fourth say how much the message carries.
const STEP_SEND_GPU_WAIT: i32 = 8;
const STEP_SEND_WAIT: i32 = 9;
const STEP_RECV_WAIT: i32 = 10;
const STEP_RECV_FLUSH_WAIT: i32 = 11;
const STEP_RECV_GPU_WAIT: i32 = 12;

/// Everything in a truth directory.
#[derive(Debug, Default)]
pub struct PluginTruth {
    pub ranks: BTreeMap<Member, RankTruth>,
    /// Ops of calls that no file of the directory holds.
    pub orphans: Vec<ProxyOp>,
}

/// What one rank of one communicator did.
#[derive(Debug, Clone, Default)]
pub struct RankTruth {
    /// Version of the plugin interface that NCCL chose.
    pub api: u32,
    pub pid: u32,
    pub n_ranks: Option<i32>,
    pub colls: Vec<Coll>,
    pub p2ps: Vec<P2p>,
    /// In the order in which proxy threads took them up.
    pub ops: Vec<ProxyOp>,
    /// The communicator was destroyed; without it the process ended, or was ended, earlier.
    pub finalized: bool,
}

/// Names a call: ids are numbers of the process that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallId {
    pub pid: u32,
    pub id: u64,
}

#[derive(Debug, Clone)]
pub struct Coll {
    pub call: CallId,
    /// The launch; calls of one launch share it.
    pub group: Option<u64>,
    /// Counts per communicator and function.
    pub seq_number: u64,
    pub send_buff: Option<u64>,
    pub func: String,
    pub count: u64,
    pub datatype: String,
    pub root: i32,
    pub algo: String,
    pub proto: String,
    pub n_channels: Option<u8>,
    pub n_max_channels: Option<u8>,
    pub start: u64,
    pub stop: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct P2p {
    pub call: CallId,
    pub group: Option<u64>,
    pub func: String,
    pub count: u64,
    pub datatype: String,
    pub peer: i32,
    pub n_channels: Option<u8>,
    pub start: u64,
    pub stop: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct ProxyOp {
    pub api: u32,
    pub id: u64,
    /// The collective or p2p call that it belongs to.
    pub call: Option<CallId>,
    pub channel: u32,
    pub peer: i32,
    pub direction: Direction,
    /// As NCCL passes it: FIFO steps in version 1, messages from version 2 on.
    pub n_steps: i32,
    /// As NCCL passes it: of a chunk in version 1, times `sliceSteps` from version 2 on.
    pub chunk_size: i32,
    pub start: u64,
    pub stop: Option<u64>,
    pub states: Vec<State>,
    /// By number.
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone)]
pub struct Step {
    pub number: i32,
    pub start: u64,
    pub stop: Option<u64>,
    pub states: Vec<State>,
}

/// How many steps of an op have come how far: NCCL's own words for its counters, which count FIFO steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub posted: usize,
    /// Receives only.
    pub received: usize,
    pub transmitted: usize,
    pub done: usize,
}

impl ProxyOp {
    /// How far the op is: messages, in version 1 FIFO steps.
    pub fn progress(&self) -> Progress {
        let at = |state: i32| self.steps.iter().filter(|step| step.reached(state).is_some()).count();
        let done = self.steps.iter().filter(|step| step.stop.is_some()).count();
        match self.direction {
            Direction::Send => Progress {
                posted: at(STEP_SEND_GPU_WAIT),
                received: 0,
                transmitted: at(STEP_SEND_WAIT),
                done,
            },
            Direction::Recv => Progress {
                posted: at(STEP_RECV_WAIT),
                received: at(STEP_RECV_FLUSH_WAIT),
                transmitted: at(STEP_RECV_GPU_WAIT),
                done,
            },
        }
    }

    /// How many network messages the op is made of. Version 1 leaves the division to the reader.
    pub fn messages(&self, slice_steps: u32) -> i64 {
        let steps = i64::from(self.n_steps);
        let per_message = i64::from(slice_steps.max(1));
        if self.api >= 2 { steps } else { (steps + per_message - 1) / per_message }
    }

    /// The size of each message that was transferred, in order. Known from version 4 on.
    pub fn sizes(&self) -> Option<Vec<u64>> {
        if self.api < 4 {
            return None;
        }
        let telling = match self.direction {
            Direction::Send => STEP_SEND_WAIT,
            Direction::Recv => STEP_RECV_FLUSH_WAIT,
        };
        Some(self.steps.iter().filter_map(|step| step.trans_size_at(telling)).collect())
    }

    /// What was transferred. Up to version 3 a sum that runs through every op that used the same proxy
    /// arguments, so only its growth from the op's first state to its last counts.
    pub fn bytes(&self) -> Option<u64> {
        if let Some(sizes) = self.sizes() {
            return Some(sizes.iter().sum());
        }
        let mut sums = self.states.iter().filter_map(|state| state.trans_size);
        let first = sums.next()?;
        let last = sums.next_back().unwrap_or(first);
        last.checked_sub(first)
    }
}

impl Step {
    pub fn reached(&self, state: i32) -> Option<&State> {
        self.states.iter().find(|reached| reached.state == state)
    }

    pub fn trans_size_at(&self, state: i32) -> Option<u64> {
        self.reached(state)?.trans_size
    }
}

impl RankTruth {
    /// Whether every p2p op shows: not in 2.27, where of several ops that the proxy runs as one (`nsubs` > 1)
    /// only the first does (nccl:v2.27.5-1:src/proxy.cc, ncclProxyOpToArgs).
    pub fn sees_every_p2p_op(&self) -> bool {
        self.api != 4
    }

    /// Whether a function's ops show. NCCL 2.29 and later set no activation mask on broadcasts that they run
    /// as one AllGatherV (nccl:v2.30.7-1:src/enqueue.cc, geteActivationMask), 2.32 on none at all.
    pub fn sees(&self, func: &str) -> bool {
        match func {
            "AllGatherV" => false,
            "Broadcast" => self.api < 6 || self.colls.iter().any(|coll| coll.func == "Broadcast"),
            _ => true,
        }
    }
}

impl PluginTruth {
    /// Reads all `truth.*.jsonl` files of `directory`, and gives ops that a process did for another one back
    /// to the communicator that asked for them.
    pub fn read(directory: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        let entries =
            fs::read_dir(directory).with_context(|| format!("listing `{}`", directory.display()))?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("truth.") && path.extension().is_some_and(|extension| extension == "jsonl") {
                paths.push(path);
            }
        }
        paths.sort();
        let mut files = Vec::new();
        for path in paths {
            let lines = json_lines::read(&path)?;
            files.push(File::new(lines).with_context(|| format!("reading `{}`", path.display()))?);
        }
        Self::join(files)
    }

    fn join(files: Vec<File>) -> Result<Self> {
        let mut truth = Self::default();
        let mut owners = HashMap::new();
        let mut foreign = Vec::new();
        for file in files {
            if file.foreign {
                foreign.extend(file.rank.ops);
                continue;
            }
            let calls = file.rank.colls.iter().map(|coll| coll.call);
            let calls = calls.chain(file.rank.p2ps.iter().map(|p2p| p2p.call));
            owners.extend(calls.map(|call| (call, file.member)));
            if truth.ranks.insert(file.member, file.rank).is_some() {
                // In 2.23 two splits of one parent with one color get one hash: such runs need names of their
                // own.
                bail!("two files speak of {}", file.member);
            }
        }
        for op in foreign {
            let owner =
                op.call.and_then(|call| owners.get(&call)).and_then(|member| truth.ranks.get_mut(member));
            match owner {
                Some(rank) => rank.ops.push(op),
                None => truth.orphans.push(op),
            }
        }
        for rank in truth.ranks.values_mut() {
            rank.ops.sort_by_key(|op| op.start);
        }
        Ok(truth)
    }
}

/// One file, its lines joined.
struct File {
    member: Member,
    foreign: bool,
    rank: RankTruth,
}

impl File {
    fn new(lines: Vec<Line>) -> Result<Self> {
        let mut lines = lines.into_iter();
        let Some(Line::Context(context)) = lines.next() else {
            bail!("the first line names no communicator");
        };
        let member = Member { comm_hash: context.comm_hash, rank: context.rank };
        let mut file = Self { member, foreign: context.foreign, rank: RankTruth::default() };
        file.rank = RankTruth { api: context.api, pid: context.pid, n_ranks: context.n_ranks, ..file.rank };
        let mut parts = HashMap::new();
        for line in lines {
            match line {
                Line::Context(_) => bail!("a second communicator in one file"),
                Line::Coll(coll) => {
                    let coll = coll.with_pid(context.pid);
                    parts.insert(coll.call.id, Part::Coll(file.rank.colls.len()));
                    file.rank.colls.push(coll);
                }
                Line::P2p(p2p) => {
                    let p2p = p2p.with_pid(context.pid);
                    parts.insert(p2p.call.id, Part::P2p(file.rank.p2ps.len()));
                    file.rank.p2ps.push(p2p);
                }
                Line::ProxyOp(op) => {
                    parts.insert(op.id, Part::Op(file.rank.ops.len()));
                    file.rank.ops.push(op.with_api(context.api));
                }
                Line::ProxyStep(step) => {
                    let Some(Part::Op(op)) = parts.get(&step.op).copied() else {
                        bail!("step {} of no op", step.id)
                    };
                    let steps = &mut file.rank.ops[op].steps;
                    parts.insert(step.id, Part::Step(op, steps.len()));
                    steps.push(step.into());
                }
                Line::State(line) => match parts.get(&line.id) {
                    Some(Part::Op(op)) => file.rank.ops[*op].states.push(line.state),
                    Some(Part::Step(op, step)) => file.rank.ops[*op].steps[*step].states.push(line.state),
                    _ => bail!("a state of {}, which is no op and no step", line.id),
                },
                Line::Stop(stop) => match parts.get(&stop.id) {
                    Some(Part::Coll(coll)) => file.rank.colls[*coll].stop = Some(stop.t),
                    Some(Part::P2p(p2p)) => file.rank.p2ps[*p2p].stop = Some(stop.t),
                    Some(Part::Op(op)) => file.rank.ops[*op].stop = Some(stop.t),
                    Some(Part::Step(op, step)) => file.rank.ops[*op].steps[*step].stop = Some(stop.t),
                    // A launch: it has no line of its own.
                    None => {}
                },
                Line::Finalize {} => file.rank.finalized = true,
            }
        }
        for op in &mut file.rank.ops {
            op.steps.sort_by_key(|step| step.number);
        }
        Ok(file)
    }
}

/// What an id of a file names: its place in the lists of the rank.
#[derive(Clone, Copy)]
enum Part {
    Coll(usize),
    P2p(usize),
    Op(usize),
    Step(usize, usize),
}

impl PluginTruth {
    /// The ranks of one communicator.
    pub fn of(&self, comm_hash: CommHash) -> impl Iterator<Item = (&Member, &RankTruth)> {
        self.ranks.iter().filter(move |(member, _)| member.comm_hash == comm_hash)
    }
}

#[cfg(test)]
mod tests;
