//! Finds the `ncclComm`s of a process and reads their fields.
//!
//! From NCCL 2.21 on the struct begins and ends with `NCCL_MAGIC` (src/include/comm.h, init.cc), and
//! destroying it first removes these words. Before, a communicator is found by the pointer to itself that the
//! first one of its process holds (`intraComm0`, init.cc), and the others through their list. Either way a
//! candidate is believed only after its fields were proven one by one.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    time::Instant,
};

use super::{
    ChannelReport, CommStatus, Counters, RankReport,
    comm_layout::{CommLayout, MAGIC},
    places,
};
use inspect::{
    memory::{AddressSpace, Memory, ReadError, ScanEnd, ScanLimits, ScanProgress, ScanReport, search},
    process::printable,
};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{ArrayField, IntField, unsigned},
};

const MAX_RANKS: u32 = 1 << 20;
const MAX_DEVICES: u32 = 1 << 10;
/// Maximum number of candidates that are looked at in one process; a program that fills its memory with the
/// magic word gets no more.
const MAX_CANDIDATES: usize = 1 << 16;
pub(super) const MAX_COMMUNICATORS: usize = 4096;

/// A communicator at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Communicator {
    /// Report without its process and without the ops in flight of its proxy.
    pub(super) report: RankReport,
    pub(super) proxy_state: u64,
    pub(super) shared_res: u64,
    intra_next: Option<u64>,
}

/// Reason why something in memory is not taken for a communicator; `None` if a field has a value that no
/// communicator has.
pub(super) type Rejection = Option<ReadError>;

