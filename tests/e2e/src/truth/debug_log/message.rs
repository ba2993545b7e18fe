//! Messages into facts. The formats are those of NCCL 2.21 to 2.30; what is not recognized is `None`.

use std::str::FromStr;

use crate::communicator::CommHash;
use crate::direction::Direction;

#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    Init(Init),
    Topology(Topology),
    Destroyed { comm: u64 },
    Ring(Ring),
    Trees { trees: Vec<Tree>, cut: bool },
    RingOrder { channel: u32, ranks: Vec<i32> },
    Connection(Connection),
    Call(ApiCall),
    Tuning(Tuning),
}

/// `ncclCommInitRank comm 0x… rank 0 nranks 4 … commId 0x… - Init START`, and COMPLETE.
#[derive(Debug, Clone, PartialEq)]
pub struct Init {
    pub comm: u64,
    pub rank: i32,
    pub n_ranks: i32,
    pub comm_hash: Option<CommHash>,
    pub complete: bool,
}

/// `comm 0x… rank 0 nRanks 4 nNodes 4 localRanks 1 localRank 0 MNNVL 0`
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    pub comm: u64,
    pub rank: i32,
    pub n_ranks: i32,
    pub n_nodes: i32,
}

/// `Ring 00 : prev -> me -> next`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    pub channel: u32,
    pub prev: i32,
    pub rank: i32,
    pub next: i32,
}

/// One item of `Trees [0] down/down/down->me->up [1] …`; −1 is nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tree {
    pub channel: u32,
    pub down: [i32; 3],
    pub rank: i32,
    pub up: i32,
}

impl Tree {
    pub fn children(&self) -> impl Iterator<Item = i32> {
        self.down.into_iter().filter(|rank| *rank >= 0)
    }

    pub fn parent(&self) -> Option<i32> {
        (self.up >= 0).then_some(self.up)
    }
}

/// `Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    pub channel: u32,
    /// Not printed for SHM.
    pub conn_index: Option<u32>,
    pub from: i32,
    pub to: i32,
    /// NET only: both ends print their line. P2P and SHM print one, at the sender.
    pub side: Option<Direction>,
    /// NET, P2P or SHM.
    pub transport: String,
    /// The rest: `Socket/0`, `IPC/read`, `direct pointer`, `direct/direct`.
    pub details: String,
}

impl Connection {
    /// The rank that printed the line.
    pub fn speaker(&self) -> i32 {
        if self.side == Some(Direction::Recv) { self.to } else { self.from }
    }
}

/// `AllReduce: opCount 0 sendbuff 0x… recvbuff 0x… count 8 datatype 7 op 0 root 0 comm 0x… [nranks=4] stream
/// 0x…`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiCall {
    pub func: String,
    pub op_count: u64,
    pub send_buffer: u64,
    pub recv_buffer: u64,
    pub count: u64,
    /// A number of `ncclDataType_t`.
    pub datatype: i32,
    pub red_op: i32,
    pub root: i32,
    pub comm: u64,
    pub n_ranks: i32,
    pub stream: u64,
}

/// `AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}`; numbers and no function in older
/// versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tuning {
    pub func: Option<String>,
    pub bytes: u64,
    pub algo: String,
    pub proto: String,
    pub channels: Option<(u32, u32)>,
}

/// NCCL builds the tree line in a buffer of this size.
const TREE_LINE_LIMIT: usize = 1022;

impl Message {
    pub fn parse(message: &str) -> Option<Self> {
        if let Some(rest) = message.strip_prefix("Ring ") {
            return ring(rest).map(Self::Ring);
        }
        if let Some(rest) = message.strip_prefix("Trees ") {
            return Some(trees(rest));
        }
        if let Some(rest) = message.strip_prefix("Channel ") {
            return channel(rest);
        }
        if let Some((algorithm, rest)) = message.split_once(" Bytes -> Algo ") {
            return tuning(algorithm, rest).map(Self::Tuning);
        }
        if message.contains(": opCount ") {
            return call(message).map(Self::Call);
        }
        if message.contains("Init START") || message.contains("Init COMPLETE") {
            return init(message).map(Self::Init);
        }
        if message.ends_with("Destroy COMPLETE") || message.ends_with("Abort COMPLETE") {
            return Some(Self::Destroyed { comm: pointer(message, "comm")? });
        }
        if message.starts_with("comm ") && message.contains(" nNodes ") {
            return topology(message).map(Self::Topology);
        }
        None
    }
}

fn ring(rest: &str) -> Option<Ring> {
    let (channel, ranks) = rest.split_once(':')?;
    let mut ranks = ranks.split("->");
    let mut rank = || ranks.next()?.trim().parse().ok();
    let ring = Ring { channel: channel.trim().parse().ok()?, prev: rank()?, rank: rank()?, next: rank()? };
    ranks.next().is_none().then_some(ring)
}

