//! NCCL's proxies in this process, on structs that are made up by the library's layouts.

use std::{
    ffi::{CString, c_void},
    path::Path,
};

use super::network;
use anyhow::{Context as _, Result, ensure};
use nccl_library::{
    elf::Image,
    layouts::Layouts,
    symbols::{FunctionSpec, Request, nccl_request_of_memory, resolve},
};

const QUEUE: u64 = 8;
const CONTEXTS: u32 = 2;
/// Variable with the network's functions, which GIN's proxy calls.
const BACKEND: &str = "_ZL10rmaBackend";

/// Functions that take addresses, and give an `ncclResult_t`.
type Progress = unsafe extern "C" fn(u64) -> i32;
type ProgressOf = unsafe extern "C" fn(u64, u64) -> i32;

/// Operation that a GPU writes into a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    pub(super) op: u64,
    pub(super) bytes: u64,
}

impl Descriptor {
    pub(super) const PUT: u64 = 1;
    pub(super) const SIGNAL_INC: u64 = 8;
    pub(super) const SIGNAL_ONLY: u64 = 32;
    pub(super) const GET: u64 = 64;
    pub(super) const FLUSH: u64 = 128;

    /// Words as `buildGfd` makes them (src/include/nccl_device/gin/proxy/gin_proxy.h), version 2.
    fn words(self) -> [u64; 16] {
        let mut words = [1; 16];
        words[0] = 1 | 2 << 1 | self.bytes << 7;
        words[7] = 1 | self.op << 8;
        words
    }
}

/// Memory of a struct, or of an array of words, that lives as long as the process: NCCL keeps pointers to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made(u64);

impl Made {
    /// Zeroed memory of `malloc`, as NCCL frees some of it.
    pub(super) fn bytes(count: u64) -> Result<Self> {
        // SAFETY: only asks for memory.
        let memory = unsafe { libc::calloc(usize::try_from(count)?.max(1), 1) };
        ensure!(!memory.is_null(), "no memory");
        Ok(Self(memory as u64))
    }

    fn words(count: u32) -> Result<Self> {
        Self::bytes(8 * u64::from(count))
    }

    pub(super) fn put(self, offset: u64, size: u64, value: u64) {
        let bytes = value.to_le_bytes();
        // SAFETY: within the memory that was made, by the library's own layouts or the sizes above.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (self.0 + offset) as *mut u8, size.min(8) as usize);
        }
    }

    fn word(self, index: u32) -> u64 {
        // SAFETY: likewise.
        unsafe { ((self.0 + 8 * u64::from(index)) as *const u64).read_volatile() }
    }

    fn set_word(self, index: u32, value: u64) {
        self.put(8 * u64::from(index), 8, value);
    }
}

#[derive(Debug)]
pub(super) struct Nccl {
    pub(super) layouts: Layouts,
    gin: Progress,
    rma: ProgressOf,
    network: Made,
    comm: Made,
    shared: Made,
    n_ranks: u32,
    rank: u32,
    /// Bytes of a list's head (`ncclIntruQueue`): two pointers, from 2.31 on also a count.
    list: u64,
    /// Number of the signal of a graph's wait: the second, where a version has several.
    pub(super) signal: u32,
    gin_context: Made,
    descriptors: Vec<Made>,
    written: Vec<Vec<u64>>,
    rma_context: Made,
    queues: Made,
    in_progress: Made,
    queued: Made,
    ready: Made,
    done: Made,
    numbers: Vec<u64>,
    expected: Made,
    arrived: Made,
    graphs: Made,
    graphs_arrived: Made,
    graphs_waited: Made,
}

