//! Memory limit of a check.

/// Memory left for what is compared. Where there is no more room, less is compared, and the report says so.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) bytes: usize,
}

impl Room {
    /// Collectives of a day of a host, or half a million sends and receives of each of 16 ranks.
    const BYTES: usize = 512 << 20;

    /// Takes so many bytes. `false`: there are not as many, and none is taken.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.unwrap_or(self.bytes);
        left.is_some()
    }
}

impl Default for Room {
    fn default() -> Self {
        Self { bytes: Self::BYTES }
    }
}
