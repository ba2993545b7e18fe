//! Every map and global of the object.

use aya_ebpf::{
    Global,
    cty::c_void,
    helpers::bpf_get_current_pid_tgid,
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, PerfEventByteArray, RingBuf},
};

use crate::{
    common::{
        CLOSED, FetchPlan, LOSS_SLOTS, MAX_ADMITTED, MAX_PROBES, MAX_PYTHONS, MAX_RINGS, MAX_SHARERS,
        MAX_SLOT_LISTS, MAX_STACKS, MAX_TENANT_PROCESSES, MAX_TRIES, OPEN, ProbeCounters, PythonWalk,
        ReturnSlots, SCRATCH_SLOTS, SENT, Seen, SentStack, ShareTaken, WIRE_VERSION, Walk, ring_of,
    },
    state::{ScratchSlot, Slot, Stack, State},
};

/// The loader sets it to its own [`WIRE_VERSION`] before the programs are loaded; where the two differ the
/// programs send nothing.
#[unsafe(no_mangle)]
static LOADER_WIRE_VERSION: Global<u32> = Global::new(WIRE_VERSION);

/// The loader sets it to 1 if records go through the perf event array.
#[unsafe(no_mangle)]
static THROUGH_PERF: Global<u32> = Global::new(0);

/// The loader sets it to the number of ring buffers in use, a power of two.
#[unsafe(no_mangle)]
static RINGS: Global<u32> = Global::new(1);

/// The loader sets it to [`crate::common::wakeup_bytes`] of a ring buffer.
#[unsafe(no_mangle)]
static WAKEUP_BYTES: Global<u64> = Global::new(4096);

/// The loader sets it to [`crate::common::common_bytes`] of a ring buffer.
#[unsafe(no_mangle)]
static COMMON_BYTES: Global<u64> = Global::new(2048);

macro_rules! rings {
    ($($name:ident)*) => {
        $(
            /// Records to user space, where the session has so many ring buffers. The loader sets the size.
            #[map]
            pub static $name: RingBuf = RingBuf::with_byte_size(4096, 0);
        )*
    };
}

rings! { RECORDS RECORDS_1 RECORDS_2 RECORDS_3 RECORDS_4 RECORDS_5 RECORDS_6 RECORDS_7 }

/// Since when each ring buffer is more than half full; 0: it is not.
#[map]
pub static CROWDED: Array<u64> = Array::with_max_entries(MAX_RINGS, 0);

/// Bytes that a tenant may put into each ring buffer while it is; 0: as much as there is room for.
#[map]
pub static SHARES: Array<u64> = Array::with_max_entries(MAX_RINGS, 0);

/// Which tenant a process is of.
#[map]
pub static TENANTS: LruHashMap<u32, u32> = LruHashMap::with_max_entries(MAX_TENANT_PROCESSES, 0);

/// What tenants have taken, see [`crate::common::share_key`].
#[map]
pub static TAKEN: LruHashMap<u64, ShareTaken> = LruHashMap::with_max_entries(MAX_SHARERS, 0);

/// Records to user space, where the session has a perf event array: a buffer per CPU, which the loader opens.
#[map]
pub static PERF_RECORDS: PerfEventByteArray = PerfEventByteArray::new(0);

/// Where records for the perf event array are built. The loader keeps one element where there is none.
#[map]
pub static SCRATCH: PerCpuArray<ScratchSlot> = PerCpuArray::with_max_entries(SCRATCH_SLOTS, 0);

/// Where walks keep their state.
#[map]
pub static STATES: PerCpuArray<Slot<State>> = PerCpuArray::with_max_entries(SCRATCH_SLOTS, 0);

/// Fetch plans by cookie.
#[map]
pub static PLANS: Array<FetchPlan> = Array::with_max_entries(MAX_PROBES, 0);

/// Walks by cookie.
#[map]
pub static WALKS: Array<Walk> = Array::with_max_entries(MAX_PROBES, 0);

/// What the gates of walks have let through, see [`crate::common::SENT`]. One that is pushed out is sent again.
#[map]
pub static SEEN: LruHashMap<Seen, u32> = LruHashMap::with_max_entries(16_384, 0);

/// Words that plans keep from one hit to another, by thread, and by process without a thread.
#[map]
pub static KEPT: LruHashMap<u64, u64> = LruHashMap::with_max_entries(8192, 0);

