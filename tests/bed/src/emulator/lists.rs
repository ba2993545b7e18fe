//! The work of a kernel before NCCL 2.22: per channel a list of 512-byte structs, acknowledged once read.

use anyhow::{Context, Result, bail};

use super::connection::{Direction, STEPS};
use super::functions::{Algo, Function, Proto};
use super::kernel::{ChannelPlan, CollWork, Item, Kernel, Planned, Share};
use super::layout::ListForm;
use super::memory;
use super::p2p::{Part, Transfer};

/// Threads of a warp.
const WARP: usize = 32;

/// Reads the plan of all channels and tells the host that its FIFO was read.
pub(crate) fn read(
    form: &ListForm,
    kernel: &Kernel<'_>,
    channels: u64,
    head: usize,
) -> Result<Vec<ChannelPlan>> {
    let mut plans = Vec::new();
    for (block, channel) in (0..64).filter(|channel| channels >> channel & 1 == 1).enumerate() {
        let mut work = head + block * form.work.size;
        let (mut items, mut op) = (Vec::new(), 0);
        loop {
            // The struct is copied, as the host may reuse its memory after the acknowledgement.
            let copy = memory::bytes(work, form.work.size);
            let base = copy.as_ptr() as usize;
            items.push(Planned { item: item(form, kernel, base, &mut op)?, profiled: Vec::new() });
            if form.work.is_last.get(base) == 1 {
                if form.work.in_fifo.get(base) == 1 {
                    let done =
                        kernel.layout.channel.work_fifo_done.get_usize(kernel.channel_address(channel));
                    memory::store_u32(done, form.work.acks.get(base) as u32);
                }
                break;
            }
            let next = form.work.next.get_i32(base) as isize * form.work.size.cast_signed();
            work = head.wrapping_add_signed(next);
        }
        plans.push(ChannelPlan { channel, items });
    }
    Ok(plans)
}

fn item(form: &ListForm, kernel: &Kernel<'_>, work: usize, op: &mut usize) -> Result<Item> {
    let kind = form.work.kind.get(work);
    if kind == form.kind_p2p {
        return Ok(Item::Parts(parts(form, kernel, work, op)));
    }
    if kind != form.kind_coll {
        bail!("work of kind {kind} is not emulated");
    }
    let id = form.work.func.get(work);
    let func = kernel.functions.get(id).with_context(|| format!("device function {id} is unknown"))?;
    let mut works = Vec::new();
    let mut elem = work + form.work.elems.offset;
    while elem + form.elem.size <= work + form.work.size && form.elem.is_used.get(elem) == 1 {
        works.push(coll(form, kernel, func, elem, *op)?);
        *op += 1;
        elem += form.elem.size;
    }
    Ok(Item::Colls(works))
}

fn coll(form: &ListForm, kernel: &Kernel<'_>, func: Function, elem: usize, op: usize) -> Result<CollWork> {
    let place = &form.elem;
    let size = CollWork::check(&func)?;
    let share = if let Some(place) = &form.share {
        Share::Part {
            offset: place.work_offset.get_usize(elem),
            count: place.work_count.get_usize(elem),
            chunk: place.chunk_count.get_usize(elem),
            last_chunk: Some(place.last_chunk_count.get_usize(elem)),
        }
    } else {
        if func.algo != Algo::Ring || func.proto != Proto::Simple {
            bail!("before NCCL 2.20 only rings with the SIMPLE protocol are emulated");
        }
        // (nthreads - WARP_SIZE) * sizeof(uint64_t) / sizeof(T)
        let threads = (place.warps.get_usize(elem) * WARP).saturating_sub(WARP);
        let steps = if func.is_sliced() { STEPS / 2 } else { 1 };
        let step = kernel.buff_size(Proto::Simple) / STEPS as usize;
        Share::Turns {
            channels: place.channels.get_usize(elem),
            block: place.block.get_usize(elem),
            chunk: step / size.size() * steps as usize,
            grain: (threads * 8 / size.size()).max(1),
        }
    };
    Ok(CollWork {
        op,
        func,
        elem: size,
        root: place.root.get_usize(elem),
        send: place.send.get_usize(elem),
        recv: place.recv.get_usize(elem),
        count: place.count.get_usize(elem),
        share,
    })
}

/// The sends and receives of one struct run side by side: a receive and a send alternate.
fn parts(form: &ListForm, kernel: &Kernel<'_>, work: usize, op: &mut usize) -> Vec<Part> {
    let place = &form.p2p;
    let first = work + form.work.p2p_elems.offset;
    let address_of = |elem: usize| place.buff_hi.get_usize(elem) << 32 | place.buff_lo.get_usize(elem);
    let mut parts = Vec::new();
    for group in 0..place.groups.get_usize(first) {
        let elem = first + group * place.size;
        let (kind, peer) = (place.kind.get(elem), place.peer.get_i32(elem));
        let Ok(peer) = usize::try_from(peer) else { continue };
        let bytes = place.count_hi.get_usize(elem) << 32 | place.count_lo.get_usize(elem);
        let address = address_of(elem);
        if peer as i32 == kernel.rank {
            if kind == form.send {
                // The receive stands before its send.
                parts.push(Part::Copy { from: address, to: address_of(elem - place.size), bytes });
            }
            continue;
        }
        let direction = if kind == form.send {
            Direction::Send
        } else if kind == form.recv {
            Direction::Recv
        } else {
            continue;
        };
        let proto = if place.proto.get_usize(elem) == Proto::Ll.index() { Proto::Ll } else { Proto::Simple };
        let chunk = place.chunk_size.get_usize(elem) / if proto == Proto::Ll { 2 } else { 1 };
        parts.push(Part::Transfers(vec![Transfer {
            op: *op,
            direction,
            peer,
            address,
            bytes,
            chunk,
            proto,
        }]));
        *op += 1;
    }
    parts
}
