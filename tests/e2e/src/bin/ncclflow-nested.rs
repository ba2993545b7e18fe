//! Calls NCCL from nested functions, and writes down at each call where it is: by marks of its own, and by the C
//! library's `backtrace`.
//!
//! usage: ncclflow-nested LIBRARY TRUTH GO ROUNDS [told]
//!
//! told: each of its two threads calls slowly until there is a file beside GO that says that its stacks are known:
//! `main`, then `worker`. What the first one calls from then on, until it has another place, is marked as `known`.

use std::{
    cell::RefCell,
    env,
    ffi::{CStr, CString, c_void},
    fs::{self, File},
    hint::black_box,
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    process,
    ptr::{null, null_mut},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, i32, i32, *mut c_void, *mut c_void) -> i32;

/// Frames of one stack at most.
const MOST: usize = 512;
/// Rounds with pauses between them, at least.
const SLOW_ROUNDS: u64 = 40;

thread_local! {
    static MARKS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

struct Nccl {
    all_reduce: AllReduce,
    truth: Mutex<BufWriter<File>>,
    number: AtomicU64,
    /// Beside these files others say that stacks are known.
    told: Option<PathBuf>,
    is_known: AtomicBool,
}

impl Nccl {
    fn is_told(&self, what: &str) -> bool {
        self.told.as_ref().is_none_or(|go| go.with_file_name(what).exists())
    }
}

/// Enters a function of this name, until it is dropped.
struct Inside;

impl Inside {
    fn of(name: &'static str) -> Self {
        MARKS.with_borrow_mut(|marks| marks.push(name));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        MARKS.with_borrow_mut(Vec::pop);
    }
}

/// File name of the module and function (if it is exported) of an address right after a call.
fn place(address: *mut c_void) -> Value {
    let mut info =
        libc::Dl_info { dli_fname: null(), dli_fbase: null_mut(), dli_sname: null(), dli_saddr: null_mut() };
    // SAFETY: `info` can be written; the address is only looked up.
    let is_known = unsafe { libc::dladdr(address.wrapping_byte_sub(1), &raw mut info) } != 0;
    if !is_known || info.dli_fname.is_null() {
        return Value::Null;
    }
    // SAFETY: not null, and a string of the dynamic linker's.
    let file = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned();
    Path::new(&file).file_name().map(|name| name.to_string_lossy().into_owned()).into()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nested_call(nccl: &Nccl) {
    let _inside = Inside::of("nested_call");
    // Not on the stack, of which 16 KiB are copied.
    let mut addresses = vec![null_mut(); MOST];
    // SAFETY: there is room for so many.
    let count = unsafe { libc::backtrace(addresses.as_mut_ptr(), i32::try_from(MOST).unwrap_or(0)) };
    let count = usize::try_from(count).unwrap_or(0);
    let frames: Vec<Value> = addresses.iter().take(count).map(|address| place(*address)).collect();
    let number = nccl.number.fetch_add(1, Ordering::Relaxed);
    let marks = MARKS.with_borrow(Vec::clone);
    let line = json!({
        "n": number,
        // SAFETY: a call without arguments.
        "tid": unsafe { libc::gettid() },
        "thread": thread::current().name().unwrap_or("main"),
        "marks": marks,
        "frames": frames,
        "stackPointer": (&raw const addresses).addr(),
        "known": nccl.is_known.load(Ordering::Relaxed),
    });
    if let Ok(mut truth) = nccl.truth.lock() {
        let _ = writeln!(truth, "{line}");
    }
    let count = usize::try_from(number).unwrap_or(0);
    // SAFETY: NCCL refuses a communicator that is none.
    unsafe { (nccl.all_reduce)(null(), null_mut(), count, 7, 0, null_mut(), null_mut()) };
}

/// Functions that are alike, so that NCCL is called with the same stack pointer and return address.
macro_rules! alike {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $name(nccl: &Nccl) {
                let _inside = Inside::of(stringify!($name));
                nested_call(nccl);
                black_box(stringify!($name));
            }
        )*
    };
}

