//! The made-up communicator: the parts that `ncclProxySaveOp` looks at, and those that ncclflow reads.

use std::collections::HashMap;

use anyhow::{Context as _, Result, bail};

use crate::cases::Case;
use crate::expected;
use crate::graph::{Channel, IN_NETWORK, NEAR, RANK, RANKS};
use crate::library::Library;
use crate::memory::{Memory, field, offset, rank, size_of};
use crate::pool::Pool;
use crate::truth::{self, Told};

pub(crate) const HASH: u64 = 0x5eed_0000_feed_1234;
/// `ncclComm.startMagic` and `endMagic`, from 2.21 on.
const MAGIC: u64 = 0x0280_0280_0280_0280;
/// Number of ops that count as launched before these.
const BEFORE: u64 = 1000;

const STRUCT: &str = "ncclComm";

/// The ranks of the communicator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) ranks: i32,
    /// This one.
    pub(crate) rank: i32,
    /// Ranks of each node, one after another.
    pub(crate) local_ranks: i32,
}

/// The communicator for all patterns: each rank is a node of its own.
pub(crate) const WITH_GRAPHS: Shape = Shape { ranks: RANKS, rank: RANK, local_ranks: 1 };

#[derive(Debug)]
pub(crate) struct Communicator {
    memory: Memory,
    pool: Pool,
    /// Direction, peer and index of each connection.
    connections: HashMap<usize, (bool, i32, i32)>,
    shape: Shape,
}

impl Communicator {
    /// With the channels whose graphs are given, or with one that has no graphs.
    pub(crate) fn make(library: &Library, shape: Shape, channels: &[Channel]) -> Result<Self> {
        let layouts = &library.layouts;
        let memory = Memory::of(layouts, STRUCT, 1)?;
        let pool = Pool::make(library)?;
        let set = |path: &str, value: u64| memory.set(layouts, STRUCT, path, value);
        let may_set = |path: &str, value: u64| memory.set_if_any(layouts, STRUCT, path, value).map(drop);
        let Shape { ranks: n_ranks, rank: this, local_ranks } = shape;
        let node = |number: i32| number / local_ranks;
        set("rank", rank(this))?;
        set("nRanks", rank(n_ranks))?;
        set("nChannels", channels.len().max(1) as u64)?;
        set("node", rank(node(this)))?;
        set("nNodes", rank(n_ranks.div_euclid(local_ranks)))?;
        set("localRank", rank(this % local_ranks))?;
        for one in ["localRanks", "maxLocalRanks", "minLocalRanks"] {
            may_set(one, rank(local_ranks))?;
        }
        for (path, value) in [("startMagic", MAGIC), ("endMagic", MAGIC), ("commHash", HASH)] {
            may_set(path, value)?;
        }
        let table = |of: &dyn Fn(i32) -> i32| -> Result<Memory> {
            let table = Memory::zeroed(4 * n_ranks as usize);
            (0..n_ranks).try_for_each(|number| table.write(4 * number as usize, rank(of(number)), 4))?;
            Ok(table)
        };
        let ranks = table(&|number| number)?;
        let places = table(&|number| number % local_ranks)?;
        may_set("rankToNode", table(&node)?.address as u64)?;
        may_set("topParentRanks", ranks.address as u64)?;
        may_set("rankToLocalRank", places.address as u64)?;
        may_set("topParentLocalRanks", places.address as u64)?;
        let local = ranks.at(4 * (node(this) * local_ranks) as usize)?.address as u64;
        may_set("localRankToRank", local)?;
        if layouts.field(STRUCT, "sharedRes").is_some() {
            let shared = Memory::of(layouts, "ncclSharedResources", 1)?;
            set("sharedRes", shared.address as u64)?;
        }
        // Inside of the communicator up to 2.17.
        if field(layouts, STRUCT, "proxyState")?.type_name.contains('*') {
            let state = Memory::of(layouts, "ncclProxyState", 1)?;
            state.set(layouts, "ncclProxyState", "proxyOps", pool.queue.address as u64)?;
            set("proxyState", state.address as u64)?;
        } else {
            set("proxyState.proxyOps", pool.queue.address as u64)?;
        }
        let mut communicator = Self { memory, pool, connections: HashMap::new(), shape };
        let transports = Transports::make(library)?;
        for number in 0..channels.len().max(1) {
            communicator.make_channel(library, number, channels.get(number), &transports)?;
        }
        Ok(communicator)
    }

