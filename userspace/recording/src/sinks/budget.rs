//! The disk budget of a recording: every writer takes its bytes from it before it writes them.
//!
//! Bytes are counted as `du` shows them: whole blocks of files, with those that hold their extents, and
//! folders with their entries. Room is also kept for files that are written at the end. Room is made by
//! removing the oldest: first line files, which can be made again from the recording, then complete windows.
//! Where windows are of several tenants, the tenant whose windows take most loses its own. A recording
//! without windows removes its own oldest segments ([`crate::format::RecordingWriter`]).
//!
//! A window reserves room for its `session.json`. A recording reserves room for its own and for that of the
//! next window, which must be able to open while the last one is being completed. Nothing is removed by a
//! name pattern: each part of a recording knows its files by device and inode.

mod state;

use flow::session::MaxSizeReport;
use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{created_files::Made, output_dir::OutputDir};
use state::{MAIN, Part, State, some_room};

pub(super) use state::Need;
pub use state::{DiskNews, Share};

/// Most bytes of a name in its folder: an entry of 72 bytes, in blocks that are half full, as ext4 splits
/// them.
pub(super) const ENTRY: u64 = 256;

/// Blocks of a file that need no index block: an ext4 inode has room for so many extents.
const BLOCKS_IN_INODE: u64 = 4;

/// Blocks found through one index block, if no two are neighbours: it has room for 340 extents in 4 KiB.
const BLOCKS_IN_INDEX: u64 = 256;

/// Block sizes that are believed. Network file systems give the size of their transfers.
const BLOCK_SIZES: std::ops::RangeInclusive<u64> = 4096..=65536;

/// Most folders of removed windows that are named; older ones are only counted.
const MAX_NAMED: usize = 256;

/// The limit of a recording, and what is left of it.
#[derive(Clone, Debug)]
pub struct DiskBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: u64,
    block: u64,
    /// Room is kept for compressed files.
    compress: bool,
    /// The limited folder, itself without an account.
    root: OutputDir,
    state: Mutex<State>,
    /// Held while windows are removed, so that two threads that need room do not remove one each.
    removing: Mutex<()>,
}

/// Account of the bytes that a folder's files take.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) budget: DiskBudget,
    part: u64,
    /// Path of the folder from the root.
    pub(super) within: Arc<str>,
}

impl DiskBudget {
    /// Limits this folder; returns its account. `block` is the file system's block size. The root folder's
    /// own block counts.
    pub(super) fn limit_folder(root: OutputDir, limit: u64, block: u64, compress: bool) -> Account {
        let block = block.clamp(*BLOCK_SIZES.start(), *BLOCK_SIZES.end());
        let main = Part { used: block, ..Part::default() };
        let state = State {
            used: block,
            parts: HashMap::from([(MAIN, main)]),
            next_part: MAIN + 1,
            ..State::default()
        };
        let (state, removing) = (Mutex::new(state), Mutex::default());
        let budget = Self(Arc::new(Shared { limit, block, compress, root, state, removing }));
        Account { budget, part: MAIN, within: "".into() }
    }

    /// Tells whether room is kept for compressed files.
    pub(super) fn keeps_compressed(&self) -> bool {
        self.0.compress
    }

    /// Returns what a file of so many bytes takes on disk.
    pub(super) fn cost(&self, bytes: u64) -> u64 {
        let blocks = bytes.div_ceil(self.0.block);
        let index = if blocks > BLOCKS_IN_INODE { 1 + blocks / BLOCKS_IN_INDEX } else { 0 };
        (blocks + index).saturating_mul(self.0.block)
    }

