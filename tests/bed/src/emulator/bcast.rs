//! Broadcasts in a group, which NCCL 2.29 and later fuse (AllGatherV): all use the same ring, and
//! take turns chunk by chunk.

use std::mem;

use super::functions::Function;
use super::kernel::Block;
use super::layout::Bcast;
use super::primitives::{Primitives, Step};
use super::transfer_log::{OpName, Transfer};

/// One broadcast's share of a channel.
#[derive(Debug, Clone)]
pub(crate) struct BcastWork {
    op: usize,
    /// Steps in the ring from the root to this rank.
    depth: usize,
    chunk: usize,
    send: usize,
    recv: usize,
    bytes: usize,
    done: usize,
}

impl BcastWork {
    pub(crate) fn read(place: &Bcast, work: usize, op: usize) -> Self {
        Self {
            op,
            depth: place.ring_depth.get_usize(work),
            chunk: place.chunk_size.get_usize(work),
            send: place.send.get_usize(work),
            recv: place.recv.get_usize(work),
            bytes: place.bytes.get_usize(work),
            done: place.bytes_done.get_usize(work),
        }
    }
}

pub(crate) async fn run(block: &Block<'_>, func: &Function, mut works: Vec<BcastWork>) {
    let last = block.ranks() - 1;
    let mut prims = block.ring_primitives(func);
    let mut transfers: Vec<_> = works.iter().map(|_| fresh(&prims)).collect();
    while works.iter().any(|work| work.bytes > 0) {
        for (work, transfers) in works.iter_mut().zip(&mut transfers) {
            let elems = work.bytes.min(work.chunk);
            if elems == 0 {
                continue;
            }
            swap(&mut prims, transfers);
            let (first, last) = (work.depth == 0, work.depth == last);
            let input = first.then_some(work.send + work.done);
            let output = Some(work.recv + work.done);
            prims.step(Step { recv: !first, send: !last, input, output, elems }).await;
            swap(&mut prims, transfers);
            work.bytes -= elems;
            work.done += elems;
        }
    }
    // The connections' own transfers stay empty; each operation has its own.
    prims.finish().for_each(drop);
    for (work, transfers) in works.iter().zip(transfers) {
        let name = OpName {
            op: work.op,
            channel: block.id,
            func: func.coll.name(),
            algo: func.algo.name(),
            proto: func.proto.name(),
        };
        block.kernel.log_transfers(name, transfers.into_iter().filter(Transfer::is_used));
    }
}

fn fresh(prims: &Primitives<'_>) -> Vec<Transfer> {
    prims.recv.iter().chain(&prims.send).map(|conn| conn.transfer.like()).collect()
}

fn swap(prims: &mut Primitives<'_>, transfers: &mut [Transfer]) {
    for (conn, transfer) in prims.recv.iter_mut().chain(&mut prims.send).zip(transfers) {
        mem::swap(&mut conn.transfer, transfer);
    }
}
