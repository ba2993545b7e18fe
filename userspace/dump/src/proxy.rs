//! The proxy ops in flight: the list `proxyState->progressState.active` of `ncclProxyArgs` (src/proxy.cc).
//!
//! The proxy thread changes the list while it is read: it unlinks a finished op, whose `next` then leads into
//! the pool of free ones. So a walk is believed only if all links and op counts are the same when looked at
//! again. Nothing is cleared when an args struct is used again: until the op has begun (`ncclProxyOpReady`)
//! its steps are old.

use std::collections::BTreeSet;

use super::{
    OpReport, ProxyListState,
    places::{self, Places, Wanted},
};
use inspect::memory::{Memory, ReadError};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{
        ArrayField, FieldRef, IntField, MissingField, enums, proxy_args as args, proxy_connection,
        proxy_state, proxy_sub_args as sub, recv_mem, recv_net_resources, send_mem, send_net_resources,
    },
    layouts::Layouts,
    nccl::{Direction, NameTables, Pattern, Protocol},
};

/// Maximum number of ops, more than a proxy has at a time: it has at most a few per connection.
const MAX_ARGS: usize = 1 << 14;
/// Maximum number of looks at a list until it holds still.
const ATTEMPTS: usize = 3;

/// Fields that link an args struct with others, and tell one use of it from the next.
const LINKS: [Wanted; 5] = [
    (args::NEXT, true),
    (args::NEXT_PEER, true),
    (args::OP_COUNT, true),
    (args::STATE, true),
    (args::N_SUBS, true),
];
const ARGS: [Wanted; 5] = [
    (args::PATTERN, true),
    (args::PROTOCOL, true),
    (args::COLL, false),
    (args::CHUNK_STEPS, true),
    (args::SLICE_STEPS, true),
];
const SUB: [Wanted; 11] = [
    (sub::CONNECTION, true),
    (sub::CHANNEL_ID, true),
    (sub::N_STEPS, true),
    (sub::BASE, true),
    (sub::POSTED, true),
    (sub::RECEIVED, true),
    (sub::FLUSHED, false),
    (sub::TRANSMITTED, true),
    (sub::DONE, true),
    (sub::PEER, true),
    // Versions that have this field keep the peer in the communicator in `PEER`.
    (sub::RANK, false),
];
pub(super) const CONNECTION: [Wanted; 3] = [
    (proxy_connection::SEND, true),
    (proxy_connection::TRANSPORT, true),
    (proxy_connection::TRANSPORT_RESOURCES, true),
];

#[derive(Debug)]
pub(super) struct ProxyLayout {
    /// Pointer to the first of the ops in flight, 0 if there is none.
    pub(super) active: IntField,
    pub(super) async_result: Option<IntField>,
    args_size: u64,
    subs: ArrayField,
    links: Places<5>,
    args: Places<5>,
    sub: Places<11>,
    connection: Places<3>,
    /// Fields in the resources of a network connection: the pointer to the memory that the GPU writes its
    /// progress to, and the word there.
    send_tail: Option<(IntField, IntField)>,
    recv_head: Option<(IntField, IntField)>,
    net_devs: NetDevs,
    state_none: u64,
    state_ready: u64,
    names: NameTables,
}

impl ProxyLayout {
    pub(super) fn new(layouts: &Layouts) -> Result<Self, MissingField> {
        let gpu = |memory: FieldRef, word: FieldRef| memory.find_int(layouts).zip(word.find_int(layouts));
        Ok(Self {
            active: proxy_state::ACTIVE.int(layouts)?,
            async_result: proxy_state::ASYNC_RESULT.find_int(layouts),
            args_size: args::STRUCT.size(layouts)?,
            subs: args::SUBS.array(layouts)?,
            links: places::find(LINKS, layouts)?,
            args: places::find(ARGS, layouts)?,
            sub: places::find(SUB, layouts)?,
            connection: places::find(CONNECTION, layouts)?,
            send_tail: gpu(send_net_resources::RECV_MEM, recv_mem::TAIL),
            recv_head: gpu(recv_net_resources::SEND_MEM, send_mem::HEAD),
            net_devs: NetDevs::new(layouts),
            state_none: enums::OP_NONE.find_unsigned(layouts).unwrap_or(0),
            state_ready: enums::OP_READY.find_unsigned(layouts).unwrap_or(1),
            names: NameTables::from_layouts(layouts),
        })
    }
}

/// Bound of the number of network devices of a host.
pub(super) const MAX_DEVICES: u64 = 1 << 10;