    /// Sets a field of the `ncclComm`.
    pub(crate) fn set(&self, library: &Library, path: &str, value: u64) -> Result<()> {
        self.memory.set(&library.layouts, STRUCT, path, value)
    }

    /// Address of the `ncclComm`.
    pub(crate) fn address(&self) -> usize {
        self.memory.address
    }

    fn make_channel(
        &mut self,
        library: &Library,
        number: usize,
        graph: Option<&Channel>,
        transports: &Transports,
    ) -> Result<()> {
        const STRUCT: &str = "ncclChannel";
        let layouts = &library.layouts;
        let at = offset(layouts, "ncclComm", "channels")? + number * size_of(layouts, STRUCT)?;
        let channel = self.memory.at(at)?;
        channel.set(layouts, STRUCT, "id", number as u64)?;
        if let Some(graph) = graph {
            set_graph(library, channel, graph)?;
        }

        // An array of them up to 2.17, then an array of their addresses.
        let size = size_of(layouts, "ncclChannelPeer")?;
        // Ranks, and the pseudo-peers behind them: the network, and as many of NVLS.
        let count = 2 * self.shape.ranks as usize + 1;
        let peers = Memory::of(layouts, "ncclChannelPeer", count)?;
        let first = if field(layouts, STRUCT, "peers")?.type_name.matches('*').count() >= 2 {
            let table = Memory::zeroed(8 * count);
            for peer in 0..count {
                table.write(8 * peer, peers.at(peer * size)?.address as u64, 8)?;
            }
            table
        } else {
            peers
        };
        channel.set(layouts, STRUCT, "peers", first.address as u64)?;
        let near = graph.map(|_| NEAR);
        for peer in 0..count {
            self.make_peer(library, peers.at(peer * size)?, peer as i32, near, transports)?;
        }
        Ok(())
    }

    fn make_peer(
        &mut self,
        library: &Library,
        at: Memory,
        peer: i32,
        near: Option<i32>,
        transports: &Transports,
    ) -> Result<()> {
        const STRUCT: &str = "ncclConnector";
        let layouts = &library.layouts;
        let size = size_of(layouts, STRUCT)?;
        for (sends, side) in [(true, "send"), (false, "recv")] {
            let begin = offset(layouts, "ncclChannelPeer", side)?;
            for index in 0..2 {
                let connector = at.at(begin + index * size)?;
                let set = |path: &str, value: u64| connector.set(layouts, STRUCT, path, value);
                let may_set =
                    |path: &str, value: u64| connector.set_if_any(layouts, STRUCT, path, value).map(drop);
                let connection = Memory::of(layouts, "ncclProxyConnection", 1)?;
                connection.set(layouts, "ncclProxyConnection", "send", u64::from(sends))?;
                set("transportComm", transports.of(peer, near, self.shape.ranks, sends))?;
                set("proxyConn.connection", connection.address as u64)?;
                // From 2.19 on the connector says whether there is a proxy, before, its transport.
                let progress = if near == Some(peer) { 0 } else { transports.progress() };
                may_set("proxyConn.proxyProgress", progress)?;
                may_set("proxyConn.sameProcess", 1)?;
                // Up to 2.17 the connector knows its communicator.
                may_set("comm", self.memory.address as u64)?;
                may_set("proxyConn.comm", self.memory.address as u64)?;
                self.connections.insert(connection.address, (sends, peer, index as i32));
            }
        }
        Ok(())
    }