/// One word: whether the session is open, and to whom. Plans never change once they are stored, as a program
/// may be in the middle of one.
#[map]
pub static ARMED: Array<u32> = Array::with_max_entries(1, 0);

/// Processes whose hits are recorded while the session is open to these alone. Before Linux 6.1 a
/// probe may not use a map that takes its memory as it grows.
#[map]
pub static ADMITTED: HashMap<u32, u32> = HashMap::with_max_entries(MAX_ADMITTED, 0);

/// Where the stacks of processes are, by process. The loader keeps the maps of stacks small where there are none.
#[map]
pub static PYTHONS: HashMap<u32, PythonWalk> = HashMap::with_max_entries(MAX_PYTHONS, 0);

/// Where CPython keeps the state of threads, by process and thread.
#[map]
pub static PYTHON_THREADS: LruHashMap<u64, u64> = LruHashMap::with_max_entries(MAX_STACKS, 0);

/// Stacks that were sent, by [`crate::state::Stack::key`]. One that is pushed out is sent again.
#[map]
pub static STACKS_SENT: LruHashMap<u64, SentStack> = LruHashMap::with_max_entries(MAX_STACKS, 0);

/// Where return addresses were in native stacks, by [`crate::common::PieceHead::key`].
#[map]
pub static RETURN_SLOTS: LruHashMap<u64, ReturnSlots> = LruHashMap::with_max_entries(MAX_SLOT_LISTS, 0);

/// When a stack of a process may be copied again, by [`crate::common::loss_slot`].
#[map]
pub static NEXT_COPY: Array<u64> = Array::with_max_entries(LOSS_SLOTS, 0);

/// Where stacks are put together.
#[map]
pub static STACKS: PerCpuArray<Slot<Stack>> = PerCpuArray::with_max_entries(SCRATCH_SLOTS, 0);

/// Counters by cookie.
#[map]
pub static COUNTERS: PerCpuArray<ProbeCounters> = PerCpuArray::with_max_entries(MAX_PROBES, 0);

/// Lost records by process, see [`crate::common::loss_slot`].
#[map]
pub static LOSSES: Array<u64> = Array::with_max_entries(LOSS_SLOTS, 0);

/// Whether records go through the perf event array.
#[inline(always)]
pub fn through_perf() -> bool {
    THROUGH_PERF.load() != 0
}

/// The number of the ring buffer of the current process.
#[inline(always)]
pub fn ring_number() -> u32 {
    ring_of((bpf_get_current_pid_tgid() >> 32) as u32, RINGS.load())
}

/// The ring buffer with this number.
#[inline(always)]
pub fn ring(number: u32) -> *mut c_void {
    let ring = match number {
        1 => &raw const RECORDS_1,
        2 => &raw const RECORDS_2,
        3 => &raw const RECORDS_3,
        4 => &raw const RECORDS_4,
        5 => &raw const RECORDS_5,
        6 => &raw const RECORDS_6,
        7 => &raw const RECORDS_7,
        _ => &raw const RECORDS,
    };
    ring.cast_mut().cast()
}

/// Unread bytes at which the reader is to be woken; not 0.
#[inline(always)]
pub fn wakeup_bytes() -> u64 {
    WAKEUP_BYTES.load()
}

/// How often this was let through, with the next time; 0: it is not let through again.
#[inline(always)]
pub fn tries(key: &Seen) -> u32 {
    // SAFETY: a live map element; an aligned word.
    match SEEN.get_ptr(key).map(|sent| unsafe { sent.read_volatile() }) {
        None => 1,
        Some(sent) if sent > SENT && sent < SENT + MAX_TRIES => sent - SENT + 1,
        Some(_) => 0,
    }
}

/// Unread bytes above which tenants have shares.
#[inline(always)]
pub fn common_bytes() -> u64 {
    COMMON_BYTES.load()
}

/// Whether hits of the current process are to be recorded: the session is open to it, and the loader speaks
/// this object's format.
#[inline(always)]
pub fn armed() -> bool {
    if LOADER_WIRE_VERSION.load() != WIRE_VERSION {
        return false;
    }
    match ARMED.get(0).copied().unwrap_or(CLOSED) {
        CLOSED => false,
        OPEN => true,
        _ => {
            let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
            ADMITTED.get_ptr(&tgid).is_some()
        }
    }
}
