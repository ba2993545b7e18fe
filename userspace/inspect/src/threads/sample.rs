//! Registers and stacks of running threads, from the kernel's performance events: a timer that counts a
//! thread's time on the processor takes a sample, and the thread runs on (perf_event_open(2)). Nothing is
//! attached by ptrace, and nothing stops.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    ptr::NonNull,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use aya_obj::generated::{
    perf_event_sample_format::{PERF_SAMPLE_REGS_USER, PERF_SAMPLE_STACK_USER},
    perf_event_type::PERF_RECORD_SAMPLE,
};

use super::unwind::Stack;
use crate::resolver::{FirstEvent, open_event, time_on_processors};

/// `PERF_EVENT_IOC_DISABLE`, in the type that ioctl(2) takes: glibc's and musl's differ.
const DISABLE: libc::Ioctl = libc::_IO('$' as u32, 1);

/// Offset of `data_head` in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;

/// Time on the processor between two samples, in nanoseconds.
const PERIOD: u64 = 200_000;
/// Bytes of the stack in each sample.
const STACK: u32 = 16 << 10;
/// Maximum number of waits of the time given, as long as a thread that does not sleep has no sample.
const ROUNDS: usize = 10;
/// Pages of samples of one thread, a power of 2: seven samples.
const PAGES: usize = 32;

/// Numbers of x86-64 registers in a sample (arch/x86/include/uapi/asm/perf_regs.h) in the order of DWARF's
/// numbers: rax rdx rcx rbx rsi rdi rbp rsp r8…r15.
const DWARF_ORDER: [u32; 16] = [0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23];
const IP: u32 = 8;
const MASK: u64 = 0x00ff_01ff;

/// Owner of the first event. While it lives, opening events does not wait.
#[derive(Debug, Default)]
pub struct Sampler {
    /// The first event, opened when the first thread is to be sampled, or why it was not.
    first_event: OnceLock<Result<FirstEvent, String>>,
}

/// Samples by thread, or why the kernel takes none.
#[derive(Debug, Default)]
pub(super) struct Samples(HashMap<u32, io::Result<Vec<Stack>>>);

impl Samples {
    /// Samples these threads, all at the same time, for `time`, and again while one of them that does not sleep
    /// has no sample.
    pub(super) fn take(
        sampler: &Sampler,
        threads: &[u32],
        time: Duration,
        sleeps: impl Fn(u32) -> bool,
    ) -> Self {
        if threads.is_empty() || !cfg!(target_arch = "x86_64") {
            return Self::default();
        }
        let first = sampler.first_event.get_or_init(|| FirstEvent::open().map_err(|error| error.to_string()));
        if let Err(why) = first {
            return Self(
                threads.iter().map(|thread| (*thread, Err(io::Error::other(why.clone())))).collect(),
            );
        }
        let rings: Vec<_> = threads.iter().map(|thread| (*thread, Ring::open(*thread))).collect();
        // A thread that waits for a processor gives no sample before it gets one, and one that has gone to sleep
        // gives none at all.
        let is_done = |(tid, ring): &(u32, io::Result<Ring>)| {
            ring.as_ref().map_or(true, |ring| ring.filled() > 0 || sleeps(*tid))
        };
        for _ in 0..ROUNDS {
            thread::sleep(time);
            if rings.iter().all(is_done) {
                break;
            }
        }
        Self(rings.into_iter().map(|(thread, ring)| (thread, ring.map(Ring::stacks))).collect())
    }

