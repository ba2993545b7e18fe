//! Threads that have called into a library, by its thread-local variables.
//!
//! The variables of a library that was loaded while the program ran (dlopen(3), as by Python) are made for a
//! thread when the thread first touches them (glibc, elf/dl-tls.c, `tls_get_addr_tail`). So the table of a
//! thread tells whether it has run the library's code: no name and no place tells that of a thread that now
//! computes elsewhere. Of a library that the program was linked with, the variables are made with the thread,
//! and nothing is known. Threads that the library itself has started are left out, by the function that they
//! were started with.
//!
//! glibc on x86-64 alone: its descriptions of threads (`struct pthread`, nptl/descr.h) have been the same in
//! these places from 2.4 to 2.42.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{
    modules::Modules,
    task::{Position, position_of},
};
use crate::{
    memory::{Memory, ReadError},
    process::Process,
};
use nccl_library::{elf::RuntimeAddr, fields::unsigned};

/// Maximum number of threads of a process that are looked at.
const MAX_THREADS: usize = 512;
/// Maximum number of links of the lists of threads that are followed.
const MAX_LINKS: usize = 4 * MAX_THREADS;
/// Time after which no further thread is looked for: memory can answer as slowly as its owner likes. It takes some
/// milliseconds, and more on a busy host.
const WITHIN: Duration = Duration::from_secs(5);
/// Bytes below the end of a stack among which the description of its thread is: the static thread-local
/// variables of all libraries, and the description itself.
const ABOVE_STACK: u64 = 32 << 10;

/// Places in a description: its own address at 0 and here, the table of thread-local variables, the link to
/// another description, and the thread's number (`tcbhead_t`, sysdeps/x86_64/nptl/tls.h).
const SELF: usize = 16;
const TABLE: usize = 8;
const LINK: usize = 704;
const NUMBER: usize = 720;
/// Words among which the function is that the thread was started with, and behind it its argument: behind the
/// values of `pthread_setspecific(3)` and the pointers to more of them.
const START: usize = 1552;
const DESCRIPTION: usize = 1808;

/// Maximum number of a module with thread-local variables.
const MAX_MODULE: u64 = 1 << 16;
/// Maximum number of relocations of a library that are read, beside the relative ones, which stand first.
const MAX_RELOCATIONS: u64 = 1 << 14;
/// Maximum number of entries of a library's dynamic section.
const MAX_ENTRIES: u64 = 256;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_RELACOUNT: u64 = 0x6fff_fff9;
/// Relocation by which a library learns its own module number, without a symbol.
const R_X86_64_DTPMOD64: u64 = 16;

/// Returns the threads of a process, without its first, that have called into the libraries with these
/// inodes; empty if that is not known.
pub fn callers(process: &Process, libraries: &BTreeSet<u64>) -> BTreeSet<u32> {
    if !cfg!(target_arch = "x86_64") {
        return BTreeSet::new();
    }
    find(process, libraries).unwrap_or_default()
}

fn find(process: &Process, libraries: &BTreeSet<u64>) -> Option<BTreeSet<u32>> {
    let memory = Memory::new(process);
    let mut modules = Modules::read(process).ok()?;
    let numbers: BTreeSet<u64> =
        libraries.iter().filter_map(|inode| module_number(memory, &mut modules, *inode)).collect();
    if numbers.is_empty() {
        return None;
    }
    let tids = process.thread_ids().take(MAX_THREADS);
    let tids: BTreeMap<u32, u32> = tids.filter_map(|tid| Some((process.own_thread_id(tid)?, tid))).collect();
    let until = Instant::now() + WITHIN;
    let threads = Descriptions { memory, tids: &tids, until }.of_all(process, &modules);
    let have = have_variables(memory, &threads, &numbers).ok()?;
    let started = were_started_by(memory, &modules, &threads, libraries).ok()?;
    let callers = threads.iter().zip(have).zip(started).filter(|((_, has), is_own)| *has && !*is_own);
    Some(callers.map(|(((tid, _), _), _)| *tid).collect())
}

