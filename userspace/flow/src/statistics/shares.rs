//! Room that processes share: where none is left, the process that has the most gives some up.

use std::collections::HashMap;

/// Share of the room that each process has.
#[derive(Debug, Default)]
pub(super) struct Shares(HashMap<u32, usize>);

impl Shares {
    pub(super) fn take(&mut self, pid: u32) {
        *self.0.entry(pid).or_default() += 1;
    }

    pub(super) fn give_up(&mut self, pid: u32) {
        if let Some(share) = self.0.get_mut(&pid) {
            *share -= 1;
            if *share == 0 {
                self.0.remove(&pid);
            }
        }
    }

    pub(super) fn forget(&mut self, pid: u32) {
        self.0.remove(&pid);
    }

    /// Returns the process that is to give up room for this one: the process that has the most, if that is
    /// more than this one would then have.
    pub(super) fn largest_for(&self, pid: u32) -> Option<u32> {
        let own = self.0.get(&pid).copied().unwrap_or(0);
        let (largest, share) = self.0.iter().max_by_key(|(pid, share)| (**share, **pid))?;
        (*share > own + 1).then_some(*largest)
    }
}
