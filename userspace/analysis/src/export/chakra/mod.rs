//! Execution traces in the format of MLCommons Chakra, a file for each rank of the job, for ASTRA-sim and
//! other readers.
//!
//! Nodes are collectives, sends and receives: of API calls where those were recorded, with the stream that
//! they were given; otherwise of the ops that NCCL launched. The computation of a process is not known from
//! outside, and the time between two launches does not show it: there are no nodes for it, unless traces of
//! torch's profiler say what ran (`compute`). `order` says which node waits for which.

mod compute;
mod job_rank_trace;
mod launch_order;
mod messages;
mod order;
mod trace_file;

use flow::{
    schema::{ApiCall, Op, RankKey},
    session::{LibraryReport, ProbeStrategy, SessionReport},
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
    job_rank_trace::{JobRankTrace, Lane},
    launch_order::LaunchOrder,
    messages::{Attribute, AttributeValue, COLLECTIVES, Node, NodeType},
    order::{Chain, Told},
};
use super::{
    job::Job,
    run::{Exported, write_json},
    source::Source,
    view::{Row, View, Wanted, counted},
};
use recording::sinks::OutputDir;

/// Most nodes, and ends of chains, that are kept of all ranks.
const MAX_KEPT: usize = 1 << 21;

/// A communicator.
#[derive(Clone, Debug)]
struct Group {
    /// Number, written as `pg_name`. 0 would be all ranks of the job.
    number: i32,
    /// Ranks in the job, in the order of the communicator's ranks.
    ranks: Vec<i32>,
}

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
    without_size: u64,
    replays: u64,
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

    /// Makes a node for a call or an op, unless there is one.
    fn take(&mut self, work: &Work) -> Result<()> {
        let (kind, comm_type) = match work.function.as_str() {
            "Send" => (NodeType::Send, None),
            "Recv" => (NodeType::Receive, None),
            name => {
                let Some((_, comm_type)) = COLLECTIVES.iter().find(|(known, _)| *known == name) else {
                    self.totals.not_in_chakra += 1;
                    return Ok(());
                };
                (NodeType::Collective, Some(*comm_type))
            }
        };
        if work.n_ranks <= 1 {
            self.totals.of_one_rank += 1;
            return Ok(());
        }
        self.bound()?;
        let group = self.group(work.key, work.n_ranks)?;
        let of_job = |rank: i32| usize::try_from(rank).ok().and_then(|rank| group.ranks.get(rank)).copied();
        let (Some(own), peer) = (of_job(work.key.rank), work.peer.map(of_job)) else {
            bail!("rank {} is not in its communicator, which has {}", work.key.rank, work.n_ranks);
        };
        let chain = match (kind, work.peer) {
            (NodeType::Send, Some(peer)) => Chain::Sends(group.number, peer),
            (NodeType::Receive, Some(peer)) => Chain::Receives(group.number, peer),
            _ => Chain::Collectives(group.number),
        };
        let text = |text: String| AttributeValue::Text(text);
        let mut attributes = vec![Attribute::new("is_cpu_op", AttributeValue::Flag(false))];
        let mut put = |name: &str, value| attributes.push(Attribute::new(name, value));
        if let Some(comm_type) = comm_type {
            put("comm_type", AttributeValue::Int64(comm_type));
        }
        match comm_size(work) {
            Some(size) => put("comm_size", AttributeValue::Int64(i64::try_from(size).unwrap_or(i64::MAX))),
            None => self.totals.without_size += 1,
        }
        put("pg_name", text(group.number.to_string()));
        if kind != NodeType::Collective {
            let Some(Some(peer)) = peer else {
                bail!("the peer of a {} of rank {} is not in its communicator", work.function, work.key.rank);
            };
            let (src, dst) = if kind == NodeType::Send { (own, peer) } else { (peer, own) };
            put("comm_src", AttributeValue::Int32(src));
            put("comm_dst", AttributeValue::Int32(dst));
            put("comm_tag", AttributeValue::Int32(group.number));
        } else if let Some(root) = work.root.and_then(of_job) {
            put("root", AttributeValue::Int32(root));
        }
        put("comm_hash", text(format!("0x{:016x}", work.key.hash.unwrap_or_default())));
        if let Some(seq) = work.seq {
            put("seq", AttributeValue::Uint64(seq));
        }
        if let Some(launched) = work.launched {
            put("launched", AttributeValue::Uint64(launched));
        }
        if let Some(Lane::Stream(stream, _)) = work.lane {
            put("stream", AttributeValue::Uint64(stream));
        }
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
        if let Some(ns) = duration_ns {
            attributes.push(Attribute::new("duration_ns", AttributeValue::Uint64(ns)));
        }
        let (id, joins) = trace.add(lane, told, chain, start_time_micros, |id, mut data_deps| {
            data_deps
                .extend(on_stream.iter().filter(|of| !data_deps.contains(of)).copied().collect::<Vec<_>>());
            let ctrl_deps = ended.filter(|of| !data_deps.contains(of)).into_iter().collect();
            Node {
                id,
                name: work.function.to_string(),
                kind: kind.into(),
                ctrl_deps,
                data_deps,
                start_time_micros,
                duration_micros: duration_ns.map_or(0, micros),
                attributes,
            }
        })?;
        if let (Some(compute), Some(kernel)) = (compute, &kernel) {
            compute.communicated(id, kernel);
        }
        self.totals.joins += joins;
        self.totals.nodes += 1;
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
        let Totals { nodes, joins, without_communicator, of_one_rank, not_in_chakra, without_size, replays } =
            self.totals;
        let mut notes = vec![format!(
            "{nodes} nodes of {} ranks, {joins} of them only join the ends of others, {} groups",
            self.ranks.len(),
            self.groups.len()
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
        notes.extend(counted([
            (without_communicator, "calls have no known communicator, and no node"),
            (of_one_rank, "calls or ops are of communicators of one rank, and have no node"),
            (
                not_in_chakra,
                "calls are of functions that Chakra does not know (one-sided ones), and have no node",
            ),
            (
                self.launches.late,
                "ops ended so late after others that their nodes are not in the order of launches",
            ),
            (without_size, "nodes have no comm_size: their bytes are not known"),
            (
                replays,
                "ops on a channel are replays of CUDA graphs, which no call stands for: they have no node",
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

/// Returns the bytes that a rank puts in, as ASTRA-sim counts them (`system/collective/Ring.cc`): all ranks'
/// parts for a reduce-scatter and an all-to-all.
fn comm_size(work: &Work) -> Option<u64> {
    let n_ranks = u64::try_from(work.n_ranks).ok()?;
    match work.function.as_str() {
        "ReduceScatter" | "AlltoAll" | "Scatter" => work.bytes?.checked_mul(n_ranks),
        _ => work.bytes,
    }
}

impl View for Chakra {
    fn look_at(&mut self, sources: &[Source]) -> Result<()> {
        self.job = Job::of(sources)?;
        Ok(())
    }

    fn begin(&mut self, source: &Source) -> Result<()> {
        self.take_waiting()?;
        source.host().clone_into(&mut self.host);
        self.offset_ns = source.offset_ns();
        let SessionReport { libraries, .. } = source.session();
        let by_plan = |library: &LibraryReport| library.probes == Some(ProbeStrategy::Plan);
        self.by_launch = !libraries.is_empty() && libraries.iter().all(by_plan);
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
                 of one rank, {} have no known communicator, {} are of functions that Chakra does not know",
                self.totals.of_one_rank,
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
