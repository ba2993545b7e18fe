//! The queue to the library's proxy thread: `ncclProxyOps` and the pool of its ops.
//!
//! `ncclLocalOpAppend` takes a free op of the pool, copies the op into it and puts it at the end of a list.
//! The list is read back and emptied after each op, as the proxy thread would do.

use anyhow::{Result, bail};
use nccl_library::layouts::Layouts;

use crate::library::Library;
use crate::memory::{Memory, offset, rank, size_of};

const NONE: i32 = -1;
/// Ops in the pool: more than any case queues.
const OPS: usize = 64;

#[derive(Debug)]
pub(crate) struct Pool {
    /// One `ncclProxyOps`: that of the only local rank.
    pub(crate) queue: Memory,
    memory: Memory,
    op_size: usize,
    ops_at: usize,
}

/// What was queued for one connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    /// The `ncclProxyConnection`.
    pub(crate) connection: usize,
    pub(crate) nsteps: u32,
    pub(crate) op_count: u64,
    pub(crate) channel: u64,
    pub(crate) pattern: u64,
}

impl Pool {
    pub(crate) fn make(library: &Library) -> Result<Self> {
        let layouts = &library.layouts;
        let pool = Self {
            queue: Memory::of(layouts, "ncclProxyOps", 1)?,
            memory: Memory::of(layouts, "ncclProxyOpsPool", 1)?,
            op_size: size_of(layouts, "ncclProxyOp")?,
            ops_at: offset(layouts, "ncclProxyOpsPool", "ops")?,
        };
        pool.queue.set(layouts, "ncclProxyOps", "pool", pool.memory.address as u64)?;
        pool.empty(layouts)?;
        Ok(pool)
    }

    fn op(&self, number: usize) -> Result<Memory> {
        self.memory.at(self.ops_at + number * self.op_size)
    }

    /// All ops are free, and none is queued.
    fn empty(&self, layouts: &Layouts) -> Result<()> {
        for number in 0..OPS {
            let next = if number + 1 == OPS { NONE } else { number as i32 + 1 };
            self.op(number)?.set(layouts, "ncclProxyOp", "next", rank(next))?;
        }
        for (field, value) in [("freeOp", 0), ("nextOps", NONE), ("nextOpsEnd", NONE), ("count", 0)] {
            self.queue.set(layouts, "ncclProxyOps", field, rank(value))?;
        }
        Ok(())
    }

    /// Takes what was queued, in its order.
    pub(crate) fn take(&self, layouts: &Layouts) -> Result<Vec<Queued>> {
        let mut queued = Vec::new();
        let index = |value: u64| value as u32 as i32;
        let mut next = index(self.queue.get(layouts, "ncclProxyOps", "nextOps")?);
        while let Ok(number) = usize::try_from(next) {
            if queued.len() == OPS {
                bail!("the queue of ops has no end");
            }
            let op = self.op(number)?;
            let of = |field: &str| op.get(layouts, "ncclProxyOp", field);
            queued.push(Queued {
                connection: of("connection")? as usize,
                nsteps: of("nsteps")? as u32,
                op_count: of("opCount")?,
                channel: of("channelId")?,
                pattern: of("pattern")?,
            });
            next = index(of("next")?);
        }
        self.empty(layouts)?;
        Ok(queued)
    }
}
