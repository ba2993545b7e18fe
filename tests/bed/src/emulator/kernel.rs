//! One launch: its communicator, its channels, and what all of them share.

use std::cell::RefCell;

use anyhow::{Result, bail};

use super::arithmetic::Elem;
use super::bcast::{self, BcastWork};
use super::connection::{Connection, Direction, End, STEPS};
use super::executor::{self, Control, Task};
use super::functions::{Algo, Coll, Function, Functions, Proto};
use super::layout::{BatchForm, Layout, Work};
use super::memory;
use super::p2p::{self, Part};
use super::pat;
use super::primitives::Primitives;
use super::ring::{self, Ring};
use super::transfer_log::{LaunchName, Line, OpName, Transfer};
use super::tree::{self, Tree};

/// A collective's share of a channel, counted in elements.
#[derive(Debug, Clone)]
pub(crate) struct CollWork {
    pub(crate) op: usize,
    pub(crate) func: Function,
    pub(crate) elem: Elem,
    pub(crate) root: usize,
    pub(crate) send: usize,
    pub(crate) recv: usize,
    /// Elements of one rank, over all channels.
    pub(crate) count: usize,
    pub(crate) share: Share,
}

/// A channel's share of a collective.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Share {
    /// One part for the channel.
    Part {
        offset: usize,
        count: usize,
        chunk: usize,
        /// The all-reduce's chunk in the last round, where NCCL passes it (before 2.22).
        last_chunk: Option<usize>,
    },
    /// A chunk of each round (before 2.20), of which all channels have one.
    Turns {
        channels: usize,
        /// Index of the channel among them.
        block: usize,
        chunk: usize,
        /// Chunks are multiples of this.
        grain: usize,
    },
}

/// A round of a collective on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Round {
    /// First element.
    pub(crate) begin: usize,
    /// Elements of a chunk; a round can have several.
    pub(crate) chunk: usize,
    /// One past the last element.
    pub(crate) end: usize,
}

impl Round {
    /// Elements of the chunk that begins here.
    pub(crate) fn elems(&self, begin: usize) -> usize {
        self.chunk.min(self.end.saturating_sub(begin))
    }
}

impl CollWork {
    /// Names what the emulator cannot do of a function.
    pub(crate) fn check(func: &Function) -> Result<Elem> {
        if func.algo == Algo::Other || matches!(func.coll, Coll::SendRecv | Coll::AllGatherV) {
            bail!("{} with this algorithm is not emulated", func.coll.name());
        }
        if func.algo == Algo::Pat && func.proto != Proto::Simple {
            bail!("PAT is emulated with the protocol SIMPLE only");
        }
        if func.redop != 0 {
            bail!("device reduction {} is not emulated, only sums", func.redop);
        }
        Elem::of(func.dtype)
    }

    pub(crate) fn input(&self, element: usize) -> usize {
        self.send + element * self.elem.size()
    }

    pub(crate) fn output(&self, element: usize) -> usize {
        self.recv + element * self.elem.size()
    }

    /// First element and number of elements of each of this channel's chunks.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        self.rounds(1).into_iter().map(|round| (round.begin, round.elems(round.begin)))
    }

    /// The rounds of this channel; each has this number of chunks.
    pub(crate) fn rounds(&self, chunks: usize) -> Vec<Round> {
        match self.share {
            Share::Part { offset, count, chunk, last_chunk } => {
                let whole = (chunks * chunk).max(1);
                let end = offset + count;
                let round = |begin: usize| {
                    let rest = end - begin;
                    let last = chunks > 1 && rest < whole;
                    let chunk = if last { self.last_chunk(last_chunk, chunks, rest) } else { chunk };
                    Round { begin, chunk, end }
                };
                (offset..end).step_by(whole).map(round).collect()
            }
            // nccl:v2.19.3-1:src/device/all_reduce.h, runRing: realChunkSize
            Share::Turns { channels, block, chunk, grain } => {
                let whole = (channels * chunks * chunk).max(1);
                let round = |begin: usize| {
                    let even = (self.count - begin).div_ceil(channels * chunks);
                    let chunk = chunk.min(even).next_multiple_of(grain);
                    Round { begin: begin + block * chunks * chunk, chunk, end: self.count }
                };
                (0..self.count).step_by(whole).map(round).collect()
            }
        }
    }

    /// The chunk of a round that `rest` elements do not fill: an equal share, in units of 16 bytes.
    fn last_chunk(&self, stated: Option<usize>, ranks: usize, rest: usize) -> usize {
        let unit = 16 / self.elem.size();
        stated.unwrap_or_else(|| rest.div_ceil(ranks).next_multiple_of(unit))
    }
}

