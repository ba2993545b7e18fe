//! The kernel side of ncclflow: one program, in three record sizes and for two kinds of buffer, that runs the fetch plan of
//! the probe that was hit.
//!
//! It knows nothing of NCCL. A uprobe program can be preempted by another task's on the same CPU, so a record is built in
//! room that is its own ([`output`]), and counters are atomic.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![allow(internal_features, reason = "atomics: see tally::count")]

/// What both sides must agree on, as source and not as a dependency: cargo hashes the absolute path of a dependency outside
/// the workspace into every symbol's name, and the object would differ from machine to machine.
#[path = "../../common/src/lib.rs"]
#[allow(dead_code, unused_imports, reason = "some of it is for user space")]
mod common;
mod emit;
mod fetch;
mod maps;
mod output;
mod tally;

use aya_ebpf::{macros::uprobe, programs::ProbeContext};
use common::RECORD_CLASSES;
use output::{PerfArray, RingBuffer};

#[uprobe]
pub fn fetch_small(ctx: ProbeContext) -> u32 {
    emit::record::<RingBuffer, { RECORD_CLASSES[0].size }>(&ctx);
    0
}

#[uprobe]
pub fn fetch_medium(ctx: ProbeContext) -> u32 {
    emit::record::<RingBuffer, { RECORD_CLASSES[1].size }>(&ctx);
    0
}

#[uprobe]
pub fn fetch_large(ctx: ProbeContext) -> u32 {
    emit::record::<RingBuffer, { RECORD_CLASSES[2].size }>(&ctx);
    0
}

#[uprobe]
pub fn fetch_small_perf(ctx: ProbeContext) -> u32 {
    emit::record::<PerfArray, { RECORD_CLASSES[0].size }>(&ctx);
    0
}

#[uprobe]
pub fn fetch_medium_perf(ctx: ProbeContext) -> u32 {
    emit::record::<PerfArray, { RECORD_CLASSES[1].size }>(&ctx);
    0
}

#[uprobe]
pub fn fetch_large_perf(ctx: ProbeContext) -> u32 {
    emit::record::<PerfArray, { RECORD_CLASSES[2].size }>(&ctx);
    0
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier refuses an endless loop, so an object from which a panic can be reached does not load.
    loop {}
}

/// bpf_ringbuf and the probe_read helpers are for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
