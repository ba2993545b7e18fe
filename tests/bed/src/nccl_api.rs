//! NCCL's public functions, looked up by name. The types are those of `nccl.h`, declared here.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute;

use anyhow::{Context as _, Result, bail};

use crate::call_log::CallLog;
use crate::library::Library;
use crate::options::{DataType, Options};
use crate::runtime::stream::StreamHandle;

const UNIQUE_ID_BYTES: usize = 128;
const SUCCESS: c_int = 0;
/// `ncclSum`
const SUM: c_int = 0;

/// `ncclComm_t`
pub(crate) type CommHandle = *mut c_void;

/// `ncclUniqueId`, passed by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; UNIQUE_ID_BYTES]);

/// `ncclConfig_t` of 2.27, as far as the name.
#[repr(C)]
struct InitConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    /// `blocking` to `maxCTAs`, undefined.
    numbers: [c_int; 4],
    net_name: *const c_char,
    /// `splitShare` and `trafficClass`, undefined.
    more: [c_int; 2],
    comm_name: *const c_char,
}

type GetVersionFn = extern "C" fn(*mut c_int) -> c_int;
type GetUniqueIdFn = extern "C" fn(*mut UniqueId) -> c_int;
type CommInitRankFn = extern "C" fn(*mut CommHandle, c_int, UniqueId, c_int) -> c_int;
type CommInitRankConfigFn = extern "C" fn(*mut CommHandle, c_int, UniqueId, c_int, *mut InitConfig) -> c_int;
type GroupFn = extern "C" fn() -> c_int;
type GetErrorStringFn = extern "C" fn(c_int) -> *const c_char;
type AllReduceFn = extern "C" fn(usize, usize, usize, c_int, c_int, CommHandle, StreamHandle) -> c_int;
type AllGatherFn = extern "C" fn(usize, usize, usize, c_int, CommHandle, StreamHandle) -> c_int;
type ReduceFn = extern "C" fn(usize, usize, usize, c_int, c_int, c_int, CommHandle, StreamHandle) -> c_int;
type BcastFn = extern "C" fn(usize, usize, c_int, c_int, CommHandle, StreamHandle) -> c_int;
type SendFn = extern "C" fn(usize, usize, c_int, c_int, CommHandle, StreamHandle) -> c_int;
/// `NCCL_SPLIT_NOCOLOR`.
const NO_COLOUR: c_int = -1;

type CommSplitFn = extern "C" fn(CommHandle, c_int, c_int, *mut CommHandle, *mut c_void) -> c_int;
pub(crate) type CommFn = extern "C" fn(CommHandle) -> c_int;

#[derive(Debug)]
pub(crate) struct Api {
    get_version: GetVersionFn,
    get_unique_id: GetUniqueIdFn,
    comm_init_rank: CommInitRankFn,
    comm_init_rank_config: Option<CommInitRankConfigFn>,
    comm_split: Option<CommSplitFn>,
    comm_finalize: CommFn,
    comm_destroy: CommFn,
    comm_abort: CommFn,
    group_start: GroupFn,
    group_end: GroupFn,
    get_error_string: GetErrorStringFn,
    all_reduce: AllReduceFn,
    all_gather: AllGatherFn,
    reduce_scatter: AllReduceFn,
    broadcast: AllReduceFn,
    reduce: ReduceFn,
    send: SendFn,
    recv: SendFn,
    all_to_all: Option<AllGatherFn>,
    bcast: BcastFn,
    log: CallLog,
}

/// Buffers, number of elements and type of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffers {
    pub(crate) send: usize,
    pub(crate) recv: usize,
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
}

