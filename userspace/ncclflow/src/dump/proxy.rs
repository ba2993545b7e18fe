//! The proxy ops in flight: the list `proxyState->progressState.active` of `ncclProxyArgs` (src/proxy.cc).
//!
//! The proxy thread changes the list while it is read: it unlinks a finished op, whose `next` then leads into
//! the pool of free ones. So a walk is believed only if all links and op counts are the same when looked at
//! again. Nothing is cleared when an args struct is used again: until the op has begun (`ncclProxyOpReady`)
//! its steps are old.

use std::collections::BTreeSet;

use super::{communicator::places, rank_report::ProxyListState};
use crate::memory::{Memory, ReadError};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{
        ArrayField, FieldRef, IntField, MissingField, enums, proxy_args as args, proxy_connection,
        proxy_state, proxy_sub_args as sub, recv_mem, recv_net_resources, send_mem, send_net_resources,
    },
    layouts::Layouts,
    nccl::{Direction, Pattern, Protocol},
};

/// More ops than a proxy has at a time: it has at most a few per connection.
const MAX_ARGS: usize = 1 << 14;
/// Looks at a list until it holds still.
const ATTEMPTS: usize = 3;

#[derive(Debug)]
pub(crate) struct ProxyLayout {
    active: IntField,
    async_result: Option<IntField>,
    args_size: u64,
    subs: ArrayField,
    n_subs: IntField,
    op_count: IntField,
    state: IntField,
    next: IntField,
    next_peer: IntField,
    pattern: IntField,
    protocol: IntField,
    coll: Option<IntField>,
    chunk_steps: IntField,
    slice_steps: IntField,
    sub: SubLayout,
    connection_send: IntField,
    connection_transport: IntField,
    connection_resources: IntField,
    /// In the resources of a network connection: the memory that the GPU writes its progress to, and where
    /// there.
    send_tail: Option<(IntField, IntField)>,
    recv_head: Option<(IntField, IntField)>,
    state_none: u64,
    state_ready: u64,
}

#[derive(Debug)]
struct SubLayout {
    connection: IntField,
    channel: IntField,
    n_steps: IntField,
    base: IntField,
    posted: IntField,
    received: IntField,
    flushed: Option<IntField>,
    transmitted: IntField,
    done: IntField,
    peer: IntField,
    /// Where it is, `peer` is the peer.
    rank: Option<IntField>,
}

impl ProxyLayout {
    pub(crate) fn new(layouts: &Layouts) -> Result<Self, MissingField> {
        let gpu = |memory: FieldRef, word: FieldRef| memory.find_int(layouts).zip(word.find_int(layouts));
        Ok(Self {
            active: proxy_state::ACTIVE.int(layouts)?,
            async_result: proxy_state::ASYNC_RESULT.find_int(layouts),
            args_size: args::STRUCT.size(layouts)?,
            subs: args::SUBS.array(layouts)?,
            n_subs: args::N_SUBS.int(layouts)?,
            op_count: args::OP_COUNT.int(layouts)?,
            state: args::STATE.int(layouts)?,
            next: args::NEXT.int(layouts)?,
            next_peer: args::NEXT_PEER.int(layouts)?,
            pattern: args::PATTERN.int(layouts)?,
            protocol: args::PROTOCOL.int(layouts)?,
            coll: args::COLL.find_int(layouts),
            chunk_steps: args::CHUNK_STEPS.int(layouts)?,
            slice_steps: args::SLICE_STEPS.int(layouts)?,
            sub: SubLayout {
                connection: sub::CONNECTION.int(layouts)?,
                channel: sub::CHANNEL_ID.int(layouts)?,
                n_steps: sub::N_STEPS.int(layouts)?,
                base: sub::BASE.int(layouts)?,
                posted: sub::POSTED.int(layouts)?,
                received: sub::RECEIVED.int(layouts)?,
                flushed: sub::FLUSHED.find_int(layouts),
                transmitted: sub::TRANSMITTED.int(layouts)?,
                done: sub::DONE.int(layouts)?,
                peer: sub::PEER.int(layouts)?,
                rank: sub::RANK.find_int(layouts),
            },
            connection_send: proxy_connection::SEND.int(layouts)?,
            connection_transport: proxy_connection::TRANSPORT.int(layouts)?,
            connection_resources: proxy_connection::TRANSPORT_RESOURCES.int(layouts)?,
            send_tail: gpu(send_net_resources::RECV_MEM, recv_mem::TAIL),
            recv_head: gpu(recv_net_resources::SEND_MEM, send_mem::HEAD),
            state_none: enums::OP_NONE.find_unsigned(layouts).unwrap_or(0),
            state_ready: enums::OP_READY.find_unsigned(layouts).unwrap_or(1),
        })
    }
}

