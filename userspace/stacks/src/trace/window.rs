//! The part of a trace that is asked for.

/// Time between two moments, in ns of the trace's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    from: i64,
    to: i64,
}

impl Window {
    /// The whole trace.
    pub const WHOLE: Self = Self { from: i64::MIN, to: i64::MAX };

    /// Makes a window that begins at `start` and lasts `duration`.
    pub fn new(start: i64, duration: u64) -> Self {
        Self { from: start, to: start.saturating_add_unsigned(duration) }
    }

    pub fn is_whole(self) -> bool {
        self == Self::WHOLE
    }

    /// Tells whether a launch counts: it begins after the window does, and before it ends. The NCCL Call
    /// Stack Analyzer does the same, so the slice that is the window does not count itself.
    pub(super) fn has_launch(self, begin: i64) -> bool {
        self.is_whole() || (begin > self.from && begin < self.to)
    }

    /// Tells whether a kernel is listed as one of the window: it begins in it.
    pub(super) fn has_kernel(self, begin: i64) -> bool {
        begin >= self.from && begin < self.to
    }

    /// Tells whether a slice may have called a launch of the window.
    pub(super) fn overlaps(self, begin: i64, end: i64) -> bool {
        begin < self.to && end > self.from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges() {
        let window = Window::new(100, 50);
        assert_eq!([100, 101, 149, 150].map(|at| window.has_launch(at)), [false, true, true, false]);
        assert_eq!([99, 100, 149, 150].map(|at| window.has_kernel(at)), [false, true, true, false]);
        assert!(window.overlaps(0, 101) && !window.overlaps(0, 100));
        assert!(window.overlaps(149, 149) && !window.overlaps(150, 200));
        assert!(Window::WHOLE.has_launch(i64::MIN) && !Window::new(i64::MAX - 1, u64::MAX).is_whole());
    }
}