fn trees(rest: &str) -> Message {
    let cut = "Trees ".len() + rest.len() >= "Trees".len() + TREE_LINE_LIMIT;
    let mut items: Vec<Option<Tree>> = rest.split('[').skip(1).map(tree).collect();
    if cut {
        // The last numbers may have lost their last digits and still look like numbers.
        items.pop();
    }
    Message::Trees { trees: items.into_iter().flatten().collect(), cut }
}

fn tree(item: &str) -> Option<Tree> {
    let (channel, links) = item.trim().split_once("] ")?;
    let mut links = links.split("->");
    let mut children = links.next()?.split('/');
    let mut child = || children.next()?.parse().ok();
    let down = [child()?, child()?, child()?];
    let rank = links.next()?.parse().ok()?;
    let up = links.next()?.parse().ok()?;
    let whole = children.next().is_none() && links.next().is_none();
    whole.then_some(Tree { channel: channel.parse().ok()?, down, rank, up })
}

fn channel(rest: &str) -> Option<Message> {
    let (name, rest) = rest.split_once(':')?;
    if rest.contains("->") {
        connection(name.trim(), rest).map(Message::Connection)
    } else {
        ring_order(name, rest)
    }
}

/// `Channel 00/02 : 0 1 2 3`
fn ring_order(name: &str, rest: &str) -> Option<Message> {
    let (channel, _) = name.trim().split_once('/')?;
    let ranks = rest.split_whitespace().map(|rank| rank.parse().ok()).collect::<Option<Vec<i32>>>()?;
    Some(Message::RingOrder { channel: channel.parse().ok()?, ranks })
}

fn connection(name: &str, rest: &str) -> Option<Connection> {
    let (channel, conn_index) = match name.split_once('/') {
        Some((channel, conn_index)) => (channel, Some(conn_index.parse().ok()?)),
        None => (name, None),
    };
    let (ends, via) = rest.split_once(" via ")?;
    let (from, to) = ends.split_once("->")?;
    let (from, _) = from.trim().split_once('[')?;
    let (to, side) = to.trim().split_once('[')?;
    let side = if side.contains("[send]") {
        Some(Direction::Send)
    } else if side.contains("[receive]") {
        Some(Direction::Recv)
    } else {
        None
    };
    let (transport, details) = via.trim().split_once('/')?;
    Some(Connection {
        channel: channel.parse().ok()?,
        conn_index,
        from: from.parse().ok()?,
        to: to.parse().ok()?,
        side,
        transport: transport.to_owned(),
        details: details.to_owned(),
    })
}

fn call(message: &str) -> Option<ApiCall> {
    let (func, rest) = message.split_once(": opCount ")?;
    let op_count = rest.split_whitespace().next()?;
    let (_, n_ranks) = rest.split_once("[nranks=")?;
    Some(ApiCall {
        func: func.to_owned(),
        op_count: u64::from_str_radix(op_count, 16).ok()?,
        send_buffer: pointer(rest, "sendbuff")?,
        recv_buffer: pointer(rest, "recvbuff")?,
        count: number(rest, "count")?,
        datatype: number(rest, "datatype")?,
        red_op: number(rest, "op")?,
        root: number(rest, "root")?,
        comm: pointer(rest, "comm")?,
        n_ranks: n_ranks.split_once(']')?.0.parse().ok()?,
        stream: pointer(rest, "stream")?,
    })
}

fn tuning(before: &str, after: &str) -> Option<Tuning> {
    let (func, bytes) = match before.rsplit_once(": ") {
        Some((func, bytes)) => (Some(func.to_owned()), bytes),
        None => (None, before),
    };
    let mut words = after.split_whitespace();
    let algo = words.next()?.to_owned();
    (words.next()? == "proto").then_some(())?;
    let proto = words.next()?.to_owned();
    let channels = after.split_once("={").and_then(|(_, range)| {
        let (low, high) = range.strip_suffix('}')?.split_once("..")?;
        Some((low.parse().ok()?, high.parse().ok()?))
    });
    Some(Tuning { func, bytes: bytes.parse().ok()?, algo, proto, channels })
}

fn init(message: &str) -> Option<Init> {
    let comm_hash = word_after(message, "commId").and_then(|hash| hash.parse().ok());
    Some(Init {
        comm: pointer(message, "comm")?,
        rank: number(message, "rank")?,
        n_ranks: number(message, "nranks")?,
        comm_hash,
        complete: message.ends_with("COMPLETE"),
    })
}

fn topology(message: &str) -> Option<Topology> {
    Some(Topology {
        comm: pointer(message, "comm")?,
        rank: number(message, "rank")?,
        n_ranks: number(message, "nRanks")?,
        n_nodes: number(message, "nNodes")?,
    })
}

/// The word that follows the word `name`.
fn word_after<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    let mut words = message.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()
}

fn number<T: FromStr>(message: &str, name: &str) -> Option<T> {
    word_after(message, name)?.parse().ok()
}

/// What `%p` prints.
fn pointer(message: &str, name: &str) -> Option<u64> {
    match word_after(message, name)? {
        "(nil)" => Some(0),
        address => u64::from_str_radix(address.strip_prefix("0x")?, 16).ok(),
    }
}

#[cfg(test)]
mod tests;