/// An op with one peer, by the library's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawOp {
    pub(crate) connection: u64,
    pub(crate) op_count: u64,
    pub(crate) coll: Option<u64>,
    pub(crate) pattern: u64,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) channel: u32,
    pub(crate) direction: Direction,
    /// From 2.23 on.
    pub(crate) rank_and_peer: Option<(u32, u32)>,
    pub(crate) transport: u64,
    pub(crate) begun: bool,
    pub(crate) nsteps: u64,
    pub(crate) posted: u64,
    pub(crate) received: u64,
    pub(crate) flushed: Option<u64>,
    pub(crate) transmitted: u64,
    pub(crate) done: u64,
    pub(crate) gpu: Option<u64>,
    pub(crate) chunk_steps: u64,
    pub(crate) slice_steps: u64,
}

/// The ops of one proxy.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProxyList {
    pub(crate) state: ProxyListState,
    pub(crate) ops: Vec<RawOp>,
    pub(crate) async_result: Option<u64>,
}

/// What keeps a walk from being believed.
enum Walk {
    Read(Vec<RawOp>),
    /// The list was another one when looked at again, or something in it went away.
    Changed,
    /// Held still and made no sense.
    Nonsense,
}

/// Reads the list of the proxy at `proxy`, again if it changes meanwhile.
///
/// # Errors
/// When the process is gone or may not be read.
pub(crate) fn read(
    memory: Memory<'_>,
    layout: &ProxyLayout,
    proxy: RuntimeAddr,
) -> Result<ProxyList, ReadError> {
    let mut list = ProxyList::default();
    if proxy.0 == 0 {
        return Ok(list);
    }
    list.async_result = match places(memory, proxy, [layout.async_result]) {
        Ok([result]) => result,
        Err(error) if error.is_final() => return Err(error),
        Err(_) => None,
    };
    for _ in 0..ATTEMPTS {
        list.state = match walk(memory, layout, proxy) {
            Ok(Walk::Read(ops)) => {
                list.ops = ops;
                list.state = ProxyListState::Read;
                return Ok(list);
            }
            Ok(Walk::Nonsense) => ProxyListState::Unreadable,
            Err(error) if error.is_final() => return Err(error),
            Ok(Walk::Changed) | Err(_) => ProxyListState::Torn,
        };
    }
    Ok(list)
}

/// The links of an args struct, and what tells one use of it from the next.
type Links = [Option<u64>; 5];

fn walk(memory: Memory<'_>, layout: &ProxyLayout, proxy: RuntimeAddr) -> Result<Walk, ReadError> {
    let links_of = |args: u64| -> Result<Links, ReadError> {
        let wanted = [layout.next, layout.next_peer, layout.op_count, layout.state, layout.n_subs];
        places(memory, RuntimeAddr(args), wanted.map(Some))
    };
    let active = RuntimeAddr(proxy.0.saturating_add(layout.active.offset()));
    let first = memory.word(active)?;
    let mut visited: Vec<(u64, Links)> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut ops = Vec::new();
    let mut sane = true;
    // Ops of one connection hang on `nextPeer` in order; those of different ones on `next`.
    let mut to_visit = vec![first];
    while let Some(args) = to_visit.pop() {
        if args == 0 {
            continue;
        }
        if !seen.insert(args) || seen.len() > MAX_ARGS {
            sane = false;
            break;
        }
        let links = links_of(args)?;
        visited.push((args, links));
        let [next, next_peer, _, state, _] = links;
        match ops_of(memory, layout, args, links) {
            Ok(Some(found)) if state != Some(layout.state_none) => ops.extend(found),
            Err(error) if error.is_final() => return Err(error),
            Ok(_) | Err(_) => sane = false,
        }
        if !sane {
            break;
        }
        to_visit.push(next.unwrap_or(0));
        to_visit.push(next_peer.unwrap_or(0));
    }
    for (args, links) in visited {
        // `next` grows at the end of the list while ops are added: nothing that was read is wrong then, but a
        // proxy that takes new ops moves, and the caller is to see that.
        if links_of(args)? != links {
            return Ok(Walk::Changed);
        }
    }
    if memory.word(active)? != first {
        return Ok(Walk::Changed);
    }
    Ok(if sane { Walk::Read(ops) } else { Walk::Nonsense })
}

