//! Finds the processes of the node to look at again: new ones, and those whose address space has changed, as
//! it does when a library is loaded.
//!
//! Reading the mappings of a process can take thousands of lines, and holds its mmap lock. So only the size
//! of most processes is read, from `/proc/PID/statm`, which the kernel answers from counters.

use std::{
    collections::HashMap,
    io,
    path::Path,
    time::{Duration, Instant},
};

use super::discover::{MAX_NAMED, denied_remedy, in_brackets, pids};
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
    /// Result of the last look: `false` if the kernel refused it.
    may_be_seen: Option<bool>,
}

/// How much of the node may be looked at. What NCCL does in the rest is not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visibility {
    /// Processes that were looked at, threads of the kernel apart.
    pub seen: usize,
    /// Processes that the kernel refuses to show.
    pub denied: usize,
    /// `/proc` hides the processes of other users (`hidepid`), so [`Self::denied`] does not count them.
    pub is_hidden: bool,
    /// Some of the processes that are refused; 0 is none.
    pub denied_pids: [u32; MAX_NAMED],
}

impl Visibility {
    /// Tells whether most of the node is not seen: a right is missing, and not only at some process.
    pub fn is_blind(&self) -> bool {
        self.is_hidden || self.denied > self.seen
    }

    /// Says what is not seen and what to do about it, in one line.
    pub fn problem(&self) -> Option<String> {
        if self.is_hidden {
            return Some(
                "the processes of other users are hidden (/proc is mounted with hidepid): NCCL in them is not seen; \
                 run as root, with CAP_SYS_PTRACE"
                    .to_owned(),
            );
        }
        let all = self.seen + self.denied;
        (self.denied > 0).then(|| {
            let denied = self.denied;
            let pids: Vec<u32> = self.denied_pids.into_iter().filter(|pid| *pid != 0).collect();
            let named = in_brackets(&pids, denied);
            format!(
                "cannot inspect {denied} of {all} processes{named}: NCCL in them is not seen; {}",
                denied_remedy()
            )
        })
    }
}

/// Size and last look of each process of the node.
#[derive(Debug, Default)]
pub struct Census {
    entries: HashMap<u32, Entry>,
    round: u32,
    is_hidden: bool,
}

impl Census {
    /// Returns the processes to look at now, and forgets those that have ended.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn round(&mut self) -> io::Result<Vec<u32>> {
        let (pids, now) = (pids()?, Instant::now());
        self.round = self.round.wrapping_add(1);
        self.is_hidden = is_hidden();
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
            let new = Entry { first_seen: now, looked: now, size: 0, may_be_seen: None };
            let size = match size(pid) {
                Ok(Some(size)) => size,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    self.entries.entry(pid).or_insert(new).may_be_seen = Some(false);
                    continue;
                }
                // The process is gone.
                Ok(None) | Err(_) => continue,
            };
            let entry = self.entries.entry(pid).or_insert(new);
            if is_due(entry, size, now) {
                *entry = Entry { looked: now, size, ..*entry };
                due.push(pid);
            }
        }
        Ok(due)
    }

    /// Notes whether a process could be looked at, if it is still known.
    pub fn note(&mut self, pid: u32, may_be_seen: bool) {
        if let Some(entry) = self.entries.get_mut(&pid) {
            entry.may_be_seen = Some(may_be_seen);
        }
    }

    /// Returns how much of the node could be looked at.
    pub fn visibility(&self) -> Visibility {
        let all = |seen| self.entries.iter().filter(move |(_, entry)| entry.may_be_seen == Some(seen));
        let mut denied: Vec<u32> = all(false).map(|(pid, _)| *pid).collect();
        denied.sort_unstable();
        let mut denied_pids = [0; MAX_NAMED];
        denied_pids.iter_mut().zip(&denied).for_each(|(named, pid)| *named = *pid);
        Visibility { seen: all(true).count(), denied: denied.len(), is_hidden: self.is_hidden, denied_pids }
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

fn size(pid: u32) -> io::Result<Option<u64>> {
    let text = read_text(format!("/proc/{pid}/statm"))?;
    Ok(text.split_ascii_whitespace().next().and_then(|size| size.parse().ok()))
}

/// Tells whether `/proc` hides the processes of other users (`hidepid`).
pub fn is_hidden() -> bool {
    // Every PID namespace has a first process.
    !Path::new("/proc/1").exists()
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
    fn what_may_not_be_looked_at_is_counted_while_it_is_there() {
        let mut census = Census::default();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let due = census.round().unwrap();
        assert_eq!(census.visibility(), Visibility::default(), "nothing was looked at yet");
        for pid in &due {
            census.note(*pid, *pid != child.id());
        }
        let Visibility { seen, denied, .. } = census.visibility();
        assert_eq!((seen, denied), (due.len() - 1, 1));
        census.note(u32::MAX, false);
        assert_eq!(census.visibility().denied, 1, "of a process that is not known nothing is kept");
        child.kill().unwrap();
        child.wait().unwrap();
        census.round().unwrap();
        assert_eq!(census.visibility().denied, 0);
    }

    #[test]
    fn some_that_are_denied_are_said_and_most_are_blindness() {
        let of = |seen, denied, is_hidden| Visibility { seen, denied, is_hidden, ..Visibility::default() };
        assert_eq!((of(40, 0, false).problem(), of(40, 0, false).is_blind()), (None, false));
        assert!(of(40, 2, false).problem().unwrap().starts_with("cannot inspect 2 of 42 processes"));
        let named =
            |denied, denied_pids| Visibility { denied_pids, ..of(40, denied, false) }.problem().unwrap();
        assert!(named(2, [7, 71, 0]).contains("2 of 42 processes (PID 7, 71): "));
        assert!(named(4, [7, 71, 72]).contains("4 of 44 processes (PID 7, 71, 72 …): "));
        assert!(!of(40, 2, false).is_blind() && of(2, 40, false).is_blind() && of(0, 1, false).is_blind());
        assert!(of(3, 0, true).is_blind() && of(3, 0, true).problem().unwrap().contains("hidepid"));
    }

    #[test]
    fn old_processes_are_due_when_they_grow_much_or_after_long() {
        let now = Instant::now();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap_or(now);
        let entry =
            |looked| Entry { first_seen: ago(100), looked: ago(looked), size: 1000, may_be_seen: None };
        assert!(!is_due(&entry(1), 1000, now) && !is_due(&entry(60), 1000, now));
        assert!(!is_due(&entry(1), 1100, now));
        assert!(is_due(&entry(1), 1256, now) && is_due(&entry(1), 700, now));
        assert!(is_due(&entry(11), 1001, now));
    }
}
