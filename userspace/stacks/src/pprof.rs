//! A profile for `pprof` and other readers of its format: profile.proto, compressed.
//!
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>

use std::{
    collections::HashMap,
    io::{self, Write as _},
};

use flate2::{Compression, write::GzEncoder};
use prost::Message;

use super::{Frame, GroupedStacks};

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    /// Locations, the innermost first.
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// Table of texts. Texts are numbers in a profile; the empty one is 0.
#[derive(Default)]
struct Strings {
    numbers: HashMap<String, i64>,
    texts: Vec<String>,
}

impl Strings {
    fn number(&mut self, text: &str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = i64::try_from(self.texts.len()).unwrap_or(0);
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

/// Returns the bytes of a `.pb.gz`. `counted` names what was counted, such as `kernels`.
pub fn pprof(stacks: &GroupedStacks, counted: &str) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&profile(stacks, counted).encode_to_vec())?;
    encoder.finish()
}

fn profile(stacks: &GroupedStacks, counted: &str) -> Profile {
    let mut strings = Strings::default();
    strings.number("");
    let mut profile = Profile {
        sample_type: vec![ValueType { kind: strings.number(counted), unit: strings.number("count") }],
        ..Profile::default()
    };
    let mut locations: HashMap<&Frame, u64> = HashMap::new();
    for stack in stacks.stacks() {
        let mut location_of = |frame| {
            let next = locations.len() as u64 + 1;
            *locations.entry(frame).or_insert_with(|| {
                let (name, place) = frame.source();
                let (file, line) = place.unwrap_or_default();
                // Each place has a function of its own: two functions of a file can have one name.
                profile.function.push(Function {
                    id: next,
                    name: strings.number(name),
                    filename: strings.number(file),
                });
                let line = Line { function_id: next, line: line.into() };
                profile.location.push(Location { id: next, line: vec![line] });
                next
            })
        };
        let location_id = stack.frames.iter().rev().map(&mut location_of).collect();
        profile
            .sample
            .push(Sample { location_id, value: vec![i64::try_from(stack.count).unwrap_or(i64::MAX)] });
    }
    profile.string_table = strings.texts;
    profile
}
