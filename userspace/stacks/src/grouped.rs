//! Equal call stacks, counted as one.

use std::collections::HashMap;

use serde::Serialize;

/// A frame as it is shown: a function's name; for Python `FILE(LINE): FUNCTION`, as torch's profiler has it.
/// It has no control characters: names come from traces and processes of anybody.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Frame(String);

impl Frame {
    /// Makes a frame of a text; control characters become U+FFFD.
    pub fn new(text: &str) -> Self {
        Self(
            text.chars()
                .map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char })
                .collect(),
        )
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns function, file and line. A frame that is not of Python is all function.
    pub fn source(&self) -> (&str, Option<(&str, u32)>) {
        let parts = || {
            let (place, function) = self.0.split_once("): ")?;
            let (file, line) = place.rsplit_once('(')?;
            Some((function, (file, line.parse().ok()?)))
        };
        parts().map_or((&self.0, None), |(function, place)| (function, Some(place)))
    }
}

/// Frames from the top-level function to the innermost, and the number of stacks with exactly these frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stack {
    pub frames: Vec<Frame>,
    pub count: u64,
}

/// Distinct stacks, the most frequent first; stacks of equal frequency are in the order of their frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct GroupedStacks(Vec<Stack>);

impl GroupedStacks {
    pub fn stacks(&self) -> &[Stack] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of stacks that were counted.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|stack| stack.count).fold(0, u64::saturating_add)
    }
}

/// Counts stacks.
#[derive(Debug, Default)]
pub struct StackCounter {
    counts: HashMap<Vec<Frame>, u64>,
}

impl StackCounter {
    /// Adds a stack. `frames` go from the top-level function to the innermost.
    pub fn add(&mut self, frames: Vec<Frame>, count: u64) {
        let counted = self.counts.entry(frames).or_default();
        *counted = counted.saturating_add(count);
    }

    pub fn finish(self) -> GroupedStacks {
        let mut stacks: Vec<_> =
            self.counts.into_iter().map(|(frames, count)| Stack { frames, count }).collect();
        stacks.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.frames.cmp(&b.frames)));
        GroupedStacks(stacks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(names: &[&str]) -> Vec<Frame> {
        names.iter().map(|name| Frame::new(name)).collect()
    }

    #[test]
    fn equal_stacks_are_one_and_the_most_frequent_comes_first() {
        let mut counter = StackCounter::default();
        counter.add(frames(&["main", "b"]), 1);
        counter.add(frames(&["main", "a"]), 1);
        counter.add(frames(&["main"]), 2);
        counter.add(frames(&["main", "c"]), 1);
        counter.add(frames(&["main"]), 3);
        let grouped = counter.finish();
        let shown: Vec<_> = grouped
            .stacks()
            .iter()
            .map(|stack| (stack.count, stack.frames.last().unwrap().as_str()))
            .collect();
        assert_eq!(shown, [(5, "main"), (1, "a"), (1, "b"), (1, "c")]);
        assert_eq!(grouped.total(), 8);
        assert!(GroupedStacks::default().is_empty() && !grouped.is_empty());
    }

    #[test]
    fn frames_of_python_have_file_and_line() {
        let source = |text| {
            let frame = Frame::new(text);
            let (function, place) = frame.source();
            (function.to_owned(), place.map(|(file, line)| (file.to_owned(), line)))
        };
        assert_eq!(source("a/b(1).py(37): <module>"), ("<module>".into(), Some(("a/b(1).py".into(), 37))));
        for other in ["c10d::allreduce_", "f(int): x", "nn.Module: Linear_", "a(99999999999): b", "", "): "] {
            assert_eq!(source(other), (other.to_owned(), None));
        }
        assert_eq!(Frame::new("a\u{1b}[31m\nb").as_str(), "a\u{fffd}[31m\u{fffd}b");
    }
}
