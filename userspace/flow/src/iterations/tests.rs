//! Sequences whose iterations the test knows: each is made of letters, with a pause before each iteration.

use super::*;

const MS: u64 = 1_000_000;

/// A sequence that is being made.
#[derive(Default)]
struct Made {
    finder: IterationFinder,
    now: u64,
    seq: u64,
    /// Times at which iterations begin.
    begins: Vec<u64>,
}

impl Made {
    /// Capitals are of another communicator.
    fn call(&mut self, letters: &str) -> &mut Self {
        for letter in letters.chars() {
            self.now += MS;
            self.seq += 1;
            let function = letter.to_ascii_lowercase().to_string();
            let comm = if letter.is_uppercase() { (Some(2), 8) } else { (Some(1), 4) };
            self.finder.push(Collective::new(
                (&function, Some(1024), Some("float32")),
                comm,
                self.seq,
                self.now,
            ));
        }
        self
    }

    fn iteration(&mut self, letters: &str) -> &mut Self {
        self.now += 20 * MS;
        self.begins.push(self.now + MS);
        self.call(letters)
    }

    fn iterations(&mut self, count: usize, letters: &str) -> &mut Self {
        for _ in 0..count {
            self.iteration(letters);
        }
        self
    }

    fn length(&self) -> Option<usize> {
        self.finder.find(false).map(|period| period.collectives())
    }

    fn marks(&self) -> Vec<Mark> {
        marks(self.finder.collectives(), &self.finder.find(true).unwrap())
    }

    /// All marks are at beginnings of iterations, and have their numbers.
    fn assert_marked(&self) {
        let marks = self.marks();
        let number = |at: u64| {
            self.begins.iter().position(|begin| *begin == at).unwrap_or_else(|| panic!("none at {at}"))
        };
        let first = number(marks[0].first.ts_ns);
        for mark in &marks {
            assert_eq!(number(mark.first.ts_ns) - first, usize::try_from(mark.number).unwrap());
        }
        assert!(marks.len() * 2 > self.begins.len(), "{} of {}", marks.len(), self.begins.len());
    }
}

#[test]
fn a_sequence_is_found_after_a_prologue_and_begins_at_the_pause() {
    let mut made = Made::default();
    // The finder first looks in the middle of an iteration.
    made.call("xyzzxyxyx").call("cd").iterations(100, "aabcd");
    assert_eq!(made.length(), Some(5));
    made.assert_marked();
    assert_eq!(made.marks().len(), 100);
}

#[test]
fn too_little_is_not_believed_before_the_end() {
    let mut made = Made::default();
    made.iterations(5, "abc");
    assert_eq!(made.length(), None);
    assert_eq!(made.finder.find(true).map(|period| period.collectives()), Some(3));
    let mut twice = Made::default();
    twice.iterations(2, "abc");
    assert!(twice.finder.find(true).is_none(), "three times at least");
    // Slow ones are believed by their time.
    let mut slow = Made::default();
    for _ in 0..5 {
        slow.now += 3000 * MS;
        slow.iteration("abc");
    }
    assert_eq!(slow.length(), Some(3));
}

#[test]
fn layers_and_micro_batches_are_parts_of_an_iteration() {
    let mut layers = Made::default();
    let step = format!("{}b", "a".repeat(24));
    layers.iterations(20, &step);
    assert_eq!(layers.length(), Some(25));
    layers.assert_marked();
    let mut accumulation = Made::default();
    accumulation.call("gs").iterations(30, "fgfgfgfgs");
    assert_eq!(accumulation.length(), Some(9));
    accumulation.assert_marked();
    // Before it is seen that they are parts of something, nothing is said.
    let mut early = Made::default();
    early.iterations(9, &step);
    assert_eq!(early.length(), None);
}

#[test]
fn communicators_and_sizes_tell_collectives_apart() {
    let mut made = Made::default();
    made.iterations(100, "aAaaA");
    assert_eq!(made.length(), Some(5));
    made.assert_marked();
}

#[test]
fn what_comes_now_and_then_is_passed_over() {
    let mut made = Made::default();
    for count in [13, 29, 17, 41, 7, 23] {
        made.iterations(count, "abcd");
        // In the middle of an iteration.
        made.iteration("abxcd");
    }
    made.iterations(30, "abcd");
    assert_eq!(made.length(), Some(4));
    made.assert_marked();
    // An evaluation, once.
    let mut evaluated = Made::default();
    evaluated.iterations(60, "abcd");
    evaluated.call(&"ee".repeat(15)).iterations(60, "abcd");
    assert_eq!(evaluated.length(), None, "it could come regularly");
    assert_eq!(evaluated.finder.find(true).map(|period| period.collectives()), Some(4));
}

#[test]
fn what_does_not_recur_is_not_found_and_memory_is_bounded() {
    let mut made = Made::default();
    let mut state = 1u64;
    for _ in 0..3000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let letter = char::from(b'a' + u8::try_from((state >> 33) % 20).unwrap());
        made.call(&letter.to_string());
    }
    assert!(made.finder.find(true).is_none());
    for _ in 0..2 * MAX_COLLECTIVES {
        made.call("a");
    }
    assert!(made.finder.is_full() && made.finder.collectives().len() == MAX_COLLECTIVES);
}

#[test]
fn ranks_of_several_communicators_begin_at_the_same_collective() {
    let part = |letters: &str| {
        let mut made = Made::default();
        // The pause is longest elsewhere.
        made.call(&letters.repeat(100));
        made.finder.find(false).unwrap()
    };
    let (first, mut second) = (part("abcd"), part("cdab"));
    assert_ne!(first, second);
    second.align_with(&first);
    assert_eq!(first, second);
    let mut other = part("abce");
    let before = other.clone();
    other.align_with(&first);
    assert_eq!(other, before);
}
