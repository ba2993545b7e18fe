//! Raw memory at addresses that NCCL gave, read and written without Rust's references.
//!
//! These functions are safe to call only with addresses out of NCCL's own live structures and buffers, which
//! is what a launch carries; NCCL keeps them until the kernel's stream has passed.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A little-endian unsigned number of 1, 2, 4 or 8 bytes.
pub(crate) fn read(address: usize, size: usize) -> u64 {
    // SAFETY: the module's contract; volatile, because the host and the proxy threads write too.
    unsafe {
        match size {
            1 => u64::from(ptr::read_volatile(address as *const u8)),
            2 => u64::from(ptr::read_unaligned(address as *const u16)),
            4 => u64::from(ptr::read_volatile(address as *const u32)),
            _ => ptr::read_volatile(address as *const u64),
        }
    }
}

/// Writes the low `size` bytes, 4 or 8.
pub(crate) fn write(address: usize, size: usize, value: u64) {
    // SAFETY: the module's contract.
    unsafe {
        if size == 4 {
            ptr::write_volatile(address as *mut u32, value as u32);
        } else {
            ptr::write_volatile(address as *mut u64, value);
        }
    }
}

/// A counter that another thread moves: what it wrote before is visible after.
pub(crate) fn load(address: usize) -> u64 {
    // SAFETY: the module's contract; NCCL's counters are aligned.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::Acquire)
}

/// Moves a counter that another thread reads: what was written before is visible to it.
pub(crate) fn store(address: usize, value: u64) {
    // SAFETY: the module's contract; NCCL's counters are aligned.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(value, Ordering::Release);
}

pub(crate) fn load_u32(address: usize) -> u32 {
    // SAFETY: the module's contract; aligned.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(Ordering::Acquire)
}

pub(crate) fn store_u32(address: usize, value: u32) {
    // SAFETY: the module's contract; aligned.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(value, Ordering::Release);
}

/// Moves bytes; the ranges may overlap.
pub(crate) fn copy(to: usize, from: usize, bytes: usize) {
    if bytes > 0 && to != from {
        // SAFETY: the module's contract.
        unsafe { ptr::copy(from as *const u8, to as *mut u8, bytes) };
    }
}

/// Bytes as they are now.
pub(crate) fn bytes(address: usize, length: usize) -> Vec<u8> {
    let mut all = vec![0; length];
    if length > 0 {
        // SAFETY: the module's contract.
        unsafe { ptr::copy_nonoverlapping(address as *const u8, all.as_mut_ptr(), length) };
    }
    all
}