impl Api {
    pub(crate) fn load(library: &Library, log: CallLog) -> Result<Self> {
        /// Looks up a function by its documented name and signature.
        macro_rules! function {
            ($name:literal: $signature:ty) => {{
                let address = library.export($name)?;
                // SAFETY: the library documents this name with this signature.
                unsafe { transmute::<usize, $signature>(address) }
            }};
        }
        let all_to_all = library.export(c"ncclAlltoAll").ok().map(|address| {
            // SAFETY: as above; since NCCL 2.28.
            unsafe { transmute::<usize, AllGatherFn>(address) }
        });
        let comm_init_rank_config = library.export(c"ncclCommInitRankConfig").ok().map(|address| {
            // SAFETY: as above; since NCCL 2.14.
            unsafe { transmute::<usize, CommInitRankConfigFn>(address) }
        });
        let comm_split = library.export(c"ncclCommSplit").ok().map(|address| {
            // SAFETY: as above; since NCCL 2.18.
            unsafe { transmute::<usize, CommSplitFn>(address) }
        });
        Ok(Self {
            comm_init_rank_config,
            comm_split,
            get_version: function!(c"ncclGetVersion": GetVersionFn),
            get_unique_id: function!(c"ncclGetUniqueId": GetUniqueIdFn),
            comm_init_rank: function!(c"ncclCommInitRank": CommInitRankFn),
            comm_finalize: function!(c"ncclCommFinalize": CommFn),
            comm_destroy: function!(c"ncclCommDestroy": CommFn),
            comm_abort: function!(c"ncclCommAbort": CommFn),
            group_start: function!(c"ncclGroupStart": GroupFn),
            group_end: function!(c"ncclGroupEnd": GroupFn),
            get_error_string: function!(c"ncclGetErrorString": GetErrorStringFn),
            all_reduce: function!(c"ncclAllReduce": AllReduceFn),
            all_gather: function!(c"ncclAllGather": AllGatherFn),
            reduce_scatter: function!(c"ncclReduceScatter": AllReduceFn),
            broadcast: function!(c"ncclBroadcast": AllReduceFn),
            reduce: function!(c"ncclReduce": ReduceFn),
            send: function!(c"ncclSend": SendFn),
            recv: function!(c"ncclRecv": SendFn),
            all_to_all,
            bcast: function!(c"ncclBcast": BcastFn),
            log,
        })
    }

    /// Makes a call and logs it; an error if it fails.
    fn call(&self, what: &'static str, call: impl FnOnce() -> c_int) -> Result<()> {
        self.check(what, self.log.call(what, call))
    }

    fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let text = (self.get_error_string)(code);
        let text = if text.is_null() {
            "unknown".into()
        } else {
            // SAFETY: NCCL returns a static C string.
            unsafe { CStr::from_ptr(text) }.to_string_lossy()
        };
        bail!("{what}: {text} ({code})")
    }

    /// Major, minor, patch.
    pub(crate) fn version(&self) -> Result<[u32; 3]> {
        let mut code = 0;
        self.check("ncclGetVersion", (self.get_version)(&raw mut code))?;
        let code = u32::try_from(code)?;
        Ok([code / 10_000, code / 100 % 100, code % 100])
    }

    pub(crate) fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; UNIQUE_ID_BYTES]);
        self.check("ncclGetUniqueId", (self.get_unique_id)(&raw mut id))?;
        Ok(id)
    }

    pub(crate) fn comm_init_rank(&self, options: &Options, id: UniqueId, rank: u32) -> Result<CommHandle> {
        let mut comm = std::ptr::null_mut();
        let (rank, ranks) = options.called(rank);
        let (ranks, rank) = (c_int::try_from(ranks)?, c_int::try_from(rank)?);
        if let Some(name) = &options.comm_name {
            let init = self.comm_init_rank_config.context("no ncclCommInitRankConfig")?;
            // NCCL keeps the address.
            let name = CString::new(name.as_str())?.into_raw();
            let mut config = InitConfig {
                size: size_of::<InitConfig>(),
                magic: 0xcafe_beef,
                version: 22_700,
                numbers: [c_int::MIN; 4],
                net_name: std::ptr::null(),
                more: [c_int::MIN; 2],
                comm_name: name,
            };
            self.call("ncclCommInitRankConfig", || init(&raw mut comm, ranks, id, rank, &raw mut config))?;
            return Ok(comm);
        }
        self.call("ncclCommInitRank", || (self.comm_init_rank)(&raw mut comm, ranks, id, rank))?;
        Ok(comm)
    }

    /// Splits a communicator: the ranks of this colour have a new one, those without a colour none.
    pub(crate) fn comm_split(&self, comm: CommHandle, colour: Option<u32>, rank: u32) -> Result<CommHandle> {
        let split = self.comm_split.context("no ncclCommSplit")?;
        let colour = colour.map_or(Ok(NO_COLOUR), c_int::try_from)?;
        let (mut new, key) = (std::ptr::null_mut(), c_int::try_from(rank)?);
        self.call("ncclCommSplit", || split(comm, colour, key, &raw mut new, std::ptr::null_mut()))?;
        Ok(new)
    }

    pub(crate) fn comm_finalize(&self, comm: CommHandle) -> Result<()> {
        self.call("ncclCommFinalize", || (self.comm_finalize)(comm))
    }

    pub(crate) fn comm_destroy(&self, comm: CommHandle) -> Result<()> {
        self.call("ncclCommDestroy", || (self.comm_destroy)(comm))
    }

    /// `ncclCommAbort`, for threads that may outlive everything else.
    pub(crate) fn abort_function(&self) -> CommFn {
        self.comm_abort
    }

    pub(crate) fn group_start(&self) -> Result<()> {
        self.call("ncclGroupStart", || (self.group_start)())
    }

    pub(crate) fn group_end(&self) -> Result<()> {
        self.call("ncclGroupEnd", || (self.group_end)())
    }

    pub(crate) fn all_reduce(&self, on: Buffers, comm: CommHandle, stream: StreamHandle) -> Result<()> {
        self.call("ncclAllReduce", || {
            (self.all_reduce)(on.send, on.recv, on.count, on.dtype.nccl(), SUM, comm, stream)
        })
    }

    pub(crate) fn all_gather(&self, on: Buffers, comm: CommHandle, stream: StreamHandle) -> Result<()> {
        let dtype = on.dtype.nccl();
        self.call("ncclAllGather", || (self.all_gather)(on.send, on.recv, on.count, dtype, comm, stream))
    }

    pub(crate) fn reduce_scatter(&self, on: Buffers, comm: CommHandle, stream: StreamHandle) -> Result<()> {
        self.call("ncclReduceScatter", || {
            (self.reduce_scatter)(on.send, on.recv, on.count, on.dtype.nccl(), SUM, comm, stream)
        })
    }

    pub(crate) fn broadcast(
        &self,
        on: Buffers,
        root: u32,
        comm: CommHandle,
        stream: StreamHandle,
    ) -> Result<()> {
        let root = c_int::try_from(root)?;
        self.call("ncclBroadcast", || {
            (self.broadcast)(on.send, on.recv, on.count, on.dtype.nccl(), root, comm, stream)
        })
    }

    pub(crate) fn reduce(
        &self,
        on: Buffers,
        root: u32,
        comm: CommHandle,
        stream: StreamHandle,
    ) -> Result<()> {
        let root = c_int::try_from(root)?;
        self.call("ncclReduce", || {
            (self.reduce)(on.send, on.recv, on.count, on.dtype.nccl(), SUM, root, comm, stream)
        })
    }

    /// Sends `on.send` to a rank.
    pub(crate) fn send(&self, on: Buffers, to: u32, comm: CommHandle, stream: StreamHandle) -> Result<()> {
        let to = c_int::try_from(to)?;
        self.call("ncclSend", || (self.send)(on.send, on.count, on.dtype.nccl(), to, comm, stream))
    }

    /// Receives `on.recv` from a rank.
    pub(crate) fn recv(&self, on: Buffers, from: u32, comm: CommHandle, stream: StreamHandle) -> Result<()> {
        let from = c_int::try_from(from)?;
        self.call("ncclRecv", || (self.recv)(on.recv, on.count, on.dtype.nccl(), from, comm, stream))
    }

    /// None where the library is older than the function.
    pub(crate) fn all_to_all(
        &self,
        on: Buffers,
        comm: CommHandle,
        stream: StreamHandle,
    ) -> Option<Result<()>> {
        let function = self.all_to_all?;
        let dtype = on.dtype.nccl();
        Some(self.call("ncclAlltoAll", || function(on.send, on.recv, on.count, dtype, comm, stream)))
    }

    /// The old broadcast in place, which calls `ncclBroadcast`.
    pub(crate) fn bcast(&self, on: Buffers, root: u32, comm: CommHandle, stream: StreamHandle) -> Result<()> {
        let root = c_int::try_from(root)?;
        self.call("ncclBcast", || (self.bcast)(on.recv, on.count, on.dtype.nccl(), root, comm, stream))
    }

    /// Calls that NCCL must refuse: one with a data type that does not exist, one without a communicator.
    pub(crate) fn invalid_calls(&self, on: Buffers, comm: CommHandle, stream: StreamHandle) -> Result<()> {
        /// No `ncclDataType_t`.
        const NO_TYPE: c_int = 99;
        for (comm, dtype) in [(comm, NO_TYPE), (std::ptr::null_mut(), on.dtype.nccl())] {
            let call = || (self.all_reduce)(on.send, on.recv, on.count, dtype, SUM, comm, stream);
            if self.log.call("ncclAllReduce", call) == SUCCESS {
                bail!("NCCL took a call that it should refuse");
            }
        }
        Ok(())
    }
}

impl DataType {
    /// `ncclDataType_t`
    fn nccl(self) -> c_int {
        match self {
            Self::Uint8 => 1,
            Self::Int32 => 2,
            Self::Int64 => 4,
            Self::Float32 => 7,
            Self::Float64 => 8,
        }
    }
}