impl Nccl {
    pub(super) fn open(path: &Path, n_ranks: u32, rank: u32) -> Result<Self> {
        let function = |name| FunctionSpec::optional(name, &[], "");
        let mut request: Request = nccl_request_of_memory();
        request.functions =
            ["ncclGetVersion", "ncclGinProxyProgress", "ncclRmaProxyProgress"].map(function).into();
        request.variables.push(BACKEND);
        request.structs.extend(["ncclRma_v14_t", "ncclRma_v16_t"].map(str::to_owned));
        let resolution = resolve(&Image::open(path)?, &request)?;
        let name = CString::new(path.as_os_str().as_encoded_bytes())?;
        // SAFETY: a C string; the library's constructors register its kernels and do nothing else.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        ensure!(!handle.is_null(), "`{}` cannot be opened", path.display());
        // SAFETY: the handle is a library's.
        let anchor = unsafe { libc::dlsym(handle, c"ncclGetVersion".as_ptr()) } as u64;
        let of_file = |name: &str| {
            resolution
                .functions(name)
                .first()
                .map(|function| function.vaddr.0)
                .with_context(|| format!("no {name}"))
        };
        let base = anchor - of_file("ncclGetVersion")?;
        let (gin, rma) = (base + of_file("ncclGinProxyProgress")?, base + of_file("ncclRmaProxyProgress")?);
        let backend = resolution.variables.get(BACKEND).context("no variable for the network")?;
        let layouts = resolution.layouts;
        let network = network::table(&layouts)?;
        Made(base + backend.0).put(0, 8, network.0);
        // SAFETY: the functions of these names, whose declarations are the same in all versions that have
        // them (src/gin/gin_host_proxy.cc, src/include/rma/rma_proxy.h).
        let (gin, rma) = unsafe {
            (
                std::mem::transmute::<*const c_void, Progress>(gin as *const c_void),
                std::mem::transmute::<*const c_void, ProgressOf>(rma as *const c_void),
            )
        };
        let new =
            |strukt: &str| Made::bytes(layouts.struct_size(strukt).with_context(|| format!("no {strukt}"))?);
        let words = || Made::words(n_ranks);
        let list = layouts.field("ncclComm", "planner.planQueue").context("no list")?.size;
        let mut nccl = Self {
            gin,
            rma,
            network,
            comm: new("ncclComm")?,
            shared: new("ncclSharedResources")?,
            n_ranks,
            rank,
            list,
            signal: u32::from(layouts.field("ncclComm", "config.numRmaSig").is_some()),
            gin_context: new("ginProxyCtx")?,
            descriptors: Vec::new(),
            written: (0..CONTEXTS).map(|_| vec![0; n_ranks as usize]).collect(),
            rma_context: new("ncclRmaProxyCtx")?,
            queues: Made::bytes(8 * QUEUE * u64::from(n_ranks))?,
            in_progress: Made::bytes(list * u64::from(n_ranks))?,
            queued: words()?,
            ready: words()?,
            done: words()?,
            numbers: vec![0; n_ranks as usize],
            expected: Made::words(2 * n_ranks)?,
            arrived: Made::words(2 * n_ranks)?,
            graphs: Made::bytes(list * u64::from(n_ranks))?,
            graphs_arrived: Made::words(2 * n_ranks)?,
            graphs_waited: Made::words(2 * n_ranks)?,
            layouts,
        };
        nccl.make_comm()?;
        nccl.make_gin()?;
        nccl.make_rma()?;
        Ok(nccl)
    }

    fn set(&self, made: Made, strukt: &str, path: &str, value: u64) -> Result<()> {
        let field = self.layouts.field(strukt, path).with_context(|| format!("no {strukt}.{path}"))?;
        made.put(field.offset, field.size, value);
        Ok(())
    }

    fn make_comm(&self) -> Result<()> {
        let contexts = Made::words(1)?;
        contexts.set_word(0, self.rma_context.0);
        for (path, value) in [
            ("rank", self.rank.into()),
            ("nRanks", self.n_ranks.into()),
            ("rmaState.rmaProxyState.rmaProxyCtxs", contexts.0),
            ("rmaState.rmaProxyState.rmaProxyCtxCount", 1),
        ] {
            self.set(self.comm, "ncclComm", path, value)?;
        }
        if self.signal != 0 {
            self.set(self.comm, "ncclComm", "config.numRmaSig", 2)?;
        }
        self.set(self.shared, "ncclSharedResources", "owner", self.comm.0)
    }

