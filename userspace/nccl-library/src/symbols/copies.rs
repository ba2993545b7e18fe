//! The copies of the wanted functions: from a symbol table, or found without one.

use std::collections::BTreeMap;

use super::stripped::{FoundFunction, Search};
use super::{FoundBy, Request, mangled};
use crate::dwarf::Wanted;
use crate::elf::{Symbol, SymbolTable, TableKind};

/// Most copies of one function that are taken; NCCL has at most two.
const MAX_COPIES: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub(super) symbol: String,
    /// The symbol without clone suffixes.
    pub(super) base: String,
    /// `Some(true)` for a clone; `None` if nothing tells.
    pub(super) is_clone: Option<bool>,
    /// True if the copy is local to its source file, as far as its symbol tells.
    pub(super) is_static: bool,
    pub(super) found: FoundFunction,
}

/// All copies of the wanted functions, by name and address.
#[derive(Debug, Default)]
pub(super) struct Copies(BTreeMap<String, Vec<Copy>>);

impl Copies {
    pub(super) fn of_table(table: &SymbolTable, request: &Request) -> Self {
        let mut copies: BTreeMap<String, Vec<Copy>> =
            request.functions.iter().map(|spec| (spec.name.to_string(), Vec::new())).collect();
        let found_by = match table.kind() {
            TableKind::Full => FoundBy::Symbol,
            TableKind::Exported => FoundBy::Export,
        };
        for function in table.functions() {
            let Some(parsed) = mangled::parse(function.name) else { continue };
            let Some(known) = copies.get_mut(parsed.name) else { continue };
            let Symbol { address, size, .. } = function;
            if known.len() < MAX_COPIES && known.iter().all(|copy| copy.found.address != address) {
                known.push(Copy {
                    symbol: function.name.to_owned(),
                    base: parsed.base.to_owned(),
                    is_clone: Some(parsed.is_clone),
                    is_static: parsed.is_static,
                    found: FoundFunction { address, found_by, size },
                });
            }
        }
        let mut copies = Self(copies);
        copies.sort();
        copies
    }

    /// Adds the functions that were found without symbols, where there are none. Returns whether it added
    /// any.
    pub(super) fn add_found(&mut self, search: &Search, request: &Request) -> bool {
        let mut added = false;
        for spec in &request.functions {
            let Some(Ok(found)) = search.get(spec.name) else { continue };
            let known = self.0.entry(spec.name.to_string()).or_default();
            if !known.is_empty() {
                continue;
            }
            known.extend(found.iter().map(|function| Copy {
                symbol: spec.name.to_string(),
                base: spec.name.to_string(),
                is_clone: None,
                is_static: false,
                found: *function,
            }));
            added |= !known.is_empty();
        }
        self.sort();
        added
    }

    pub(super) fn of(&self, name: &str) -> &[Copy] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns what to ask the debugging information for.
    pub(super) fn wanted<'a>(&'a self, request: &'a Request) -> Wanted<'a> {
        let all = || self.0.values().flatten();
        let plain = all().filter(|copy| copy.is_clone == Some(false));
        Wanted {
            entries: all().map(|copy| copy.found.address.0).collect(),
            linkage_names: plain.map(|copy| copy.base.as_str()).collect(),
            structs: request.structs.iter().map(String::as_str).collect(),
            enums: request.enums.iter().map(String::as_str).collect(),
        }
    }

    fn sort(&mut self) {
        for known in self.0.values_mut() {
            known.sort_by_key(|copy| copy.found.address);
        }
    }
}
