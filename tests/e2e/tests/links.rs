//! Links to many uprobes and links to one: how many the kernel has of them, what is left of them, and what is
//! said when one is refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    hint::black_box,
    num::NonZeroU32,
    path::Path,
    process::{self, Command},
};

use flow::{
    session::{BufferKind, LinkKind},
    wire::ProbeKind,
};
use nccl_library::elf::FileOffset;
use ncclflow_common::FetchPlan;
use ncclflow_e2e::harness::{kernel_objects, memory::BREAKPOINT};
use test_support::{need, root};
use trace::kernel::{
    loader::{Attachment, Buffer, best_links, detach},
    probe::Probe,
};

#[inline(never)]
extern "C" fn first(value: u32) -> u32 {
    black_box(value).wrapping_mul(5)
}

#[inline(never)]
extern "C" fn second(value: u32) -> u32 {
    black_box(value).wrapping_mul(7)
}

/// Address of the instruction, and where it is in this program's file.
fn place(function: extern "C" fn(u32) -> u32) -> (usize, u64) {
    let address = function as usize;
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let offset = maps.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |text| usize::from_str_radix(text, 16).ok();
        let (start, end, offset) = (hex(start)?, hex(end)?, hex(fields.nth(1)?)?);
        (start..end).contains(&address).then(|| address - start + offset)
    });
    (address, offset.unwrap() as u64)
}

fn probe(function: &str, offset: u64) -> Probe {
    Probe {
        function: function.to_owned(),
        symbol: function.to_owned(),
        file_offset: FileOffset(offset),
        kind: ProbeKind::Head,
        plan: FetchPlan::default(),
        walk: None,
        takes_stack: false,
    }
}

fn first_byte(address: usize) -> u8 {
    // SAFETY: code of this program, which only the kernel changes, and puts back.
    unsafe { (address as *const u8).read_volatile() }
}

/// A child that is a copy of this process, breakpoints and all, runs what is probed.
fn forked_child_goes_on() {
    // SAFETY: the child computes and leaves, and takes no lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = i32::from(first(3) != 15);
        // SAFETY: ends the child without anything of the test's.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// Of this process, as the kernel has them; this is the only test here that makes any.
fn links() -> usize {
    kernel_objects::of_process(process::id()).unwrap().links.len()
}

#[test]
fn probes_go_as_they_came_and_a_refusal_leaves_none() {
    if !root() {
        return;
    }
    let kernel_has_many = best_links() == LinkKind::Multi;
    if !need("uprobe_multi", kernel_has_many, "run it on Linux 6.10 or later") {
        return;
    }
    let path = Path::new("/proc/self/exe");
    let own = NonZeroU32::new(process::id());
    let gone = Command::new("true").spawn().and_then(|mut child| child.wait().map(|_| child.id())).unwrap();
    let ((at, offset), (other_at, other_offset)) = (place(first), place(second));
    let untouched = (first_byte(at), first_byte(other_at));
    assert!(untouched.0 != BREAKPOINT && untouched.1 != BREAKPOINT);
    for (kind, expected) in [(LinkKind::Multi, 1), (LinkKind::Perf, 2)] {
        let buffer = Buffer { kind: BufferKind::Ring, bytes: 1 << 20, rings: 1 };
        let mut attachment = Attachment::new(buffer, kind, false, false).unwrap();
        let probes = [probe("first", offset), probe("second", other_offset), probe("nowhere", 1 << 40)];
        let stored: Vec<(&Probe, u32)> =
            probes.iter().map(|probe| (probe, attachment.store(probe, None, 0, own).unwrap())).collect();

        // All or none, and which one it was.
        let refused = attachment.link(&stored, path, path, own).unwrap_err().to_string();
        assert!(refused.contains("`nowhere` of `/proc/self/exe`"), "{kind:?}: {refused}");
        assert!(refused.contains(&format!("process {}", process::id())), "{kind:?}: {refused}");
        assert_eq!(links(), 0, "{kind:?}: none is left of those that were not refused");
        assert_eq!((first_byte(at), first_byte(other_at)), untouched, "{kind:?}");
        let refused =
            attachment.link(&stored[..2], path, path, NonZeroU32::new(gone)).unwrap_err().to_string();
        assert!(
            refused.contains("`first`") && refused.contains(&format!("process {gone}")),
            "{kind:?}: {refused}"
        );

        // One process, then all.
        for pid in [own, None] {
            let made = attachment.link(&stored[..2], path, path, pid).unwrap();
            assert_eq!((made.len(), links()), (expected, expected), "{kind:?}");
            assert_eq!((first_byte(at), first_byte(other_at)), (BREAKPOINT, BREAKPOINT), "{kind:?}");
            assert_eq!((first(3), second(3)), (15, 21), "what is probed goes on");
            if pid.is_some() {
                // It is another process: see the counts below.
                forked_child_goes_on();
            }
            let mut told = Vec::new();
            detach(made, |left| told.push(left));
            assert_eq!(told, if kind == LinkKind::Multi { vec![2] } else { vec![2, 1] });
            assert_eq!(links(), 0, "{kind:?}");
            assert_eq!((first_byte(at), first_byte(other_at)), untouched, "{kind:?}");
        }
        for (_, cookie) in &stored[..2] {
            let probe = &attachment.probes()[*cookie as usize];
            let counted = attachment.counters(probe).unwrap();
            // The plan is empty: such hits are counted and not recorded.
            assert_eq!(counted.iter().map(|cpu| cpu.disarmed).sum::<u64>(), 2, "{kind:?}: each hit, once");
        }
    }
}
