//! Searches the memory of a process for a word.
//!
//! Several threads copy and compare, each in its own part of memory. The caller's thread checks the matches.
//! Copying from another process costs more than comparing, and one core limits it.

use std::{
    fs::File,
    io,
    ops::ControlFlow,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::{AddressSpace, Memory, ReadError};
use crate::resolver;
use flow::known;
use nccl_library::elf::RuntimeAddr;

/// Bytes that are copied at once: small enough to stay in the cache, large enough to make calls cheap.
const CHUNK: usize = 512 << 10;
const WINDOW: u64 = 64 << 20;
/// More threads than this would not be faster, and the host has other work to do.
const MAX_THREADS: usize = 4;
/// Bytes of memory for each further thread: below, one thread is as fast as several.
const WORTH_A_THREAD: u64 = 64 << 20;
const TICK: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub struct ScanLimits {
    pub bytes: u64,
    pub time: Duration,
}

impl Default for ScanLimits {
    fn default() -> Self {
        Self { bytes: 64 << 30, time: Duration::from_secs(30) }
    }
}

/// Word that a scan searches for: 8 bytes at an address that is a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needle {
    Word(u64),
    /// A word that is its own address less this.
    SelfPointer(u64),
}

#[derive(Clone, Copy, Debug)]
pub struct ScanProgress {
    pub scanned_bytes: u64,
    /// Bytes of address space that were passed, filled or not.
    pub passed_bytes: u64,
    pub mapped_bytes: u64,
    pub elapsed: Duration,
}

/// Reason why a scan did not look at everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ScanEnd {
    /// The search was ended early, as was asked for.
    Found,
    /// The limit [`ScanLimits::bytes`] was reached.
    ByteLimit,
    /// The limit [`ScanLimits::time`] was reached.
    TimeLimit,
    /// The library has a list of what was looked for, so there was no search.
    Listed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScanReport {
    /// Number of mappings that data can be in.
    pub mappings: usize,
    pub mapped_bytes: u64,
    /// Bytes that were copied; pages that were never touched are not.
    pub scanned_bytes: u64,
    pub milliseconds: u64,
    /// Every page was looked at. Otherwise [`Self::ended_by`] says why not.
    pub complete: bool,
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<ScanEnd>,
    /// Number of pieces that could not be read: unmapped meanwhile.
    pub unreadable: u64,
}

enum Event {
    Match(RuntimeAddr),
    Failed(ReadError),
}

struct Shared<'s> {
    needle: Needle,
    limits: ScanLimits,
    started: Instant,
    windows: Mutex<Box<dyn Iterator<Item = (u64, u64)> + Send + 's>>,
    scanned: AtomicU64,
    passed: AtomicU64,
    unreadable: AtomicU64,
    /// Set when the caller wants no more, or a limit was reached.
    ended: OnceLock<ScanEnd>,
}