/// Number of the device in the resources of a network connection, of a sender and of a receiver.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NetDevs([Option<IntField>; 2]);

impl NetDevs {
    pub(super) fn new(layouts: &Layouts) -> Self {
        let fields = [send_net_resources::NET_DEV, recv_net_resources::NET_DEV];
        Self(fields.map(|field| field.find_int(layouts)))
    }

    pub(super) fn read(self, memory: Memory<'_>, direction: Direction, resources: u64) -> Option<u32> {
        let [send, recv] = self.0;
        let place = match direction {
            Direction::Send => send,
            Direction::Recv => recv,
        };
        let dev = places::read_one(memory, resources, place).filter(|dev| *dev < MAX_DEVICES)?;
        u32::try_from(dev).ok()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProxyOp {
    pub(super) connection: u64,
    /// Report of the op, with its peer in the communicator whose op it is (from 2.23 on).
    pub(super) report: OpReport,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ProxyList {
    pub(super) state: ProxyListState,
    pub(super) ops: Vec<ProxyOp>,
    pub(super) async_result: Option<u64>,
}

/// Reads the list of the proxy at `proxy`, again if it changes meanwhile.
///
/// # Errors
/// The process is gone or may not be read.
pub(super) fn read(memory: Memory<'_>, layout: &ProxyLayout, proxy: u64) -> Result<ProxyList, ReadError> {
    let mut list = ProxyList::default();
    if proxy == 0 {
        return Ok(list);
    }
    list.async_result = match places::read(memory, proxy, [layout.async_result]) {
        Ok([result]) => result,
        Err(error) if error.is_final() => return Err(error),
        Err(_) => None,
    };
    for _ in 0..ATTEMPTS {
        (list.state, list.ops) = match walk(memory, layout, proxy) {
            Ok(walked) => walked,
            Err(error) if error.is_final() => return Err(error),
            // Something in it went away.
            Err(_) => (ProxyListState::Torn, Vec::new()),
        };
        if list.state == ProxyListState::Read {
            break;
        }
    }
    Ok(list)
}

/// Values of [`LINKS`].
type Links = [Option<u64>; 5];

/// Walks once through the list.
fn walk(
    memory: Memory<'_>,
    layout: &ProxyLayout,
    proxy: u64,
) -> Result<(ProxyListState, Vec<ProxyOp>), ReadError> {
    let links_of = |args: u64| places::read(memory, args, layout.links);
    let active = RuntimeAddr(proxy.saturating_add(layout.active.offset()));
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
            Ok(_) | Err(_) => {
                sane = false;
                break;
            }
        }
        to_visit.extend([next, next_peer].map(Option::unwrap_or_default));
    }
    for (args, links) in visited {
        // `next` grows at the end of the list while ops are added: nothing that was read is wrong then, but a
        // proxy that takes new ops moves, and the caller is to see that.
        if links_of(args)? != links {
            return Ok((ProxyListState::Torn, Vec::new()));
        }
    }
    Ok(match (memory.word(active)? == first, sane) {
        (false, _) => (ProxyListState::Torn, Vec::new()),
        (true, true) => (ProxyListState::Read, ops),
        (true, false) => (ProxyListState::Unreadable, Vec::new()),
    })
}

/// Returns the ops of one args struct, one for each sub, but for those that move no data; `None` if it cannot
/// be one.
fn ops_of(
    memory: Memory<'_>,
    layout: &ProxyLayout,
    args: u64,
    links: Links,
) -> Result<Option<Vec<ProxyOp>>, ReadError> {
    let [_, _, Some(op_count), Some(state), Some(n_subs)] = links else { return Ok(None) };
    let ArrayField { offset: subs_offset, count: max_subs, elem_size: sub_size } = layout.subs;
    if n_subs == 0 || n_subs > max_subs || max_subs.saturating_mul(sub_size) > layout.args_size {
        return Ok(None);
    }
    let [pattern, protocol, coll, chunk_steps, slice_steps] = places::read(memory, args, layout.args)?;
    let number = |value: Option<u64>| i64::try_from(value?).ok();
    let pattern = number(pattern).and_then(|pattern| layout.names.pattern(pattern));
    // Versions that put no function into p2p ops have 0 there, which is Broadcast.
    let coll = match pattern {
        Some(Pattern::Send) => Some("Send".to_owned()),
        Some(Pattern::Recv) => Some("Recv".to_owned()),
        _ => number(coll).and_then(|coll| layout.names.function(coll)).map(ToString::to_string),
    };
    let protocol = protocol.and_then(Protocol::of_nccl);
    let subs = memory.bytes(RuntimeAddr(args.saturating_add(subs_offset)), n_subs * sub_size)?;
    let begun = state != layout.state_ready;
    let mut ops = Vec::new();
    for sub in subs.chunks_exact(usize::try_from(sub_size).unwrap_or(1)) {
        let [connection, channel, nsteps, base, posted, received, flushed, transmitted, done, peer, rank] =
            layout.sub.map(|place| place?.unsigned(sub));
        let small = |value: Option<u64>| u32::try_from(value?).ok();
        let connection = connection.unwrap_or(0);
        let [send, transport, resources] = places::read(memory, connection, layout.connection)?;
        let Some(channel) = small(channel).filter(|channel| *channel < 1024) else {
            return Ok(None);
        };
        let step = |value: Option<u64>| value.filter(|_| begun).unwrap_or(0);
        let direction = if send == Some(0) { Direction::Recv } else { Direction::Send };
        let is_receive = direction == Direction::Recv;
        let (number, p2p) = split_op_count(op_count);
        let mut op = OpReport {
            op_count: number,
            p2p,
            coll: coll.clone(),
            pattern: pattern.map(|pattern| pattern.name().to_owned()),
            protocol: protocol.map(|protocol| protocol.name().to_owned()),
            channel,
            direction,
            peer: small(rank).and_then(|_| small(peer)),
            transport: transport.and_then(transport_name).map(str::to_owned),
            net_dev: resources
                .filter(|resources| transport == Some(NET) && *resources != 0)
                .and_then(|resources| layout.net_devs.read(memory, direction, resources)),
            begun,
            nsteps: nsteps.unwrap_or(0),
            posted: step(posted),
            // Only a receiver has this count; a sender's is left over from another op.
            received: if is_receive { step(received) } else { 0 },
            // Only CollNet's receivers count flushes (src/transport/coll_net.cc); elsewhere the field is
            // never written.
            flushed: flushed
                .filter(|_| is_receive && transport == Some(COLLNET))
                .map(|flushed| step(Some(flushed))),
            transmitted: step(transmitted),
            done: step(done),
            gpu: None,
            chunk_steps: chunk_steps.unwrap_or(1),
            slice_steps: slice_steps.unwrap_or(1),
            still_seconds: 0.0,
        };
        if !is_sane(&op) {
            return Ok(None);
        }
        // LL has its flags in the data and writes no tail.
        if begun && transport == Some(NET) && (is_receive || protocol != Some(Protocol::Ll)) {
            op.gpu = gpu(memory, layout, &op, resources.unwrap_or(0), base.unwrap_or(0));
        }
        if pattern != Some(Pattern::Profiler) {
            ops.push(ProxyOp { connection, report: op });
        }
    }
    Ok(Some(ops))
}

/// Tells whether the steps are in the order of their stages, at most a message more than there are.
fn is_sane(op: &OpReport) -> bool {
    let last = op.nsteps.saturating_add(op.chunk_steps.max(op.slice_steps));
    u32::try_from(op.nsteps).is_ok()
        && op.posted <= last
        && op.received <= last
        && op.done <= op.transmitted
        && op.transmitted <= op.posted
}

/// `TRANSPORT_NET`, src/include/transport.h.
pub(super) const NET: u64 = 2;
/// `TRANSPORT_COLLNET`
const COLLNET: u64 = 3;

/// Returns the step that the GPU wrote into the connection's memory, less the base of this op: a sender's
/// tail, a receiver's head.
fn gpu(memory: Memory<'_>, layout: &ProxyLayout, op: &OpReport, resources: u64, base: u64) -> Option<u64> {
    let (place, word) = match op.direction {
        Direction::Send => layout.send_tail?,
        Direction::Recv => layout.recv_head?,
    };
    let at = places::read_one(memory, resources, Some(place))?;
    // A count from before this op stands below its base.
    let steps = places::read_one(memory, at, Some(word))?.saturating_sub(base);
    (steps <= op.nsteps.saturating_add(op.chunk_steps)).then_some(steps)
}

/// Returns the transport's name by its number: src/include/transport.h, the same in all versions.
fn transport_name(number: u64) -> Option<&'static str> {
    ["P2P", "SHM", "NET", "COLLNET", "PROFILER"].get(usize::try_from(number).ok()?).copied()
}

/// Splits `opCount` from its lowest bit, which tells point-to-point batches (1) from collectives (0).
fn split_op_count(op_count: u64) -> (u64, bool) {
    (op_count >> 1, op_count & 1 == 1)
}

#[cfg(test)]
mod tests;