/// What a channel does, in order. The parts of an item run side by side.
#[derive(Debug)]
pub(crate) enum Item {
    /// One after the other.
    Colls(Vec<CollWork>),
    /// Addresses of `ncclDevWorkP2p` and the numbers of their operations.
    P2p(Vec<(usize, usize)>),
    /// They take turns chunk by chunk.
    Bcasts(Function, Vec<BcastWork>),
    /// Parts that NCCL has cut itself (before 2.22).
    Parts(Vec<Part>),
}

/// An item, and for each of its works whether a profiler asked for it.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) item: Item,
    pub(crate) profiled: Vec<bool>,
}

#[derive(Debug)]
pub(crate) struct ChannelPlan {
    pub(crate) channel: usize,
    pub(crate) items: Vec<Planned>,
}

#[derive(Debug)]
pub(crate) struct Kernel<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) functions: &'a Functions,
    pub(crate) control: Control,
    /// Address of the `ncclKernelComm`.
    pub(crate) comm: usize,
    pub(crate) rank: i32,
    pub(crate) name: LaunchName,
    pub(crate) logs: bool,
    pub(crate) lines: RefCell<Vec<Line>>,
}

impl<'a> Kernel<'a> {
    pub(crate) fn buff_size(&self, proto: Proto) -> usize {
        memory::read(self.comm + self.layout.comm.buff_sizes.offset + 4 * proto.index(), 4) as usize
    }

    pub(crate) fn p2p_chunk_size(&self) -> usize {
        let stated = self.layout.p2p_chunk_size.map(|place| place.get_usize(self.comm));
        stated.unwrap_or_else(|| self.buff_size(Proto::Simple) / STEPS as usize)
    }

    pub(crate) fn channel_address(&self, channel: usize) -> usize {
        self.layout.comm.channels.get_usize(self.comm) + channel * self.layout.channel.size
    }

    /// Logs what went through connections that are no longer used.
    pub(crate) fn log(&self, name: OpName, connections: impl Iterator<Item = Connection<'a>>) {
        // The iterator saves the connections, so it is used up in any case.
        let transfers: Vec<_> = connections.map(|conn| conn.transfer).collect();
        self.log_transfers(name, transfers.into_iter());
    }

    pub(crate) fn log_transfers(&self, name: OpName, transfers: impl Iterator<Item = Transfer>) {
        if self.logs {
            self.lines.borrow_mut().extend(transfers.map(|transfer| self.name.line(name, transfer)));
        }
    }

    /// The form of the work, where it is the one of 2.22 and later.
    pub(crate) fn batch_form(&self) -> Option<&BatchForm> {
        match &self.layout.work {
            Work::Batches(form) => Some(form),
            Work::Lists(_) => None,
        }
    }

    /// Runs all channels; false when the kernel was aborted.
    pub(crate) fn run(&self, plans: &[ChannelPlan]) -> bool {
        let tasks = plans
            .iter()
            .map(|plan| -> Task<'_> {
                let block =
                    Block { kernel: self, id: plan.channel, address: self.channel_address(plan.channel) };
                Box::pin(async move { block.run(&plan.items).await })
            })
            .collect();
        self.control.run(tasks)
    }
}

/// One channel of a kernel.
#[derive(Debug)]
pub(crate) struct Block<'a> {
    pub(crate) kernel: &'a Kernel<'a>,
    /// Number of the channel.
    pub(crate) id: usize,
    /// Address of the `ncclDevChannel`.
    address: usize,
}

