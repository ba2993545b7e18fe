//! Kernels and copies of torch's profiler as nodes, and the durations of NCCL's kernels.
//!
//! A trace is of one process, which says its rank in the job. Kernels that were launched before a node of
//! communication stand before it in the file. The time tells which of NCCL's kernels belongs to a node: NCCL
//! launches a kernel and hands us its plan right after it, and both clocks are the host's. The kernel must
//! have the function in its name.

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
};

use anyhow::{Context as _, Result, bail};
use foldhash::HashMap;

use super::{
    messages::{Attribute, AttributeValue, Node, NodeType},
    micros,
};
use crate::export::torch_traces::TorchTrace;
use stacks::trace::{DeviceTrace, DeviceWork, TraceFile, device_work};

/// Longest time between NCCL's launch and our record of it. A hit takes some µs; a thread that loses its
/// processor, a few ms.
const SLACK_NS: u64 = 2_000_000;

/// Most nodes that are kept to find those that had ended before another began.
const MAX_RECENT: usize = 256;

/// A node, and the time of the device at which it had ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    id: u64,
    end_ns: u64,
}

/// Returns the last node that had ended when something else began.
fn before(recent: &VecDeque<Ended>, begin_ns: u64) -> Option<u64> {
    recent.iter().rev().find(|ended| ended.end_ns <= begin_ns).map(|ended| ended.id)
}

fn keep(recent: &mut VecDeque<Ended>, ended: Ended) {
    if recent.len() >= MAX_RECENT {
        recent.pop_front();
    }
    recent.push_back(ended);
}

/// A kernel in the trace that belongs to a node of communication.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    /// Place among the kernels of the trace.
    at: usize,
    work: DeviceWork,
}

impl Kernel {
    pub(super) fn duration_ns(&self) -> u64 {
        self.work.end_ns.saturating_sub(self.work.begin_ns)
    }
}

/// The trace of a rank of the job, while its nodes are made.
#[derive(Debug)]
pub(super) struct Compute {
    pub(super) path: PathBuf,
    trace: DeviceTrace,
    /// Places of NCCL's kernels, in the order of launches.
    nccl: Vec<usize>,
    /// Time at which the launch of each of NCCL's kernels was recorded; `None` if no node was found for the
    /// kernel.
    found: Vec<Option<u64>>,
    next: usize,
    /// The last nodes of each stream, and the place of their kernel if it is one of NCCL's.
    streams: HashMap<u32, (Option<usize>, Vec<u64>)>,
    computed: VecDeque<Ended>,
    communicated: VecDeque<Ended>,
    /// Node that each stream was last told to wait for.
    told: HashMap<u32, u64>,
    pub(super) nodes: u64,
}

/// Reads traces, each of another rank.
pub(super) fn read(paths: &[PathBuf]) -> Result<BTreeMap<i32, Compute>> {
    let mut all: BTreeMap<i32, Compute> = BTreeMap::new();
    for path in paths {
        let trace =
            device_work(&mut TraceFile::open(path)?).with_context(|| format!("in `{}`", path.display()))?;
        let Some(rank) = trace.rank else {
            bail!(
                "`{}` does not say which rank of the job it is of (`distributedInfo`): torch's profiler writes it where torch.distributed is initialised",
                path.display()
            );
        };
        if let Some(other) = all.insert(rank, Compute::new(path.clone(), trace)) {
            bail!("`{}` and `{}` are both of rank {rank}", other.path.display(), path.display());
        }
    }
    Ok(all)
}

fn is_nccl(name: &str) -> bool {
    // ncclDevKernel_… from 2.19 on, ncclKernel_… before, ncclSymkDevKernel_… of symmetric memory.
    name.starts_with("ncclDevKernel") || name.starts_with("ncclKernel") || name.starts_with("ncclSym")
}

/// Tells whether one of NCCL's kernels runs this function, by its name:
/// `ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)`.
fn runs(kernel: &str, function: &str) -> bool {
    let name = kernel.split('(').next().unwrap_or_default();
    // One kernel runs all functions of a group: then it is called by the first collective, or Generic.
    let parts = || name.split('_');
    let is_p2p = matches!(function, "Send" | "Recv" | "AlltoAll" | "Gather" | "Scatter");
    parts().any(|part| part == function || part == "Generic" || (is_p2p && part == "SendRecv"))
}

impl Compute {
    fn new(path: PathBuf, trace: DeviceTrace) -> Self {
        let is_one = |at: &usize| trace.work.get(*at).is_some_and(|work| is_nccl(trace.name(work)));
        let nccl: Vec<usize> = (0..trace.work.len()).filter(is_one).collect();
        let (streams, computed, communicated, told) = Default::default();
        let found = vec![None; nccl.len()];
        Self { path, trace, nccl, found, next: 0, streams, computed, communicated, told, nodes: 0 }
    }

