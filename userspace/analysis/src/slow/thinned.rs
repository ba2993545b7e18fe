//! Values of which every second one goes when there are too many.

/// At most so many values, evenly over all that came.
#[derive(Clone, Debug)]
pub(super) struct Thinned<T> {
    pub(super) values: Vec<T>,
    most: usize,
    /// One of so many values is kept.
    stride: usize,
    pub(super) seen: usize,
}

impl<T> Thinned<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { values: Vec::new(), most, stride: 1, seen: 0 }
    }

    pub(super) fn add(&mut self, value: T) {
        self.seen += 1;
        if !self.seen.is_multiple_of(self.stride) {
            return;
        }
        self.values.push(value);
        if self.values.len() >= self.most {
            let mut number = 0usize;
            self.values.retain(|_| {
                number += 1;
                number.is_multiple_of(2)
            });
            self.stride *= 2;
        }
    }
}
