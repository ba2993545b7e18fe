//! Finds the `ncclComm`s of a process and reads their fields.
//!
//! From NCCL 2.21 on the struct begins and ends with `NCCL_MAGIC` (src/include/comm.h, init.cc), and the
//! first thing that its end takes away are these words. Before, a communicator is found by the pointer to
//! itself that the first one of its process holds (`intraComm0`, init.cc), and the others through their list.
//! Either way a candidate is believed only after its fields were proven one by one.

use std::{collections::BTreeMap, collections::BTreeSet, ops::ControlFlow};

use super::{
    comm_layout::{CommLayout, MAGIC},
    rank_report::{ChannelReport, CommStatus, Counters},
};
use crate::memory::{AddressSpace, Memory, ReadError, ScanLimits, ScanProgress, ScanReport, Scanner};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{ArrayField, IntField, unsigned},
};

/// More ranks than any communicator has.
const MAX_RANKS: u32 = 1 << 20;
/// More GPUs than any host has.
const MAX_DEVICES: u32 = 1 << 10;
/// Candidates that are looked at in one process; a program that fills its memory with the magic word gets no
/// more.
const MAX_CANDIDATES: usize = 1 << 16;
/// Communicators kept of one process.
const MAX_COMMUNICATORS: usize = 4096;

/// The fields of a communicator at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Communicator {
    pub(crate) address: RuntimeAddr,
    pub(crate) hash: u64,
    pub(crate) name: Option<String>,
    pub(crate) rank: u32,
    pub(crate) n_ranks: u32,
    pub(crate) node: u32,
    pub(crate) n_nodes: u32,
    pub(crate) local_rank: u32,
    pub(crate) cuda_dev: u32,
    pub(crate) nvml_dev: Option<u32>,
    pub(crate) n_channels: u32,
    pub(crate) proxy_state: RuntimeAddr,
    pub(crate) shared_res: RuntimeAddr,
    pub(crate) counters: Counters,
    pub(crate) status: CommStatus,
    pub(crate) channels: Vec<ChannelReport>,
    pub(crate) kernel_channels: Option<Vec<u32>>,
    intra_next: Option<u64>,
}

/// Why something in memory is not taken for a communicator.
#[derive(Debug)]
pub(crate) enum Rejection {
    Read(ReadError),
    /// A field has a value that no communicator has.
    Field,
}

