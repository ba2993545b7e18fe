//! The trace of a rank of the job while it is written: its nodes, and those that the next ones wait for.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
};

use anyhow::{Context as _, Result, bail};

use super::{
    compute::{Compute, ComputeNode, Kernel},
    messages::{Attribute, AttributeValue, Node, NodeType},
    order::{Chain, Order, Told, follow},
    trace_file::EtFile,
};
use recording::sinks::OutputDir;

/// Most ranks of the job, each with a file.
const MAX_RANKS: usize = 4096;

/// Most streams of a rank, and most chains of nodes.
const MAX_ORDERS: usize = 65_536;

/// Most ops of a communicator that are known to have a node: the rows of an op's channels do not always come
/// in succession.
const MAX_SEEN: usize = 1024;

/// A sequence of nodes with an order of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// Calls of a thread on a stream.
    Stream(u64, u32),
    /// Ops of a communicator.
    Communicator(i32),
}

/// A rank of the job.
#[derive(Debug)]
pub(super) struct JobRankTrace {
    rank: i32,
    /// Host and process that the rank is.
    owner: (String, u32),
    file: EtFile,
    last_id: u64,
    orders: HashMap<Lane, Order>,
    chains: HashMap<Chain, u64>,
    seen: HashMap<i32, BTreeSet<u64>>,
}

impl JobRankTrace {
    /// Returns the trace of a rank of the job, which only this process is.
    pub(super) fn of<'a>(
        ranks: &'a mut BTreeMap<i32, Self>,
        dir: &OutputDir,
        rank: i32,
        owner: &(String, u32),
    ) -> Result<&'a mut Self> {
        if !ranks.contains_key(&rank) {
            if ranks.len() >= MAX_RANKS {
                bail!("the job has more than {MAX_RANKS} ranks");
            }
            let trace = Self {
                rank,
                owner: owner.clone(),
                file: EtFile::create(dir, format!("ncclflow.{rank}.et"))?,
                last_id: 0,
                orders: HashMap::new(),
                chains: HashMap::new(),
                seen: HashMap::new(),
            };
            ranks.insert(rank, trace);
        }
        let trace = ranks.get_mut(&rank).context("a rank's file is missing")?;
        if trace.owner != *owner {
            let (host, pid) = &trace.owner;
            bail!(
                "processes {pid} on {host} and {} on {} are both rank {rank} of their job: choose one job with --job or --pid",
                owner.1,
                owner.0
            );
        }
        Ok(trace)
    }

    /// Tells whether no node stands for this op yet: its other channels have rows, too.
    pub(super) fn is_first_of(&mut self, group: i32, seq: u64) -> bool {
        let seen = self.seen.entry(group).or_default();
        let is_first = seen.insert(seq);
        if seen.len() > MAX_SEEN {
            seen.pop_first();
        }
        is_first
    }

    /// Adds a node. Returns its number, and how many nodes had to be joined for it.
    pub(super) fn add(
        &mut self,
        lane: Lane,
        told: Told,
        chain: Chain,
        start_time_micros: u64,
        node: impl FnOnce(u64, Vec<u64>) -> Node,
    ) -> Result<(u64, u64)> {
        let Self { rank, file, last_id, orders, chains, .. } = self;
        if (orders.len() >= MAX_ORDERS && !orders.contains_key(&lane)) || chains.len() >= MAX_ORDERS {
            bail!("rank {rank} of the job has more than {MAX_ORDERS} streams or peers");
        }
        let (ids, mut joins) = (Cell::new(*last_id), 0);
        let mut new_id = || {
            ids.set(ids.get() + 1);
            ids.get()
        };
        let join = |over: Vec<u64>| -> io::Result<u64> {
            joins += 1;
            ids.set(ids.get() + 1);
            file.node(&Node {
                id: ids.get(),
                name: "join".to_owned(),
                kind: NodeType::Metadata.into(),
                ctrl_deps: Vec::new(),
                data_deps: over,
                start_time_micros,
                duration_micros: 0,
                attributes: vec![Attribute::new("is_cpu_op", AttributeValue::Flag(false))],
            })?;
            Ok(ids.get())
        };
        let is_collective = matches!(chain, Chain::Collectives(_));
        let order = orders.entry(lane).or_default();
        let (id, mut data_deps) = order.add(told, is_collective, &mut new_id, join)?;
        *last_id = ids.get();
        follow(chains, chain, id, &mut data_deps);
        file.node(&node(id, data_deps))?;
        Ok((id, joins))
    }

    /// Adds the nodes of a trace of torch's profiler that were launched before this kernel, or before this
    /// time.
    pub(super) fn add_compute(
        &mut self,
        compute: &mut Compute,
        kernel: Option<&Kernel>,
        at_ns: u64,
    ) -> io::Result<()> {
        while let Some(node) = compute.next_before(kernel, at_ns) {
            self.last_id += 1;
            compute.made(self.last_id, &node);
            let ComputeNode { name, begin_ns, duration_ns, stream, data_deps, ctrl_deps } = node;
            let attributes = vec![
                Attribute::new("is_cpu_op", AttributeValue::Flag(false)),
                Attribute::new("duration_ns", AttributeValue::Uint64(duration_ns)),
                Attribute::new("trace_stream", AttributeValue::Uint64(stream.into())),
            ];
            self.file.node(&Node {
                id: self.last_id,
                name,
                kind: NodeType::Compute.into(),
                ctrl_deps,
                data_deps,
                start_time_micros: begin_ns / 1000,
                duration_micros: super::micros(duration_ns),
                attributes,
            })?;
        }
        Ok(())
    }

    /// Returns the number of ends of chains that are kept.
    pub(super) fn chains(&self) -> usize {
        self.chains.len()
    }

    /// Returns the number of nodes that are kept.
    pub(super) fn kept(&self) -> usize {
        self.orders.values().map(Order::kept).sum()
    }

    /// Keeps fewer nodes: later ones wait for fewer.
    pub(super) fn forget(&mut self) {
        self.orders.values_mut().for_each(Order::forget);
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.file.finish()
    }
}
