//! What the GPUs do, out of the file that the environment variable `NVML_DOUBLE_STATES` names: 32 slots of
//! twenty-four 64-bit words. Words 8 to 15 are written by tests, the others by the bed
//! (`tests/bed/src/emulator/gpu_states.rs` has the same numbers). Without the file nothing of this is supported, as
//! for NCCL in the bed itself.
//!
//! With `NVML_DOUBLE_HANGS` set, no question about a GPU's use is ever answered, as by a driver that hangs.

use std::ffi::{c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};
use std::fs::File;
use std::io::Read as _;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{DEVICES, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, SUCCESS, index_of, put, put_text};

const INSUFFICIENT_SIZE: c_int = 7;
const WORDS: usize = 24;
/// A kernel that ended this long ago still shows: NVML's numbers are of the last 1/6 to 1 s.
const PERIOD: u64 = 300_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    pid: u64,
    running: u64,
    ended: u64,
    sent: u64,
    received: u64,
    computes: u64,
    xid: u64,
    /// Blocks of the kernels that run, and their warps in the upper half.
    shape: u64,
    /// What GPM's metrics are told to be now: graphics, SM, occupancy, tensor and DRAM activity, in hundredths of a
    /// percent, plus one; 0: what kernels make of them.
    told: [u64; 5],
    /// Bytes sent and received over PCIe.
    pcie: [u64; 2],
    /// Nanoseconds in which kernels ran until now, where they are counted: the program's, and NCCL's.
    done: Option<[u64; 2]>,
    read_ns: u64,
}

/// What a matrix product takes of a Hopper, in percent, in the order of `told`.
const COMPUTING: [f64; 5] = [100.0, 86.0, 14.0, 78.0, 16.0];
/// What a kernel of NCCL with one channel takes: one of 132 multiprocessors.
const COMMUNICATING: [f64; 5] = [100.0, 0.76, 0.2, 0.0, 1.0];

/// The error that a GPU had last; 0: none.
pub(super) fn xid(index: usize) -> Option<u64> {
    Some(state(super::handle(index))?.xid)
}

pub(super) fn state(device: *mut c_void) -> Option<State> {
    if std::env::var_os("NVML_DOUBLE_HANGS").is_some() {
        loop {
            thread::sleep(Duration::from_secs(3600));
        }
    }
    let index = index_of(device)?;
    let mut bytes = Vec::new();
    let file = File::open(std::env::var_os("NVML_DOUBLE_STATES")?).ok()?;
    file.take((DEVICES * WORDS * 8) as u64).read_to_end(&mut bytes).ok()?;
    let read_ns = now();
    let slot = bytes.get(index * WORDS * 8..)?;
    let word =
        |number: usize| Some(u64::from_le_bytes(slot.get(8 * number..8 * number + 8)?.try_into().ok()?));
    Some(State {
        pid: word(0)?,
        running: word(1)?,
        ended: word(2)?,
        sent: word(3)?,
        received: word(4)?,
        computes: word(5)?,
        xid: word(6)?,
        shape: word(7)?,
        told: [word(8)?, word(9)?, word(10)?, word(11)?, word(12)?],
        pcie: [word(13)?, word(14)?],
        done: (word(16)? != 0).then_some([done(word(17)?, read_ns.min(word(19)?)), done(word(18)?, read_ns)]),
        read_ns,
    })
}

/// What a word of the bed says at this time: with the lowest bit, kernels run, and the time is to be added.
fn done(word: u64, now_ns: u64) -> u64 {
    let running = if word & 1 == 1 { now_ns } else { 0 };
    (word >> 1).wrapping_add(running) & (u64::MAX >> 1)
}

impl State {
    /// Percent in which kernels ran, and in which memory was used.
    fn used(self) -> (c_uint, c_uint) {
        // A process that is gone has no kernels.
        if !self.is_alive() {
            return (0, 0);
        }
        let is_recent = self.ended > 0 && now().saturating_sub(self.ended) < PERIOD;
        let busy = self.running > 0 || is_recent;
        (if busy { 99 } else { 0 }, if busy { c_uint::try_from(self.computes).unwrap_or(0) } else { 0 })
    }

    /// Percent of the multiprocessors with a kernel, and of the places for warps that are taken.
    pub(super) fn taken(self) -> (f64, f64) {
        const MULTIPROCESSORS: f64 = 132.0;
        const WARPS: f64 = 64.0;
        let shape = if self.is_alive() { self.shape } else { 0 };
        let half = |bits: u64| f64::from(u32::try_from(bits & 0xffff_ffff).unwrap_or(0));
        let blocks = half(shape).min(MULTIPROCESSORS);
        (100.0 * blocks / MULTIPROCESSORS, 100.0 * half(shape >> 32) / WARPS / MULTIPROCESSORS)
    }

    /// Percent of the memory's time that is used.
    pub(super) fn memory(self) -> f64 {
        f64::from(self.used().1)
    }

    /// What this metric (in the order of `told`) is told to be, in percent.
    pub(super) fn told(self, metric: usize) -> Option<f64> {
        let hundredths = self.told.get(metric)?.checked_sub(1)?;
        Some(f64::from(u32::try_from(hundredths).ok()?) / 100.0)
    }

    /// What this metric was since an earlier state, in percent, by the time in which kernels ran.
    pub(super) fn counted(self, earlier: Self, metric: usize) -> Option<f64> {
        let time = self.read_ns.checked_sub(earlier.read_ns).filter(|time| *time > 0)?;
        let (done, before) = (self.done?, earlier.done?);
        if !self.is_alive() {
            return Some(0.0);
        }
        #[expect(clippy::cast_precision_loss, reason = "a share of some seconds")]
        let [computed, communicated] =
            [0, 1].map(|of: usize| done[of].saturating_sub(before[of]) as f64 / time as f64);
        Some((computed * COMPUTING.get(metric)? + communicated * COMMUNICATING.get(metric)?).min(100.0))
    }

