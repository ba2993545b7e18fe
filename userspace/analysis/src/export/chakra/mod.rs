//! Execution traces in the format of MLCommons Chakra, a file for each rank of the job, for ASTRA-sim and
//! other readers.
//!
//! Nodes are collectives, sends and receives: of API calls where those were recorded, with the stream that
//! they were given; otherwise of the ops that NCCL launched. The computation of a process is not known from
//! outside, and the time between two launches does not show it: there are no nodes for it, unless traces of
//! torch's profiler say what ran (`compute`). `order` says which node waits for which.

mod compute;
mod group;
mod job_rank_trace;
mod launch_order;
mod messages;
mod order;
mod parts;
mod trace_file;

use flow::{
    schema::{ApiCall, Op, RankKey},
    session::{LibraryReport, ProbeStrategy},
    text,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use anyhow::{Context as _, Result, bail};
use nccl_library::nccl::{Name, Pattern};
use serde_json::{Value, json};

use self::{
    compute::Compute,
    group::{Group, attributes},
    job_rank_trace::{JobRankTrace, Lane},
    launch_order::LaunchOrder,
    messages::{Attribute, AttributeValue, Node, NodeType},
    order::{Chain, Told},
    parts::{BROADCAST, NoPart, Part, comm_size, parts},
};
use super::{
    job::Job,
    run::{Exported, write_json},
    torch_traces::{self, TorchTrace},
    view::{Row, View, Wanted},
};
use crate::sources::Source;
use recording::sinks::OutputDir;

/// Most nodes, and ends of chains, that are kept of all ranks.
const MAX_KEPT: usize = 1 << 21;

/// A call or an op, from which a node is made.
#[derive(Clone, Debug)]
struct Work {
    key: RankKey,
    function: Name,
    n_ranks: i32,
    /// Bytes as the program called it; `None` if they are not known.
    bytes: Option<u64>,
    peer: Option<i32>,
    root: Option<i32>,
    ts_ns: u64,
    seq: Option<u64>,
    lane: Option<Lane>,
    /// Time of the launch, if others of it have the same.
    launch_ns: Option<u64>,
    launched: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    nodes: u64,
    joins: u64,
    without_communicator: u64,
    of_one_rank: u64,
    not_in_chakra: u64,
    to_itself: u64,
    peer_unknown: u64,
    /// Collectives that are sends and receives.
    in_parts: u64,
    broadcasts_without_time: u64,
    without_size: u64,
    replays: u64,
    launched_replays: u64,
}

#[derive(Debug)]
pub(super) struct Chakra {
    dir: OutputDir,
    job: Job,
    host: String,
    offset_ns: u64,
    /// Set if the present recording's nodes are made of calls.
    of_calls: bool,
    /// Set if all its ops of one launch have one moment.
    by_launch: bool,
    ranks: BTreeMap<i32, JobRankTrace>,
    groups: BTreeMap<u64, Group>,
    derived: BTreeSet<i32>,
    /// Number of nodes since the kept ones were counted.
    uncounted: usize,
    totals: Totals,
    launches: LaunchOrder,
    /// Traces of torch's profiler, by job rank.
    compute: BTreeMap<i32, Compute>,
}

impl Chakra {
    /// Makes the view. `kineto` are traces of torch's profiler, of a rank each.
    pub(super) fn new(dir: OutputDir, kineto: &[PathBuf]) -> Result<Self> {
        Ok(Self {
            dir,
            job: Job::default(),
            host: String::new(),
            offset_ns: 0,
            of_calls: false,
            by_launch: false,
            ranks: BTreeMap::new(),
            groups: BTreeMap::new(),
            derived: BTreeSet::new(),
            uncounted: 0,
            totals: Totals::default(),
            launches: LaunchOrder::default(),
            compute: compute::read(kineto)?,
        })
    }

    /// Returns the communicator, if the job's ranks of all its ranks are known.
    fn group(&mut self, key: RankKey, n_ranks: i32) -> Result<Group> {
        let Some(hash) = key.hash else {
            bail!(
                "communicators of NCCL before 2.18 have no hash, and nothing tells which ranks are of one: Chakra's nodes cannot name their group"
            );
        };
        if key.instance != 0 {
            bail!(
                "rank {} of communicator 0x{hash:016x} was recorded twice: give each recording once, or \
                 choose with --pid, --from and --to",
                key.rank
            );
        }
        if let Some(group) = self.groups.get(&hash) {
            return Ok(group.clone());
        }
        let ranks = self.job.ranks_of(hash, n_ranks).map_err(anyhow::Error::msg)?;
        let number = i32::try_from(self.groups.len() + 1)?;
        // All ranks are known, from 0 on.
        let known = self.job.known(hash).into_values().take(ranks.len());
        let derived = known.filter(|rank| rank.is_derived);
        self.derived.extend(derived.map(|rank| rank.rank));
        let group = Group { number, ranks };
        self.groups.insert(hash, group.clone());
        Ok(group)
    }

    /// Makes the nodes of a call or an op, unless it has them.
    fn take(&mut self, work: &Work) -> Result<()> {
        if work.n_ranks <= 1 {
            self.totals.of_one_rank += 1;
            return Ok(());
        }
        let parts = match parts(work) {
            Ok(parts) => parts,
            Err(why) => {
                let count = match why {
                    NoPart::NotInChakra => &mut self.totals.not_in_chakra,
                    NoPart::ToItself => &mut self.totals.to_itself,
                    NoPart::PeerUnknown => &mut self.totals.peer_unknown,
                };
                *count += 1;
                return Ok(());
            }
        };
        self.bound()?;
        let group = self.group(work.key, work.n_ranks)?;
        let Some(own) = group.rank(work.key.rank) else {
            bail!("rank {} is not in its communicator, which has {}", work.key.rank, work.n_ranks);
        };
        let size = comm_size(work);
        let shared = attributes(work, &group, size);
        let owner = (self.host.clone(), work.key.pid);
        let lane = work.lane.unwrap_or(Lane::Communicator(group.number));
        let launched = work.launched.map(|launched| (group.number, launched));
        let told = Told { launched, launch_ns: work.launch_ns };
        let at_ns = work.ts_ns.saturating_add(self.offset_ns);
        let start_time_micros = at_ns / 1000;
        let trace = JobRankTrace::of(&mut self.ranks, &self.dir, own, &owner)?;
        if work.lane.is_none() && work.seq.is_some_and(|seq| !trace.is_first_of(group.number, seq)) {
            return Ok(());
        }
        let mut compute = self.compute.get_mut(&own);
        let kernel =
            compute.as_mut().and_then(|compute| compute.kernel(work.function.as_str(), at_ns, self.of_calls));
        if let Some(compute) = &mut compute {
            trace.add_compute(compute, kernel.as_ref(), at_ns)?;
        }
        let (on_stream, ended) = match (&compute, &kernel) {
            (Some(compute), Some(kernel)) => compute.waits(kernel),
            _ => (Vec::new(), None),
        };
        let duration_ns = kernel.as_ref().map(compute::Kernel::duration_ns);
        let duration_micros = duration_ns.map_or(0, micros);
        for part in &parts {
            let mut attributes = shared.clone();
            attributes.extend(group.attributes(*part, own, parts.len() > 1 || work.peer.is_none())?);
            if let Some(ns) = duration_ns {
                attributes.push(Attribute::new("duration_ns", AttributeValue::Uint64(ns)));
            }
            // ASTRA-sim ends at a node of communication without its size.
            let kind = if size.is_some() { part.kind() } else { NodeType::Metadata };
            let chain = match (part, work.peer) {
                (Part::SendTo(peer), Some(_)) => Chain::Sends(group.number, *peer),
                (Part::ReceiveFrom(peer), Some(_)) => Chain::Receives(group.number, *peer),
                _ => Chain::Collectives(group.number),
            };
            let (id, joins) = trace.add(lane, told, chain, start_time_micros, |id, mut data_deps| {
                let more = on_stream.iter().filter(|of| !data_deps.contains(of)).copied().collect::<Vec<_>>();
                data_deps.extend(more);
                let ctrl_deps = ended.filter(|of| !data_deps.contains(of)).into_iter().collect();
                let (name, kind) = (work.function.to_string(), kind.into());
                Node { id, name, kind, ctrl_deps, data_deps, start_time_micros, duration_micros, attributes }
            })?;
            if let (Some(compute), Some(kernel)) = (&mut compute, &kernel) {
                compute.communicated(id, kernel);
            }
            self.totals.joins += joins;
            self.totals.nodes += 1;
            self.totals.without_size += u64::from(size.is_none());
            self.totals.broadcasts_without_time +=
                u64::from(*part == Part::Collective(BROADCAST) && duration_ns.is_none());
        }
        self.totals.in_parts += u64::from(work.peer.is_none() && !matches!(*parts, [Part::Collective(_)]));
        Ok(())
    }

    /// Takes the waiting ops, as no more of the present source come.
    fn take_waiting(&mut self) -> Result<()> {
        self.launches.take_all().iter().try_for_each(|work| self.take(work))
    }

    fn op(&mut self, op: &Op) -> Result<()> {
        let row = &op.row;
        if self.of_calls {
            self.totals.replays += u64::from(row.captured_seq.is_some());
            return Ok(());
        }
        if row.graph_launch.is_some() {
            self.totals.launched_replays += 1;
            return Ok(());
        }
        let is_p2p = row.pattern.is_p2p();
        let function: Name = match row.pattern {
            Pattern::Send => "Send".into(),
            Pattern::Recv => "Recv".into(),
            _ => row.coll.clone().unwrap_or_else(|| "unknown".into()),
        };
        let work = Work {
            key: op.rank,
            n_ranks: row.n_ranks,
            bytes: op.bytes(),
            peer: is_p2p.then_some(row.root),
            root: matches!(function.as_str(), "Broadcast" | "Reduce").then_some(row.root),
            function,
            ts_ns: row.ts_ns,
            seq: Some(row.seq),
            lane: None,
            launch_ns: self.by_launch.then_some(row.ts_ns),
            launched: None,
        };
        self.launches.add(work).map_or(Ok(()), |work| self.take(&work))
    }

    fn call(&mut self, call: &ApiCall) -> Result<()> {
        let row = &call.row;
        let (Some(key), Some(n_ranks)) = (call.rank, row.n_ranks) else {
            self.totals.without_communicator += 1;
            return Ok(());
        };
        if !self.of_calls {
            return Ok(());
        }
        self.take(&Work {
            key,
            function: row.function.clone(),
            n_ranks,
            bytes: row.bytes,
            peer: row.peer,
            root: row.root,
            ts_ns: row.ts_ns,
            seq: row.seq.get(),
            lane: Some(Lane::Stream(row.stream.0, row.tid)),
            launch_ns: None,
            launched: row.launched,
        })
    }

    /// Counts the kept nodes now and then, and keeps fewer where there are too many.
    fn bound(&mut self) -> Result<()> {
        self.uncounted += 1;
        if self.uncounted < MAX_KEPT / 2 {
            return Ok(());
        }
        self.uncounted = 0;
        let chains: usize = self.ranks.values().map(|trace| trace.chains.len()).sum();
        if chains >= MAX_KEPT / 2 {
            bail!(
                "more than {} peers of sends and receives: choose a part with --comm or --pid",
                MAX_KEPT / 2
            );
        }
        if self.ranks.values().map(JobRankTrace::kept).sum::<usize>() >= MAX_KEPT / 4 {
            self.ranks.values_mut().for_each(JobRankTrace::forget);
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let Totals { nodes, joins, .. } = self.totals;
        let totals = &self.totals;
        let joins = match joins {
            0 => String::new(),
            joins => format!(", {joins} of them only join the ends of others"),
        };
        let mut notes = vec![format!(
            "{nodes} nodes of {}{joins}, {}",
            text::counted(self.ranks.len(), "rank"),
            text::counted(self.groups.len(), "group")
        )];
        if self.compute.is_empty() {
            notes.push("there are no nodes for what is computed between them: --kineto adds them".to_owned());
        }
        for (rank, compute) in &self.compute {
            let (kernels, found) = compute.nccl_kernels();
            notes.push(format!(
                "rank {rank}: {} compute nodes; {found} of the {kernels} kernels of NCCL in its trace belong to a node",
                compute.nodes
            ));
        }
        notes.extend(text::counts([
            (totals.without_communicator, "calls have no known communicator, and no node"),
            (totals.of_one_rank, "calls or ops are of communicators of one rank, and have no node"),
            (
                totals.not_in_chakra,
                "calls are of functions that Chakra does not know (one-sided ones), and have no node",
            ),
            (
                totals.to_itself,
                "sends and receives of a rank to itself have no node: no network carries them, and ASTRA-sim's refuse them",
            ),
            (totals.peer_unknown, "calls or ops have no node: nothing says which rank is the other one"),
            (
                totals.in_parts,
                "reduces, gathers and scatters are sends and receives: ASTRA-sim does not run them (a reduce goes along the ring, without NCCL's pipeline)",
            ),
            (
                totals.broadcasts_without_time,
                "broadcasts have no duration, and take ASTRA-sim 1 ns: it only waits for the time that they took, which --kineto has",
            ),
            (
                self.launches.late,
                "ops ended so late after others that their nodes are not in the order of launches",
            ),
            (
                totals.without_size,
                "nodes are METADATA_NODE, which a simulator passes over: their bytes are not known",
            ),
            (
                totals.replays,
                "ops on a channel are replays of CUDA graphs, which no call stands for: they have no node",
            ),
            (
                totals.launched_replays,
                "ops are replays of CUDA graphs of which only the graph's launch was seen: they have no node",
            ),
        ]));
        let last = self.ranks.keys().next_back().copied().unwrap_or(-1);
        let missing = (0..=last).filter(|rank| !self.ranks.contains_key(rank)).count();
        if missing > 0 {
            notes.push(format!(
                "{missing} ranks below rank {last} have no file: ASTRA-sim wants one for each"
            ));
        }
        if !self.derived.is_empty() {
            notes.push(format!(
                "the job ranks of {} processes are derived: the ranks in the largest communicators of the processes",
                self.derived.len()
            ));
        }
        notes
    }
}

/// Rounds to whole microseconds, at least 1 for a node that takes time: 0 means that it is not known.
fn micros(ns: u64) -> u64 {
    ((ns + 500) / 1000).max(1)
}

/// Tells whether times of ops are those of their launches. CUDA's driver, and libraries that are not traced, have no
/// ops.
fn are_by_launch(libraries: &[LibraryReport]) -> bool {
    let mut ways = libraries.iter().filter_map(|library| library.probes).peekable();
    ways.peek().is_some() && ways.all(|way| way == ProbeStrategy::Plan)
}

impl View for Chakra {
    fn look_at(&mut self, sources: &[Source]) -> Result<()> {
        let traces: Vec<TorchTrace<'_>> = self.compute.values().map(Compute::facts).collect();
        torch_traces::check(&traces, sources)?;
        self.job = Job::of(sources)?;
        Ok(())
    }

    fn begin(&mut self, source: &Source) -> Result<()> {
        self.take_waiting()?;
        source.host().clone_into(&mut self.host);
        self.offset_ns = source.offset_ns();
        self.by_launch = are_by_launch(&source.session().libraries);
        self.of_calls = source.has_calls();
        Ok(())
    }

    fn wanted(&self, _op: &Op) -> Wanted {
        Wanted::Nothing
    }

    fn row(&mut self, row: Row<'_>) -> Result<()> {
        match row {
            Row::Op(op) => self.op(op),
            Row::Call(call) => self.call(call),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, exported: &Exported) -> Result<Vec<String>> {
        self.take_waiting()?;
        if self.totals.nodes == 0 && exported.rows.ops + exported.rows.calls > 0 {
            bail!(
                "nothing of what is asked for has a node in Chakra: {} calls or ops are of communicators \
                 of one rank, {} of a rank with itself, {} have no known communicator, {} are of functions that \
                 Chakra does not know",
                self.totals.of_one_rank,
                self.totals.to_itself,
                self.totals.without_communicator,
                self.totals.not_in_chakra
            );
        }
        for (rank, compute) in &mut self.compute {
            let Some(trace) = self.ranks.get_mut(rank) else {
                bail!("`{}` is of rank {rank} of the job, which has no node", compute.path.display());
            };
            trace.add_compute(compute, None, u64::MAX).context("writing a rank's trace")?;
        }
        for trace in self.ranks.values_mut() {
            trace.file.finish().context("writing a rank's trace")?;
        }
        let groups: serde_json::Map<String, Value> =
            self.groups.values().map(|group| (group.number.to_string(), json!(group.ranks))).collect();
        write_json(&self.dir, "ncclflow.groups.json", &groups)?;
        Ok(self.notes())
    }
}

#[cfg(test)]
mod tests;
