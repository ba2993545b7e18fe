//! Names with numbers: a name that occurs again and again is kept once.

use std::hash::Hash;

use foldhash::HashMap;

/// Values in the order in which they came, each with its number. There is a limit, as tenants choose most of
/// them.
#[derive(Debug)]
pub(super) struct Numbered<K, V> {
    numbers: HashMap<K, usize>,
    values: Vec<(K, V)>,
    most: usize,
    /// Number of times that there was no room.
    pub(super) left_out: u64,
}

impl<K: Clone + Eq + Hash, V> Numbered<K, V> {
    pub(super) fn new(most: usize) -> Self {
        Self { numbers: HashMap::default(), values: Vec::new(), most, left_out: 0 }
    }

    /// Returns the number of the value of this key, which is made if it is new; `None` if there are too many.
    pub(super) fn number(&mut self, key: &K, new: impl FnOnce() -> V) -> Option<usize> {
        if let Some(number) = self.numbers.get(key) {
            return Some(*number);
        }
        if self.values.len() >= self.most {
            self.left_out += 1;
            return None;
        }
        self.numbers.insert(key.clone(), self.values.len());
        self.values.push((key.clone(), new()));
        Some(self.values.len() - 1)
    }

    /// Returns the value of this key.
    pub(super) fn get(&mut self, key: &K, new: impl FnOnce() -> V) -> Option<&mut V> {
        let number = self.number(key, new)?;
        self.at(number)
    }

    pub(super) fn at(&mut self, number: usize) -> Option<&mut V> {
        self.values.get_mut(number).map(|(_, value)| value)
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.numbers.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.values.iter()
    }
}
