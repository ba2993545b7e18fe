//! Copies memory of processes, and lists the pages that they have filled. Memory of a process can be backed
//! by a file system in user space, or by `userfaultfd`: then the process itself decides whether a copy of it
//! ever ends. A process can also have the lock of its mappings held for ever, which listing pages takes.

use flow::session::LostReaders;
use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
    ptr,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::{
    error::ResolverError,
    frame::{Channel, NoFrame},
    helper::Helper,
    page_map::filled_pages,
    sandbox::{self, Role},
    service::{count, has_children},
    silent_processes::SilentProcesses,
};
use crate::unresponsive::{MAX_LEFT, left_behind};

/// Most bytes that are copied at once.
pub(super) const MAX_BYTES: usize = 8 << 20;
/// Longest time that one copy may take: pages can have to come from a disk.
const WALL: Duration = Duration::from_secs(5);
/// Time for which the copies of one process may sleep, beside one in so many parts of the time that passes, and most
/// bytes of such a copy: a search of memory copies more at once, and has a limit of its own.
const MOST_SLEPT: Duration = Duration::from_secs(15);
const PARTS: u32 = 10;
const SMALL: usize = 256 << 10;
/// Most children that wait for work.
const MAX_IDLE: usize = 16;

/// A piece of another process's memory: address and bytes.
type Piece = (u64, usize);

#[derive(Debug, Default)]
struct Pool {
    idle: Vec<Helper>,
    /// Processes whose memory did not answer.
    silent: SilentProcesses,
    slow: SlowProcesses,
    lost: LostReaders,
}

/// Time for which copies of processes have slept. Memory that answers late each time, and never too late, else holds up
/// whoever copies much of it for hours.
#[derive(Debug, Default)]
struct SlowProcesses(HashMap<u32, (Instant, Duration)>);

impl SlowProcesses {
    /// Adds a copy that slept for so long. Tells whether the process is slow; then it begins anew.
    fn is_slow(&mut self, pid: u32, slept: Duration, now: Instant) -> bool {
        let left = |at: Instant, slept: Duration| slept.saturating_sub(now.duration_since(at) / PARTS);
        self.0.retain(|_, (at, slept)| !left(*at, *slept).is_zero());
        let before = self.0.remove(&pid).map_or(Duration::ZERO, |(at, slept)| left(at, slept));
        let all = before.saturating_add(slept);
        if all <= MOST_SLEPT {
            self.0.insert(pid, (now, all));
        }
        all > MOST_SLEPT
    }
}

static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(Mutex::default);

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies these pieces of the process's memory into `into`, as far as they can be read. Returns the bytes
/// read. The pieces are at most 1,024 and [`MAX_BYTES`], and together as long as `into`.
///
/// # Errors
/// Those of process_vm_readv(2); `TimedOut` if the process did not answer in time, now or before.
pub fn peek(pid: u32, pieces: &[Piece], into: &mut [u8]) -> io::Result<usize> {
    if !has_children() {
        // SAFETY: a slice.
        return unsafe { copy(pid, pieces, into.as_mut_ptr(), into.len()) };
    }
    ask(pid, pieces, None, |helper, read| {
        let read = read.min(into.len());
        helper.read_file(into.get_mut(..read).unwrap_or_default())?;
        Ok(read)
    })
}

/// Returns the runs of filled pages of the process between `start` and `end`, by its open `pagemap`.
///
/// # Errors
/// `TimedOut` if the process did not answer in time, now or before.
pub fn filled(pid: u32, pagemap: &File, start: u64, end: u64) -> io::Result<Vec<(u64, u64)>> {
    if !has_children() {
        return Ok(filled_pages(pagemap, start, end));
    }
    let length = usize::try_from(end.saturating_sub(start)).map_err(io::Error::other)?;
    ask(pid, &[(start, length)], Some(pagemap.as_fd()), |helper, bytes| {
        let mut runs = vec![0; bytes.min(MAX_BYTES)];
        helper.read_file(&mut runs)?;
        let words = runs.as_chunks::<8>().0.as_chunks::<2>().0.iter();
        let runs = words.map(|[from, to]| (u64::from_le_bytes(*from), u64::from_le_bytes(*to)));
        // A child can be wrong: its ranges are clamped to the one that was asked for.
        Ok(runs.map(|(from, to)| (from.clamp(start, end), to.clamp(start, end))).collect())
    })
}

