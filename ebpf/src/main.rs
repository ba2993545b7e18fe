//! The kernel side of ncclflow: one program, in three record sizes, that runs the fetch plan of the probe
//! that was hit, one that does so at a function's return, and one that walks lists in the target's memory and
//! runs a plan for each node. Two of them also walk the call stack of the thread, in programs of their own: who
//! wants no stacks does not load them.
//!
//! It knows nothing of NCCL. A uprobe program can be preempted by another task's on the same CPU, so a record
//! is built in room that is its own, and counters are atomic.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![allow(internal_features, reason = "atomics: see tally::count")]

/// What both sides must agree on, as source and not as a dependency: cargo hashes the absolute path of a
/// dependency outside the workspace into every symbol's name, and the object would differ from machine to
/// machine.
#[path = "../../common/src/lib.rs"]
#[allow(dead_code, unused_imports, reason = "some of it is for user space")]
mod common;
mod emit;
mod fetch;
mod gates;
mod maps;
mod native;
mod output;
mod pack;
mod python;
mod scratch;
mod sent;
mod share;
mod short;
mod state;
mod tally;
mod user;
mod walk;

use aya_ebpf::{
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};

use crate::emit::Origin;

#[uprobe(multi)]
pub fn fetch_record(ctx: ProbeContext) -> u32 {
    emit::record(&ctx, Origin::here());
    0
}

#[uprobe(multi)]
pub fn fetch_with_stack(ctx: ProbeContext) -> u32 {
    let origin = Origin::here();
    python::record(&ctx, origin);
    emit::record(&ctx, origin);
    0
}

#[uretprobe(multi)]
pub fn fetch_return(ctx: RetProbeContext) -> u32 {
    emit::record_return(&ctx);
    0
}

#[uprobe(multi)]
pub fn walk(ctx: ProbeContext) -> u32 {
    walk::record(&ctx, Origin::here());
    0
}

#[uprobe(multi)]
pub fn walk_with_stack(ctx: ProbeContext) -> u32 {
    let origin = Origin::here();
    python::record(&ctx, origin);
    walk::record(&ctx, origin);
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
