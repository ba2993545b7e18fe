//! Sends and receives.

use super::arithmetic::Elem;
use super::connection::{Direction, End};
use super::functions::{Algo, Coll, Function, Proto};
use super::kernel::Block;
use super::layout::BatchForm;
use super::memory;
use super::primitives::{Primitives, Step};
use super::transfer_log::OpName;

/// The part of a send or receive that a channel has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfer {
    pub(crate) op: usize,
    pub(crate) direction: Direction,
    pub(crate) peer: usize,
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    /// Payload of a message.
    pub(crate) chunk: usize,
    pub(crate) proto: Proto,
}

/// The parts of a work struct of NCCL 2.22 and later that a channel has.
#[derive(Debug)]
pub(crate) enum Part {
    Transfers(Vec<Transfer>),
    /// To this rank itself.
    Copy {
        from: usize,
        to: usize,
        bytes: usize,
    },
}

/// Each transfer is cut into a part per channel, in units of this size
/// (nccl:src/include/device.h, ncclP2pPartBounds).
const PART_UNIT: usize = 4096;

pub(crate) fn part_of(block: &Block<'_>, form: &BatchForm, work: usize, op: usize) -> Part {
    let place = &form.p2p;
    let channels = place.all_channels.get_usize(work);
    let distance = block.id.wrapping_sub(place.channel_base.get_usize(work)) & channels.wrapping_sub(1);
    let part = if form.reversed_parts { reverse_bits(distance, channels) } else { distance };
    let cut = |bytes: usize, parts: usize| {
        (part < parts).then(|| {
            let each = bytes.div_ceil(parts).next_multiple_of(PART_UNIT);
            ((part * each).min(bytes), ((part + 1) * each).min(bytes))
        })
    };
    let send = cut(place.send_bytes.get_usize(work), place.send_channels.get_usize(work));
    let recv = cut(place.recv_bytes.get_usize(work), place.recv_channels.get_usize(work));
    let (send_rank, recv_rank) = (place.send_rank.get_i32(work), place.recv_rank.get_i32(work));
    let (from, to) = (place.send_addr.get_usize(work), place.recv_addr.get_usize(work));
    if send_rank == block.kernel.rank {
        let (begin, end) = send.unwrap_or((0, 0));
        return Part::Copy { from: from + begin, to: to + begin, bytes: end - begin };
    }
    let proto = |ll: u64| if ll == 1 { Proto::Ll } else { Proto::Simple };
    let transfer =
        |direction, peer: i32, address: usize, (begin, end): (usize, usize), chunk: u64, ll: u64| Transfer {
            op,
            direction,
            peer: peer as usize,
            address: address + begin,
            bytes: end - begin,
            chunk: decode_chunk(chunk),
            proto: proto(ll),
        };
    let mut transfers = Vec::new();
    if let Some(bounds) = send {
        let (chunk, ll) = (place.send_chunk.get(work), place.send_ll.get(work));
        transfers.push(transfer(Direction::Send, send_rank, from, bounds, chunk, ll));
    }
    if let Some(bounds) = recv {
        let (chunk, ll) = (place.recv_chunk.get(work), place.recv_ll.get(work));
        transfers.push(transfer(Direction::Recv, recv_rank, to, bounds, chunk, ll));
    }
    Part::Transfers(transfers)
}

/// Reverses the bits of an index below `count`, a power of two.
fn reverse_bits(value: usize, count: usize) -> usize {
    let bits = count.trailing_zeros();
    if bits == 0 { 0 } else { value.reverse_bits() >> (usize::BITS - bits) }
}

/// The 8-bit floating-point numbers in which NCCL keeps chunk sizes: 5 bits of exponent, 3 of mantissa.
fn decode_chunk(code: u64) -> usize {
    let (exponent, mantissa) = (code >> 3, code & 7);
    let value = if exponent == 0 { mantissa } else { (mantissa | 8) << (exponent - 1) };
    value as usize
}

/// Moves one transfer. A transfer of no bytes is one empty message.
pub(crate) async fn run(block: &Block<'_>, transfer: Transfer) {
    let (direction, proto) = (transfer.direction, transfer.proto);
    let conn = block.connection(End { peer: transfer.peer, index: 1, direction, proto, alignment: 1 });
    let (mut send, mut recv) = (Vec::new(), Vec::new());
    match transfer.direction {
        Direction::Send => send.push(conn),
        Direction::Recv => recv.push(conn),
    }
    let mut prims = Primitives {
        control: &block.kernel.control,
        proto: transfer.proto,
        elem: Elem::U8,
        slices_per_chunk: 1,
        steps_per_slice: 1,
        step_bytes: block.kernel.p2p_chunk_size(),
        recv,
        send,
    };
    let mut done = 0;
    loop {
        let elems = transfer.chunk.min(transfer.bytes - done);
        let place = Some(transfer.address + done);
        prims
            .step(match transfer.direction {
                Direction::Send => Step { send: true, input: place, elems, ..Step::default() },
                Direction::Recv => Step { recv: true, output: place, elems, ..Step::default() },
            })
            .await;
        done += elems;
        if done >= transfer.bytes || elems == 0 {
            break;
        }
    }
    let func = Function { coll: Coll::SendRecv, algo: Algo::Ring, proto: transfer.proto, redop: 0, dtype: 1 };
    let name = OpName {
        op: transfer.op,
        channel: block.id,
        func: func.coll.name(),
        algo: func.algo.name(),
        proto: func.proto.name(),
    };
    block.kernel.log(name, prims.finish());
}

pub(crate) fn copy(from: usize, to: usize, bytes: usize) {
    memory::copy(to, from, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes() {
        assert_eq!(decode_chunk(0), 0);
        assert_eq!(decode_chunk(7), 7);
        assert_eq!(decode_chunk(8), 8);
        // 131072 = 8 << 14: exponent 15, mantissa 0.
        assert_eq!(decode_chunk(15 << 3), 131_072);
    }

    #[test]
    fn reversed_bits() {
        assert_eq!((0..4).map(|value| reverse_bits(value, 4)).collect::<Vec<_>>(), [0, 2, 1, 3]);
        assert_eq!(reverse_bits(0, 1), 0);
    }
}
