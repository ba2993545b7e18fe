//! State of the budget: bytes taken and kept, by windows and files.

use flow::session::MaxSizeReport;
use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use crate::sinks::created_files::Made;

/// Free room at which ops are written; at most a 16th of the limit. Avoids halves of ops, and ops now and
/// then.
const SOME_ROOM: u64 = 1 << 20;

pub(super) fn some_room(limit: u64) -> u64 {
    SOME_ROOM.min(limit / 16)
}

/// Part for files beside the windows, or of a recording without windows.
pub(super) const MAIN: u64 = 0;

/// Kept room that a file may draw on, besides free room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Free room only.
    Free,
    /// Free room only. Where there is none, the writer removes what is its own before anything is lost.
    Records,
    Aggregates,
    Compressed,
    /// Room kept for `session.json`.
    Report,
    /// Room kept so that a next window can be opened.
    Opening,
    /// Room kept for the lasting facts of segments that are removed.
    Lasting,
}

const SHARES: usize = 7;

/// Bytes by [`Share`].
pub(super) type ByShare = [u64; SHARES];

/// Bytes that a file takes, and that are to be kept free for what is made from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sinks) struct Need {
    pub(in crate::sinks) disk: u64,
    pub(in crate::sinks) kept: ByShare,
}

impl Need {
    pub(in crate::sinks) fn keeping(mut self, share: Share, bytes: u64) -> Self {
        self.kept[share as usize] = bytes;
        self
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Bytes on disk, or about to be.
    pub(super) used: u64,
    /// Bytes kept, over all parts.
    pub(super) kept: u64,
    pub(super) parts: HashMap<u64, Part>,
    pub(super) next_part: u64,
    /// Windows that may be removed, oldest first, and since when they are complete.
    pub(super) complete: VecDeque<(u64, Instant)>,
    /// Line files that may be removed, oldest first.
    pub(super) removable_lines: VecDeque<u64>,
    /// Names in the root that are free again; its blocks are not.
    pub(super) spare_entries: u64,
    pub(super) is_full: bool,
    pub(super) was_refused: bool,
    /// Windows and lines that were removed, with the latest folders.
    pub(super) removed: MaxSizeReport,
    pub(super) news: DiskNews,
    /// The news was announced.
    pub(super) was_said: bool,
}

/// A window, or the files beside the windows; or the line files of either.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Folder of the window, from the root.
    pub(super) folder: Arc<str>,
    /// Tenant of the processes, for a window of some containers; empty for all processes.
    pub(super) tenant: Arc<str>,
    /// The part's line files, as a part.
    pub(super) lines: Option<u64>,
    pub(super) is_lines: bool,
    pub(super) used: u64,
    pub(super) kept: ByShare,
    /// Bytes of `kept` that were set as a whole.
    pub(super) fixed: ByShare,
    pub(super) made: Made,
}

/// News from the budget.
#[derive(Debug, Default)]
pub struct DiskNews {
    /// Folders of windows that were removed.
    pub removed: Vec<String>,
    /// Folders whose line files were removed; the empty name is the root.
    pub lines_removed: Vec<String>,
    /// Tenants whose windows or line files were removed although others' were older: theirs took most.
    pub over_share: Vec<Arc<str>>,
    /// There was no room for the first time.
    pub is_first_refusal: bool,
}