impl Block<'_> {
    async fn run(&self, items: &[Planned]) {
        for Planned { item, profiled } in items {
            self.profile(profiled, false);
            match item {
                Item::Colls(works) => {
                    for work in works {
                        self.collective(work).await;
                    }
                }
                Item::P2p(works) => {
                    let form = self.kernel.batch_form();
                    let parts = works
                        .iter()
                        .filter_map(|(work, op)| form.map(|form| p2p::part_of(self, form, *work, *op)));
                    self.transfers(parts).await;
                }
                Item::Bcasts(func, works) => bcast::run(self, func, works.clone()).await,
                Item::Parts(parts) => {
                    let parts = parts.iter().map(|part| match part {
                        Part::Transfers(transfers) => Part::Transfers(transfers.clone()),
                        Part::Copy { from, to, bytes } => Part::Copy { from: *from, to: *to, bytes: *bytes },
                    });
                    self.transfers(parts).await;
                }
            }
            self.profile(profiled, true);
        }
    }

    fn profile(&self, profiled: &[bool], complete: bool) {
        if let Some(place) = self.kernel.batch_form().and_then(|form| form.profiler.as_ref()) {
            place.tell(self.kernel.comm, self.address, self.id, profiled, complete);
        }
    }

    async fn transfers(&self, parts: impl Iterator<Item = Part>) {
        let mut tasks: Vec<Task<'_>> = Vec::new();
        for part in parts {
            match part {
                Part::Copy { from, to, bytes } => p2p::copy(from, to, bytes),
                Part::Transfers(transfers) => {
                    tasks.extend(
                        transfers
                            .into_iter()
                            .map(|transfer| -> Task<'_> { Box::pin(p2p::run(self, transfer)) }),
                    );
                }
            }
        }
        executor::all(tasks).await;
    }

    async fn collective(&self, work: &CollWork) {
        if work.func.algo == Algo::Tree {
            tree::all_reduce(self, work, &self.tree()).await;
            return;
        }
        if work.func.algo == Algo::Pat {
            pat::run(self, work).await;
            return;
        }
        let ring = self.ring();
        let mut prims = self.ring_primitives(&work.func);
        match work.func.coll {
            Coll::AllReduce => ring::all_reduce(work, &ring, &mut prims).await,
            Coll::AllGather => ring::all_gather(work, &ring, &mut prims).await,
            Coll::ReduceScatter => ring::reduce_scatter(work, &ring, &mut prims).await,
            Coll::Broadcast => ring::broadcast(work, &ring, &mut prims).await,
            Coll::Reduce => ring::reduce(work, &ring, &mut prims).await,
            // `CollWork::check` refused these.
            Coll::SendRecv | Coll::AllGatherV => {}
        }
        self.finish(work, prims);
    }

    /// The connections to the neighbours in the ring.
    pub(crate) fn ring_primitives(&self, func: &Function) -> Primitives<'_> {
        self.primitives(func, &[self.ring_neighbour(false)], &[self.ring_neighbour(true)])
    }

    pub(crate) fn ranks(&self) -> usize {
        self.kernel.layout.comm.ranks.get_usize(self.kernel.comm)
    }

    fn ring_neighbour(&self, next: bool) -> usize {
        let channel = &self.kernel.layout.channel;
        if next { channel.ring_next } else { channel.ring_prev }.get_usize(self.address)
    }

    fn ring(&self) -> Ring {
        let channel = &self.kernel.layout.channel;
        let ranks = self.ranks();
        let user_ranks = channel.ring_user_ranks.get_usize(self.address);
        Ring {
            index: channel.ring_index.get_usize(self.address),
            ranks: (0..ranks).map(|place| memory::read(user_ranks + 4 * place, 4) as usize).collect(),
        }
    }

    fn tree(&self) -> Tree {
        /// `NCCL_MAX_TREE_ARITY`
        const ARITY: usize = 3;
        let channel = &self.kernel.layout.channel;
        let down = (0..ARITY)
            .map(|index| channel.tree_down.get_i32(self.address + 4 * index))
            .filter_map(|peer| usize::try_from(peer).ok())
            .collect();
        Tree { up: usize::try_from(channel.tree_up.get_i32(self.address)).ok(), down }
    }

    pub(crate) fn connection(&self, end: End) -> Connection<'_> {
        let p2p = end.index == 1 && end.proto == Proto::Simple;
        let slot = if p2p {
            self.kernel.p2p_chunk_size()
        } else {
            self.kernel.buff_size(end.proto) / STEPS as usize
        };
        Connection::load(self.kernel.layout, self.address, end, slot)
    }

    /// The connections of a collective on this channel.
    pub(crate) fn primitives(&self, func: &Function, from: &[usize], to: &[usize]) -> Primitives<'_> {
        let (slices_per_chunk, steps_per_slice) = if func.is_sliced() { (2, 2) } else { (1, 1) };
        let alignment = slices_per_chunk as u64 * steps_per_slice;
        let conns = |peers: &[usize], direction| {
            let end = |peer: &usize| End { peer: *peer, index: 0, direction, proto: func.proto, alignment };
            peers.iter().map(|peer| self.connection(end(peer))).collect()
        };
        Primitives {
            control: &self.kernel.control,
            proto: func.proto,
            elem: Elem::of(func.dtype).unwrap_or(Elem::U8),
            slices_per_chunk,
            steps_per_slice,
            step_bytes: self.kernel.buff_size(Proto::Simple) / STEPS as usize,
            recv: conns(from, Direction::Recv),
            send: conns(to, Direction::Send),
        }
    }

    /// Ends a collective's use of its connections.
    pub(crate) fn finish(&self, work: &CollWork, prims: Primitives<'_>) {
        let name = OpName {
            op: work.op,
            channel: self.id,
            func: work.func.coll.name(),
            algo: work.func.algo.name(),
            proto: work.func.proto.name(),
        };
        self.kernel.log(name, prims.finish());
    }
}

impl Coll {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SendRecv => "SendRecv",
            Self::AllGather => "AllGather",
            Self::Broadcast => "Broadcast",
            Self::AllGatherV => "AllGatherV",
            Self::AllReduce => "AllReduce",
            Self::Reduce => "Reduce",
            Self::ReduceScatter => "ReduceScatter",
        }
    }
}