    /// Runs both passes for the op of a case, as NCCL does, and gives what was queued.
    pub(crate) fn drive(&mut self, library: &Library, case: &Case, number: u64) -> Result<Told> {
        let layouts = &library.layouts;
        let p2p = u64::from(case.is_p2p());
        let op = make_op(library, case, (number << 1) | p2p)?;
        let expected = expected::calls(library, case);
        let needed = library.save_op(self.memory.address, op.address, true)?.context("it gives an answer")?;
        if needed != expected.iter().any(|call| call.proxy) {
            bail!("the library says that a proxy is needed: {needed}; expected {expected:?}");
        }
        let mut told = Told {
            pattern: truth::pattern_name(case.pattern),
            coll: (case.is_p2p() || layouts.field("ncclProxyOp", "coll").is_some()).then_some(case.coll),
            coll_api: layouts.field("ncclProxyOp", "collAPI").map(|_| case.coll_api),
            channel: case.channel,
            root: case.root,
            op_count: (number << 1) | p2p,
            posted: needed,
            slice_steps: case.slice_steps,
            chunk_steps: case.chunk_steps,
            ranks: IN_NETWORK,
            calls: expected.clone(),
        };
        if needed {
            // NCCL posts a copy, with its final number, and of PAT with the steps that the last peer had.
            let copy = Memory::of(layouts, "ncclProxyOp", 1)?;
            for word in (0..size_of(layouts, "ncclProxyOp")?).step_by(8) {
                copy.write(word, op.read(word, 8)?, 8)?;
            }
            told.op_count += BEFORE << 1;
            copy.set(layouts, "ncclProxyOp", "opCount", told.op_count)?;
            library.save_op(self.memory.address, copy.address, false)?;
            told.calls = truth::agreed(case, &expected, &self.queued(library, case, told.op_count)?)?;
        }
        Ok(told)
    }

    /// Posts an op, and gives what the library queued for it: direction, peer, steps.
    pub(crate) fn post(&self, library: &Library, op: Memory) -> Result<Vec<(bool, i32, u32)>> {
        library.save_op(self.memory.address, op.address, false)?;
        let of = |queued: crate::pool::Queued| {
            let connection = self.connections.get(&queued.connection);
            let (sends, peer, _) = *connection.context("the library queued for an unknown connection")?;
            Ok((sends, peer, queued.nsteps))
        };
        self.pool.take(&library.layouts)?.into_iter().map(of).collect()
    }

    /// What the library queued: direction, peer, index of the connector, steps.
    fn queued(&self, library: &Library, case: &Case, op_count: u64) -> Result<Vec<(bool, i32, i32, u32)>> {
        let pattern = library.value("ncclPattern_t", &format!("ncclPattern{}", case.pattern));
        let of = |queued: crate::pool::Queued| {
            let known = (queued.op_count, queued.channel, Some(queued.pattern));
            if known != (op_count, case.channel as u64, pattern) {
                bail!("the library queued {queued:?}");
            }
            let connection = self.connections.get(&queued.connection);
            let (sends, peer, index) = *connection.context("the library queued for an unknown connection")?;
            Ok((sends, peer, index, queued.nsteps))
        };
        self.pool.take(&library.layouts)?.into_iter().map(of).collect()
    }
}

/// Sets this rank's place in a channel's graphs.
fn set_graph(library: &Library, channel: Memory, graph: &Channel) -> Result<()> {
    const STRUCT: &str = "ncclChannel";
    let layouts = &library.layouts;
    let set = |path: &str, value: i32| channel.set(layouts, STRUCT, path, rank(value));
    let may_set = |path: &str, value: i32| channel.set_if_any(layouts, STRUCT, path, rank(value)).map(drop);
    set("ring.prev", graph.prev())?;
    set("ring.next", graph.next())?;
    set("tree.up", graph.tree_up)?;
    set("collnetChain.up", graph.collnet_chain_up)?;
    set("collnetDirect.out", graph.collnet_direct_out)?;
    may_set("nvls.out", graph.nvls_out)?;
    may_set("nvls.treeUp", graph.nvls_tree_up)?;
    for child in 0..3 {
        set(&format!("tree.down[{child}]"), graph.tree_down[child])?;
        may_set(&format!("nvls.treeDown[{child}]"), graph.nvls_tree_down[child])?;
    }
    let users = Memory::zeroed(4 * graph.ring.len());
    for (place, user) in graph.ring.iter().enumerate() {
        users.write(4 * place, rank(*user), 4)?;
    }
    channel.set(layouts, STRUCT, "ring.userRanks", users.address as u64)?;
    Ok(())
}

/// What connectors refer to: `struct ncclTransport`, of which they know the send side or the receive side.
#[derive(Debug)]
struct Transports {
    /// By name: the address of each side.
    sides: HashMap<&'static str, (u64, u64)>,
}

