//! The operations of one rank: issued in groups, with a limited number in flight. Every result is checked.

use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::common_calls::{CommonCall, CommonCallKind};
use crate::data::Shape;
use crate::elsewhere;
use crate::graphs;
use crate::iterations::Iterations;
use crate::link::Report;
use crate::nccl_api::Buffers;
use crate::options::{OpKind, Options};
use crate::phases;
use crate::rank::Comm;
use crate::runtime::memory;
use crate::setup::Nccl;

/// Bytes of results that may be in flight.
const WINDOW_BYTES: usize = 64 << 20;
/// Operations that may be in flight.
const WINDOW_OPS: usize = 256;
/// Iterations that may be in flight where GPUs compute in each: a queue of kernels is full of those that compute.
const WINDOW_ITERATIONS: usize = 4;

/// An operation whose result is not checked yet.
pub(crate) struct Flight<'a> {
    shape: Shape,
    send: Buffer,
    recv: Buffer,
    comm: &'a Comm,
    mark: u64,
}

/// Memory of the emulated device. It is not freed on drop: after an error a kernel may still use it.
struct Buffer {
    address: usize,
    size: usize,
}

impl Buffer {
    fn new(size: usize) -> Result<Self> {
        let address = memory::allocate_device(size).context("out of memory")?;
        Ok(Self { address, size })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a live allocation of this size; nothing else uses it before the operation is issued and
        // after it is complete, which is when this is called.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.size) }
    }

    fn release(self) {
        memory::release(self.address);
    }
}

/// Runs all operations of `rank`. Returns early, with `report.timed_out`, when `deadline` passes.
/// With `--survive` a rank that gets an error from NCCL stays until then, as does a framework's
/// process that has not noticed.
pub(crate) fn run(
    options: &Options,
    nccl: &Nccl,
    rank: u32,
    comms: &[Comm],
    deadline: Instant,
    report: &mut Report,
) -> Result<()> {
    if let Some(file) = &options.graphs {
        return graphs::run(options, file, nccl, rank, comms);
    }
    match run_all(options, nccl, rank, comms, deadline, report) {
        Err(error) if options.survive => {
            crate::say(&format!("rank {rank}: {error:#}; stays"));
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            report.timed_out = true;
            Ok(())
        }
        result => result,
    }
}

fn run_all(
    options: &Options,
    nccl: &Nccl,
    rank: u32,
    comms: &[Comm],
    deadline: Instant,
    report: &mut Report,
) -> Result<()> {
    let of_iteration = options.ops.len() as u64;
    let total = u64::from(options.iters) * of_iteration;
    let window_ops = match options.compute_ms {
        0.0 => WINDOW_OPS,
        _ => WINDOW_ITERATIONS * options.ops.len(),
    };
    let mut iterations = Iterations::new(options, &nccl.emulator, rank)?;
    let joins = match options.absent {
        Some((absent, after)) if absent == rank => after.min(total),
        _ => total,
    };
    let mut flights: VecDeque<Flight<'_>> = VecDeque::new();
    if options.invalid_calls {
        refused(options, nccl, comms)?;
    }
    let mut next = 0;
    while next < joins {
        if Instant::now() >= deadline {
            report.timed_out = true;
            leave(flights);
            return Ok(());
        }
        let end = (next + u64::from(options.group)).min(joins);
        elsewhere::go(options, rank, next..end, deadline)?;
        let is_now = |call: &&CommonCall| call.ranks.contains(&rank) && (next..end).contains(&call.at);
        if let Some(CommonCall { call, comm, .. }) = options.makes.iter().find(is_now) {
            let comm = comms.get(*comm).context("there is no such communicator")?.handle();
            match call {
                CommonCallKind::Split => drop(nccl.api.comm_split(comm, Some(0), rank)?),
                CommonCallKind::SplitOut => drop(nccl.api.comm_split(comm, None, rank)?),
                CommonCallKind::Finalize => nccl.api.comm_finalize(comm)?,
                CommonCallKind::Destroy => nccl.api.comm_destroy(comm)?,
            }
            crate::say(&format!("rank {rank}: {call:?} has returned"));
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        }
        if options.leaves.is_some_and(|(one, at)| one == rank && (next..end).contains(&at)) {
            for comm in comms {
                // What it answers does not matter: it is gone.
                let _result = nccl.api.abort_function()(comm.handle());
            }
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        }
        if next.checked_next_multiple_of(of_iteration).is_some_and(|begin| begin < end) {
            iterations.begin(&nccl.emulator, &comms[0].stream)?;
        }
        phases::go(options, &nccl.emulator, rank, next, deadline)?;
        let stays_open = options.open_group.is_some_and(|(one, at)| one == rank && (next..end).contains(&at));
        let grouped = end - next > 1 || stays_open;
        let first_of_group = flights.len();
        if grouped {
            nccl.api.group_start()?;
        }
        for index in next..end {
            let op = options.op_at(rank, index);
            let kind = options.ops[(op % options.ops.len() as u64) as usize];
            let comm = match kind {
                _ if options.stages.is_none() => &comms[(op % comms.len() as u64) as usize],
                OpKind::SendStage | OpKind::ReturnStage => &comms[0],
                _ => &comms[comms.len() - 1],
            };
            let shape = Shape {
                kind,
                ranks: comm.ranks,
                stage: options.ranks_of_stage(),
                count: options.bytes_of(rank, op) / options.dtype.size(),
                dtype: options.dtype,
                op,
            };
            flights.push_back(issue(nccl, shape, comm)?);
        }
        if stays_open {
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        }
        if grouped {
            nccl.api.group_end()?;
        }
        for flight in flights.iter_mut().skip(first_of_group) {
            flight.mark = flight.comm.stream.mark();
        }
        report.ops = end;
        next = end;
        if options.interval_ms > 0 {
            std::thread::sleep(Duration::from_millis(options.interval_ms));
        }
        let syncs = options.sync || (options.sync_iterations && next.is_multiple_of(of_iteration));
        while (syncs && !flights.is_empty())
            || flights.len() > window_ops
            || in_flight(&flights) > WINDOW_BYTES
        {
            let Some(flight) = flights.pop_front() else { break };
            if !finish(options, flight, deadline, report) {
                leave(flights);
                return Ok(());
            }
        }
    }
    while let Some(flight) = flights.pop_front() {
        if !finish(options, flight, deadline, report) {
            leave(flights);
            return Ok(());
        }
    }
    if joins < total {
        // Absent: there until the others have given up, too.
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        report.timed_out = true;
    }
    Ok(())
}

