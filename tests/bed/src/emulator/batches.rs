//! The work of a kernel of NCCL 2.22 and later: per channel a chain of batches, each with a set of work
//! structs.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use super::bcast::BcastWork;
use super::functions::{Function, Functions, Proto};
use super::kernel::{ChannelPlan, CollWork, Item, Planned, Share};
use super::layout::{BatchForm, Coll};

/// One or more batches that count as one: same kind, same function.
struct Merged {
    kind: u64,
    func: u64,
    /// Offset and address of each work struct.
    works: Vec<(u32, usize)>,
}

/// Reads the plan of all channels out of the kernel's arguments.
pub(crate) fn read(form: &BatchForm, functions: &Functions, arguments: &[u8]) -> Result<Vec<ChannelPlan>> {
    if arguments.len() < form.args.size {
        bail!("a kernel was launched with {} bytes of arguments", arguments.len());
    }
    let base = arguments.as_ptr() as usize;
    let channels = form.args.channel_mask.get(base);
    let mut merged = Vec::new();
    for (block, channel) in (0..64).filter(|channel| channels >> channel & 1 == 1).enumerate() {
        merged.push((channel, chain(form, arguments, block)?));
    }
    let numbers = number_ops(merged.iter().flat_map(|(_, batches)| batches));
    let mut plans = Vec::new();
    for (channel, batches) in merged {
        let mut items = Vec::new();
        for batch in batches {
            let enabled = form.profiler.map(|place| {
                if batch.kind == form.kind_p2p { place.p2p_enabled } else { place.coll_enabled }
            });
            let profiled =
                batch.works.iter().map(|(_, work)| enabled.is_some_and(|place| place.get(*work) == 1));
            let profiled = profiled.collect();
            items.push(Planned { item: item(form, functions, &batch, channel, &numbers)?, profiled });
        }
        plans.push(ChannelPlan { channel, items });
    }
    Ok(plans)
}

/// Works in the order in which they were put into the plan.
fn number_ops<'a>(batches: impl Iterator<Item = &'a Merged>) -> BTreeMap<u32, usize> {
    let mut offsets: Vec<u32> =
        batches.flat_map(|batch| batch.works.iter().map(|(offset, _)| *offset)).collect();
    // The offsets wrap around; those of one launch are close together.
    if let Some(anchor) = offsets.first().copied() {
        offsets.sort_by_key(|offset| offset.wrapping_sub(anchor).cast_signed());
    }
    offsets.dedup();
    offsets.into_iter().enumerate().map(|(number, offset)| (offset, number)).collect()
}

fn chain(form: &BatchForm, arguments: &[u8], block: usize) -> Result<Vec<Merged>> {
    let base = arguments.as_ptr() as usize;
    let in_arguments = form.args.storage.get(base) == form.storage_args;
    let (buffer, mask) = (form.args.work_buf.get_usize(base), form.args.work_mask.get(base) as u32);
    let mut all: Vec<Merged> = Vec::new();
    let (mut index, mut extends) = (block, false);
    loop {
        let offset = form.args.size + index * form.batch.size;
        if offset + form.batch.size > arguments.len() {
            bail!("batch {index} lies beyond the kernel's {} bytes of arguments", arguments.len());
        }
        let batch = base + offset;
        let kind = form.batch.kind.get(batch);
        let size = if kind == form.kind_p2p {
            form.p2p.size
        } else if kind == form.kind_coll {
            form.coll.size
        } else if let Some((bcast, of_bcast)) = &form.bcast
            && kind == *of_bcast
        {
            bcast.size
        } else {
            bail!("work of kind {kind} is not emulated");
        };
        if !extends {
            all.push(Merged { kind, func: form.batch.func.get(batch), works: Vec::new() });
        }
        let works = &mut all.last_mut().context("a chain without batches")?.works;
        let bits = form.batch.offset_bits.get(batch);
        let first = form.batch.offset_base.get(batch) as u32;
        for bit in (0..64).filter(|bit| bits >> bit & 1 == 1) {
            let offset = first.wrapping_add(u32::try_from(bit * size)?);
            let address = if in_arguments {
                if offset as usize + size > arguments.len() {
                    bail!("work at {offset} lies beyond the kernel's {} bytes of arguments", arguments.len());
                }
                base + offset as usize
            } else {
                buffer + (offset & mask) as usize
            };
            works.push((offset, address));
        }
        let jump = form.batch.next_jump.get_usize(batch);
        extends = form.batch.next_extends.get(batch) == 1;
        if jump == 0 {
            return Ok(all);
        }
        index += jump;
    }
}

fn item(
    form: &BatchForm,
    functions: &Functions,
    batch: &Merged,
    channel: usize,
    numbers: &BTreeMap<u32, usize>,
) -> Result<Item> {
    let number = |offset: &u32| numbers.get(offset).copied().unwrap_or(0);
    if batch.kind == form.kind_p2p {
        let works = batch.works.iter().map(|(offset, work)| (*work, number(offset))).collect();
        return Ok(Item::P2p(works));
    }
    let func =
        functions.get(batch.func).with_context(|| format!("device function {} is unknown", batch.func))?;
    if let Some((bcast, kind)) = &form.bcast
        && batch.kind == *kind
    {
        let works = batch.works.iter().map(|(offset, work)| BcastWork::read(bcast, *work, number(offset)));
        return Ok(Item::Bcasts(func, works.collect()));
    }
    let works =
        batch.works.iter().map(|(offset, work)| coll(&form.coll, func, *work, channel, number(offset)));
    works.collect::<Result<_>>().map(Item::Colls)
}

/// The continuous distribution of bytes over channels: the first and the last may have less than those
/// between.
fn coll(place: &Coll, func: Function, work: usize, channel: usize, op: usize) -> Result<CollWork> {
    let elem = CollWork::check(&func)?;
    if place.reg_used.get(work) != 0 {
        bail!("registered buffers are not emulated");
    }
    let (lo, hi) = (place.channel_lo.get_usize(work), place.channel_hi.get_usize(work));
    let [count_lo, count_mid, count_hi] =
        [place.count_lo, place.count_mid, place.count_hi].map(|field| field.get_usize(work));
    let between = (hi - lo).saturating_sub(1);
    let (offset, part_count, grains) = if channel == lo {
        (0, count_lo, place.grains_lo)
    } else if channel == hi {
        (count_lo + between * count_mid, count_hi, place.grains_hi)
    } else {
        (count_lo + (channel - lo - 1) * count_mid, count_mid, place.grains_mid)
    };
    let grain_bytes = match func.proto {
        Proto::Ll => 16,
        Proto::Ll128 => 1920,
        Proto::Simple => 512,
    };
    // Where one channel has all, the other two counts are zero.
    let count = count_lo + between * count_mid + if hi > lo { count_hi } else { 0 };
    Ok(CollWork {
        op,
        func,
        elem,
        root: place.root.get_usize(work),
        send: place.send.get_usize(work),
        recv: place.recv.get_usize(work),
        count,
        share: Share::Part {
            offset,
            count: part_count,
            chunk: grains.get_usize(work) * (grain_bytes / elem.size()),
            last_chunk: None,
        },
    })
}