impl Transports {
    fn make(library: &Library) -> Result<Self> {
        const STRUCT: &str = "ncclTransport";
        let layouts = &library.layouts;
        let progress = offset(layouts, "ncclTransportComm", "proxyProgress")?;
        let mut sides = HashMap::new();
        for name in ["NET", "COL", "P2P"] {
            let transport = Memory::of(layouts, STRUCT, 1)?;
            let at = offset(layouts, STRUCT, "name")?;
            for (place, byte) in name.bytes().enumerate() {
                transport.write(at + place, u64::from(byte), 1)?;
            }
            let (send, recv) = (offset(layouts, STRUCT, "send")?, offset(layouts, STRUCT, "recv")?);
            for side in [send, recv] {
                // Up to 2.18 this says whether there is a proxy.
                let address = if name == "P2P" { 0 } else { Self::PROGRESS };
                transport.write(side + progress, address, 8)?;
            }
            let address = |side: usize| (transport.address + side) as u64;
            sides.insert(name, (address(send), address(recv)));
        }
        Ok(Self { sides })
    }

    /// Never called: only this program takes ops out of the queue.
    const PROGRESS: u64 = 0x1000;

    #[expect(clippy::unused_self, reason = "it belongs to a transport that was made")]
    fn progress(&self) -> u64 {
        Self::PROGRESS
    }

    fn of(&self, peer: i32, near: Option<i32>, ranks: i32, sends: bool) -> u64 {
        let name = match peer {
            peer if near == Some(peer) => "P2P",
            peer if peer >= ranks => "COL",
            _ => "NET",
        };
        self.sides.get(name).map_or(0, |(send, recv)| if sends { *send } else { *recv })
    }
}

fn make_op(library: &Library, case: &Case, op_count: u64) -> Result<Memory> {
    const STRUCT: &str = "ncclProxyOp";
    let layouts = &library.layouts;
    let op = Memory::of(layouts, STRUCT, 1)?;
    let set = |path: &str, value: u64| op.set(layouts, STRUCT, path, value);
    let may_set = |path: &str, value: u64| op.set_if_any(layouts, STRUCT, path, value).map(drop);
    let function = |name: &str| library.value("ncclFunc_t", &format!("ncclFunc{name}"));
    let pattern = library.value("ncclPattern_t", &format!("ncclPattern{}", case.pattern));
    set("opCount", op_count)?;
    set("pattern", pattern.context("no such pattern")?)?;
    set("channelId", case.channel as u64)?;
    set("nsteps", u64::from(case.nsteps))?;
    set("sliceSteps", u64::from(case.slice_steps))?;
    set("chunkSteps", u64::from(case.chunk_steps))?;
    set("root", rank(case.root))?;
    // Bytes of a message's slot. For PAT, which runs its algorithm to count steps: the bytes of the channel.
    set("nbytes", if case.is_pat() { 8 << 20 } else { 1 << 20 })?;
    set("chunkSize", 1 << 18)?;
    // `NCCL_PROTO_SIMPLE`, a macro.
    set("protocol", 2)?;
    set("dtype", library.value("ncclDataType_t", "ncclFloat32").context("no float32")?)?;
    set("redOp", 0)?;
    may_set("coll", function(case.coll).unwrap_or(0))?;
    may_set("collAPI", function(case.coll_api).unwrap_or(0))?;
    if let Some((sent, received)) = case.slices {
        set("specifics.bcast.sendSlices", u64::from(sent))?;
        set("specifics.bcast.recvSlices", u64::from(received))?;
    }
    if layouts.field(STRUCT, "task").is_some() {
        let name = if case.is_p2p() { "ncclTaskP2p" } else { "ncclTaskColl" };
        let task = Memory::of(layouts, name, 1)?;
        let fields: &[(&str, u64)] = if case.is_p2p() {
            &[("bytes", 4096), ("nChannels", 1)]
        } else {
            &[("count", 1 << 20), ("datatype", 7), ("func", function(case.coll).unwrap_or(0))]
        };
        for (field, value) in fields {
            task.set_if_any(layouts, name, field, *value)?;
        }
        set("task", task.address as u64)?;
    }
    Ok(op)
}
