//! The trace of a rank of the job while it is written: its nodes, and those that the next ones wait for.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
};

use anyhow::{Result, bail};

use super::{
    compute::{Compute, Kernel},
    messages::{Attribute, AttributeValue, Node, NodeType},
    order::{Chain, Order, Told, follow},
    trace_file::EtFile,
};
use crate::export::{bounded::get_or_make, job::check_owner};
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
    pub(super) file: EtFile,
    last_id: u64,
    orders: HashMap<Lane, Order>,
    /// The last node of each chain.
    pub(super) chains: HashMap<Chain, u64>,
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
        let refusal = format_args!("the job has more than {MAX_RANKS} ranks");
        let trace = get_or_make(ranks, rank, MAX_RANKS, refusal, |_| {
            Ok(Self {
                rank,
                owner: owner.clone(),
                file: EtFile::create(dir, format!("ncclflow.{rank}.et"))?,
                last_id: 0,
                orders: HashMap::new(),
                chains: HashMap::new(),
                seen: HashMap::new(),
            })
        })?;
        check_owner(rank.into(), &trace.owner, owner)?;
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
        let order = orders.entry(lane).or_default();
        let mut joins = 0;
        if let Some(over) = order.advance(told) {
            joins = 1;
            *last_id += 1;
            file.push(&Node {
                id: *last_id,
                name: "join".to_owned(),
                kind: NodeType::Metadata.into(),
                data_deps: over,
                start_time_micros,
                attributes: vec![Attribute::new("is_cpu_op", AttributeValue::Flag(false))],
                ..Node::default()
            })?;
            order.joined(*last_id);
        }
        *last_id += 1;
        let mut data_deps = order.add(*last_id, told, matches!(chain, Chain::Collectives(_)));
        follow(chains, chain, *last_id, &mut data_deps);
        file.push(&node(*last_id, data_deps))?;
        Ok((*last_id, joins))
    }

    /// Adds the nodes of a trace of torch's profiler that were launched before this kernel, or before this
    /// time.
    pub(super) fn add_compute(
        &mut self,
        compute: &mut Compute,
        kernel: Option<&Kernel>,
        at_ns: u64,
    ) -> io::Result<()> {
        while let Some(node) = compute.next_before(kernel, at_ns, self.last_id + 1) {
            self.last_id = node.id;
            self.file.push(&node)?;
        }
        Ok(())
    }

    /// Returns the number of nodes that are kept.
    pub(super) fn kept(&self) -> usize {
        self.orders.values().map(Order::kept).sum()
    }

    /// Keeps fewer nodes: later ones wait for fewer.
    pub(super) fn forget(&mut self) {
        self.orders.values_mut().for_each(Order::forget);
    }
}
