//! The reader: parses the files that it is given, and can do nothing else.

use std::{fs::File, os::fd::OwnedFd, time::Duration};

use anyhow::{Context as _, Result};
use cpython::locate;
use nccl_library::{
    elf::{Budget, Image, SymbolTable, TableKind},
    symbols::{DebugFiles, Resolved, nccl_request, resolve_with},
};
use serde::Serialize;

use super::{
    frame::Channel,
    protocol::{ReaderRequest, Symbol, What},
    sandbox,
};
use crate::process::identify;

/// Most bytes of one request.
const MAX_REQUEST: usize = 1 << 20;
/// Longest time for one file.
const WALL: Duration = Duration::from_secs(60);
/// Most bytes that are read of one file for its symbols. Frameworks have symbol tables of some tens of
/// megabytes.
const MAX_SYMBOL_BYTES: u64 = 256 << 20;
/// Most functions of one file that are returned.
const MAX_SYMBOLS: usize = 1 << 20;

/// Serves until the other end is closed.
pub(super) fn serve(channel: &Channel, debug_files: &DebugFiles) -> Result<()> {
    sandbox::enter_reader(debug_files.places())?;
    while let Some(frame) = channel.request(MAX_REQUEST)? {
        sandbox::alarm(WALL);
        let request = serde_json::from_slice(&frame.json)?;
        let file = frame.fds.into_iter().next().context("no file came")?;
        let answer = answer(request, file);
        channel.send(&answer, &[], &[])?;
        sandbox::alarm(Duration::ZERO);
    }
    Ok(())
}

/// Answers in JSON: a value of the type that the request has, or an error's text.
pub(super) fn answer(request: ReaderRequest, file: OwnedFd) -> Vec<u8> {
    let file = File::from(file);
    match request {
        ReaderRequest::Judge(depth) => json(&Ok(identify::evidence(file, depth))),
        ReaderRequest::Resolve { what: What::Driver, .. } => {
            json(&resolve(file, |image| Ok(Resolved::of_driver(image)?)))
        }
        ReaderRequest::Resolve { what, debug_files } => {
            json(&resolve(file, |image| Ok(Resolved::of(image, &what.request(), &debug_files)?)))
        }
        ReaderRequest::Symbols { of_nccl, at } => json(&resolve(file, |image| {
            let all = symbols(image, of_nccl.as_ref());
            Ok(match at {
                Some(at) => nearest(all, at),
                None => all,
            })
        })),
        ReaderRequest::Interpreter => json(&resolve(file, |image| Ok(locate::runtime(image)?))),
    }
}

fn json<T: Serialize>(answer: &Result<T, String>) -> Vec<u8> {
    serde_json::to_vec(answer).unwrap_or_else(|_| br#"{"Err":"the answer cannot be written"}"#.to_vec())
}

fn resolve<T>(file: File, find: impl FnOnce(&Image) -> Result<T>) -> Result<T, String> {
    let image = Image::from_file(file).map_err(|error| error.to_string())?;
    find(&image).map_err(|error| crate::process::printable(&format!("{error:#}")))
}

/// Returns the functions of a file's symbol table; of NCCL without symbols, those that can be found
/// otherwise.
fn symbols(image: &Image, of_nccl: Option<&DebugFiles>) -> Vec<Symbol> {
    let mut budget = Budget::new(MAX_SYMBOL_BYTES, u64::MAX);
    let table = SymbolTable::read(image, &mut budget).ok().flatten();
    let functions = table.iter().flat_map(SymbolTable::functions).take(MAX_SYMBOLS);
    let mut all: Vec<Symbol> = functions
        .map(|function| Symbol {
            address: function.address.0,
            size: function.size,
            name: function.name.into(),
            in_table: true,
        })
        .collect();
    if let Some(debug_files) = of_nccl
        && table.is_none_or(|table| table.kind() == TableKind::Exported)
    {
        let found = resolve_with(image, &nccl_request(), debug_files);
        let found = found.map(|resolution| resolution.functions).unwrap_or_default();
        all.extend(found.into_values().flatten().map(|function| Symbol {
            address: function.vaddr.0,
            size: function.size,
            name: function.name.into(),
            in_table: false,
        }));
    }
    all
}

/// Returns the symbols that begin nearest at or below one of these addresses.
fn nearest(all: Vec<Symbol>, mut at: Vec<u64>) -> Vec<Symbol> {
    at.sort_unstable();
    at.dedup();
    // The nearest beginning for each address.
    let mut starts: Vec<u64> = vec![0; at.len()];
    for symbol in &all {
        // Only the first address at or behind the symbol is set; the loop below carries it on to the others.
        let first = at.partition_point(|address| *address < symbol.address);
        if let Some(start) = starts.get_mut(first) {
            *start = (*start).max(symbol.address);
        }
    }
    let mut last = 0;
    for start in &mut starts {
        last = last.max(*start);
        *start = last;
    }
    all.into_iter().filter(|symbol| starts.binary_search(&symbol.address).is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_symbols_the_nearest_are_told_with_all_their_names() {
        let symbol =
            |(address, name): (u64, &str)| Symbol { address, size: 0, name: name.into(), in_table: true };
        let all = [(50, "e"), (10, "a"), (20, "b"), (20, "b2"), (30, "c")].map(symbol);
        let told = |at: &[u64]| {
            let found = nearest(all.clone().into(), at.to_vec());
            let mut names: Vec<String> = found.iter().map(|symbol| symbol.name.to_string()).collect();
            names.sort();
            names.join(" ")
        };
        assert_eq!(told(&[25]), "b b2");
        assert_eq!(told(&[29, 30, 12, 21]), "a b b2 c");
        assert_eq!(told(&[40, 35]), "c");
        assert_eq!(told(&[u64::MAX, 9]), "e");
        assert_eq!(told(&[9]), "");
    }
}