    /// Returns the size to which the file can grow within its blocks.
    pub(super) fn covered(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.0.block).saturating_mul(self.0.block)
    }

    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Tells whether there is news to report; only once, until the news is taken.
    pub fn has_news(&self) -> bool {
        let mut state = self.state();
        let DiskNews { removed, lines_removed, is_first_refusal, over_share: _ } = &state.news;
        let has_news = *is_first_refusal || !removed.is_empty() || !lines_removed.is_empty();
        has_news && !std::mem::replace(&mut state.was_said, true)
    }

    pub fn take_news(&self) -> DiskNews {
        let mut state = self.state();
        state.was_said = false;
        std::mem::take(&mut state.news)
    }

    pub fn report(&self) -> MaxSizeReport {
        let state = self.state();
        MaxSizeReport {
            // There may be an age only.
            bytes: (self.0.limit < u64::MAX).then_some(self.0.limit),
            used_bytes: state.used,
            ..state.removed.clone()
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes windows that have been complete for so long.
    pub fn remove_older_than(&self, age: Duration) {
        let _one_at_a_time = self.0.removing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let oldest = self.state().complete.pop_front_if(|(_, since)| since.elapsed() >= age);
            let Some((oldest, _)) = oldest else { return };
            self.remove(oldest);
        }
    }

    /// Removes a window, or a part's line files. What cannot be removed still counts.
    fn remove(&self, part: u64) {
        let (part, lines) = {
            let mut state = self.state();
            let Some(part) = state.parts.remove(&part) else { return };
            let lines = part.lines.and_then(|lines| state.parts.remove(&lines));
            (part, lines)
        };
        let (folder, is_lines, mut freed) = (part.folder.to_string(), part.is_lines, 0);
        // A folder's content goes before the folder.
        for Part { used, kept, made, .. } in lines.into_iter().chain([part]) {
            let left = made.remove(&self.0.root, |bytes| self.cost(bytes)).min(used);
            let mut state = self.state();
            state.used = state.used.saturating_sub(used - left);
            state.kept = state.kept.saturating_sub(kept.iter().sum());
            freed += used - left;
        }
        let mut state = self.state();
        state.removed.bytes_removed += freed;
        if is_lines {
            state.removed.lines_removed += 1;
            state.news.lines_removed.push(folder);
        } else {
            // The root keeps the block that the entry was in.
            state.used = state.used.saturating_add(ENTRY);
            state.spare_entries += 1;
            state.news.removed.push(folder.clone());
            let removed = &mut state.removed;
            removed.windows_removed += 1;
            removed.folders_removed.push(folder);
            if removed.folders_removed.len() > MAX_NAMED {
                removed.folders_removed.remove(0);
            }
        }
        state.resume_if_room(self.0.limit);
    }
}

impl Account {
    /// Tries, and makes room until the attempt succeeds.
    fn obtain(&self, attempt: impl FnMut(&mut State, u64) -> bool) -> bool {
        let obtained = self.make_room_until(attempt);
        if !obtained {
            self.refuse();
        }
        obtained
    }