    fn make_gin(&mut self) -> Result<()> {
        const QUEUES: &str = "ginProxyHostGpuCtx";
        let size = self.layouts.struct_size(QUEUES).context("no queues")?;
        let queues = Made::bytes(u64::from(CONTEXTS) * size)?;
        let all = QUEUE * u64::from(self.n_ranks);
        let state = self.layouts.struct_size("ginProxyGfdState").context("no state")?;
        for context in 0..u64::from(CONTEXTS) {
            let at = Made(queues.0 + context * size);
            let descriptors = Made::bytes(all * 128)?;
            self.descriptors.push(descriptors);
            for (path, value) in [
                ("contextId", context),
                ("queueSize", QUEUE),
                ("queues", descriptors.0),
                ("cis", Made::words(self.n_ranks)?.0),
                ("cisShadow", Made::words(self.n_ranks)?.0),
                ("sis", Made::words(self.n_ranks)?.0),
                ("states", Made::bytes(all * state)?.0),
                ("inlines", Made::bytes(all * 8)?.0),
            ] {
                self.set(at, QUEUES, path, value)?;
            }
        }
        let handle = Made::bytes(64)?;
        for (path, value) in [
            ("nRanks", self.n_ranks.into()),
            ("devHandle", handle.0),
            ("hostGpuCtx", queues.0),
            ("nContexts", CONTEXTS.into()),
        ] {
            self.set(self.gin_context, "ginProxyCtx", path, value)?;
        }
        let _only_some_versions = self.set(self.gin_context, "ginProxyCtx", "pollBatch", 1);
        let dev_comm = Made::bytes(self.layouts.struct_size("ncclGinStateDevComm").context("no device's")?)?;
        self.set(dev_comm, "ncclGinStateDevComm", "ginCtx[1]", self.gin_context.0)?;
        self.set(dev_comm, "ncclGinStateDevComm", "devHandles[1]", handle.0)?;
        // `NCCL_GIN_TYPE_PROXY`.
        if self.set(self.shared, "ncclSharedResources", "ginState.ginType", 2).is_err() {
            self.set(dev_comm, "ncclGinStateDevComm", "backendIndex", 1)?;
            self.set(self.shared, "ncclSharedResources", "ginState.backends[1].ginType", 2)?;
        }
        self.set(self.shared, "ncclSharedResources", "ginState.devComms", dev_comm.0)
    }

    fn make_rma(&self) -> Result<()> {
        for (path, value) in [
            ("comm", self.comm.0),
            ("queueSize", QUEUE),
            ("circularBuffers", self.queues.0),
            ("pis", self.queued.0),
            ("cis", Made::words(self.n_ranks)?.0),
            ("inProgressQueues", self.in_progress.0),
            ("readySeqs", self.ready.0),
            ("doneSeqs", self.done.0),
            ("signalsHost", self.expected.0),
            ("signalsDev", self.arrived.0),
            ("persistentQueues", self.graphs.0),
            ("cpuAccessSignals", self.graphs_arrived.0),
            ("cpuAccessSignalsHost", self.graphs_waited.0),
        ] {
            self.set(self.rma_context, "ncclRmaProxyCtx", path, value)?;
        }
        let inflight = Made::words(self.n_ranks)?;
        // Only from 2.30.7 on is there a limit.
        if self.set(self.rma_context, "ncclRmaProxyCtx", "inflightRequests", inflight.0).is_ok() {
            self.set(self.rma_context, "ncclRmaProxyCtx", "maxInflightRequests", 32)?;
        }
        Ok(())
    }

    pub(super) fn comm(&self) -> u64 {
        self.comm.0
    }