/// Calls `found` for each address of the needle in the regions of `space` until it breaks, and `progress`
/// some times a second. Regions are begun in their order.
///
/// # Errors
/// The process is gone or may not be read. Mappings that vanish are counted and passed over.
pub fn search(
    memory: Memory<'_>,
    limits: ScanLimits,
    space: &AddressSpace,
    needle: Needle,
    mut found: impl FnMut(RuntimeAddr) -> ControlFlow<()>,
    mut progress: impl FnMut(&ScanProgress),
) -> Result<ScanReport, ReadError> {
    let windows = space.regions.iter().flat_map(|region| pieces(region.start, region.end, WINDOW));
    let shared = Shared {
        needle,
        limits,
        started: Instant::now(),
        windows: Mutex::new(Box::new(windows)),
        scanned: AtomicU64::new(0),
        passed: AtomicU64::new(0),
        unreadable: AtomicU64::new(0),
        ended: OnceLock::new(),
    };
    let mapped = space.bytes();
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let worth = usize::try_from(mapped / WORTH_A_THREAD).unwrap_or(MAX_THREADS);
    let threads = cores.min(MAX_THREADS).min(worth.max(1));
    let mut is_enough = false;
    let mut failure = None;
    thread::scope(|scope| {
        let (events, inbox) = mpsc::channel();
        for _ in 0..threads {
            let (shared, events) = (&shared, events.clone());
            scope.spawn(move || shared.work(memory, &events));
        }
        drop(events);
        loop {
            match inbox.recv_timeout(TICK) {
                Ok(Event::Match(at)) if !is_enough && failure.is_none() => {
                    is_enough = found(at).is_break();
                    if is_enough {
                        shared.end(ScanEnd::Found);
                    }
                }
                Ok(Event::Match(_)) => {}
                Ok(Event::Failed(error)) => {
                    failure = Some(error);
                    shared.end(ScanEnd::Found);
                }
                Err(RecvTimeoutError::Timeout) => progress(&ScanProgress {
                    scanned_bytes: shared.scanned.load(Ordering::Relaxed),
                    passed_bytes: shared.passed.load(Ordering::Relaxed),
                    mapped_bytes: mapped,
                    elapsed: shared.started.elapsed(),
                }),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    if let Some(error) = failure {
        return Err(error);
    }
    let ended_by = if is_enough { Some(ScanEnd::Found) } else { shared.ended.get().copied() };
    Ok(ScanReport {
        mappings: space.regions.len(),
        mapped_bytes: mapped,
        scanned_bytes: shared.scanned.load(Ordering::Relaxed),
        milliseconds: u64::try_from(shared.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        complete: ended_by.is_none(),
        ended_by,
        unreadable: shared.unreadable.load(Ordering::Relaxed),
    })
}

impl Shared<'_> {
    /// Ends the search; the first reason counts.
    fn end(&self, by: ScanEnd) {
        _ = self.ended.set(by);
    }

    /// Tells whether to stop, and notes a limit that is reached.
    fn is_over(&self) -> bool {
        if self.scanned.load(Ordering::Relaxed) >= self.limits.bytes {
            self.end(ScanEnd::ByteLimit);
        } else if self.started.elapsed() >= self.limits.time {
            self.end(ScanEnd::TimeLimit);
        }
        self.ended.get().is_some()
    }

    /// Takes windows until there are none; the work of one thread.
    fn work(&self, memory: Memory<'_>, events: &Sender<Event>) {
        // Where the page map cannot be opened or read, every page counts as filled.
        let pagemap = File::open(memory.process().proc_path().join("pagemap")).ok();
        let mut buffer = vec![0; CHUNK];
        while !self.is_over() {
            let window = self.windows.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((start, end)) = window else { return };
            let runs = match &pagemap {
                Some(pagemap) => resolver::filled(memory.process().live_thread(), pagemap, start, end),
                None => Ok(vec![(start, end)]),
            };
            // A process that does not answer is not read either.
            let runs = runs.or_else(|error| match error.kind() {
                io::ErrorKind::TimedOut => Err(error),
                _ => Ok(vec![(start, end)]),
            });
            let runs = runs.map_err(|error| ReadError::new(memory.process(), error, RuntimeAddr(start)));
            let done = runs.and_then(|runs| self.window(memory, &runs, &mut buffer, events));
            if let Err(error) = done {
                // The receiver waits for all threads.
                let _ = events.send(Event::Failed(error));
                return;
            }
            self.passed.fetch_add(end - start, Ordering::Relaxed);
        }
    }

    fn window(
        &self,
        memory: Memory<'_>,
        runs: &[(u64, u64)],
        buffer: &mut [u8],
        events: &Sender<Event>,
    ) -> Result<(), ReadError> {
        let pieces = runs.iter().flat_map(|run| pieces(run.0, run.1, CHUNK as u64));
        let length = |start, end| usize::try_from(end - start).unwrap_or(0);
        let pieces: Vec<_> = pieces.map(|(start, end)| (RuntimeAddr(start), length(start, end))).collect();
        // Pieces that cannot be read are passed over.
        memory.each(&pieces, buffer, |(start, length), bytes| {
            self.scanned.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.unreadable.fetch_add(u64::from(bytes.len() < length), Ordering::Relaxed);
            self.compare(start, bytes, events);
            if self.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }

    fn compare(&self, start: RuntimeAddr, bytes: &[u8], events: &Sender<Event>) {
        let tell = |offset: usize| {
            // Nobody listens any more when the receiver is gone.
            let _ = events.send(Event::Match(RuntimeAddr(start.0 + offset as u64)));
        };
        match self.needle {
            Needle::Word(word) => {
                let needle = word.to_le_bytes();
                let finder = memmem::Finder::new(&needle);
                let mut from = 0;
                while let Some(hit) = bytes.get(from..).and_then(|rest| finder.find(rest)) {
                    let at = from + hit;
                    // The search continues at the next aligned address: NCCL's word repeats itself, so an
                    // unaligned match may overlap an aligned one.
                    from = at.next_multiple_of(8);
                    if from == at {
                        tell(at);
                        from += 8;
                    }
                }
            }
            Needle::SelfPointer(less) => {
                let first = start.0.wrapping_sub(less);
                for (index, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
                    if u64::from_le_bytes(*word) == first.wrapping_add(8 * index as u64) {
                        tell(8 * index);
                    }
                }
            }
        }
    }
}

/// Divides `start..end` into pieces of at most `size`, each but the last ending at a multiple of `size`.
fn pieces(start: u64, end: u64, size: u64) -> impl Iterator<Item = (u64, u64)> + Send {
    let mut from = start;
    std::iter::from_fn(move || {
        let to = (from / size).checked_add(1).and_then(|next| next.checked_mul(size)).unwrap_or(end).min(end);
        let piece = (from < to).then_some((from, to));
        from = to;
        piece
    })
}

#[cfg(test)]
mod tests;