/// Returns the number under which a loaded library has its thread-local variables, from the relocations that
/// the loader has applied.
fn module_number(memory: Memory<'_>, modules: &mut Modules, inode: u64) -> Option<u64> {
    let code = modules.code_of(&BTreeSet::from([inode]));
    let module = modules.module(memory, code.first()?.0)?;
    let at = |address: u64| RuntimeAddr(module.bias.wrapping_add(address));
    let mut entries = [None; 3];
    for entry in 0..MAX_ENTRIES {
        let words = memory.words(RuntimeAddr(module.dynamic?.checked_add(entry * 16)?), 2).ok()?;
        let [tag, value] = words[..] else { return None };
        match tag {
            0 => break,
            DT_RELA => entries[0] = Some(value),
            DT_RELASZ => entries[1] = Some(value),
            DT_RELACOUNT => entries[2] = Some(value),
            _ => {}
        }
    }
    let [Some(table), Some(size), relative] = entries else { return None };
    // The loader replaces the address by that in memory, where it may write to the section.
    let table = if table < module.bias { at(table) } else { RuntimeAddr(table) };
    let first = relative.unwrap_or(0);
    let count = (size / 24).checked_sub(first)?.min(MAX_RELOCATIONS);
    let words = memory.words(RuntimeAddr(table.0.checked_add(first.checked_mul(24)?)?), count * 3).ok()?;
    let [place, ..] = words.as_chunks::<3>().0.iter().find(|[_, info, _]| *info == R_X86_64_DTPMOD64)?;
    memory.word(at(*place)).ok().filter(|number| (1..=MAX_MODULE).contains(number))
}

/// The C library's description of a thread.
struct Description {
    at: u64,
    bytes: Vec<u8>,
}

impl Description {
    fn word(&self, place: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes.get(place..place + 8)?.try_into().ok()?))
    }

    fn number(&self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes.get(NUMBER..NUMBER + 4)?.try_into().ok()?))
    }

    /// Returns the function that the thread was started with, and its argument.
    fn start(&self, modules: &Modules) -> Option<(u64, u64)> {
        let mut places = (START..DESCRIPTION).step_by(8);
        places.find_map(|place| {
            let function = self.word(place).filter(|function| modules.is_code(*function))?;
            Some((function, self.word(place + 8)?))
        })
    }
}

/// Threads of a process, and their descriptions.
type Threads = BTreeMap<u32, Description>;

/// Reads a word for each thread; 0 where there is none.
fn words(memory: Memory<'_>, places: impl Iterator<Item = Option<u64>>) -> Result<Vec<u64>, ReadError> {
    let places: Vec<_> = places.map(|place| (RuntimeAddr(place.unwrap_or(0)), 8)).collect();
    let word = |bytes: Option<Vec<u8>>| bytes.and_then(|bytes| unsigned(&bytes)).unwrap_or(0);
    Ok(memory.copies(&places)?.into_iter().map(word).collect())
}

/// Tells of each thread whether it has variables of one of these modules that were not made with it.
fn have_variables(
    memory: Memory<'_>,
    threads: &Threads,
    modules: &BTreeSet<u64>,
) -> Result<Vec<bool>, ReadError> {
    let tables = || threads.values().map(|description| description.word(TABLE));
    // The entry before the first has the number of entries.
    let counts = words(memory, tables().map(|table| table?.checked_sub(16)))?;
    let mut have = vec![false; threads.len()];
    for module in modules {
        let variables = words(memory, tables().map(|table| table?.checked_add(module * 16)))?;
        let looks = threads.values().zip(&counts).zip(variables);
        for (has, ((description, count), variables)) in have.iter_mut().zip(looks) {
            let is_made = *count >= *module && !matches!(variables, 0 | u64::MAX);
            let with_thread = description.at.saturating_sub(ABOVE_STACK)..description.at;
            *has |= is_made && !with_thread.contains(&variables);
        }
    }
    Ok(have)
}

/// Tells of each thread whether it was started by one of these libraries: its function is there, or, if C++'s
/// library started it for somebody, the class of the argument (`std::thread::_State`).
fn were_started_by(
    memory: Memory<'_>,
    modules: &Modules,
    threads: &Threads,
    libraries: &BTreeSet<u64>,
) -> Result<Vec<bool>, ReadError> {
    let is_of =
        |address: u64| modules.inode_at_or_below(address).is_some_and(|inode| libraries.contains(&inode));
    let starts: Vec<_> = threads.values().map(|description| description.start(modules)).collect();
    let classes = words(memory, starts.iter().map(|start| start.map(|(_, argument)| argument)))?;
    let is_own = |(start, class): (&Option<(u64, u64)>, u64)| {
        start.is_some_and(|(function, _)| is_of(function) || is_of(class))
    };
    Ok(starts.iter().zip(classes).map(is_own).collect())
}