impl From<ReadError> for Rejection {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

/// Scans for communicators. With `first_only` the scan ends at the first one.
pub(crate) fn find(
    memory: Memory<'_>,
    layout: &CommLayout,
    space: &AddressSpace,
    limits: ScanLimits,
    first_only: bool,
    progress: &mut dyn FnMut(&ScanProgress),
) -> Result<(Vec<Communicator>, ScanReport), ReadError> {
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut failure = None;
    let report = Scanner::new(memory, limits).search(
        space,
        layout.needle(),
        |at| {
            let mut next = layout.candidate(at.0);
            while let Some(base) = next.take() {
                if seen.len() >= MAX_CANDIDATES || found.len() >= MAX_COMMUNICATORS {
                    return ControlFlow::Break(());
                }
                if !seen.insert(base) {
                    break;
                }
                match read(memory, layout, space, RuntimeAddr(base)) {
                    Ok(comm) => {
                        next = comm.intra_next.filter(|_| layout.magics.is_none());
                        found.insert(base, comm);
                        if first_only {
                            return ControlFlow::Break(());
                        }
                    }
                    Err(Rejection::Read(error)) if error.is_final() => {
                        failure = Some(error);
                        return ControlFlow::Break(());
                    }
                    Err(_) => {}
                }
            }
            ControlFlow::Continue(())
        },
        progress,
    )?;
    failure.map_or_else(|| Ok((found.into_values().collect(), report)), Err)
}

/// Reads the communicator at `address` and proves that it is one.
pub(crate) fn read(
    memory: Memory<'_>,
    layout: &CommLayout,
    space: &AddressSpace,
    address: RuntimeAddr,
) -> Result<Communicator, Rejection> {
    if !space.is_readable(address.0, layout.size) {
        return Err(Rejection::Field);
    }
    let [start, end] = layout.magics.map_or([None, None], |[start, end]| [Some(start), Some(end)]);
    let values = places(
        memory,
        address,
        [
            start,
            end,
            Some(layout.hash),
            Some(layout.rank),
            Some(layout.n_ranks),
            Some(layout.node),
            Some(layout.n_nodes),
            Some(layout.local_rank),
            Some(layout.cuda_dev),
            layout.nvml_dev,
            Some(layout.n_channels),
            Some(layout.proxy_state),
            Some(layout.shared_res),
            layout.intra_next,
            layout.op_count,
            layout.coll_op_count,
            layout.init_state,
            layout.async_result,
            layout.abort_flag,
            layout.finalize_called,
            layout.destroy_flag,
            layout.revoked_flag,
            layout.comm_name,
        ],
    )?;
    #[rustfmt::skip]
    let [start, end, hash, rank, n_ranks, node, n_nodes, local_rank, cuda_dev, nvml_dev, n_channels, proxy_state,
        shared_res, intra_next, op_count, coll_op_count, init, async_result, abort_flag, finalize, destroy, revoked, name]
        = values;
    if layout.magics.is_some() && (start, end) != (Some(MAGIC), Some(MAGIC)) {
        return Err(Rejection::Field);
    }
    let int = |value: Option<u64>, below: u32| {
        let value = value.and_then(|value| u32::try_from(value).ok());
        value.filter(|value| *value < below).ok_or(Rejection::Field)
    };
    let n_ranks = int(n_ranks, MAX_RANKS)?;
    let n_nodes = int(n_nodes, n_ranks.saturating_add(1))?;
    let max_channels = u32::try_from(layout.channels.count).unwrap_or(0);
    let result = |value: Option<u64>| layout.result(value);
    let flag = |value: Option<u64>| value.map(|value| value != 0);
    let mut comm = Communicator {
        address,
        hash: hash.unwrap_or_default(),
        name: name.and_then(|at| text(memory, at)),
        rank: int(rank, n_ranks)?,
        n_ranks,
        node: int(node, n_nodes.max(1))?,
        n_nodes,
        local_rank: int(local_rank, n_ranks)?,
        cuda_dev: int(cuda_dev, MAX_DEVICES)?,
        nvml_dev: nvml_dev.and_then(|dev| u32::try_from(dev).ok()),
        n_channels: int(n_channels, max_channels.saturating_add(1))?,
        proxy_state: RuntimeAddr(proxy_state.unwrap_or_default()),
        shared_res: RuntimeAddr(shared_res.unwrap_or_default()),
        counters: Counters { coll_op_count, op_count, ..Counters::default() },
        status: CommStatus {
            init: result(init),
            async_result: result(async_result),
            proxy_result: None,
            abort: abort_flag.and_then(|at| abort_value(memory, at)),
            finalize_called: flag(finalize),
            destroying: flag(destroy),
            revoked: flag(revoked),
        },
        channels: Vec::new(),
        kernel_channels: None,
        intra_next: intra_next.filter(|next| *next != 0),
    };
    for pointer in [comm.proxy_state.0, comm.shared_res.0] {
        if pointer != 0 && !space.is_readable(pointer, 8) {
            return Err(Rejection::Field);
        }
    }
    // ncclSuccess is 0; whatever else it is, the channels need not be there yet.
    comm.channels = channels(memory, layout, space, &comm, init.is_none_or(|init| init == 0))?;
    comm.kernel_channels = kernel_channels(memory, layout, &comm);
    counters(memory, layout, &mut comm)?;
    Ok(comm)
}

/// The values of several fields of one struct, read at once.
pub(crate) fn places<const N: usize>(
    memory: Memory<'_>,
    base: RuntimeAddr,
    places: [Option<IntField>; N],
) -> Result<[Option<u64>; N], ReadError> {
    let pieces: Vec<(RuntimeAddr, usize)> = places
        .iter()
        .flatten()
        .map(|place| (RuntimeAddr(base.0.saturating_add(place.offset())), place.size()))
        .collect();
    let bytes = memory.gather(&pieces)?;
    let mut rest = bytes.as_slice();
    Ok(places.map(|place| {
        let (value, tail) = rest.split_at_checked(place?.size())?;
        rest = tail;
        unsigned(value)
    }))
}

/// Neighbours in rings and trees. A ring that does not fit the communicator proves that this is none.
fn channels(
    memory: Memory<'_>,
    layout: &CommLayout,
    space: &AddressSpace,
    comm: &Communicator,
    is_complete: bool,
) -> Result<Vec<ChannelReport>, Rejection> {
    let ArrayField { offset, elem_size: size, .. } = layout.channels;
    let bytes = memory.bytes(RuntimeAddr(comm.address.0 + offset), u64::from(comm.n_channels) * size)?;
    let n_ranks = i64::from(comm.n_ranks);
    let mut channels = Vec::new();
    for (index, channel) in (0..comm.n_channels).zip(bytes.chunks_exact(usize::try_from(size).unwrap_or(1))) {
        let int = |place: IntField| place.signed(channel).unwrap_or(-1);
        let (prev, next) = (int(layout.ring_prev), int(layout.ring_next));
        let user_ranks = layout.user_ranks.unsigned(channel).unwrap_or(0);
        if comm.n_ranks > 1 {
            let in_range = (0..n_ranks).contains(&prev) && (0..n_ranks).contains(&next);
            if !in_range || !space.is_readable(user_ranks, 4 * u64::from(comm.n_ranks)) {
                if is_complete {
                    return Err(Rejection::Field);
                }
                break;
            }
            // userRanks begins with this rank and goes along the ring.
            let last = user_ranks + 4 * u64::from(comm.n_ranks - 1);
            let along = [(RuntimeAddr(user_ranks), 8), (RuntimeAddr(last), 4)];
            let along = memory.gather(&along)?;
            let along: Vec<i64> =
                along.chunks(4).map(|rank| unsigned(rank).map_or(-1, u64::cast_signed)).collect();
            if is_complete && along != [i64::from(comm.rank), next, prev] {
                return Err(Rejection::Field);
            }
        }
        let down = layout.tree_down.map(|ArrayField { offset, count, elem_size }| {
            (0..count.min(8))
                .filter_map(move |child| IntField::new(offset + child * elem_size, 4)?.signed(channel))
        });
        let small = |rank: i64| i32::try_from(rank).unwrap_or(-1);
        channels.push(ChannelReport {
            channel: index,
            ring_prev: small(prev),
            ring_next: small(next),
            tree_up: layout.tree_up.map_or(-1, |up| small(int(up))),
            tree_down: down
                .into_iter()
                .flatten()
                .filter(|rank| (0..n_ranks).contains(rank))
                .map(small)
                .collect(),
        });
    }
    Ok(channels)
}

/// The channels on which a kernel was launched that is not through with its work; `None` where the host
/// cannot know.
fn kernel_channels(memory: Memory<'_>, layout: &CommLayout, comm: &Communicator) -> Option<Vec<u32>> {
    let work = layout.work?;
    let [consumed] = places(memory, comm.address, [Some(work.consumed)]).ok()?;
    let consumed =
        memory.bytes(RuntimeAddr(consumed.filter(|at| *at != 0)?), 4 * u64::from(comm.n_channels)).ok()?;
    let mut unfinished = Vec::new();
    for (channel, consumed) in (0..comm.n_channels).zip(consumed.as_chunks::<4>().0) {
        let [produced] =
            places(memory, layout.channel(comm.address, channel)?, [Some(work.produced)]).ok()?;
        if produced? != u64::from(u32::from_le_bytes(*consumed)) {
            unfinished.push(channel);
        }
    }
    Some(unfinished)
}

fn counters(memory: Memory<'_>, layout: &CommLayout, comm: &mut Communicator) -> Result<(), Rejection> {
    if let Some(ArrayField { offset, count, .. }) = layout.seq_number {
        let words = memory.bytes(RuntimeAddr(comm.address.0 + offset), 8 * count)?;
        for (function, word) in (0i64..).zip(words.as_chunks::<8>().0) {
            let name =
                layout.names.function(function).map_or_else(|| function.to_string(), ToString::to_string);
            comm.counters.seq_number.insert(name, u64::from_le_bytes(*word));
        }
    }
    // Not all of it need be there while the communicator is set up.
    if comm.shared_res.0 != 0
        && let Some(ArrayField { offset, count, elem_size: 8 }) = layout.shared_p2p_op_count
        && let Ok(words) =
            memory.bytes(RuntimeAddr(comm.shared_res.0.saturating_add(offset)), 8 * count.min(1024))
    {
        let words = words.as_chunks::<8>().0.iter();
        comm.counters.p2p_op_count =
            Some(words.fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))));
    }
    if comm.counters.coll_op_count.is_none()
        && comm.shared_res.0 != 0
        && let Ok([count]) = places(memory, comm.shared_res, [layout.shared_coll_op_count])
    {
        comm.counters.coll_op_count = count;
    }
    Ok(())
}

/// `abortFlag` is a pointer to a `uint32_t`.
fn abort_value(memory: Memory<'_>, at: u64) -> Option<bool> {
    let mut value = [0; 4];
    memory.read(RuntimeAddr(at), &mut value).ok()?;
    Some(value != [0; 4])
}

/// A short string that the program gave; without control characters.
fn text(memory: Memory<'_>, at: u64) -> Option<String> {
    const MAX: usize = 128;
    if at == 0 {
        return None;
    }
    let mut bytes = [0; MAX];
    let read = memory.read_some(RuntimeAddr(at), &mut bytes).ok()?;
    let text = bytes.get(..read)?.split(|byte| *byte == 0).next()?;
    let text = String::from_utf8_lossy(text);
    Some(text.chars().filter(|c| !c.is_control()).collect())
}

#[cfg(test)]
mod tests;