    /// Bytes over PCIe: sent, received.
    pub(super) fn pcie(self) -> [u64; 2] {
        self.pcie
    }

    fn is_alive(self) -> bool {
        // What anybody may read: whoever asks may have no rights over the process. A zombie is gone.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        self.pid != 0 && state.is_some_and(|state| state != 'Z' && state != 'X')
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
fn now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// `nvmlUtilization_t`
#[repr(C)]
#[derive(Debug)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlProcessInfo_v2_t`
#[repr(C)]
#[derive(Debug)]
pub struct ProcessInfo {
    pid: c_uint,
    memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// `nvmlProcessUtilizationSample_t`
#[repr(C)]
#[derive(Debug)]
pub struct ProcessSample {
    pid: c_uint,
    time: c_ulonglong,
    sm: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
}

/// `nvmlFieldValue_t`
#[repr(C)]
#[derive(Debug)]
pub struct FieldValue {
    field: c_uint,
    scope: c_uint,
    time: c_longlong,
    latency: c_longlong,
    value_type: c_uint,
    answer: c_uint,
    value: u64,
}

/// # Safety
/// As in NVML: `used` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(device: *mut c_void, used: *mut Utilization) -> c_int {
    let Some(state) = state(device) else { return NOT_SUPPORTED };
    let (gpu, memory) = state.used();
    // SAFETY: the caller's pointer.
    unsafe { put(used, Utilization { gpu, memory }) }
}

/// Writes one entry into a list of NVML's.
///
/// # Safety
/// As in NVML: `count` is null or says how many entries `list` has room for.
unsafe fn put_one<T>(list: *mut T, count: *mut c_uint, entry: T) -> c_int {
    if count.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and the caller's.
    let room = unsafe { count.replace(1) };
    if room < 1 || list.is_null() {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: there is room for one.
    unsafe { put(list, entry) }
}

/// # Safety
/// As in NVML: `count` is null or says how many entries `list` has room for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: *mut c_void,
    count: *mut c_uint,
    list: *mut ProcessInfo,
) -> c_int {
    let Some(state) = state(device) else { return NOT_SUPPORTED };
    if !state.is_alive() {
        // SAFETY: the caller's pointer.
        return unsafe { put(count, 0) };
    }
    let pid = c_uint::try_from(state.pid).unwrap_or(0);
    let entry =
        ProcessInfo { pid, memory: 1 << 30, gpu_instance: c_uint::MAX, compute_instance: c_uint::MAX };
    // SAFETY: the caller's pointers.
    unsafe { put_one(list, count, entry) }
}

/// # Safety
/// As in NVML: `count` is null or says how many entries `list` has room for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: *mut c_void,
    list: *mut ProcessSample,
    count: *mut c_uint,
    _since: c_ulonglong,
) -> c_int {
    let Some(state) = state(device) else { return NOT_SUPPORTED };
    let (sm, memory) = state.used();
    if sm == 0 {
        return NOT_FOUND;
    }
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
    let entry = ProcessSample {
        pid: c_uint::try_from(state.pid).unwrap_or(0),
        time: c_ulonglong::try_from(time).unwrap_or(0),
        sm,
        memory,
        encoder: 0,
        decoder: 0,
    };
    // SAFETY: the caller's pointers.
    unsafe { put_one(list, count, entry) }
}

/// NVLink's bytes of all links (138, 139), in KiB; PCIe's (197, 198) in bytes, of which there are 32 bits.
///
/// # Safety
/// As in NVML: `values` has `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: *mut c_void,
    count: c_int,
    values: *mut FieldValue,
) -> c_int {
    const UNSIGNED_INT: c_uint = 1;
    const UNSIGNED_LONG_LONG: c_uint = 3;
    let Some(state) = state(device) else { return NOT_SUPPORTED };
    for number in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: one of the caller's entries.
        let value = unsafe { &mut *values.add(number) };
        let known = match value.field {
            138 => Some(state.sent >> 10),
            139 => Some(state.received >> 10),
            197 => Some(state.pcie[0] & u64::from(u32::MAX)),
            198 => Some(state.pcie[1] & u64::from(u32::MAX)),
            _ => None,
        };
        let is_short = matches!(value.field, 197 | 198);
        value.answer = if known.is_some() { 0 } else { NOT_SUPPORTED.unsigned_abs() };
        value.value_type = if is_short { UNSIGNED_INT } else { UNSIGNED_LONG_LONG };
        value.value = known.unwrap_or(0);
    }
    SUCCESS
}

/// # Safety
/// As in NVML: `uuid` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: *mut c_void, uuid: *mut c_char, length: c_uint) -> c_int {
    let Some(index) = index_of(device) else { return INVALID_ARGUMENT };
    let text = format!("GPU-00000000-0000-0000-0000-{index:012x}\0");
    match std::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
        // SAFETY: the caller's buffer.
        Ok(text) => unsafe { put_text(uuid, length, text) },
        Err(_) => INVALID_ARGUMENT,
    }
}

/// # Safety
/// As in NVML: `milliwatts` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(device: *mut c_void, milliwatts: *mut c_uint) -> c_int {
    let Some(state) = state(device) else { return NOT_SUPPORTED };
    // SAFETY: the caller's pointer.
    unsafe { put(milliwatts, if state.used().0 > 0 { 350_000 } else { 75_000 }) }
}

/// # Safety
/// As in NVML: `milliwatts` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(
    _device: *mut c_void,
    milliwatts: *mut c_uint,
) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(milliwatts, 700_000) }
}
