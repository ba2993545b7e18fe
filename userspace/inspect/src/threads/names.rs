//! Names of functions, from the symbol tables of the files that they are in.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
};

use nccl_library::symbols::DebugFiles;

use crate::{
    process::{Process, maps::Mapping},
    resolver::{self, Symbol},
};

const MAX_FILES: usize = 64;
/// Maximum number of characters of a name; longer ones are cut: C++ templates have names of kilobytes.
const MAX_NAME: usize = 160;

type Functions = BTreeMap<u64, Function>;

#[derive(Debug)]
struct Function {
    /// End of the function; its beginning if the size is not known.
    end: u64,
    /// Name in the symbol table.
    symbol: Box<str>,
    is_api: bool,
}

impl Function {
    fn new(end: u64, symbol: &str) -> Self {
        Self { end, symbol: symbol.into(), is_api: is_api(symbol) }
    }
}

/// A name for people, and whether it is a call of NCCL's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) text: String,
    pub(super) is_api: bool,
}

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

    pub(super) fn at(
        &self,
        process: &Process,
        mapping: &Mapping,
        address: u64,
        is_nccl: bool,
    ) -> Option<Name> {
        let key = (mapping.device, mapping.inode);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if !files.contains_key(&key) {
            if files.len() >= MAX_FILES {
                return None;
            }
            let functions = self.read(process, mapping, is_nccl).unwrap_or_default();
            files.insert(key, functions);
        }
        let function = find(files.get(&key)?, address)?;
        Some(Name { text: demangled(&function.symbol), is_api: function.is_api })
    }

    fn read(&self, process: &Process, mapping: &Mapping, is_nccl: bool) -> Option<Functions> {
        let file = resolver::open_mapping(process, mapping).ok()?;
        let mut functions = Functions::new();
        for Symbol { address, size, name, in_table } in
            resolver::symbols(&file, is_nccl.then_some(&self.debug_files), None).ok()?
        {
            add(&mut functions, address, size, name, in_table);
        }
        Some(functions)
    }
}

fn add(functions: &mut Functions, address: u64, size: u64, name: Box<str>, in_table: bool) {
    let end = address.saturating_add(size);
    if !in_table {
        functions.entry(address).or_insert(Function { end, symbol: name, is_api: false });
        return;
    }
    // Of several names of one place the first stays; NCCL's calls have two.
    let new = || Function::new(end, &name);
    let known = functions.entry(address).or_insert_with(new);
    if known.symbol.starts_with("pnccl") {
        *known = new();
    }
}

fn find(functions: &Functions, address: u64) -> Option<&Function> {
    let (start, function) = functions.range(..=address).next_back()?;
    // A function without a size reaches to the next one, but not across half a library.
    let is_inside = if function.end > *start { address < function.end } else { address - start < 1 << 16 };
    is_inside.then_some(function)
}

/// Identity of a file: device and inode.
type FileKey = ((u32, u32), u64);

/// Names of the functions at some addresses of files. Symbol tables are not kept: those of frameworks take
/// some hundred megabytes, and the owner of this runs for days.
#[derive(Debug, Default)]
pub(super) struct NamesAt {
    debug_files: DebugFiles,
    /// Names by file and address; `None`: no function is known there.
    known: HashMap<(FileKey, u64), Option<Box<str>>>,
}

/// Maximum number of names that are kept; they are asked for again after that.
const MAX_KEPT: usize = 65_536;

/// Maximum number of addresses that are asked for at once.
const MAX_ASKED: usize = 8192;

impl NamesAt {
    pub(super) fn new(debug_files: DebugFiles) -> Self {
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
        let mut functions = Functions::new();
        let debug_files = is_nccl.then_some(&self.debug_files);
        let file = resolver::open_mapping(process, mapping);
        let symbols =
            file.ok().and_then(|file| resolver::symbols(&file, debug_files, Some(new.clone())).ok());
        for Symbol { address, size, name, in_table } in symbols.unwrap_or_default() {
            add(&mut functions, address, size, name, in_table);
        }
        if self.known.len() >= MAX_KEPT {
            self.known.clear();
        }
        for address in new {
            let name = find(&functions, address).map(|function| demangled(&function.symbol).into());
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
    let mut name: String = name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
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
