//! Looks at threads of this process, of which the test knows where they are.

use std::{
    ffi::CString,
    hint::black_box,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use test_support::{eventually, need, tool};

use super::*;

/// The program that runs these tests stands in for NCCL's library.
fn own_inode() -> BTreeSet<u64> {
    let file = std::fs::metadata(std::env::current_exe().unwrap()).unwrap();
    BTreeSet::from([file.ino()])
}

fn find(name: &str) -> Thread {
    let process = Process::open(std::process::id()).unwrap();
    let threads =
        look(&process, &own_inode(), Some(&BTreeSet::new()), &Names::default(), &Sampler::default());
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

/// Opens a shared library and returns these functions of it.
fn open(library: &Path, functions: [&std::ffi::CStr; 2]) -> [extern "C" fn(); 2] {
    let path = CString::new(library.as_os_str().as_bytes()).unwrap();
    // SAFETY: loads a library that the test has made, which runs nothing when it is loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null());
    functions.map(|name| {
        // SAFETY: the handle is that of the loaded library, and the name ends with a zero.
        let function = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!function.is_null(), "{name:?}");
        // SAFETY: both functions of the library take nothing and return nothing.
        unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(function) }
    })
}

/// A thread on a stack of its own, which calls a function, and waits.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod on_own_stack {
    use super::*;

    const STACK: usize = 1 << 20;
    const GUARD: usize = 4096;

    // The library's code is not what its first word points to: so threads of C++ tell who started them.
    #[repr(C)]
    struct Work {
        tell: mpsc::Sender<u32>,
        ends: mpsc::Receiver<()>,
        call: extern "C" fn(),
    }

    extern "C" fn run(work: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the box that `start` has given away.
        let Work { tell, ends, call } = *unsafe { Box::from_raw(work.cast::<Work>()) };
        call();
        tell.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
        // It ends when the other end goes.
        ends.recv().unwrap_err();
        std::ptr::null_mut()
    }

    /// Starts the thread; returns its number. It ends when `ends` has no other end any more.
    pub(super) fn start(call: extern "C" fn(), ends: mpsc::Receiver<()>) -> (libc::pthread_t, u32) {
        let (tell, told) = mpsc::channel();
        let work = Box::into_raw(Box::new(Work { tell, ends, call }));
        // SAFETY: a new mapping, of which the middle may be used: what is beside it belongs to no stack. Attributes
        // are initialised before they are used; the thread is joined, and the stack is never unmapped.
        let thread = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let all = libc::mmap(std::ptr::null_mut(), STACK + 2 * GUARD, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(all, libc::MAP_FAILED);
            let stack = all.byte_add(GUARD);
            assert_eq!(libc::mprotect(stack, STACK, libc::PROT_READ | libc::PROT_WRITE), 0);
            let mut attributes = std::mem::zeroed();
            assert_eq!(libc::pthread_attr_init(&raw mut attributes), 0);
            assert_eq!(libc::pthread_attr_setstack(&raw mut attributes, stack, STACK), 0);
            let mut thread = 0;
            assert_eq!(libc::pthread_create(&raw mut thread, &raw const attributes, run, work.cast()), 0);
            thread
        };
        (thread, told.recv().unwrap())
    }
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[test]
fn a_thread_that_has_called_a_library_is_told_from_one_that_has_not_and_one_that_the_library_started() {
    const SOURCE: &str = "
        #include <pthread.h>
        #include <unistd.h>
        static __thread volatile long calls[1024];
        void call(void) { calls[0]++; }
        static void *runs(void *unused) { call(); for (;;) pause(); return unused; }
        void start(void) { pthread_t thread; pthread_create(&thread, 0, runs, 0); }
    ";
    let Some(mut compiler) = tool("cc", "CC", "cc") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("library.c"), folder.path().join("library.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let made = compiler.args(["-shared", "-fPIC", "-pthread", "-o"]).args([&library, &source]).status();
    assert!(made.unwrap().success());
    let libraries = BTreeSet::from([std::fs::metadata(&library).unwrap().ino()]);
    let own = Process::open(std::process::id()).unwrap();
    assert_eq!(callers(&own, &libraries), BTreeSet::new(), "it is not loaded");
    let [call, start] = open(&library, [c"call", c"start"]);
    start();
    let (tell, told) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let ends = Arc::new(std::sync::Mutex::new(ends));
    let thread = |calls: bool| {
        let (tell, ends) = (tell.clone(), Arc::clone(&ends));
        thread::spawn(move || {
            if calls {
                call();
            }
            tell.send((calls, rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())).unwrap();
            // It ends when the other end goes.
            ends.lock().unwrap().recv().unwrap_err();
        })
    };
    let threads = [thread(true), thread(false)];
    let numbers = [told.recv().unwrap(), told.recv().unwrap()];
    let mut expected: BTreeSet<u32> =
        numbers.iter().filter(|(calls, _)| *calls).map(|(_, tid)| *tid).collect();
    // The C library keeps threads with given stacks apart.
    let (end_other, ends_other) = mpsc::channel();
    let (other, number) = on_own_stack::start(call, ends_other);
    expected.insert(number);
    let mut found = BTreeSet::new();
    // Other tests of this program start and end threads meanwhile.
    let is_found = eventually(Duration::from_secs(30), || {
        found = callers(&own, &libraries);
        found == expected
    });
    drop((end, end_other));
    for thread in threads {
        thread.join().unwrap();
    }
    // SAFETY: a thread that was started, and is joined once.
    unsafe { libc::pthread_join(other, std::ptr::null_mut()) };
    assert!(is_found, "{found:?} instead of {expected:?}");
}
