//! Retries after growing pauses.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

/// First pause where none is given, which doubles each time, and longest pause.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(3600);

/// Most keys that are remembered; beyond that, the one with the latest retry is forgotten.
const MAX: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Pause {
    length: Duration,
    until: Instant,
}

/// Processes or files that could not be looked at, and their pauses.
#[derive(Debug)]
pub struct Backoff<K> {
    pauses: HashMap<K, Pause>,
    first: Duration,
}

impl<K> Default for Backoff<K> {
    fn default() -> Self {
        Self::beginning_with(FIRST)
    }
}

impl<K> Backoff<K> {
    /// The first pause is this long.
    pub fn beginning_with(first: Duration) -> Self {
        Self { pauses: HashMap::new(), first }
    }
}

impl<K: Copy + Eq + Hash> Backoff<K> {
    /// Puts a key off for its next pause, after a failure or an incomplete look. Returns the pause's length.
    pub fn put_off(&mut self, key: K, now: Instant) -> Duration {
        let length = self.pauses.get(&key).map_or(self.first, |pause| (pause.length * 2).min(LONGEST));
        self.put_off_for(key, length, now)
    }

    /// Puts a key off for the first pause only: the failure is not its fault (want of descriptors, for
    /// instance).
    pub fn put_off_shortly(&mut self, key: K, now: Instant) {
        self.put_off_for(key, self.first, now);
    }

    fn put_off_for(&mut self, key: K, length: Duration, now: Instant) -> Duration {
        let until = now + length;
        if self.pauses.len() >= MAX && !self.pauses.contains_key(&key) {
            let last = self.pauses.iter().max_by_key(|(_, pause)| pause.until).map(|(key, _)| *key);
            last.map(|last| self.pauses.remove(&last));
        }
        self.pauses.insert(key, Pause { length, until });
        length
    }

    /// Tells whether the key's pause is still running.
    pub fn is_put_off(&self, key: &K, now: Instant) -> bool {
        self.pauses.get(key).is_some_and(|pause| now < pause.until)
    }

    /// Forgets a key that is well or gone.
    pub fn forget(&mut self, key: &K) {
        self.pauses.remove(key);
    }

    /// Returns the keys whose pause is over, once. They stay remembered for their next pause.
    pub fn due(&mut self, now: Instant) -> Vec<K> {
        let due = self.pauses.iter_mut().filter(|(_, pause)| pause.until <= now);
        due.map(|(key, pause)| {
            // Until it is put off again, or forgotten.
            pause.until = now + LONGEST;
            *key
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_it_is_well() {
        let (mut backoff, begun) = (Backoff::default(), Instant::now());
        let mut now = begun;
        let lengths: Vec<u64> = (0..14)
            .map(|_| {
                let length = backoff.put_off(7, now);
                assert!(backoff.is_put_off(&7, now) && backoff.due(now).is_empty());
                now += length;
                assert_eq!((backoff.is_put_off(&7, now), backoff.due(now)), (false, vec![7]));
                assert!(backoff.due(now).is_empty(), "it is given once");
                length.as_secs()
            })
            .collect();
        backoff.put_off_shortly(8, now);
        backoff.put_off_shortly(8, now);
        assert_eq!(backoff.due(now + FIRST), [8]);
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]);
        backoff.forget(&7);
        assert_eq!(backoff.put_off(7, now), FIRST);
    }

    #[test]
    fn no_more_are_remembered_than_may_be() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        for number in 0..8192 {
            backoff.put_off(number, now);
        }
        assert_eq!(backoff.pauses.len(), MAX);
    }
}
