//! Names of functions, from the symbol tables of the files that they are in.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    sync::{Mutex, PoisonError},
};

use nccl_library::symbols::DebugFiles;

use crate::{
    process::{Process, maps::Mapping, printable},
    resolver::{self, Symbol},
};

const MAX_FILES: usize = 64;
/// Maximum number of characters of a name; longer ones are cut: C++ templates have names of kilobytes.
const MAX_NAME: usize = 160;

/// Functions by address.
type Functions = BTreeMap<u64, Symbol>;

/// Names of all functions of files, for a short time.
#[derive(Debug, Default)]
pub struct Names {
    debug_files: DebugFiles,
    /// Functions by file. The lock is held while a file is read, so that others who want it wait.
    files: Mutex<HashMap<FileKey, Functions>>,
}

impl Names {
    pub fn new(debug_files: DebugFiles) -> Self {
        Self { debug_files, files: Mutex::default() }
    }

    /// Returns the name of a function for people, and whether it is a call of NCCL's API.
    pub(super) fn at(
        &self,
        process: &Process,
        mapping: &Mapping,
        address: u64,
        is_nccl: bool,
    ) -> Option<(String, bool)> {
        let key = (mapping.device, mapping.inode);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if !files.contains_key(&key) {
            if files.len() >= MAX_FILES {
                return None;
            }
            files.insert(key, read(process, mapping, is_nccl.then_some(&self.debug_files), None));
        }
        let symbol = find(files.get(&key)?, address)?;
        Some((demangled(&symbol.name), symbol.in_table && is_api(&symbol.name)))
    }
}

/// Reads the functions of a file; with `at`, those nearest to these addresses. A file that cannot be read has
/// none. `of_nccl` is for NCCL's libraries alone.
fn read(
    process: &Process,
    mapping: &Mapping,
    of_nccl: Option<&DebugFiles>,
    at: Option<Vec<u64>>,
) -> Functions {
    let file = resolver::open_mapping(process, mapping);
    let symbols = file.and_then(|file| resolver::symbols(&file, of_nccl, at));
    let mut functions = Functions::new();
    for symbol in symbols.unwrap_or_default() {
        match functions.entry(symbol.address) {
            Entry::Vacant(place) => _ = place.insert(symbol),
            // Of several names of one place the first stays; NCCL's calls have two.
            Entry::Occupied(mut known) if symbol.in_table && known.get().name.starts_with("pnccl") => {
                known.insert(symbol);
            }
            Entry::Occupied(_) => {}
        }
    }
    functions
}

fn find(functions: &Functions, address: u64) -> Option<&Symbol> {
    let (start, symbol) = functions.range(..=address).next_back()?;
    // A function without a size reaches to the next one, but not across half a library.
    let size = if symbol.size > 0 { symbol.size } else { 1 << 16 };
    (address - start < size).then_some(symbol)
}

/// Identity of a file: device and inode.
type FileKey = ((u32, u32), u64);

/// Names of native frames. Symbol tables are not kept: those of frameworks take some hundred megabytes, and
/// the owner of this runs for days.
#[derive(Debug, Default)]
pub struct NativeNames {
    debug_files: DebugFiles,
    /// Names by file and address; `None`: no function is known there.
    known: HashMap<(FileKey, u64), Option<Box<str>>>,
}

/// Maximum number of names that are kept; they are asked for again after that.
const MAX_KEPT: usize = 65_536;

/// Maximum number of addresses that are asked for at once.
const MAX_ASKED: usize = 8192;

impl NativeNames {
    pub fn new(debug_files: DebugFiles) -> Self {
        Self { debug_files, known: HashMap::new() }
    }

    /// Finds the names at these addresses of a file, with one look at it. A file that cannot be read has
    /// none.
    pub(super) fn learn(&mut self, process: &Process, mapping: &Mapping, addresses: &[u64], is_nccl: bool) {
        let key = (mapping.device, mapping.inode);
        let is_new = |address: &u64| !self.known.contains_key(&(key, *address));
        let new: Vec<u64> = addresses.iter().copied().filter(is_new).take(MAX_ASKED).collect();
        if new.is_empty() {
            return;
        }
        let of_nccl = is_nccl.then_some(&self.debug_files);
        let functions = read(process, mapping, of_nccl, Some(new.clone()));
        if self.known.len() >= MAX_KEPT {
            self.known.clear();
        }
        for address in new {
            let name = find(&functions, address).map(|symbol| demangled(&symbol.name).into());
            self.known.insert((key, address), name);
        }
    }

    pub(super) fn at(&self, mapping: &Mapping, address: u64) -> Option<&str> {
        self.known.get(&((mapping.device, mapping.inode), address))?.as_deref()
    }
}

/// Tells whether a symbol is a function of NCCL's API: `ncclAllReduce`, `pncclAllReduce`. NCCL's own
/// functions are of C++, with the types of their parameters in the symbol.
fn is_api(symbol: &str) -> bool {
    let rest = symbol.strip_prefix("pnccl").or_else(|| symbol.strip_prefix("nccl"));
    rest.is_some_and(|rest| {
        rest.starts_with(|first: char| first.is_ascii_uppercase())
            && rest.chars().all(|c| c.is_ascii_alphanumeric())
    })
}

/// Returns a symbol's name as its source has it.
fn demangled(symbol: &str) -> String {
    // Suffixes of copies that a compiler made: `.isra.9`, `.constprop.0`.
    let base = symbol.split_once('.').map_or(symbol, |(base, _)| base);
    // Rust's older names look like those of C++ and end with a hash.
    let name = if let Ok(name) = rustc_demangle::try_demangle(symbol) {
        format!("{name:#}")
    } else if base.starts_with("_Z") {
        let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
        let parsed = cpp_demangle::Symbol::new(base).ok();
        let name = parsed.and_then(|parsed| parsed.demangle_with_options(&options).ok());
        name.unwrap_or_else(|| symbol.to_owned())
    } else {
        base.to_owned()
    };
    let mut name: String = printable(&name).chars().take(MAX_NAME).collect();
    if name.chars().count() == MAX_NAME {
        name.pop();
        name.push('…');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::{demangled, is_api};

    #[test]
    fn calls_of_the_api_are_told_from_other_functions() {
        assert!(is_api("ncclAllReduce") && is_api("pncclGroupEnd"));
        for name in ["_Z16ncclGroupEndImplv", "nccl", "ncclcomm", "ncclNet::send", "SaveProxy"] {
            assert!(!is_api(name), "{name}");
        }
    }

    #[test]
    fn names_are_those_of_the_source() {
        for (symbol, name) in [
            ("_ZL9SaveProxyP8ncclCommP11ncclChanneliiP11ncclProxyOpiPb.isra.10", "SaveProxy"),
            ("_Z16ncclGroupEndImplv", "ncclGroupEndImpl"),
            ("ncclAllReduce", "ncclAllReduce"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("_Zwhat", "_Zwhat"),
        ] {
            assert_eq!(demangled(symbol), name);
        }
        assert!(demangled(&"a".repeat(1000)).chars().count() <= 160);
    }
}
