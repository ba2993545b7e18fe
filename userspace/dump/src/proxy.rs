//! The proxy ops in flight: the list `proxyState->progressState.active` of `ncclProxyArgs` (src/proxy.cc).
//!
//! The proxy thread changes the list while it is read: it unlinks a finished op, whose `next` then leads into
//! the pool of free ones. So a walk is believed only if all links and op counts are the same when looked at
//! again. Nothing is cleared when an args struct is used again: until the op has begun (`ncclProxyOpReady`)
//! its steps are old.

mod ready;
mod steps;

use std::{collections::BTreeSet, rc::Rc};

use self::ready::ReadyFlags;
pub use self::steps::{ProxyLooks, Steps};
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
/// Number of args structs that are read at once: each has subs of up to 20 KiB.
const ARGS_AT_ONCE: usize = 128;
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
const SUB: [Wanted; 13] = [
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
    (sub::REGISTERED, false),
    (sub::BUFFER_READY, false),
];
/// Place of the rank in [`SUB`].
const SUB_RANK: usize = 10;
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
    /// `pthread_t` of the thread that moves the ops, 0 as long as there is none.
    pub(super) thread: Option<IntField>,
    args_size: u64,
    subs: ArrayField,
    links: Places<5>,
    args: Places<5>,
    sub: Places<13>,
    connection: Places<3>,
    /// Fields in the resources of a network connection: the pointer to the memory that the GPU writes its
    /// progress to, and the word there.
    send_tail: Option<(IntField, IntField)>,
    recv_head: Option<(IntField, IntField)>,
    ready: Option<ReadyFlags>,
    net_devs: NetDevs,
    /// Ranks of a sender's two ends, in the communicator whose resources are shared.
    send_ranks: Places<2>,
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
            thread: proxy_state::THREAD.find_int(layouts),
            args_size: args::STRUCT.size(layouts)?,
            subs: args::SUBS.array(layouts)?,
            links: places::find(LINKS, layouts)?,
            args: places::find(ARGS, layouts)?,
            sub: places::find(SUB, layouts)?,
            connection: places::find(CONNECTION, layouts)?,
            send_tail: gpu(send_net_resources::RECV_MEM, recv_mem::TAIL),
            recv_head: gpu(recv_net_resources::SEND_MEM, send_mem::HEAD),
            ready: ReadyFlags::new(layouts),
            net_devs: NetDevs::new(layouts),
            send_ranks: [send_net_resources::TOP_RANK, send_net_resources::TOP_REMOTE_RANK]
                .map(|field| field.find_int(layouts)),
            state_none: enums::OP_NONE.find_unsigned(layouts).unwrap_or(0),
            state_ready: enums::OP_READY.find_unsigned(layouts).unwrap_or(1),
            names: NameTables::from_layouts(layouts),
        })
    }

    /// Tells whether an args struct can have so many subs.
    fn may_have(&self, n_subs: Option<u64>) -> bool {
        let ArrayField { count, elem_size, .. } = self.subs;
        n_subs.is_some_and(|n_subs| n_subs != 0 && n_subs <= count)
            && count.saturating_mul(elem_size) <= self.args_size
    }

    /// Returns where a network connection's resources point to the memory with the GPU's counter of steps,
    /// and the counter there: a sender's tail, a receiver's head.
    fn gpu_counter(&self, direction: Direction) -> Option<(IntField, IntField)> {
        match direction {
            Direction::Send => self.send_tail,
            Direction::Recv => self.recv_head,
        }
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
        Self::number(places::read_one(memory, resources, self.place(direction)))
    }

    fn place(self, direction: Direction) -> Option<IntField> {
        let [send, recv] = self.0;
        match direction {
            Direction::Send => send,
            Direction::Recv => recv,
        }
    }

    fn number(read: Option<u64>) -> Option<u32> {
        u32::try_from(read.filter(|dev| *dev < MAX_DEVICES)?).ok()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProxyOp {
    pub(super) connection: u64,
    /// Rank whose op it is, in its communicator (from 2.23 on).
    pub(super) rank: Option<u32>,
    /// Ranks of the ends of a send over the network, in the communicator whose resources are shared.
    pub(super) top_ranks: [Option<u32>; 2],
    /// Report of the op, with its peer in the communicator whose op it is (from 2.23 on).
    pub(super) report: OpReport,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ProxyList {
    pub(super) state: ProxyListState,
    pub(super) ops: Vec<ProxyOp>,
    pub(super) async_result: Option<u64>,
    /// `pthread_t` of its thread.
    pub(super) thread: Option<u64>,
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
    [list.async_result, list.thread] = match places::read(memory, proxy, [layout.async_result, layout.thread])
    {
        Ok(read) => read,
        Err(error) if error.is_final() => return Err(error),
        Err(_) => [None; 2],
    };
    for _ in 0..ATTEMPTS {
        (list.state, list.ops) = match walk(memory, layout, proxy, u64::MAX) {
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
/// Values of [`SUB`].
type SubValues = [Option<u64>; 13];

/// Walks once through the list, and leaves out what comes after `most` subs.
fn walk(
    memory: Memory<'_>,
    layout: &ProxyLayout,
    proxy: u64,
    most: u64,
) -> Result<(ProxyListState, Vec<ProxyOp>), ReadError> {
    let active = RuntimeAddr(proxy.saturating_add(layout.active.offset()));
    let first = memory.word(active)?;
    let mut visited: Vec<(u64, Links)> = Vec::new();
    let mut seen = BTreeSet::new();
    let (mut sane, mut subs) = (true, 0_u64);
    // Ops of one connection hang on `nextPeer` in order; those of different ones on `next`.
    let mut to_visit = vec![first];
    while let Some(args) = to_visit.pop().filter(|_| subs < most) {
        if args == 0 {
            continue;
        }
        if !seen.insert(args) || seen.len() > MAX_ARGS {
            sane = false;
            break;
        }
        let links = match places::read(memory, args, layout.links) {
            Ok(links) => links,
            Err(error) if error.is_final() => return Err(error),
            // The second look tells whether the link to it changed meanwhile.
            Err(_) => {
                sane = false;
                break;
            }
        };
        visited.push((args, links));
        let [next, next_peer, _, state, n_subs] = links;
        sane = state != Some(layout.state_none) && layout.may_have(n_subs);
        if !sane {
            break;
        }
        subs = subs.saturating_add(n_subs.unwrap_or(0));
        to_visit.extend([next, next_peer].map(Option::unwrap_or_default));
    }
    let mut ops = Vec::new();
    for some in visited.chunks(ARGS_AT_ONCE) {
        if !sane {
            break;
        }
        match ops_of(memory, layout, some)? {
            Some(found) if ops.len() + found.len() <= MAX_ARGS => ops.extend(found),
            _ => sane = false,
        }
    }
    for some in visited.chunks(ARGS_AT_ONCE) {
        let structs: Vec<_> = some.iter().map(|(args, _)| (*args, layout.links)).collect();
        // `next` grows at the end of the list while ops are added: nothing that was read is wrong then, but a
        // proxy that takes new ops moves, and the caller is to see that.
        let again = places::read_each(memory, &structs)?;
        if !some.iter().map(|(_, links)| Some(*links)).eq(again) {
            return Ok((ProxyListState::Torn, Vec::new()));
        }
    }
    Ok(match (memory.word(active)? == first, sane) {
        (false, _) => (ProxyListState::Torn, Vec::new()),
        (true, true) => (ProxyListState::Read, ops),
        (true, false) => (ProxyListState::Unreadable, Vec::new()),
    })
}

/// What the subs of one args struct share.
struct Shared {
    op_count: u64,
    p2p: bool,
    begun: bool,
    coll: Option<String>,
    pattern: Option<Pattern>,
    protocol: Option<Protocol>,
    chunk_steps: u64,
    slice_steps: u64,
}

impl Shared {
    fn new(layout: &ProxyLayout, op_count: u64, state: u64, args: [Option<u64>; 5]) -> Self {
        let [pattern, protocol, coll, chunk_steps, slice_steps] = args;
        let number = |value: Option<u64>| i64::try_from(value?).ok();
        let pattern = number(pattern).and_then(|pattern| layout.names.pattern(pattern));
        // Versions that put no function into p2p ops have 0 there, which is Broadcast.
        let coll = match pattern {
            Some(Pattern::Send) => Some("Send".to_owned()),
            Some(Pattern::Recv) => Some("Recv".to_owned()),
            _ => number(coll).and_then(|coll| layout.names.function(coll)).map(ToString::to_string),
        };
        let (op_count, p2p) = split_op_count(op_count);
        Self {
            op_count,
            p2p,
            begun: state != layout.state_ready,
            coll,
            pattern,
            protocol: protocol.and_then(Protocol::of_nccl),
            chunk_steps: chunk_steps.unwrap_or(1),
            slice_steps: slice_steps.unwrap_or(1),
        }
    }

    /// Returns the op of a sub with these values of [`SUB`], on a connection with this transport; `None` if
    /// it cannot be one.
    fn op(&self, sub: SubValues, direction: Direction, transport: Option<u64>) -> Option<OpReport> {
        let [_, channel, nsteps, _, posted, received, flushed, transmitted, done, peer, rank, ..] = sub;
        let step = |value: Option<u64>| value.filter(|_| self.begun).unwrap_or(0);
        let is_receive = direction == Direction::Recv;
        let op = OpReport {
            op_count: self.op_count,
            p2p: self.p2p,
            coll: self.coll.clone(),
            pattern: self.pattern.map(|pattern| pattern.name().to_owned()),
            protocol: self.protocol.map(|protocol| protocol.name().to_owned()),
            channel: small(channel).filter(|channel| *channel < 1024)?,
            direction,
            peer: small(rank).and_then(|_| small(peer)),
            transport: transport.and_then(transport_name).map(str::to_owned),
            net_dev: None,
            begun: self.begun,
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
            gpu_ready: None,
            chunk_steps: self.chunk_steps,
            slice_steps: self.slice_steps,
            still_seconds: 0.0,
        };
        is_sane(&op).then_some(op)
    }

    /// Tells whether a receive is one that waits for its GPU's word that the registered buffer may be written.
    fn waits_for_buffer(&self, [.., registered, ready]: SubValues, receive: &OpReport) -> bool {
        receive.direction == Direction::Recv
            && receive.begun
            && receive.posted == 0
            && self.protocol == Some(Protocol::Simple)
            && registered.is_some_and(|registered| registered != 0)
            && ready == Some(0)
    }

    /// Tells whether the GPU counts steps in this direction: LL has its flags in the data and writes no tail.
    fn is_counted(&self, direction: Direction) -> bool {
        self.begun && (direction == Direction::Recv || self.protocol != Some(Protocol::Ll))
    }
}

/// Returns the ops of these args structs, one for each sub, but for those that move no data; `None` if one of
/// them cannot be one. Each field is read of all of them at once: a read costs two changes of tasks.
fn ops_of(
    memory: Memory<'_>,
    layout: &ProxyLayout,
    all: &[(u64, Links)],
) -> Result<Option<Vec<ProxyOp>>, ReadError> {
    let ArrayField { offset: subs_offset, elem_size: sub_size, .. } = layout.subs;
    let heads: Vec<_> = all.iter().map(|(args, _)| (*args, layout.args)).collect();
    let bodies = all.iter().map(|(args, [.., n_subs])| {
        let length = usize::try_from(n_subs.unwrap_or(0).saturating_mul(sub_size));
        (RuntimeAddr(args.saturating_add(subs_offset)), length.unwrap_or(usize::MAX))
    });
    let bodies = memory.copies(&bodies.collect::<Vec<_>>())?;
    let mut subs = Vec::new();
    for (((_, links), head), body) in all.iter().zip(places::read_each(memory, &heads)?).zip(bodies) {
        let (&[_, _, Some(op_count), Some(state), _], Some(head), Some(body)) = (links, head, body) else {
            return Ok(None);
        };
        let shared = Rc::new(Shared::new(layout, op_count, state, head));
        for sub in body.chunks_exact(usize::try_from(sub_size).unwrap_or(1)) {
            subs.push((Rc::clone(&shared), layout.sub.map(|place| place?.unsigned(sub))));
        }
    }
    let connections: Vec<_> =
        subs.iter().map(|(_, [connection, ..])| (connection.unwrap_or(0), layout.connection)).collect();
    let (mut ops, mut counters, mut resources_of) = (Vec::new(), Vec::new(), Vec::new());
    for ((shared, sub), connection) in subs.iter().zip(places::read_each(memory, &connections)?) {
        let Some([send, transport, resources]) = connection else { return Ok(None) };
        let direction = if send == Some(0) { Direction::Recv } else { Direction::Send };
        let Some(mut report) = shared.op(*sub, direction, transport) else { return Ok(None) };
        if shared.pattern == Some(Pattern::Profiler) {
            continue;
        }
        let [connection, _, _, base, ..] = sub.map(Option::unwrap_or_default);
        let resources = resources.filter(|resources| transport == Some(NET) && *resources != 0);
        let counter = layout.gpu_counter(direction).filter(|_| shared.is_counted(direction));
        let [rank, peer] = if direction == Direction::Send { layout.send_ranks } else { [None; 2] };
        let places = [layout.net_devs.place(direction), counter.map(|(memory, _)| memory), rank, peer];
        if let (Some(flags), Some(resources)) = (layout.ready, resources)
            && shared.waits_for_buffer(*sub, &report)
        {
            report.gpu_ready = flags.is_set(memory, resources, base);
        }
        resources_of.push(resources.map_or((0, [None; 4]), |resources| (resources, places)));
        counters.push((counter.map(|(_, word)| word), base));
        ops.push(ProxyOp { connection, rank: small(sub[SUB_RANK]), top_ranks: [None; 2], report });
    }
    let mut words = Vec::new();
    for ((op, (word, _)), read) in
        ops.iter_mut().zip(&counters).zip(places::read_each(memory, &resources_of)?)
    {
        let [dev, at, rank, peer] = read.unwrap_or_default();
        op.report.net_dev = NetDevs::number(dev);
        op.top_ranks = [small(rank), small(peer)];
        words.push((at.unwrap_or(0), [word.filter(|_| at.is_some())]));
    }
    for ((op, (_, base)), word) in ops.iter_mut().zip(counters).zip(places::read_each(memory, &words)?) {
        let [word] = word.unwrap_or_default();
        // A count from before this op stands below its base.
        let most = op.report.nsteps.saturating_add(op.report.chunk_steps);
        op.report.gpu = word.map(|word| word.saturating_sub(base)).filter(|steps| *steps <= most);
    }
    Ok(Some(ops))
}

fn small(value: Option<u64>) -> Option<u32> {
    u32::try_from(value?).ok()
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