/// Scans for communicators. With `first_only` the scan ends at the first one.
pub(super) fn find(
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
    let (begun, mut is_late) = (Instant::now(), false);
    let mut report = search(
        memory,
        limits,
        space,
        layout.needle,
        |at| {
            let mut next = layout.candidate(at.0);
            while let Some(base) = next.take() {
                // The search itself may be through long before all that it has found is read.
                is_late = begun.elapsed() >= limits.time;
                if is_late || seen.len() >= MAX_CANDIDATES || found.len() >= MAX_COMMUNICATORS {
                    return ControlFlow::Break(());
                }
                if !seen.insert(base) {
                    break;
                }
                match read(memory, layout, space, base) {
                    Ok(comm) => {
                        next = comm.intra_next.filter(|_| !layout.has_magics());
                        found.insert(base, comm);
                        if first_only {
                            return ControlFlow::Break(());
                        }
                    }
                    Err(Some(error)) if error.is_final() => {
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
    if is_late {
        report.ended_by = Some(ScanEnd::TimeLimit);
    }
    failure.map_or_else(|| Ok((found.into_values().collect(), report)), Err)
}

/// Returns a communicator's hash as reports have it.
pub(super) fn hash_text(hash: u64) -> String {
    format!("0x{hash:016x}")
}

/// Reads the communicator at `address` and proves that it is one.
pub(super) fn read(
    memory: Memory<'_>,
    layout: &CommLayout,
    space: &AddressSpace,
    address: u64,
) -> Result<Communicator, Rejection> {
    if !space.is_readable(address, layout.size) {
        return Err(None);
    }
    #[rustfmt::skip]
    let [start, end, hash, rank, n_ranks, node, n_nodes, local_rank, cuda_dev, nvml_dev, n_channels, proxy_state,
        shared_res, intra_next, op_count, coll_op_count, init, async_result, abort_flag, finalize, destroy, revoked, name]
        = places::read(memory, address, layout.comm)?;
    if layout.has_magics() && (start, end) != (Some(MAGIC), Some(MAGIC)) {
        return Err(None);
    }
    let int = |value: Option<u64>, below: u32| {
        let value = value.and_then(|value| u32::try_from(value).ok());
        value.filter(|value| *value < below).ok_or(None)
    };
    let n_ranks = int(n_ranks, MAX_RANKS)?;
    let n_nodes = int(n_nodes, n_ranks.saturating_add(1))?;
    let max_channels = u32::try_from(layout.channels.count).unwrap_or(0);
    let flag = |value: Option<u64>| value.map(|value| value != 0);
    let mut report = RankReport {
        comm_hash: hash_text(hash.unwrap_or_default()),
        comm_name: name.and_then(|at| text(memory, at)),
        n_ranks,
        rank: int(rank, n_ranks)?,
        address,
        node: int(node, n_nodes.max(1))?,
        n_nodes,
        local_rank: int(local_rank, n_ranks)?,
        cuda_dev: int(cuda_dev, MAX_DEVICES)?,
        nvml_dev: nvml_dev.and_then(|dev| u32::try_from(dev).ok()),
        n_channels: int(n_channels, max_channels.saturating_add(1))?,
        counters: Counters { coll_op_count, op_count, ..Counters::default() },
        status: CommStatus {
            init: layout.result(init),
            async_result: layout.result(async_result),
            proxy_result: None,
            // A pointer to a `uint32_t`.
            abort: abort_flag.and_then(|at| Some(memory.bytes(RuntimeAddr(at), 4).ok()? != [0; 4])),
            finalize_called: flag(finalize),
            destroying: flag(destroy),
            revoked: flag(revoked),
        },
        ..RankReport::default()
    };
    let (proxy_state, shared_res) = (proxy_state.unwrap_or_default(), shared_res.unwrap_or_default());
    for pointer in [proxy_state, shared_res] {
        if pointer != 0 && !space.is_readable(pointer, 8) {
            return Err(None);
        }
    }
    // ncclSuccess is 0; with any other state the channels need not be there yet.
    report.channels = channels(memory, layout, space, &report, init.is_none_or(|init| init == 0))?;
    report.kernel_channels = kernel_channels(memory, layout, &report);
    counters(memory, layout, &mut report, shared_res)?;
    Ok(Communicator { report, proxy_state, shared_res, intra_next: intra_next.filter(|next| *next != 0) })
}

/// Reads the neighbours in rings and trees. A ring that does not fit the communicator proves that this is
/// none.
fn channels(
    memory: Memory<'_>,
    layout: &CommLayout,
    space: &AddressSpace,
    comm: &RankReport,
    is_complete: bool,
) -> Result<Vec<ChannelReport>, Rejection> {
    let ArrayField { offset, elem_size: size, .. } = layout.channels;
    let bytes = memory.bytes(RuntimeAddr(comm.address + offset), u64::from(comm.n_channels) * size)?;
    let is_rank = |rank: &i64| (0..i64::from(comm.n_ranks)).contains(rank);
    let mut channels = Vec::new();
    for (index, channel) in (0..comm.n_channels).zip(bytes.chunks_exact(usize::try_from(size).unwrap_or(1))) {
        let int = |place: IntField| place.signed(channel).unwrap_or(-1);
        let (prev, next) = (int(layout.ring_prev), int(layout.ring_next));
        let user_ranks = layout.user_ranks.unsigned(channel).unwrap_or(0);
        if comm.n_ranks > 1 {
            if !is_rank(&prev)
                || !is_rank(&next)
                || !space.is_readable(user_ranks, 4 * u64::from(comm.n_ranks))
            {
                if is_complete {
                    return Err(None);
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
                return Err(None);
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
            tree_down: down.into_iter().flatten().filter(is_rank).map(small).collect(),
        });
    }
    Ok(channels)
}

/// Returns the channels on which a kernel was launched that is not through with its work; `None` where the
/// host cannot know.
fn kernel_channels(memory: Memory<'_>, layout: &CommLayout, comm: &RankReport) -> Option<Vec<u32>> {
    let (produced, consumed) = layout.work?;
    let consumed = places::read_one(memory, comm.address, Some(consumed)).filter(|at| *at != 0)?;
    let consumed = memory.bytes(RuntimeAddr(consumed), 4 * u64::from(comm.n_channels)).ok()?;
    let mut unfinished = Vec::new();
    for (channel, consumed) in (0..comm.n_channels).zip(consumed.as_chunks::<4>().0) {
        let at = layout.channel(comm.address, channel)?;
        if places::read_one(memory, at, Some(produced))? != u64::from(u32::from_le_bytes(*consumed)) {
            unfinished.push(channel);
        }
    }
    Some(unfinished)
}

fn counters(
    memory: Memory<'_>,
    layout: &CommLayout,
    comm: &mut RankReport,
    shared_res: u64,
) -> Result<(), Rejection> {
    let counters = &mut comm.counters;
    if let Some(ArrayField { offset, count, .. }) = layout.seq_number {
        for (function, count) in (0i64..).zip(memory.words(RuntimeAddr(comm.address + offset), count)?) {
            let name =
                layout.names.function(function).map_or_else(|| function.to_string(), ToString::to_string);
            counters.seq_number.insert(name, count);
        }
    }
    let [own, shared] = layout.persistent_refs;
    counters.graph_plans = places::read_one(memory, comm.address, own);
    // Not all resources need be there while the communicator is set up.
    if shared_res == 0 {
        return Ok(());
    }
    if let Some(ArrayField { offset, count, elem_size: 8 }) = layout.shared_p2p_op_count
        && let Ok(words) = memory.words(RuntimeAddr(shared_res.saturating_add(offset)), count.min(1024))
    {
        counters.p2p_op_count = Some(words.into_iter().fold(0, u64::wrapping_add));
    }
    counters.coll_op_count =
        counters.coll_op_count.or_else(|| places::read_one(memory, shared_res, layout.shared_coll_op_count));
    counters.graph_plans = counters.graph_plans.or_else(|| places::read_one(memory, shared_res, shared));
    Ok(())
}

/// Reads a short string that the program gave, safe for a terminal.
fn text(memory: Memory<'_>, at: u64) -> Option<String> {
    const MAX: usize = 128;
    if at == 0 {
        return None;
    }
    let mut bytes = [0; MAX];
    let read = memory.read_some(RuntimeAddr(at), &mut bytes).ok()?;
    let text = bytes.get(..read)?.split(|byte| *byte == 0).next()?;
    Some(printable(&String::from_utf8_lossy(text)))
}

#[cfg(test)]
pub(super) mod tests;
