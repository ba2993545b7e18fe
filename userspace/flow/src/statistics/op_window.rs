//! Memory of the ops that were counted: an op comes as a record for each of its channels, and records of
//! other ops can come in between.

/// Words of 64 ops that are remembered: the last 4,033 ops at least. The channels of an op come within one
/// plan, or, where messages are measured, when the last of them is done.
const WORDS: usize = 64;

/// The latest ops of a rank, by number.
#[derive(Clone, Debug)]
pub(super) struct OpWindow {
    words: [u64; WORDS],
    /// The newest word; `None` before the first op.
    newest: Option<u64>,
}

/// Answer of a window about an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    First,
    Again,
    /// So old that it is not known whether the op was seen.
    Forgotten,
}

impl Default for OpWindow {
    fn default() -> Self {
        Self { words: [0; WORDS], newest: None }
    }
}

impl OpWindow {
    /// Notes a record of the op with this number.
    pub(super) fn note(&mut self, number: u64) -> Seen {
        let word = number / 64;
        match self.newest {
            Some(newest) if word > newest => {
                for between in newest + 1..=word.min(newest.saturating_add(WORDS as u64)) {
                    self.words[slot(between)] = 0;
                }
                self.words[slot(word)] = 0;
                self.newest = Some(word);
            }
            Some(newest) if word + WORDS as u64 <= newest => return Seen::Forgotten,
            Some(_) => {}
            None => self.newest = Some(word),
        }
        let (bits, bit) = (&mut self.words[slot(word)], 1 << (number % 64));
        let seen = if *bits & bit == 0 { Seen::First } else { Seen::Again };
        *bits |= bit;
        seen
    }
}

/// Windows of a rank: of its collectives, and of its sends and receives, which are numbered apart.
pub(super) type OpWindows = [OpWindow; 2];

fn slot(word: u64) -> usize {
    usize::try_from(word % WORDS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_op_is_new_once_however_its_records_interleave() {
        let mut window = OpWindow::default();
        let order = [0, 1, 0, 1, 5, 3, 5, 64, 0, 70, 64, 4000, 4000, 70];
        let first: Vec<u64> =
            order.into_iter().filter(|number| window.note(*number) == Seen::First).collect();
        assert_eq!(first, [0, 1, 5, 3, 64, 70, 4000]);
    }

    #[test]
    fn what_is_far_back_is_forgotten_and_jumps_forget_all() {
        let mut window = OpWindow::default();
        window.note(10);
        assert_eq!(window.note(10 + 64 * 64), Seen::First);
        assert_eq!(window.note(10), Seen::Forgotten);
        assert_eq!(window.note(1 << 61), Seen::First);
        assert_eq!(window.note((1 << 61) - 3), Seen::First, "not taken for one of an earlier round");
        assert_eq!(window.note(1 << 61), Seen::Again);
    }
}