impl State {
    /// Changes what a part takes and keeps, if that stays within the limit. `borrowed`: kept bytes that need
    /// not be free now.
    pub(super) fn change(&mut self, limit: u64, part: u64, from: &Need, to: &Need, borrowed: u64) -> bool {
        let Some(entry) = self.parts.get(&part) else { return false };
        let mut kept = entry.kept;
        for (share, bytes) in kept.iter_mut().enumerate() {
            *bytes = bytes.saturating_add(to.kept[share]).saturating_sub(from.kept[share]);
        }
        let sum = |kept: &ByShare| kept.iter().sum::<u64>();
        let used = self.used.saturating_add(to.disk).saturating_sub(from.disk);
        let all_kept = self.kept.saturating_sub(sum(&entry.kept)).saturating_add(sum(&kept));
        let needs_more = used.saturating_add(all_kept) > self.used.saturating_add(self.kept);
        let is_too_much = used.saturating_add(all_kept.saturating_sub(borrowed)) > limit;
        if needs_more && is_too_much || used > self.used && used > limit {
            return false;
        }
        if let Some(entry) = self.parts.get_mut(&part) {
            entry.used = entry.used.saturating_add(to.disk).saturating_sub(from.disk);
            entry.kept = kept;
        }
        (self.used, self.kept) = (used, all_kept);
        true
    }

    /// Returns the bytes that are neither taken nor kept.
    pub(super) fn left(&self, limit: u64) -> u64 {
        limit.saturating_sub(self.used.saturating_add(self.kept))
    }

    /// Takes the next part to remove out of its list, as `part` needs room: line files, then windows. Of
    /// several tenants', it is the oldest of the one whose windows take most: nobody pushes out what others
    /// recorded. `None`: none is listed, or only others' and `part`'s tenant takes most.
    pub(super) fn next_to_remove(&mut self, part: u64) -> Option<u64> {
        let lines = self.removable_lines.iter().copied();
        if let Some(at) = self.oldest_of_the_largest(part, lines) {
            self.note_over_share(at, self.removable_lines.get(at).copied());
            return self.removable_lines.remove(at);
        }
        let windows = self.complete.iter().map(|(window, _)| *window);
        let at = self.oldest_of_the_largest(part, windows)?;
        self.note_over_share(at, self.complete.get(at).map(|(window, _)| *window));
        self.complete.remove(at).map(|(window, _)| window)
    }

    /// Returns the position of that part in a list in order of age.
    fn oldest_of_the_largest(&self, part: u64, listed: impl Iterator<Item = u64>) -> Option<usize> {
        // By tenant: position of the oldest part, and bytes of all its windows.
        let mut tenants = HashMap::<&str, (usize, u64)>::new();
        for (at, number) in listed.enumerate() {
            tenants.entry(self.tenant(number)).or_insert((at, 0));
        }
        if tenants.len() < 2 && tenants.keys().all(|tenant| part == MAIN || *tenant == self.tenant(part)) {
            return tenants.into_values().next().map(|(at, _)| at);
        }
        let mut own = 0_u64;
        for (_, window) in self.parts.iter().filter(|(number, _)| **number != MAIN) {
            if let Some((_, bytes)) = tenants.get_mut(&*window.tenant) {
                *bytes = bytes.saturating_add(window.used);
            }
            if part != MAIN && *window.tenant == *self.tenant(part) {
                own = own.saturating_add(window.used);
            }
        }
        let (at, bytes) = tenants.into_values().max_by_key(|(at, bytes)| (*bytes, Reverse(*at)))?;
        (bytes >= own).then_some(at)
    }

    /// Returns the tenant of a part.
    fn tenant(&self, part: u64) -> &str {
        self.parts.get(&part).map_or("", |part| &part.tenant)
    }

    /// Notes the tenant of a removed part if older ones stay. `at`: its position in the list.
    fn note_over_share(&mut self, at: usize, part: Option<u64>) {
        let tenant = part.and_then(|part| self.parts.get(&part)).map(|part| Arc::clone(&part.tenant));
        if let Some(tenant) = tenant.filter(|_| at > 0) {
            self.news.over_share.push(tenant);
        }
    }

    pub(super) fn resume_if_room(&mut self, limit: u64) {
        if self.left(limit) >= some_room(limit) {
            self.is_full = false;
        }
    }

    pub(super) fn refuse(&mut self) {
        self.is_full = true;
        self.news.is_first_refusal |= !self.was_refused;
        self.was_refused = true;
    }
}