    pub(super) fn shared(&self) -> u64 {
        self.shared.0
    }

    /// Writes an operation, as a GPU does.
    pub(super) fn write(&mut self, context: usize, target: usize, descriptor: Descriptor) {
        let number = self.written[context][target];
        self.written[context][target] += 1;
        let at = 128 * (target as u64 * QUEUE + number % QUEUE);
        // The first word last: it says that the others are there.
        for (index, word) in (0..).zip(descriptor.words()).collect::<Vec<(u64, u64)>>().into_iter().rev() {
            self.descriptors[context].put(at + 8 * index, 8, word);
        }
    }

    pub(super) fn progress_gin(&self, rounds: u32) -> Result<()> {
        for _ in 0..rounds {
            // SAFETY: a context of this library's layout.
            let result = unsafe { (self.gin)(self.gin_context.0) };
            ensure!(result == 0, "ncclGinProxyProgress gave {result}");
        }
        Ok(())
    }

    pub(super) fn progress_rma(&self) -> Result<()> {
        for _ in 0..2 {
            // SAFETY: functions of a network and a context of this library's layouts.
            let result = unsafe { (self.rma)(self.network.0, self.rma_context.0) };
            ensure!(result == 0, "ncclRmaProxyProgress gave {result}");
        }
        Ok(())
    }
}

/// Calls of the program, as src/rma/rma_proxy_launch.cc queues them.
impl Nccl {
    fn descriptor(&self, fields: &[(&str, u64)]) -> Result<Made> {
        const STRUCT: &str = "ncclRmaProxyDesc";
        let made = Made::bytes(self.layouts.struct_size(STRUCT).context("no descriptor")?)?;
        self.set(made, STRUCT, "rmaDescState", 1)?;
        for (path, value) in fields {
            self.set(made, STRUCT, path, *value)?;
        }
        Ok(made)
    }

    fn queue(&mut self, slot: u32, fields: &[(&str, u64)]) -> Result<()> {
        let number = &mut self.numbers[slot as usize];
        *number += 1;
        let (number, place) = (*number, (*number - 1) % QUEUE);
        let at = |made: Made| made.0 + 8 * u64::from(slot);
        let own = [("opSeq", number), ("readySeq", at(self.ready)), ("doneSeq", at(self.done))];
        let descriptor = self.descriptor(&[fields, &own].concat())?;
        self.queues.put(8 * (u64::from(slot) * QUEUE + place), 8, descriptor.0);
        self.queued.put(4 * u64::from(slot), 4, number);
        Ok(())
    }

    pub(super) fn put(&mut self, target: u32, bytes: u64, with_signal: bool) -> Result<()> {
        self.queue(
            target,
            &[
                ("rmaDescType", 0),
                ("putSignal.size", bytes),
                ("putSignal.targetRank", target.into()),
                ("putSignal.signal.op", with_signal.into()),
            ],
        )
    }

    /// Calls puts together, with targets and bytes; `false` if the version cannot.
    pub(super) fn put_together(&mut self, puts: &[(u32, u64)]) -> Result<bool> {
        const STRUCT: &str = "ncclRmaProxyDesc";
        let Some(put) = self.layouts.field(STRUCT, "putSignal") else { return Ok(false) };
        if self.layouts.field(STRUCT, "putSignalGroup").is_none() {
            return Ok(false);
        }
        let ops = Made::bytes(put.size * puts.len() as u64)?;
        for ((target, bytes), number) in puts.iter().zip(0..) {
            // As if the put were the descriptor's own.
            let at = Made(ops.0 + number * put.size - put.offset);
            self.set(at, STRUCT, "putSignal.size", *bytes)?;
            self.set(at, STRUCT, "putSignal.targetRank", (*target).into())?;
        }
        let (count, own) = (puts.len() as u64, self.rank);
        let fields = [("rmaDescType", 2), ("putSignalGroup.nOps", count), ("putSignalGroup.ops", ops.0)];
        self.queue(own, &fields)?;
        Ok(true)
    }