    /// Returns what the trace says of itself.
    pub(super) fn facts(&self) -> TorchTrace<'_> {
        let DeviceTrace { rank, world_size, .. } = self.trace;
        TorchTrace { path: &self.path, rank, world_size, span_ns: self.trace.span_ns() }
    }

    /// Returns the number of NCCL's kernels in the trace, and of those that have a node.
    pub(super) fn nccl_kernels(&self) -> (usize, usize) {
        (self.nccl.len(), self.found.iter().flatten().count())
    }

    fn work(&self, at: usize) -> Option<&DeviceWork> {
        self.trace.work.get(at)
    }

    /// Returns the kernel of a call or op that was recorded at this Unix time. With `is_call`, that is the
    /// time of the call, before the launch; otherwise right after the launch.
    pub(super) fn kernel(&mut self, function: &str, at_ns: u64, is_call: bool) -> Option<Kernel> {
        let launch = |at: &usize| self.work(*at).and_then(|work| work.launch_ns);
        let nth = if is_call {
            self.nccl.partition_point(|at| launch(at).is_some_and(|(_, end)| end < at_ns))
        } else {
            let after = self.nccl.partition_point(|at| launch(at).is_some_and(|(begin, _)| begin <= at_ns));
            after.checked_sub(1)?
        };
        let at = *self.nccl.get(nth)?;
        let work = *self.work(at)?;
        let (begin, end) = work.launch_ns?;
        let apart = if is_call { begin.saturating_sub(at_ns) } else { at_ns.saturating_sub(end) };
        if apart > SLACK_NS || !runs(self.trace.name(&work), function) {
            return None;
        }
        let found = self.found.get_mut(nth)?;
        // Ops that were launched together were recorded at one moment. Calls of a group have moments of their
        // own.
        if found.is_some_and(|found| found != at_ns) && !is_call {
            return None;
        }
        *found = Some(at_ns);
        Some(Kernel { at, work })
    }

    /// Makes the next node, with this number, of what was launched before this time. NCCL's own kernels are
    /// left out. The node waits for those before it on its stream, and for nodes of communication that were
    /// launched before it and had ended when it began.
    pub(super) fn next_before(&mut self, kernel: Option<&Kernel>, at_ns: u64, id: u64) -> Option<Node> {
        let until = kernel.map_or(at_ns, |kernel| kernel.work.launched_ns());
        loop {
            let work = *self.work(self.next).filter(|work| work.launched_ns() < until)?;
            self.next += 1;
            let name = self.trace.name(&work);
            if is_nccl(name) {
                continue;
            }
            let name = name.to_owned();
            self.nodes += 1;
            let on_stream = self.streams.insert(work.stream, (None, vec![id]));
            let data_deps = on_stream.map(|(_, last)| last).unwrap_or_default();
            let waits = before(&self.communicated, work.begin_ns)
                .filter(|id| self.told.insert(work.stream, *id) != Some(*id))
                .filter(|id| !data_deps.contains(id));
            keep(&mut self.computed, Ended { id, end_ns: work.end_ns.max(work.begin_ns) });
            let duration_ns = work.end_ns.saturating_sub(work.begin_ns);
            return Some(Node {
                id,
                name,
                kind: NodeType::Compute.into(),
                ctrl_deps: waits.into_iter().collect(),
                data_deps,
                start_time_micros: work.begin_ns / 1000,
                duration_micros: micros(duration_ns),
                attributes: vec![
                    Attribute::new("is_cpu_op", AttributeValue::Flag(false)),
                    Attribute::new("duration_ns", AttributeValue::Uint64(duration_ns)),
                    Attribute::new("trace_stream", AttributeValue::Uint64(work.stream.into())),
                ],
            });
        }
    }

    /// Returns the nodes that a node of communication with this kernel waits for: those before it on its
    /// stream, which is proven, and the last that had ended when it began.
    pub(super) fn waits(&self, kernel: &Kernel) -> (Vec<u64>, Option<u64>) {
        let stream = self.streams.get(&kernel.work.stream);
        // Nodes of one kernel do not wait for each other.
        let on_stream = stream.filter(|(of, _)| *of != Some(kernel.at)).map(|(_, last)| last.clone());
        (on_stream.unwrap_or_default(), before(&self.computed, kernel.work.begin_ns))
    }

    /// Notes the number of a node of communication.
    pub(super) fn communicated(&mut self, id: u64, kernel: &Kernel) {
        keep(&mut self.communicated, Ended { id, end_ns: kernel.work.end_ns });
        let stream = kernel.work.stream;
        match self.streams.get_mut(&stream) {
            Some((of, last)) if *of == Some(kernel.at) => last.push(id),
            _ => {
                self.streams.insert(stream, (Some(kernel.at), vec![id]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_by_their_names() {
        for (kernel, function, is_it) in [
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "AllReduce", true),
            ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgs)", "Reduce", false),
            ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "Recv", true),
            ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "AllReduce", false),
            ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "Broadcast", true),
            (
                "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
                "AllReduce",
                true,
            ),
        ] {
            assert!(is_nccl(kernel));
            assert_eq!(runs(kernel, function), is_it, "{kernel} {function}");
        }
        assert!(!is_nccl("void at::native::vectorized_elementwise_kernel<4>"));
    }
}