/// The ops of one args struct, one for each sub; `None` if it cannot be one.
fn ops_of(
    memory: Memory<'_>,
    layout: &ProxyLayout,
    args: u64,
    links: Links,
) -> Result<Option<Vec<RawOp>>, ReadError> {
    let [_, _, Some(op_count), Some(state), Some(n_subs)] = links else { return Ok(None) };
    let ArrayField { offset: subs_offset, count: max_subs, elem_size: sub_size } = layout.subs;
    if n_subs == 0 || n_subs > max_subs || max_subs.saturating_mul(sub_size) > layout.args_size {
        return Ok(None);
    }
    let wanted = [
        Some(layout.pattern),
        Some(layout.protocol),
        layout.coll,
        Some(layout.chunk_steps),
        Some(layout.slice_steps),
    ];
    let [pattern, protocol, coll, chunk_steps, slice_steps] = places(memory, RuntimeAddr(args), wanted)?;
    let subs = memory.bytes(RuntimeAddr(args.saturating_add(subs_offset)), n_subs * sub_size)?;
    let mut ops = Vec::new();
    for sub in subs.chunks_exact(usize::try_from(sub_size).unwrap_or(1)) {
        let value = |place: IntField| place.unsigned(sub).unwrap_or(0);
        let small = |place: IntField| u32::try_from(value(place)).ok();
        let connection = value(layout.sub.connection);
        let [send, transport, resources] = places(
            memory,
            RuntimeAddr(connection),
            [layout.connection_send, layout.connection_transport, layout.connection_resources].map(Some),
        )?;
        let Some(channel) = small(layout.sub.channel).filter(|channel| *channel < 1024) else {
            return Ok(None);
        };
        let begun = state != layout.state_ready;
        let step = |place: IntField| if begun { value(place) } else { 0 };
        let direction = if send == Some(0) { Direction::Recv } else { Direction::Send };
        let protocol = protocol.and_then(Protocol::from_number);
        let mut op = RawOp {
            connection,
            op_count,
            coll,
            pattern: pattern.unwrap_or(u64::MAX),
            protocol,
            channel,
            direction,
            rank_and_peer: layout.sub.rank.and_then(|rank| Some((small(rank)?, small(layout.sub.peer)?))),
            transport: transport.unwrap_or(u64::MAX),
            begun,
            nsteps: value(layout.sub.n_steps),
            posted: step(layout.sub.posted),
            // Only a receiver has it; a sender's is left over from another op.
            received: if direction == Direction::Recv { step(layout.sub.received) } else { 0 },
            // Only CollNet's receivers count it (src/transport/coll_net.cc); elsewhere it is never written.
            flushed: layout
                .sub
                .flushed
                .filter(|_| direction == Direction::Recv && transport == Some(COLLNET))
                .map(step),
            transmitted: step(layout.sub.transmitted),
            done: step(layout.sub.done),
            gpu: None,
            chunk_steps: chunk_steps.unwrap_or(1),
            slice_steps: slice_steps.unwrap_or(1),
        };
        if !is_sane(&op) {
            return Ok(None);
        }
        if begun && transport == Some(NET) {
            op.gpu = gpu(memory, layout, &op, resources.unwrap_or(0), value(layout.sub.base));
        }
        ops.push(op);
    }
    Ok(Some(ops))
}

/// Steps come in the order of their stages, at most a message more than there are.
fn is_sane(op: &RawOp) -> bool {
    let last = op.nsteps.saturating_add(op.chunk_steps.max(op.slice_steps));
    u32::try_from(op.nsteps).is_ok()
        && op.posted <= last
        && op.received <= last
        && op.done <= op.transmitted
        && op.transmitted <= op.posted
}

/// `TRANSPORT_NET`, src/include/transport.h.
pub(crate) const NET: u64 = 2;
/// `TRANSPORT_COLLNET`
const COLLNET: u64 = 3;

/// What the GPU wrote into the connection's memory: for a sender its tail, for a receiver its head, less the
/// base of this op. LL has its flags in the data and writes no tail.
fn gpu(memory: Memory<'_>, layout: &ProxyLayout, op: &RawOp, resources: u64, base: u64) -> Option<u64> {
    let (place, word) = match op.direction {
        Direction::Send if op.protocol == Some(Protocol::Ll) => return None,
        Direction::Send => layout.send_tail?,
        Direction::Recv => layout.recv_head?,
    };
    let [at] = places(memory, RuntimeAddr(resources), [Some(place)]).ok()?;
    let [count] = places(memory, RuntimeAddr(at?), [Some(word)]).ok()?;
    // A count from before this op stands below its base.
    let steps = count?.saturating_sub(base);
    (steps <= op.nsteps.saturating_add(op.chunk_steps)).then_some(steps)
}

/// The transport's name by its number: src/include/transport.h, the same in all versions.
pub(crate) fn transport_name(number: u64) -> Option<&'static str> {
    ["P2P", "SHM", "NET", "COLLNET", "PROFILER"].get(usize::try_from(number).ok()?).copied()
}

/// Whether an op moves data.
pub(crate) fn moves_data(pattern: Option<Pattern>) -> bool {
    pattern != Some(Pattern::Profiler)
}

/// `opCount` without its lowest bit, which tells point-to-point batches (1) from collectives (0).
pub(crate) fn split_op_count(op_count: u64) -> (u64, bool) {
    (op_count >> 1, op_count & 1 == 1)
}

#[cfg(test)]
mod tests;
