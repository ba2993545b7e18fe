//! Files that are damaged at random, but the same way each time.

use std::{
    env,
    fmt::Debug,
    fs::File,
    io::{self, Seek as _, Write as _},
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crate::cpu_time::least_cpu_time;

/// A small generator (xorshift64), so that a failure can be repeated from its seed, which must not be 0.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from 0 to `limit - 1`.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.number() % limit as u64).unwrap_or(0)
    }
}

/// Damages a copy of `bytes`, mostly within one of `ranges` (where they begin, and their sizes).
///
/// # Panics
/// If `bytes`, `ranges` or one of them is empty.
#[must_use]
pub fn damage(bytes: &[u8], ranges: &[(usize, usize)], random: &mut Random) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    for _ in 0..=random.below(6) {
        let (start, size) = match random.below(8) {
            0 => (0, bytes.len()),
            1 => (0, 64),
            _ => ranges[random.below(ranges.len())],
        };
        let at = start + random.below(size);
        match random.below(5) {
            0 => damaged[at] ^= 1 << random.below(8),
            1 => damaged[at] = u8::try_from(random.below(256)).unwrap_or(0),
            2 => damaged[at] = [0x00, 0x7f, 0x80, 0xff][random.below(4)],
            3 => {
                let value = [0, u64::MAX, 1 << 63, 1 << 31, 0xffff_fff0, random.number()][random.below(6)];
                let end = bytes.len().min(at + [2, 4, 8][random.below(3)]);
                damaged[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            _ => {
                // A piece from elsewhere: plausible values in the wrong place.
                let from = start + random.below(size);
                let length = (1 + random.below(16)).min(bytes.len() - at.max(from));
                damaged.copy_within(from..from + length, at);
            }
        }
    }
    if random.below(16) == 0 {
        damaged.truncate(random.below(bytes.len()));
    }
    damaged
}

/// Damages a file in 1500 ways, or in as many as `NCCLFLOW_FUZZ_ROUNDS` says, and gives each to `attempt`. Gives the most time
/// that one took on a CPU.
///
/// # Panics
/// If one panics or takes as long as `limit`; says of `what` it was. Or if there is no room for a file.
pub fn attempts(
    what: impl Debug,
    bytes: &[u8],
    ranges: &[(usize, usize)],
    limit: Duration,
    attempt: impl Fn(File),
) -> Duration {
    let rounds: u64 =
        env::var("NCCLFLOW_FUZZ_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1500);
    let times = (1..=rounds).map(|seed| {
        let damaged = damage(bytes, ranges, &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let taken = least_cpu_time(limit, || {
            let file = file_of(&damaged).unwrap_or_else(|error| panic!("making a file: {error}"));
            let outcome = catch_unwind(AssertUnwindSafe(|| attempt(file)));
            assert!(outcome.is_ok(), "panic: {what:?}, seed {seed}");
        });
        assert!(taken < limit, "{taken:?}: {what:?}, seed {seed}");
        taken
    });
    times.max().unwrap_or_default()
}

fn file_of(bytes: &[u8]) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}
