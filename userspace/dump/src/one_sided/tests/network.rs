//! The network that NCCL's proxies give operations to, in the place of a plugin.

use std::{
    collections::BTreeSet,
    ffi::c_void,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result};

use super::nccl::Made;
use nccl_library::layouts::Layouts;

/// What the network was given, by the number of its request from 1 on: target and bytes. And the requests
/// that are done.
static GIVEN: Mutex<Vec<(u32, u64)>> = Mutex::new(Vec::new());
static DONE: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn give(target: u32, bytes: usize, request: *mut usize) -> i32 {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    given.push((target, bytes as u64));
    // SAFETY: NCCL's place for the request.
    unsafe { *request = given.len() };
    0
}

#[rustfmt::skip]
unsafe extern "C" fn put(
    _: *mut c_void, _: i32, _: u64, _: *mut c_void, bytes: usize, _: u64, _: *mut c_void, target: u32,
    request: *mut usize,
) -> i32 {
    give(target, bytes, request)
}

#[rustfmt::skip]
unsafe extern "C" fn put_with_flags(
    _: *mut c_void, _: i32, _: u64, _: *mut c_void, bytes: usize, _: u64, _: *mut c_void, target: u32, _: u32,
    request: *mut usize,
) -> i32 {
    give(target, bytes, request)
}

#[rustfmt::skip]
unsafe extern "C" fn put_signal(
    _: *mut c_void, _: i32, _: u64, _: *mut c_void, bytes: usize, _: u64, _: *mut c_void, target: u32,
    _: u64, _: *mut c_void, _: u64, _: u32, _: bool, request: *mut usize,
) -> i32 {
    give(target, bytes, request)
}

#[rustfmt::skip]
unsafe extern "C" fn put_signal_with_flags(
    _: *mut c_void, _: i32, _: u64, _: *mut c_void, bytes: usize, _: u64, _: *mut c_void, target: u32,
    _: u64, _: *mut c_void, _: u64, _: u32, _: bool, _: u32, request: *mut usize,
) -> i32 {
    give(target, bytes, request)
}

unsafe extern "C" fn flush(_: *mut c_void, _: i32, _: *mut c_void, target: u32, request: *mut usize) -> i32 {
    give(target, 0, request)
}

unsafe extern "C" fn test(_: *mut c_void, request: usize, done: *mut i32) -> i32 {
    let is_done = DONE.lock().unwrap_or_else(PoisonError::into_inner).contains(&request);
    // SAFETY: NCCL's place for the answer.
    unsafe { *done = is_done.into() };
    0
}

/// Returns what the network was given: target and bytes.
pub(super) fn given() -> Vec<(u32, u64)> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Ends a request, by its number from 1 on.
pub(super) fn end(request: usize) {
    DONE.lock().unwrap_or_else(PoisonError::into_inner).insert(request);
}

/// Makes the table of the network's functions, in the place of a plugin's.
pub(super) fn table(layouts: &Layouts) -> Result<Made> {
    let later = layouts.struct_size("ncclRma_v16_t");
    let strukt = if later.is_some() { "ncclRma_v16_t" } else { "ncclRma_v14_t" };
    let table = Made::bytes(layouts.struct_size(strukt).context("no network")?)?;
    let (puts, with_signals) = match later {
        Some(_) => (put_with_flags as *const c_void, put_signal_with_flags as *const c_void),
        None => (put as *const c_void, put_signal as *const c_void),
    };
    for (name, function) in [
        ("iput", puts),
        ("iputSignal", with_signals),
        ("iget", puts),
        ("iflush", flush as *const c_void),
        ("test", test as *const c_void),
    ] {
        let field = layouts.field(strukt, name).with_context(|| format!("no {strukt}.{name}"))?;
        table.put(field.offset, 8, function as u64);
    }
    Ok(table)
}
