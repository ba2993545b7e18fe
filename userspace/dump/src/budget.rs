//! Bounds of one reading of a process. Its memory can hold thousands of made-up communicators, each of a
//! million ranks, which share what takes long to read.

use std::time::{Duration, Instant};

/// Longest time for one part of a reading: the communicators, their proxies, what they point to. Dozens of
/// communicators with all their channels take some tenths of a second, and more on a busy host.
const WITHIN: Duration = Duration::from_secs(5);
/// Most peers of channels that are looked at: 64 channels of 16,384 ranks.
const MAX_PEERS: u64 = 1 << 20;

/// What is left of a reading's bounds, and what was left out.
#[derive(Debug)]
pub(super) struct Budget {
    until: Instant,
    peers: u64,
    left_out: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { until: Instant::now() + WITHIN, peers: MAX_PEERS, left_out: 0 }
    }
}

impl Budget {
    /// Begins the next part of the reading.
    pub(super) fn next_part(&mut self) {
        self.until = Instant::now() + WITHIN;
    }

    /// Tells whether another communicator may be read in this part.
    pub(super) fn has_time(&self) -> bool {
        Instant::now() < self.until
    }

    /// Takes the peers of a channel, if so many are left.
    pub(super) fn take_peers(&mut self, n_ranks: u32) -> bool {
        let left = self.peers.checked_sub(n_ranks.into());
        self.peers = left.unwrap_or(self.peers);
        left.is_some()
    }

    /// Counts a communicator that is left out.
    pub(super) fn leave_out(&mut self) {
        self.left_out += 1;
    }

    /// Says that communicators were left out, if so.
    pub(super) fn problem(&self) -> Option<String> {
        let count = self.left_out;
        (count > 0).then(|| format!("{count} of its communicators are not read: that takes too long"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_told_and_each_part_has_its_time() {
        let mut budget = Budget::default();
        assert!(budget.has_time() && budget.problem().is_none());
        budget.until = Instant::now();
        assert!(!budget.has_time());
        budget.leave_out();
        budget.leave_out();
        let problem = budget.problem().unwrap();
        assert!(problem.starts_with("2 of its communicators are not read"), "{problem}");
        budget.next_part();
        assert!(budget.has_time());
    }

    #[test]
    fn a_channel_of_more_peers_than_are_left_takes_none() {
        let mut budget = Budget::default();
        assert!((0..64).all(|_| budget.take_peers(16_000)));
        assert!(!budget.take_peers(1 << 20) && budget.take_peers(16_000));
        assert!((0..64).any(|_| !budget.take_peers(16_000)));
    }
}