/// Makes calls that NCCL must refuse, on every communicator.
fn refused(options: &Options, nccl: &Nccl, comms: &[Comm]) -> Result<()> {
    let buffer = Buffer::new(options.bytes)?;
    let count = options.bytes / options.dtype.size();
    let on = Buffers { send: buffer.address, recv: buffer.address, count, dtype: options.dtype };
    for comm in comms {
        let stream = std::sync::Arc::as_ptr(&comm.stream).cast_mut().cast();
        nccl.api.invalid_calls(on, comm.handle(), stream)?;
    }
    buffer.release();
    Ok(())
}

fn in_flight(flights: &VecDeque<Flight<'_>>) -> usize {
    flights.iter().map(|flight| flight.send.size + flight.recv.size).sum()
}

pub(crate) fn issue<'a>(nccl: &Nccl, shape: Shape, comm: &'a Comm) -> Result<Flight<'a>> {
    let size = shape.dtype.size();
    let mut send = Buffer::new(shape.send_elements() * size)?;
    let mut recv = Buffer::new(shape.recv_elements() * size)?;
    let rank = comm.rank;
    shape.fill(rank, send.bytes());
    let on = Buffers { send: send.address, recv: recv.address, count: shape.count, dtype: shape.dtype };
    let (api, handle) = (&nccl.api, comm.handle());
    let stream = std::sync::Arc::as_ptr(&comm.stream).cast_mut().cast();
    match shape.kind {
        OpKind::AllReduce => api.all_reduce(on, handle, stream)?,
        OpKind::AllGather => api.all_gather(on, handle, stream)?,
        OpKind::ReduceScatter => api.reduce_scatter(on, handle, stream)?,
        OpKind::Broadcast => api.broadcast(on, shape.root(), handle, stream)?,
        OpKind::Bcast => {
            if rank == shape.root() {
                recv.bytes().copy_from_slice(send.bytes());
            }
            api.bcast(on, shape.root(), handle, stream)?;
        }
        OpKind::Reduce => api.reduce(on, shape.root(), handle, stream)?,
        OpKind::SendRecv | OpKind::SendAcross | OpKind::SendStage | OpKind::ReturnStage => {
            let (to, from) = shape.peers(rank);
            let is_both = to.is_some() && from.is_some();
            if is_both {
                api.group_start()?;
            }
            if let Some(to) = to {
                api.send(on, to, handle, stream)?;
            }
            if let Some(from) = from {
                api.recv(on, from, handle, stream)?;
            }
            if is_both {
                api.group_end()?;
            }
        }
        OpKind::AllToAll => {
            if let Some(result) = api.all_to_all(on, handle, stream) {
                result?;
            } else {
                api.group_start()?;
                for peer in 0..shape.ranks {
                    let offset = peer as usize * shape.count * size;
                    let part = Buffers { send: on.send + offset, recv: on.recv + offset, ..on };
                    api.send(part, peer, handle, stream)?;
                    api.recv(part, peer, handle, stream)?;
                }
                api.group_end()?;
            }
        }
    }
    Ok(Flight { shape, send, recv, comm, mark: 0 })
}

/// Gives up operations that have not ended. Their kernels may still run, so their memory stays.
fn leave<'c>(flights: impl IntoIterator<Item = Flight<'c>>) {
    flights.into_iter().for_each(mem::forget);
}

/// Waits for an operation and checks its result; false if the deadline passed first.
fn finish(options: &Options, mut flight: Flight<'_>, deadline: Instant, report: &mut Report) -> bool {
    if !flight.comm.stream.wait(flight.mark, Some(deadline)) {
        report.timed_out = true;
        leave([flight]);
        return false;
    }
    if options.no_emulate || !options.is_consistent() {
        return true;
    }
    match flight.shape.check(flight.comm.rank, flight.recv.bytes()) {
        Ok(elements) => report.checked_elements += elements,
        Err(wrong) => report.wrong.push(wrong),
    }
    flight.send.release();
    flight.recv.release();
    true
}