    pub(super) fn of(&mut self, thread: u32) -> Vec<Stack> {
        let stacks = self.0.get_mut(&thread).and_then(|stacks| stacks.as_mut().ok());
        stacks.map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn why_not(&self, thread: u32) -> String {
        match self.0.get(&thread) {
            Some(Err(error)) => {
                format!("it runs, and the kernel does not sample it ({error}); ncclflow never stops threads")
            }
            _ => "it runs, and got no processor while it was sampled".to_owned(),
        }
    }
}

struct Ring {
    event: OwnedFd,
    start: NonNull<u64>,
    page: usize,
}

impl Ring {
    fn open(thread: u32) -> io::Result<Self> {
        let mut attributes = time_on_processors();
        attributes.__bindgen_anon_1.sample_period = PERIOD;
        attributes.sample_type = PERF_SAMPLE_REGS_USER as u64 | PERF_SAMPLE_STACK_USER as u64;
        (attributes.sample_regs_user, attributes.sample_stack_user) = (MASK, STACK);
        let tid = libc::pid_t::try_from(thread).map_err(io::Error::other)?;
        let event = open_event(&mut attributes, tid)?;
        let page = rustix::param::page_size();
        // SAFETY: a new mapping of the event's ring, of which nothing of ours is part; the length is 1 + 2^n
        // pages, as the kernel wants it.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (1 + PAGES) * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { event, start, page })
    }

    fn filled(&self) -> usize {
        // SAFETY: the first page is a `perf_event_mmap_page`, in which the kernel keeps this aligned counter.
        let head = unsafe { &*self.start.cast::<AtomicU64>().as_ptr().add(DATA_HEAD / 8) };
        // The ring is never read from, so it does not wrap: it is full when its end is reached.
        usize::try_from(head.load(Ordering::Acquire)).unwrap_or(0).min(PAGES * self.page)
    }

    /// Ends the sampling and returns the samples.
    fn stacks(self) -> Vec<Stack> {
        // SAFETY: the descriptor is an event's; the request takes no argument and stops its counting.
        unsafe { libc::ioctl(self.event.as_raw_fd(), DISABLE, 0) };
        let filled = self.filled();
        // SAFETY: the pages behind the first are the ring; the kernel has written `filled` bytes, and writes
        // no more.
        let data =
            unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<u8>().add(self.page), filled) };
        parse(data)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping that `open` made; no reference into it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), (1 + PAGES) * self.page) };
    }
}

/// Parses the samples in a ring, each a header (type, misc, size), then an ABI, registers, the stack and its
/// real length.
fn parse(mut data: &[u8]) -> Vec<Stack> {
    let mut stacks = Vec::new();
    while let Some((header, _)) = data.split_first_chunk::<8>() {
        let [kind @ .., _, _, low, high] = header;
        let size = usize::from(u16::from_le_bytes([*low, *high]));
        let Some((record, rest)) = data.split_at_checked(size).filter(|_| size >= 8) else { break };
        if u32::from_le_bytes(*kind) == PERF_RECORD_SAMPLE as u32 {
            stacks.extend(sample(record.get(8..).unwrap_or_default()));
        }
        data = rest;
    }
    stacks
}

fn sample(mut record: &[u8]) -> Option<Stack> {
    let mut word = || {
        let (word, rest) = record.split_first_chunk::<8>()?;
        record = rest;
        Some(u64::from_le_bytes(*word))
    };
    // PERF_SAMPLE_REGS_ABI_64; 1 would be a 32-bit thread, 0 a thread of the kernel.
    if word()? != 2 {
        return None;
    }
    let registers = (0..64).filter(|register| MASK >> register & 1 == 1);
    let values: HashMap<u32, u64> =
        registers.map(|register| Some((register, word()?))).collect::<Option<_>>()?;
    let size = usize::try_from(word()?).ok()?;
    let (copy, rest) = record.split_at_checked(size)?;
    let real = rest.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
    let copy = copy.get(..usize::try_from(real).ok()?.min(size))?;
    let pc = *values.get(&IP)?;
    let mut stack = Stack::at(pc, *values.get(&DWARF_ORDER[7])?);
    for (register, number) in stack.registers.iter_mut().zip(DWARF_ORDER) {
        *register = values.get(&number).copied();
    }
    stack.copy = copy.to_vec();
    Some(stack)
}
