//! Every map and global of the object.

use aya_ebpf::{
    Global,
    macros::map,
    maps::{Array, PerCpuArray, RingBuf},
};

use crate::common::{FetchPlan, MAX_PROBES, ProbeCounters, WIRE_VERSION};

/// The loader sets it to its own [`WIRE_VERSION`] before the programs are loaded; where the two differ the programs
/// send nothing.
#[unsafe(no_mangle)]
static LOADER_WIRE_VERSION: Global<u32> = Global::new(WIRE_VERSION);

/// Records to user space. The loader sets the size.
#[map]
pub static RECORDS: RingBuf = RingBuf::with_byte_size(4096, 0);

/// Fetch plans by cookie.
#[map]
pub static PLANS: Array<FetchPlan> = Array::with_max_entries(MAX_PROBES, 0);

/// Counters by cookie.
#[map]
pub static COUNTERS: PerCpuArray<ProbeCounters> = PerCpuArray::with_max_entries(MAX_PROBES, 0);

/// Whether the loader speaks this object's format.
#[inline(always)]
pub fn wire_version_agrees() -> bool {
    LOADER_WIRE_VERSION.load() == WIRE_VERSION
}