/// Asks a child. `take` makes the result from the bytes that the child has left in the shared memory.
fn ask<T>(
    pid: u32,
    pieces: &[Piece],
    pagemap: Option<BorrowedFd<'_>>,
    take: impl FnOnce(&Helper, usize) -> io::Result<T>,
) -> io::Result<T> {
    let start = || Helper::start(Role::MemoryCopier, memory()?);
    if is_silent(pid) || left_behind() >= MAX_LEFT {
        return Err(ResolverError::GivenUp.into());
    }
    let mut request = Vec::with_capacity(4 + 16 * pieces.len());
    request.extend(pid.to_le_bytes());
    for (at, length) in pieces {
        request.extend(at.to_le_bytes());
        request.extend((*length as u64).to_le_bytes());
    }
    let fds: Vec<BorrowedFd<'_>> = pagemap.into_iter().collect();
    let is_small = pieces.iter().fold(0, |sum: usize, (_, length)| sum.saturating_add(*length)) <= SMALL;
    let idle = pool().idle.pop();
    let mut helper = idle.map_or_else(start, Ok)?;
    for attempt in 0.. {
        let deadline = helper.deadline(WALL);
        let answer = helper.ask_until(&request, &fds, 64, &deadline);
        let slept = deadline.slept();
        if is_small && answer.is_ok() && !slept.is_zero() {
            let (mut pool, now) = (pool(), Instant::now());
            if pool.slow.is_slow(pid, slept, now) {
                pool.silent.add(pid, None, now);
            }
        }
        let why = match answer {
            Ok(frame) => match <[u8; 8]>::try_from(&*frame.json).map(i64::from_le_bytes) {
                Ok(read) if read >= 0 => {
                    let taken = take(&helper, usize::try_from(read).unwrap_or(usize::MAX))?;
                    put_back(helper);
                    return Ok(taken);
                }
                Ok(error) => {
                    put_back(helper);
                    let number = i32::try_from(error.saturating_neg()).unwrap_or(libc::EIO);
                    return Err(io::Error::from_raw_os_error(number));
                }
                Err(_) => NoFrame::Garbage("no number".to_owned()),
            },
            Err(why) => why,
        };
        let (error, left) = helper.give_up(why, WALL);
        let mut pool = pool();
        pool.lost.left_behind += u32::from(left.is_some());
        // The first child may have been killed from outside.
        if attempt > 0 || !matches!(error, ResolverError::Died(_)) {
            count(&mut pool.lost, &error);
            if matches!(error, ResolverError::Lost(_)) {
                pool.silent.add(pid, left, Instant::now());
            }
            return Err(error.into());
        }
        drop(pool);
        helper = start()?;
    }
    Err(io::ErrorKind::Other.into())
}

/// Tells whether the process did not answer, now or before: what was not read of it may have been there.
pub fn is_silent(pid: u32) -> bool {
    pool().silent.has(pid, Instant::now())
}

/// Returns what was lost with copying memory until now.
pub(super) fn lost() -> LostReaders {
    pool().lost
}

fn put_back(helper: Helper) {
    let mut pool = pool();
    if pool.idle.len() < MAX_IDLE {
        pool.idle.push(helper);
    }
}

/// Makes memory that is shared with the child. It cannot be cut, so that reading it cannot fail.
fn memory() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("ncclflow", flags)?;
    ftruncate(&memory, MAX_BYTES as u64)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory.into())
}

