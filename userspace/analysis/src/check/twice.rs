//! Ranks that several folders have: only the first is checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use flow::text::{counted, joined, name_ranks};

/// Ranks of a folder that were in another one before, by that folder and communicator.
#[derive(Debug, Default)]
pub(super) struct Twice(BTreeMap<Arc<Path>, BTreeMap<String, BTreeSet<i32>>>);

impl Twice {
    /// Adds a rank that is in the folder `first`, too.
    pub(super) fn add(&mut self, first: &Arc<Path>, communicator: &str, rank: i32) {
        let communicators = self.0.entry(Arc::clone(first)).or_default();
        communicators.entry(communicator.to_owned()).or_default().insert(rank);
    }

    /// Returns a note for each of the other folders. `own`: the folder that is left out.
    pub(super) fn notes(&self, own: &Path) -> impl Iterator<Item = String> {
        self.0.iter().map(|(first, communicators)| {
            let of = |(communicator, ranks): (&String, &BTreeSet<i32>)| {
                let ranks: Vec<i32> = ranks.iter().copied().collect();
                format!("{} of {communicator}", name_ranks(&ranks))
            };
            let what = match communicators.len() {
                1 => joined(communicators.iter().map(of), ""),
                many => format!("the same ranks of {}", counted(many, "communicator")),
            };
            let (first, own) = (first.display(), own.display());
            if first.to_string() == own.to_string() {
                return format!("`{own}` has {what} twice: only the first is checked");
            }
            format!(
                "`{first}` and `{own}` both have {what}: those in `{first}` are checked; check `{own}` by itself"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_names_both_folders_once() {
        let mut twice = Twice::default();
        let first: Arc<Path> = Path::new("first").into();
        for rank in [1, 0, 1] {
            twice.add(&first, "0xab", rank);
        }
        let notes = |twice: &Twice, own: &str| twice.notes(Path::new(own)).collect::<Vec<_>>();
        let expected = "`first` and `second` both have ranks 0, 1 of 0xab: those in `first` are checked; check \
                        `second` by itself";
        assert_eq!(notes(&twice, "second"), [expected]);
        assert_eq!(
            notes(&twice, "first"),
            ["`first` has ranks 0, 1 of 0xab twice: only the first is checked"]
        );
        twice.add(&first, "0xcd", 0);
        assert!(notes(&twice, "second")[0].contains(" both have the same ranks of 2 communicators: "));
    }
}
