//! Prepares the kernel for the first link.

use std::{os::fd::AsRawFd as _, thread};

use anyhow::Result;
use aya::{
    Ebpf,
    programs::{ProgramError, UProbe, uprobe::UProbeScope},
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// An object with one program, `idle`, which does nothing: `ebpf/obj/idle.o`, checked by `build.rs`.
static IDLE: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/idle.o"));

/// Makes and removes a uprobe, in a thread of its own, while the object is loaded. The first uprobe of a
/// while waits for an RCU grace period (of `dup_mmap_sem`, kernel/events/uprobes.c); those that soon
/// follow do not. This one is on a file that nobody maps, so no process gets a breakpoint. If it fails,
/// the first link only takes longer.
pub(super) fn warm_up() {
    let attach_and_detach = || -> Result<()> {
        let mut object = Ebpf::load(IDLE)?;
        let idle: &mut UProbe = object.program_mut("idle").ok_or(ProgramError::NotLoaded)?.try_into()?;
        idle.load()?;
        let file = memfd_create("ncclflow", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, 16)?;
        idle.attach([0], format!("/proc/self/fd/{}", file.as_raw_fd()), UProbeScope::CallingProcess)?;
        Ok(())
    };
    let _ = thread::Builder::new().name("ncclflow-warm-up".to_owned()).spawn(attach_and_detach);
}