/// Reader of the descriptions of threads. `tids` are the kernel's numbers of the threads, by the process's own.
struct Descriptions<'a> {
    memory: Memory<'a>,
    tids: &'a BTreeMap<u32, u32>,
    until: Instant,
}

impl Descriptions<'_> {
    /// Returns the descriptions of all threads but the first, by the kernel's numbers: the C library links them to
    /// two rings, of threads with stacks that it made, and of those with given ones, among which the first is. A
    /// thread that sleeps shows its ring.
    fn of_all(&self, process: &Process, modules: &Modules) -> Threads {
        let (mut found, mut links) = (BTreeMap::new(), MAX_LINKS);
        for tid in self.tids.values().filter(|tid| **tid != process.pid()) {
            if !self.has_time() {
                break;
            }
            if !found.contains_key(tid)
                && let Some(first) = self.shown_by(process, modules, *tid)
            {
                self.add_ring(first, &mut links, &mut found);
            }
        }
        found.remove(&process.pid());
        found
    }

    fn has_time(&self) -> bool {
        Instant::now() < self.until
    }

    /// Returns the address of a description at the end of the stack of a thread that sleeps.
    fn shown_by(&self, process: &Process, modules: &Modules, tid: u32) -> Option<u64> {
        let Position::Blocked { stack_pointer, .. } = position_of(process, tid) else { return None };
        let stack = modules.at(stack_pointer)?;
        self.below(stack.end.0.saturating_sub(ABOVE_STACK).max(stack.start.0), stack.end.0)
    }

    /// Adds the descriptions of the ring in which this one is. `links`: so many may still be followed.
    fn add_ring(&self, first: u64, links: &mut usize, found: &mut Threads) {
        let mut at = first;
        while *links > 0 && self.has_time() {
            *links -= 1;
            let next = match self.at(at) {
                Some((tid, description)) => {
                    let next = description.word(LINK);
                    found.insert(tid, description);
                    next
                }
                // The ring's head, which is in no thread, has a link alone.
                None => at.checked_add(LINK as u64).and_then(|link| self.memory.word(RuntimeAddr(link)).ok()),
            };
            let Some(next) = next else { break };
            at = next.wrapping_sub(LINK as u64);
            if at == first {
                break;
            }
        }
    }

    /// Reads the description at an address, if it is that of a thread of the process.
    fn at(&self, at: u64) -> Option<(u32, Description)> {
        let bytes = self.memory.bytes(RuntimeAddr(at), DESCRIPTION as u64).ok()?;
        let description = Description { at, bytes };
        let is_one = description.word(0) == Some(at) && description.word(SELF) == Some(at);
        let tid = self.tids.get(&description.number()?)?;
        is_one.then_some((*tid, description))
    }

    /// Returns the address of a description between two addresses.
    fn below(&self, start: u64, end: u64) -> Option<u64> {
        let words = self.memory.words(RuntimeAddr(start), end.checked_sub(start)? / 8).ok()?;
        let at = |index: usize| start + index as u64 * 8;
        let mut likely = (0..words.len()).filter(|index| words[*index] == at(*index)).map(at);
        likely.find(|at| self.at(*at).is_some())
    }
}

#[cfg(all(test, target_arch = "x86_64", target_env = "gnu"))]
mod tests {
    use std::{sync::mpsc, thread};

    use test_support::wait_until;

    use super::*;

    #[test]
    fn no_further_thread_is_looked_for_when_the_time_is_over() {
        let (end, ends) = mpsc::channel::<()>();
        let sleeps = thread::spawn(move || ends.recv().unwrap_err());
        let own = Process::open(std::process::id()).unwrap();
        let count = |until| {
            let tids: BTreeMap<u32, u32> = own.thread_ids().map(|tid| (tid, tid)).collect();
            let modules = Modules::read(&own).unwrap();
            Descriptions { memory: Memory::new(&own), tids: &tids, until }.of_all(&own, &modules).len()
        };
        let soon = Instant::now() + Duration::from_secs(60);
        wait_until("threads are found", Duration::from_secs(30), || count(soon) > 0);
        assert_eq!(count(Instant::now()), 0);
        drop(end);
        sleeps.join().unwrap();
    }
}
