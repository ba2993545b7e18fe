//! Words of the target's memory.

use aya_ebpf::helpers::generated::bpf_probe_read_user;

/// Reads a word of the target's memory to a place in a map. Says whether it could be read.
#[inline(always)]
pub fn read_word(into: &mut u64, address: u64) -> bool {
    // SAFETY: it holds 8 bytes; the helper checks the address.
    unsafe { bpf_probe_read_user((&raw mut *into).cast(), 8, address as *const _) >= 0 }
}

/// A word of the target's memory; nothing where it cannot be read.
#[inline(always)]
pub fn word(address: u64) -> Option<u64> {
    let mut value = 0u64;
    // SAFETY: `value` holds 8 bytes; the helper checks the address.
    let failed = unsafe { bpf_probe_read_user((&raw mut value).cast(), 8, address as *const _) } < 0;
    if failed { None } else { Some(value) }
}
