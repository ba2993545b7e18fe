//! Sets of things that belong together.

use std::collections::BTreeMap;

/// Sets of things that belong together.
#[derive(Debug)]
pub(super) struct Sets<T>(BTreeMap<T, usize>, usize);

impl<T> Default for Sets<T> {
    fn default() -> Self {
        Self(BTreeMap::new(), 0)
    }
}

impl<T: Copy + Ord> Sets<T> {
    pub(super) fn join(&mut self, one: T, other: T) {
        let mut set = |of: T| {
            self.1 += 1;
            let new = self.1;
            *self.0.entry(of).or_insert(new)
        };
        let (kept, gone) = (set(one), set(other));
        if kept != gone {
            self.0.values_mut().filter(|set| **set == gone).for_each(|set| *set = kept);
        }
    }

    pub(super) fn sets(self) -> Vec<Vec<T>> {
        let mut sets: BTreeMap<usize, Vec<T>> = BTreeMap::new();
        for (of, set) in self.0 {
            sets.entry(set).or_default().push(of);
        }
        sets.into_values().collect()
    }
}
