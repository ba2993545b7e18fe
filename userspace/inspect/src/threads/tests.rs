//! Looks at threads of this process, of which the test knows where they are.

use std::{
    hint::black_box,
    os::unix::fs::MetadataExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use test_support::{eventually, need};

use super::*;

/// The program that runs these tests stands in for NCCL's library.
fn own_inode() -> BTreeSet<u64> {
    let file = std::fs::metadata(std::env::current_exe().unwrap()).unwrap();
    BTreeSet::from([file.ino()])
}

fn find(name: &str) -> Thread {
    let process = Process::open(std::process::id()).unwrap();
    let threads = look(&process, &own_inode(), true, &Names::default(), &Sampler::default());
    threads.into_iter().find(|thread| thread.name == name).unwrap_or_default()
}

#[inline(never)]
fn waits_inside_here(inbox: &mpsc::Receiver<()>) {
    // No message ever comes: the thread ends when the other end goes.
    black_box(inbox.recv()).unwrap_err();
}

#[inline(never)]
fn spins_inside_here(flag: &AtomicBool) -> u64 {
    let mut rounds = 0;
    while !flag.load(Ordering::Relaxed) {
        rounds = black_box(rounds + 1);
    }
    rounds
}

fn names(thread: &Thread) -> Vec<&str> {
    thread.frames.iter().filter_map(|frame| frame.function.as_deref()).collect()
}

#[test]
fn a_thread_that_sleeps_is_unwound_from_where_it_entered_the_kernel() {
    let (end, inbox) = mpsc::channel();
    let sleeper =
        thread::Builder::new().name("sleeper".into()).spawn(move || waits_inside_here(&inbox)).unwrap();
    let mut thread = Thread::default();
    let is_found = eventually(Duration::from_secs(30), || {
        thread = find("sleeper");
        !thread.is_running && names(&thread).iter().any(|name| name.ends_with("waits_inside_here"))
    });
    drop(end);
    sleeper.join().unwrap();
    assert!(is_found, "{thread:#?}");
    assert!(thread.nccl_function.is_some() && thread.unknown.is_none(), "{thread:#?}");
}

/// Tells whether this kernel lets us sample our own threads, by an event of our own (perf_event_open(2)).
fn kernel_samples() -> bool {
    // `struct perf_event_attr`: a software event, the size, the task clock; no hypervisor, as `sample` asks
    // for it.
    let mut attributes = [0u32; 32];
    (attributes[0], attributes[1], attributes[2], attributes[10]) = (1, 128, 1, 1 << 6);
    // SAFETY: the kernel reads as many bytes as the second word says, and those are there.
    let event = unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 0) };
    let Ok(event) = i32::try_from(event) else { return false };
    // SAFETY: the kernel has just given this descriptor to us.
    event >= 0 && unsafe { libc::close(event) } == 0
}

#[test]
fn a_thread_that_spins_is_sampled_and_goes_on() {
    if !need("perf", kernel_samples(), "run where perf_event_open(2) is allowed") {
        return;
    }
    let flag = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&flag);
    let spinner =
        thread::Builder::new().name("spinner".into()).spawn(move || spins_inside_here(&seen)).unwrap();
    let mut thread = Thread::default();
    let is_sampled = eventually(Duration::from_secs(30), || {
        thread = find("spinner");
        thread.is_running && names(&thread).iter().any(|name| name.contains("spins_inside_here"))
    });
    let goes_on = !spinner.is_finished();
    flag.store(true, Ordering::Relaxed);
    spinner.join().unwrap();
    assert!(is_sampled && goes_on, "{thread:#?}");
    assert!(thread.unknown.is_none(), "{thread:#?}");
}