    /// Removes line files, and then windows, until the attempt succeeds.
    fn make_room_until(&self, mut attempt: impl FnMut(&mut State, u64) -> bool) -> bool {
        let budget = &self.budget;
        let limit = budget.0.limit;
        if attempt(&mut budget.state(), limit) {
            return true;
        }
        let _one_at_a_time = budget.0.removing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let next = {
                let mut state = budget.state();
                if attempt(&mut state, limit) {
                    return true;
                }
                let Some(next) = state.next_to_remove(self.part) else { return false };
                next
            };
            budget.remove(next);
        }
    }

    /// Returns the account of a folder in this one.
    pub(super) fn inside(&self, name: &str) -> Self {
        let within =
            if self.within.is_empty() { name.into() } else { format!("{}/{name}", self.within).into() };
        Self { budget: self.budget.clone(), part: self.part, within }
    }

    /// Opens an account for a window in this folder, with the folder's own bytes, and `report` bytes kept for
    /// its report. `tenant`: of its processes; empty for all processes.
    pub(super) fn open_window(&self, name: &str, report: u64, tenant: &str) -> io::Result<Self> {
        let mut opened = None;
        self.obtain(|state, limit| {
            let entry = if state.spare_entries > 0 { 0 } else { ENTRY };
            let opening = state.parts.get(&MAIN).map_or(0, |main| main.kept[Share::Opening as usize]);
            let part = state.next_part;
            let opening_part = Part { folder: name.into(), tenant: tenant.into(), ..Part::default() };
            state.parts.insert(part, opening_part);
            let need =
                Need { disk: self.budget.0.block + entry, ..Need::default() }.keeping(Share::Report, report);
            if !state.change(limit, part, &Need::default(), &need, opening) {
                state.parts.remove(&part);
                return false;
            }
            if entry == 0 {
                // The entry is counted already, as nobody's.
                state.spare_entries -= 1;
                state.used = state.used.saturating_sub(ENTRY);
                let taken = Need { disk: ENTRY, ..Need::default() };
                state.change(u64::MAX, part, &Need::default(), &taken, 0);
            }
            state.next_part += 1;
            opened = Some(part);
            true
        });
        let part = opened.ok_or_else(over_max_size)?;
        Ok(Self { part, ..self.inside(name) })
    }

    /// Returns the account of a complete window in this folder that was not removed.
    pub(super) fn complete_window(&self, name: &str) -> Option<Self> {
        let state = self.budget.state();
        let complete = state.complete.iter().map(|(part, _)| *part);
        let is_it = |part: &u64| state.parts.get(part).is_some_and(|part| &*part.folder == name);
        let part = complete.into_iter().find(is_it)?;
        Some(Self { part, ..self.inside(name) })
    }

    /// Returns the account of the same folder's line files.
    pub(super) fn of_lines(&self) -> Self {
        let mut state = self.budget.state();
        let new = state.next_part;
        // A removed part's account has nothing that may be written.
        let Some(part) = state.parts.get_mut(&self.part).filter(|part| !part.is_lines) else {
            return self.clone();
        };
        let lines = *part.lines.get_or_insert(new);
        if lines == new {
            let (folder, tenant) = (Arc::clone(&part.folder), Arc::clone(&part.tenant));
            state.parts.insert(lines, Part { folder, tenant, is_lines: true, ..Part::default() });
            state.next_part += 1;
        }
        Self { part: lines, ..self.clone() }
    }

    /// Tells whether the part was removed.
    pub(super) fn is_removed(&self) -> bool {
        !self.budget.state().parts.contains_key(&self.part)
    }

    /// Notes that something is lost for lack of room.
    pub(super) fn refuse(&self) {
        self.budget.state().refuse();
    }

    /// Makes room for so many bytes without taking them. `false`: not enough can be removed.
    pub(super) fn make_room(&self, bytes: u64) -> bool {
        self.make_room_until(|state, limit| state.left(limit) >= bytes)
    }

    /// Makes room for an op's lines.
    pub(super) fn make_some_room(&self) -> bool {
        self.make_room(some_room(self.budget.0.limit))
    }

    /// Drops the account of a discarded window.
    pub(super) fn abandon_window(&self) {
        let mut state = self.budget.state();
        if let Some(part) = state.parts.remove(&self.part) {
            let lines = part.lines.and_then(|lines| state.parts.remove(&lines));
            for part in [Some(part), lines].into_iter().flatten() {
                state.used = state.used.saturating_sub(part.used);
                state.kept = state.kept.saturating_sub(part.kept.iter().sum());
            }
        }
    }

    pub(super) fn complete(&self) {
        let mut state = self.budget.state();
        let Some(part) = state.parts.get(&self.part) else { return };
        let lines = part.lines;
        for part in [Some(self.part), lines].into_iter().flatten() {
            let Some(part) = state.parts.get_mut(&part) else { continue };
            let kept: u64 = part.kept.iter().sum();
            (part.kept, part.fixed) = Default::default();
            state.kept = state.kept.saturating_sub(kept);
        }
        if self.part == MAIN {
            state.resume_if_room(self.budget.0.limit);
        } else {
            state.removable_lines.extend(lines);
            state.complete.push_back((self.part, Instant::now()));
            state.is_full = false;
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.budget.state().is_full
    }

    /// Takes the additional bytes of a file.
    pub(super) fn grow(&self, from: &Need, to: &Need) -> bool {
        self.obtain(|state, limit| state.change(limit, self.part, from, to, 0))
    }

    /// Keeps room without asking whether there is any: there will be, as lines get what is left.
    pub(super) fn keep(&self, share: Share, bytes: u64) {
        let mut state = self.budget.state();
        let Some(part) = state.parts.get_mut(&self.part) else { return };
        let before = std::mem::replace(&mut part.fixed[share as usize], bytes);
        let (from, to) = (Need::default().keeping(share, before), Need::default().keeping(share, bytes));
        state.change(u64::MAX, self.part, &from, &to, 0);
    }

    /// Takes bytes for a file written at the end, from the room kept for it and from what is free.
    pub(super) fn take(&self, share: Share, bytes: u64) -> io::Result<()> {
        let attempt = |state: &mut State, limit: u64| {
            let part = state.parts.get(&self.part);
            let lines = part.and_then(|part| part.lines).and_then(|lines| state.parts.get(&lines));
            let kept_of = |part: Option<&Part>| part.map_or(0, |part| part.kept[share as usize]);
            let (kept, kept_by_lines) = (kept_of(part), kept_of(lines));
            let (mut from, mut borrowed) = (Need::default(), 0);
            match share {
                Share::Free | Share::Records | Share::Opening => {}
                Share::Aggregates | Share::Compressed => from = from.keeping(share, kept.min(bytes)),
                // `session.json` is written again and again, each time in the former one's place: what is
                // kept for it stays. Lines keep room for what it says of them.
                Share::Report => borrowed = kept.saturating_add(kept_by_lines),
                // It replaces more than it takes. What `session.json` has drawn beyond what is free, of its
                // kept room, is not taken from this.
                Share::Lasting => {
                    let over = state.used.saturating_add(state.kept).saturating_sub(limit);
                    borrowed = kept.saturating_add(over);
                }
            }
            state.change(limit, self.part, &from, &Need { disk: bytes, ..Need::default() }, borrowed)
        };
        let is_taken = match share {
            // These can be made later, by hand: nothing is removed for them.
            Share::Aggregates | Share::Compressed => attempt(&mut self.budget.state(), self.budget.0.limit),
            // The writer reports what is lost, if anything is.
            Share::Records | Share::Lasting => self.make_room_until(attempt),
            Share::Free | Share::Report | Share::Opening => self.obtain(attempt),
        };
        if is_taken { Ok(()) } else { Err(over_max_size()) }
    }

    /// Gives back bytes that are no longer on disk.
    pub(super) fn give_back(&self, bytes: u64) {
        let mut state = self.budget.state();
        let from = Need { disk: bytes, ..Need::default() };
        state.change(u64::MAX, self.part, &from, &Need::default(), 0);
        state.resume_if_room(self.budget.0.limit);
    }

    /// Passes this part's list of made files, and the folder's path, to `look`.
    pub(super) fn made<T: Default>(&self, look: impl FnOnce(&mut Made, &Arc<str>) -> T) -> T {
        let mut state = self.budget.state();
        state.parts.get_mut(&self.part).map_or_else(T::default, |part| look(&mut part.made, &self.within))
    }
}

/// Error: no room under the limit.
#[derive(Clone, Copy, Debug)]
struct OverMaxSize;

impl std::error::Error for OverMaxSize {}

impl std::fmt::Display for OverMaxSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("there is no room for it under --max-size")
    }
}

pub(super) fn over_max_size() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, OverMaxSize)
}

/// Tells whether the limit caused the error, not the disk.
pub fn is_over_max_size(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<OverMaxSize>)
}

#[cfg(test)]
mod tests;
