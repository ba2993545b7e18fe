//! Our own threads, which are where the test knows.

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

use super::*;

/// The program that runs these tests stands in for NCCL's library.
fn own_inode() -> BTreeSet<u64> {
    let file = std::fs::metadata(std::env::current_exe().unwrap()).unwrap();
    BTreeSet::from([file.ino()])
}

fn find(name: &str) -> Thread {
    let process = Process::open(std::process::id()).unwrap();
    let threads = look(&process, &own_inode(), true, &mut Names::default());
    threads.into_iter().find(|thread| thread.name == name).unwrap_or_default()
}

#[inline(never)]
fn waits_inside_here(inbox: &mpsc::Receiver<()>) {
    // Nothing ever comes: it ends when the other end goes.
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
    for _ in 0..100 {
        thread = find("sleeper");
        if !thread.is_running && !thread.frames.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    drop(end);
    sleeper.join().unwrap();
    assert!(names(&thread).iter().any(|name| name.ends_with("waits_inside_here")), "{thread:#?}");
    assert!(thread.nccl_function.is_some() && thread.unknown.is_none(), "{thread:#?}");
}

#[test]
fn a_thread_that_spins_is_sampled_and_goes_on() {
    let flag = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&flag);
    let spinner =
        thread::Builder::new().name("spinner".into()).spawn(move || spins_inside_here(&seen)).unwrap();
    let mut thread = Thread::default();
    for _ in 0..50 {
        thread = find("spinner");
        if !thread.frames.is_empty()
            || thread.unknown.as_ref().is_some_and(|why| why.contains("does not sample"))
        {
            break;
        }
    }
    flag.store(true, Ordering::Relaxed);
    spinner.join().unwrap();
    // Where the kernel lets nobody sample, that is said.
    if thread.unknown.is_none() {
        assert!(names(&thread).iter().any(|name| name.contains("spins_inside_here")), "{thread:#?}");
        assert!(thread.is_running);
    }
}
