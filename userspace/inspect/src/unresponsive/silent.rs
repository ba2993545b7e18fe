//! Subjects that did not answer.

use serde::{Deserialize, Serialize};

/// Most subjects that are remembered.
const MAX: usize = 1024;

/// Subjects that did not answer, each with its owner. They are not asked again. Of an owner that has `MOST`
/// of them no other is asked, so that the cost stays with that owner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Silent<S, O, const MOST: usize>(Vec<(S, O)>);

impl<S, O: PartialEq, const MOST: usize> Default for Silent<S, O, MOST> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S, O: PartialEq, const MOST: usize> Silent<S, O, MOST> {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a subject. Where there are very many, the oldest is forgotten.
    pub fn add(&mut self, subject: S, owner: O) {
        if self.0.len() >= MAX {
            self.0.remove(0);
        }
        self.0.push((subject, owner));
    }

    /// Tells whether this subject of an owner is not to be asked.
    pub fn has(&self, is_it: impl Fn(&S) -> bool, owner: &O) -> bool {
        self.has_all_of(owner) || self.iter().any(|(subject, of)| of == owner && is_it(subject))
    }

    /// Tells whether none of the owner's subjects is to be asked.
    pub fn has_all_of(&self, owner: &O) -> bool {
        self.iter().filter(|(_, of)| of == owner).count() >= MOST
    }

    pub fn iter(&self) -> impl Iterator<Item = &(S, O)> {
        self.0.iter()
    }

    /// Forgets all other subjects.
    pub fn keep_only(&mut self, is_kept: impl FnMut(&(S, O)) -> bool) {
        self.0.retain(is_kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_silent_is_not_asked_and_some_of_an_owner_stand_for_all() {
        let mut silent = Silent::<u32, char, 2>::new();
        silent.add(1, 'a');
        let has =
            |silent: &Silent<u32, char, 2>, subject, owner| silent.has(|known| *known == subject, &owner);
        assert!(has(&silent, 1, 'a') && !has(&silent, 1, 'b') && !has(&silent, 2, 'a'));
        silent.add(2, 'a');
        assert!(has(&silent, 3, 'a') && !has(&silent, 3, 'b'));
        silent.keep_only(|(subject, _)| *subject == 1);
        assert!(has(&silent, 1, 'a') && !has(&silent, 3, 'a'));
        (0..100_000).for_each(|subject| silent.add(subject, 'a'));
        assert_eq!(silent.iter().count(), MAX);
    }
}
