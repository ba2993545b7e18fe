//! Names with numbers: a name that occurs again and again is kept once.

use std::{borrow::Borrow, hash::Hash};

use foldhash::HashMap;

/// Values in the order in which they came, each with its number. There are `MOST` at most, as tenants choose
/// most of them.
#[derive(Debug)]
pub(super) struct Numbered<K, V, const MOST: usize> {
    numbers: HashMap<K, usize>,
    values: Vec<(K, V)>,
    /// Number of times that there was no room.
    pub(super) left_out: u64,
}

impl<K, V, const MOST: usize> Default for Numbered<K, V, MOST> {
    fn default() -> Self {
        Self { numbers: HashMap::default(), values: Vec::new(), left_out: 0 }
    }
}

impl<K: Clone + Eq + Hash, V: Default, const MOST: usize> Numbered<K, V, MOST> {
    /// Returns the number of the value of this key, which is made if it is new; `None` if there are too many.
    pub(super) fn number(&mut self, key: &K) -> Option<usize> {
        if let Some(number) = self.numbers.get(key) {
            return Some(*number);
        }
        if self.values.len() >= MOST {
            self.left_out += 1;
            return None;
        }
        self.numbers.insert(key.clone(), self.values.len());
        self.values.push((key.clone(), V::default()));
        Some(self.values.len() - 1)
    }

    /// Returns the value of this key.
    pub(super) fn get(&mut self, key: &K) -> Option<&mut V> {
        let number = self.number(key)?;
        self.at(number)
    }

    pub(super) fn at(&mut self, number: usize) -> Option<&mut V> {
        self.values.get_mut(number).map(|(_, value)| value)
    }

    pub(super) fn find<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        self.numbers.get(key).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.values.iter()
    }
}
