//! What is done with the memory of a process that has torch loaded: rings of its flight recorder, their entries, maps and
//! strings, the status of process groups, and Python's code objects that stacks lead to.
//!
//! An input is the minor version of torch 2 (1 byte), that of CPython 3 (1), the addresses of a ring, of a library and of
//! `_PyRuntime` (8 each), and pieces of memory as those of the target `python`. The highest bit of the first byte: whatever
//! is in no piece can be read, too, and repeats the last piece. Seeds are what was read of a stand-in of torch's libraries
//! (`examples/torch-seeds.rs`).

use std::{collections::BTreeMap, time::Duration};

use cpython::{Memory, Python, Unreadable};
use dump::history::{self, HistoryReport};
use torch::{Found, MAX_ENTRIES, MAX_FRAMES, Patience, RingReport};
use torch_history::{NotesReport, ProcessHistory};

use super::python::Pieces;

/// How long all may take. It is less than what a target may take: what does not look at the time shows.
const PATIENCE: Duration = Duration::from_millis(150);
const EVERYWHERE: u8 = 0x80;

/// Where the three begin.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Minor version of torch 2.
    pub torch: u8,
    /// Minor version of CPython 3.
    pub python: u8,
    pub ring: u64,
    pub library: u64,
    /// `_PyRuntime`
    pub runtime: u64,
}

/// Pieces, and what stands everywhere else.
#[derive(Debug)]
struct Everywhere {
    pieces: Pieces,
    elsewhere: Option<Vec<u8>>,
}

impl Memory for Everywhere {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        match (self.pieces.read(address, into), &self.elsewhere) {
            (Err(_), Some(elsewhere)) if !elsewhere.is_empty() => {
                // The same at the same address; words stay words.
                let from = address as usize % elsewhere.len();
                let repeated = elsewhere.iter().cycle().skip(from);
                into.iter_mut().zip(repeated).for_each(|(byte, there)| *byte = *there);
                Ok(())
            }
            (read, _) => read,
        }
    }
}

/// The input for [`use_memory`] of what was read.
#[must_use]
pub fn input_of(start: Start, pieces: &BTreeMap<u64, Vec<u8>>) -> Vec<u8> {
    let mut input = vec![start.torch, start.python];
    for address in [start.ring, start.library, start.runtime] {
        input.extend(address.to_le_bytes());
    }
    input.extend(super::python::packed(pieces));
    input
}

/// Finds rings, reads them, compares them as two ranks' and renders. That nothing is known is fine; the fuzzer looks for
/// panics, time and memory.
///
/// # Panics
/// If it takes too long, gives more than its bounds allow, or gets control characters into a report.
pub fn use_memory(input: &[u8]) {
    super::in_time(input.len(), || {
        let Some(rings) = rings_of(input) else { return };
        for ring in &rings {
            assert!(ring.entries.len() <= MAX_ENTRIES);
            let stacks = ring.entries.iter().filter_map(|entry| entry.frames.as_ref());
            stacks.for_each(|stack| assert!(stack.len() <= MAX_FRAMES));
        }
        // Reports of large rings take longer than rings; they have a limit of their own, which is not looked at here.
        if rings.iter().map(|ring| ring.entries.len()).sum::<usize>() > 1000 {
            return;
        }
        let report = history_of(&rings);
        let text = flow::text::plain(&history::render(&report, None, 60)).into_owned();
        let hostile = text.chars().find(|char| char.is_control() && !matches!(char, '\n' | '\t'));
        assert_eq!(hostile, None, "a control character in the report");
    });
}

/// The history of two ranks that both have these rings.
fn history_of(rings: &[RingReport]) -> HistoryReport {
    let process = |rank: u64| ProcessHistory {
        pid: u32::try_from(rank + 1).unwrap_or(1),
        rank: Some(rank),
        notes: Some(NotesReport { rings: rings.to_vec(), ..NotesReport::default() }),
        ..ProcessHistory::default()
    };
    let mut processes: Vec<ProcessHistory> = (0..2).map(process).collect();
    let groups = torch_history::compare(&mut processes, &[]);
    HistoryReport { verdict: torch_history::over(&groups), groups, processes, ..HistoryReport::default() }
}

/// The rings of an input; `None` if it is too short.
#[must_use]
pub fn rings_of(input: &[u8]) -> Option<Vec<RingReport>> {
    let ([torch, python], rest) = input.split_first_chunk::<2>()?;
    let (ring, rest) = rest.split_first_chunk::<8>()?;
    let (library, rest) = rest.split_first_chunk::<8>()?;
    let (runtime, rest) = rest.split_first_chunk::<8>()?;
    let [ring, library, runtime] = [ring, library, runtime].map(|bytes| u64::from_le_bytes(*bytes));
    let (pieces, last) = Pieces::of(rest);
    let elsewhere = (torch & EVERYWHERE != 0).then_some(last);
    let memory = Everywhere { pieces, elsewhere };
    let row = torch::shipped(torch::Version::new(2, torch & !EVERYWHERE))?;
    let version = cpython::Version::new(3, *python);
    let python = Python::at(&memory, runtime, Some(version)).ok();
    let patience = Patience::of(PATIENCE);
    let mut found = torch::find(&memory, library, &row.offsets, &|_| true, patience).unwrap_or_default();
    if found.iter().all(|found| found.address != ring) {
        found.push(Found { address: ring, backend: None });
    }
    let read = |found: Found| {
        let ring = torch::read(&memory, found.address, &row.offsets, python, patience).ok()?;
        Some(RingReport { backend: found.backend.or(ring.backend), ..ring })
    };
    Some(found.into_iter().filter_map(read).collect())
}