    pub(super) fn stream_reaches(&self, target: u32, number: u64) {
        self.ready.set_word(target, number);
    }

    /// Number of the last put to a target that is done, by NCCL.
    pub(super) fn done_of(&self, target: u32) -> u64 {
        self.done.word(target)
    }

    /// A wait in a stream: signals that are expected of a peer, and those that came.
    pub(super) fn expect_signals(&self, peer: u32, expected: u64, arrived: u64) {
        self.expected.set_word(peer, expected);
        self.arrived.set_word(peer, arrived);
    }

    /// Puts a descriptor into the list of a graph, and has the stream come to it.
    fn in_graph(&self, slot: u32, fields: &[(&str, u64)]) -> Result<()> {
        let (ready, done) = (Made::words(1)?, Made::words(1)?);
        ready.set_word(0, 1);
        let head = Made(self.graphs.0 + u64::from(slot) * self.list);
        let own = [
            ("opSeq", 1),
            ("readySeq", ready.0),
            ("doneSeq", done.0),
            ("persistDescValid", 1),
            ("persistPlan", ready.0),
            ("next", head.word(0)),
        ];
        let descriptor = self.descriptor(&[fields, &own].concat())?;
        head.set_word(0, descriptor.0);
        Ok(())
    }

    pub(super) fn put_in_graph(&self, target: u32, bytes: u64) -> Result<()> {
        let fields = [("rmaDescType", 0), ("putSignal.size", bytes), ("putSignal.targetRank", target.into())];
        self.in_graph(target, &fields)
    }

    /// Waits for so many signals of a peer, after four that came and were waited for.
    pub(super) fn wait_in_graph(&self, peer: u32, signals: u64) -> Result<()> {
        let place = self.signal * self.n_ranks + peer;
        self.graphs_waited.set_word(place, 4);
        self.graphs_arrived.set_word(place, 4);
        let (peers, counts, numbers) = (Made::words(1)?, Made::words(1)?, Made::words(1)?);
        peers.set_word(0, peer.into());
        numbers.set_word(0, self.signal.into());
        counts.set_word(0, signals);
        let mut fields = vec![
            ("rmaDescType", 1),
            ("waitSignal.npeers", 1),
            ("waitSignal.waitPeers", peers.0),
            ("waitSignal.waitSignals", counts.0),
        ];
        if self.signal != 0 {
            fields.push(("waitSignal.waitSignalIdxs", numbers.0));
        }
        self.in_graph(self.rank, &fields)
    }

    pub(super) fn signals_of_graphs_arrive(&self, peer: u32, count: u64) {
        self.graphs_arrived.set_word(self.signal * self.n_ranks + peer, count);
    }
}

/// What a hostile program writes.
impl Nccl {
    /// Leads the list of what is in flight to rank 1 back to its first descriptor.
    pub(super) fn circle(&self) -> Result<()> {
        let first = Made(self.in_progress.0 + self.list).word(0);
        ensure!(first != 0, "nothing is in flight");
        self.set(Made(first), "ncclRmaProxyDesc", "next", first)
    }

    pub(super) fn many_contexts(&self) -> Result<()> {
        self.set(self.gin_context, "ginProxyCtx", "nContexts", 0x7fff_ffff)?;
        self.set(self.comm, "ncclComm", "rmaState.rmaProxyState.rmaProxyCtxCount", 0x7fff_ffff)
    }

    /// Where a version has their number.
    pub(super) fn many_signals(&self) -> Result<()> {
        if self.signal == 0 {
            Ok(())
        } else {
            self.set(self.comm, "ncclComm", "config.numRmaSig", 0x7fff_ffff)
        }
    }

    pub(super) fn no_queue_size(&self) -> Result<()> {
        self.set(self.rma_context, "ncclRmaProxyCtx", "queueSize", 1 << 40)
    }
}