/// Serves as the child: copies until the other end is closed.
pub(super) fn serve(channel: &Channel, memory: &File) -> Result<()> {
    // SAFETY: a new mapping of a file that is sealed against becoming shorter; nothing else uses it.
    let shared = unsafe {
        libc::mmap(
            ptr::null_mut(),
            MAX_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            memory.as_raw_fd(),
            0,
        )
    };
    if shared == libc::MAP_FAILED {
        bail!("mmap: {}", io::Error::last_os_error());
    }
    while let Some(mut frame) = channel.request(1 << 16)? {
        let (Some(pid), pieces) = parse(&frame.json) else { bail!("no request") };
        let total: usize = pieces.iter().map(|(_, length)| *length).fold(0, usize::saturating_add);
        sandbox::alarm(2 * WALL);
        let read = if let (Some(pagemap), Some((start, length))) = (frame.fds.pop(), pieces.first()) {
            let runs = filled_pages(&File::from(pagemap), *start, start.saturating_add(*length as u64));
            let runs = runs.iter().flat_map(|(from, to)| [from.to_le_bytes(), to.to_le_bytes()]);
            let bytes = runs.collect::<Vec<_>>().concat();
            if bytes.len() > MAX_BYTES {
                Err(io::Error::from_raw_os_error(libc::EINVAL))
            } else {
                // SAFETY: the mapping is larger, and nobody writes to it meanwhile.
                unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), shared.cast(), bytes.len()) };
                Ok(bytes.len())
            }
        } else if total > MAX_BYTES {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        } else {
            // SAFETY: the mapping is larger.
            unsafe { copy(pid, &pieces, shared.cast(), total) }
        };
        sandbox::alarm(Duration::ZERO);
        let answer = match read {
            Ok(read) => i64::try_from(read)?,
            Err(error) => -i64::from(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        channel.send(&answer.to_le_bytes(), &[], &[])?;
    }
    Ok(())
}

fn parse(request: &[u8]) -> (Option<u32>, Vec<Piece>) {
    let Some((pid, rest)) = request.split_first_chunk::<4>() else { return (None, Vec::new()) };
    let numbers = rest.as_chunks::<8>().0.as_chunks::<2>().0;
    let pieces = numbers.iter().map(|[at, length]| {
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        (u64::from_le_bytes(*at), length)
    });
    (Some(u32::from_le_bytes(*pid)), pieces.collect())
}

/// Copies by one system call.
///
/// # Safety
/// `into` must be valid for writes of `length` bytes.
unsafe fn copy(pid: u32, pieces: &[Piece], into: *mut u8, length: usize) -> io::Result<usize> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let local = libc::iovec { iov_base: into.cast(), iov_len: length };
    let remote: Vec<libc::iovec> = pieces
        .iter()
        .map(|(at, length)| libc::iovec {
            // An address of the other process: never followed in this one.
            iov_base: ptr::without_provenance_mut(usize::try_from(*at).unwrap_or(usize::MAX)),
            iov_len: *length,
        })
        .collect();
    let count = remote.len() as libc::c_ulong;
    // SAFETY: `local` is one writable buffer that lives until the call returns, as the caller promises; the
    // kernel writes nothing else here. `remote` is only read as numbers.
    // The call copies from the other process and never to it.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), count, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_copies_sleep_often_is_slow_and_one_whose_copies_do_now_and_then_is_not() {
        let (mut slow, begun) = (SlowProcesses::default(), Instant::now());
        let second = Duration::from_secs(1);
        // Each of many copies is late, and none too late.
        let mut now = begun;
        let copies = (0..).take_while(|_| {
            now += 4 * second;
            !slow.is_slow(7, 4 * second, now)
        });
        assert_eq!(copies.count(), 4);
        assert!(!slow.is_slow(7, second, now), "it begins anew");
        // Pages that come from a disk.
        let paged = |at: u32| slow.is_slow(8, second / 20, begun + second * at);
        assert!(!(0..3600).any(paged));
        assert!(slow.0.len() <= 1, "what was long ago is forgotten: {:?}", slow.0);
    }
}
