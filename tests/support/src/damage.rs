//! Files that are damaged at random, but the same way each time.

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
