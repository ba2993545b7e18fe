//! Finds the processes of the node to look at again: new ones, and those whose address space has changed, as
//! it does when a library is loaded.
//!
//! Reading the mappings of a process can take thousands of lines, and holds its mmap lock. So only the size
//! of most processes is read, from `/proc/PID/statm`, which the kernel answers from counters.

use std::{
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

use super::discover::pids;
use crate::proc_text::read_text;

/// Age up to which a process is young. Any change of a young process's size counts.
const YOUNG: Duration = Duration::from_secs(10);
/// Smallest change in the size of an older process that counts, in pages. NCCL has tens of thousands, as it
/// carries the code of all GPUs.
const MUCH: u64 = 256;
/// Time without a look after which any change counts.
const LONG: Duration = Duration::from_secs(10);
/// Rounds in which the size of a process that is not young is read once.
const SOMETIMES: u32 = 2;
/// Rounds in which the size of a kernel thread, or of what looks like one, is read once.
const SELDOM: u32 = 20;

#[derive(Clone, Copy, Debug)]
struct Entry {
    first_seen: Instant,
    looked: Instant,
    /// Size in pages; 0 for threads of the kernel, and for processes that are about to exit.
    size: u64,
}

/// Size and last look of each process of the node.
#[derive(Debug, Default)]
pub struct Census {
    entries: HashMap<u32, Entry>,
    round: u32,
}

impl Census {
    /// Returns the processes to look at now, and forgets those that have ended.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn round(&mut self) -> io::Result<Vec<u32>> {
        let (pids, now) = (pids()?, Instant::now());
        self.round = self.round.wrapping_add(1);
        self.entries.retain(|pid, _| pids.binary_search(pid).is_ok());
        let mut due = Vec::new();
        for pid in pids.into_iter().filter(|pid| *pid != std::process::id()) {
            if let Some(entry) = self.entries.get(&pid)
                && now.duration_since(entry.first_seen) > YOUNG
            {
                // These reads are spread over the rounds.
                let every = if entry.size == 0 { SELDOM } else { SOMETIMES };
                if !pid.wrapping_add(self.round).is_multiple_of(every) {
                    continue;
                }
            }
            // The process is gone, or not visible to us.
            let Some(size) = size(pid) else { continue };
            let entry = self.entries.entry(pid).or_insert(Entry { first_seen: now, looked: now, size: 0 });
            if is_due(entry, size, now) {
                *entry = Entry { looked: now, size, ..*entry };
                due.push(pid);
            }
        }
        Ok(due)
    }

    /// Forgets a process: its number means another one now, or it must be looked at again.
    pub fn forget(&mut self, pid: u32) {
        self.entries.remove(&pid);
    }
}

fn is_due(entry: &Entry, size: u64, now: Instant) -> bool {
    size != entry.size
        && size != 0
        && (now.duration_since(entry.first_seen) <= YOUNG
            || size.abs_diff(entry.size) >= MUCH
            || now.duration_since(entry.looked) >= LONG)
}

fn size(pid: u32) -> Option<u64> {
    read_text(format!("/proc/{pid}/statm")).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use test_support::wait_until;

    use super::*;

    #[test]
    fn new_processes_are_due_once_and_again_when_they_grow() {
        let mut census = Census::default();
        census.round().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let due = |census: &mut Census| census.round().unwrap().contains(&child.id());
        assert!(due(&mut census));
        // The process may still be changing while it starts. In one of two rounds it is looked at even if it
        // is not young any more.
        wait_until("a process that does nothing is due no more", Duration::from_secs(30), || {
            !due(&mut census) && !due(&mut census)
        });
        census.forget(child.id());
        assert!(due(&mut census));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!census.round().unwrap().contains(&child.id()));
        assert!(!census.entries.contains_key(&child.id()));
    }

    #[test]
    fn old_processes_are_due_when_they_grow_much_or_after_long() {
        let now = Instant::now();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap_or(now);
        let entry = |looked| Entry { first_seen: ago(100), looked: ago(looked), size: 1000 };
        assert!(!is_due(&entry(1), 1000, now) && !is_due(&entry(60), 1000, now));
        assert!(!is_due(&entry(1), 1100, now));
        assert!(is_due(&entry(1), 1256, now) && is_due(&entry(1), 700, now));
        assert!(is_due(&entry(11), 1001, now));
    }
}