alike! { nested_left nested_right nested_third }

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nested_outer(nccl: &Nccl, turn: u64) {
    let _inside = Inside::of("nested_outer");
    match turn % 3 {
        0 => nested_left(nccl),
        1 => nested_right(nccl),
        _ => nested_third(nccl),
    }
    black_box(turn);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nested_deeper(nccl: &Nccl, depth: u64) {
    let _inside = Inside::of("nested_deeper");
    // A frame of its own size.
    let room = black_box([depth; 40]);
    if depth == 0 {
        nested_call(nccl);
    } else {
        nested_deeper(nccl, depth - 1);
    }
    black_box(room);
}

trait Layer {
    fn forward(&self, nccl: &Nccl);
}

struct Linear;

impl Layer for Linear {
    #[inline(never)]
    fn forward(&self, nccl: &Nccl) {
        let _inside = Inside::of("<ncclflow_nested::Linear as ncclflow_nested::Layer>::forward");
        nested_call(nccl);
        black_box(self);
    }
}

fn round(nccl: &Nccl, turn: u64) {
    for n in 0..12 {
        nested_outer(nccl, n);
    }
    nested_deeper(nccl, turn % 8);
    let layer: &dyn Layer = black_box(&Linear);
    layer.forward(nccl);
}

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [library, truth, go, rounds, told @ ..] = arguments.as_slice() else {
        bail!("LIBRARY TRUTH GO ROUNDS [told]")
    };
    let rounds: u64 = rounds.parse()?;
    let path = CString::new(library.as_str())?;
    // SAFETY: a string with an end; NCCL's initialisers are sound.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        bail!("`{library}` cannot be loaded");
    }
    // SAFETY: a live handle, and a string with an end.
    let symbol = unsafe { libc::dlsym(handle, c"ncclAllReduce".as_ptr()) };
    if symbol.is_null() {
        bail!("`{library}` has no ncclAllReduce");
    }
    // SAFETY: nccl.h declares it so.
    let all_reduce = unsafe { std::mem::transmute::<*mut c_void, AllReduce>(symbol) };
    let truth = Mutex::new(BufWriter::new(File::create(truth)?));
    let told = told.first().map(|_| PathBuf::from(go));
    let (number, is_known) = (AtomicU64::new(1), AtomicBool::new(false));
    let nccl = Arc::new(Nccl { all_reduce, truth, number, told, is_known });
    println!("ready {}", process::id());
    while !fs::exists(go)? {
        thread::sleep(Duration::from_millis(5));
    }
    // Until it is known where return addresses are, each stack is copied, and some may not be. Then all are called from the
    // same place, at once.
    let (mut turn, mut left) = (0, rounds);
    while left > 0 {
        round(&nccl, turn);
        turn += 1;
        if nccl.is_known.load(Ordering::Relaxed) {
            left -= 1;
        } else {
            thread::sleep(Duration::from_millis(25));
            nccl.is_known.store(turn >= SLOW_ROUNDS && nccl.is_told("main"), Ordering::Relaxed);
        }
    }
    nccl.is_known.store(false, Ordering::Relaxed);
    // From another place, so that the stacks are new.
    for turn in 0..rounds {
        round(&nccl, turn);
    }
    nested_deeper(&nccl, 60);
    let other = Arc::clone(&nccl);
    let worker = thread::Builder::new().name("worker-7".to_owned()).spawn(move || {
        let mut turn = 0;
        while turn < SLOW_ROUNDS || !other.is_told("worker") {
            round(&other, turn);
            turn += 1;
            thread::sleep(Duration::from_millis(25));
        }
    })?;
    worker.join().ok().context("the thread failed")?;
    nccl.truth.lock().ok().context("a thread failed")?.flush()?;
    // Its code is needed until all stacks are unwound.
    thread::sleep(Duration::from_secs(1));
    println!("done");
    Ok(())
}
