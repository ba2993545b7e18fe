//! How many messages PAT sends to each peer. NCCL runs the algorithm inside of `ncclProxySaveOp` to count
//! them, so only the library can give the numbers. It is asked for many communicators and sizes.

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::communicator::{Communicator, Shape};
use crate::library::Library;
use crate::memory::{Memory, rank};

/// An op, and what the library queued for it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Counted {
    pub(crate) pattern: &'static str,
    pub(crate) ranks: i32,
    pub(crate) rank: i32,
    pub(crate) local_ranks: i32,
    pub(crate) chunk_size: u64,
    /// The op's `nbytes`: of all ranks.
    pub(crate) nbytes: u64,
    /// In the order of the calls: whether it sends, the peer, and the messages.
    pub(crate) calls: Vec<(bool, i32, u32)>,
}

/// Numbers of ranks: all small ones, and some near powers of two.
fn ranks() -> impl Iterator<Item = i32> {
    (2..=40).chain([47, 48, 63, 64, 65, 96, 100, 127, 128, 129])
}

/// Bytes of each rank on the channel, for a chunk: where NCCL begins to aggregate, where it
/// begins to cut, and between.
fn sizes(chunk: u64) -> Vec<u64> {
    let mut sizes = vec![1, 3, chunk, chunk + 1, 2 * chunk, 5 * chunk + 7, 33 * chunk];
    for parts in [2, 3, 4, 7, 8, 12, 16, 32, 33, 64, 200, 1024] {
        sizes.extend([chunk / parts, (chunk / parts).saturating_sub(1), chunk / parts + 1]);
    }
    sizes.retain(|size| *size != 0);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Asks the library for all of them. `local_ranks`: ranks of each node.
pub(crate) fn count(library: &Library, local_ranks: i32) -> Result<Vec<Counted>> {
    let mut counted = Vec::new();
    for ranks in ranks().filter(|ranks| ranks % local_ranks == 0 && *ranks > local_ranks) {
        let shape = Shape { ranks, rank: ranks / 3, local_ranks };
        let communicator = Communicator::make(library, shape, &[])?;
        for pattern in ["PatUp", "PatDown"] {
            for chunk_size in [512, 98_304] {
                for size in sizes(chunk_size) {
                    let nbytes = size * u64::from(ranks.cast_unsigned());
                    let op = make_op(library, pattern, chunk_size, nbytes)?;
                    let calls = communicator.post(library, op).with_context(|| {
                        format!("{pattern} of {size} bytes in chunks of {chunk_size} with {shape:?}")
                    })?;
                    let Shape { ranks, rank, local_ranks } = shape;
                    counted.push(Counted { pattern, ranks, rank, local_ranks, chunk_size, nbytes, calls });
                }
            }
        }
    }
    if counted.is_empty() {
        bail!("no communicator has nodes of {local_ranks} ranks");
    }
    Ok(counted)
}

fn make_op(library: &Library, pattern: &str, chunk_size: u64, nbytes: u64) -> Result<Memory> {
    const STRUCT: &str = "ncclProxyOp";
    let layouts = &library.layouts;
    let op = Memory::of(layouts, STRUCT, 1)?;
    let value = library.value("ncclPattern_t", &format!("ncclPattern{pattern}"));
    let value = value.with_context(|| format!("{} has no PAT", library.version()))?;
    let fields = [("pattern", value), ("nsteps", 1), ("sliceSteps", 1), ("chunkSteps", 1), ("protocol", 2)];
    for (field, value) in fields.into_iter().chain([("chunkSize", chunk_size), ("nbytes", nbytes)]) {
        op.set(layouts, STRUCT, field, value)?;
    }
    op.set(layouts, STRUCT, "root", rank(0))?;
    let task = Memory::of(layouts, "ncclTaskColl", 1)?;
    op.set_if_any(layouts, STRUCT, "task", task.address as u64)?;
    Ok(op)
}
