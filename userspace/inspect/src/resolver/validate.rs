//! Checks results of a parser of hostile files.

use nccl_library::symbols::Resolved;

use super::error::ResolverError;

/// Most functions, structs and problems that one resolution can sensibly have.
const MAX_ITEMS: usize = 1 << 17;

/// Checks a resolution: its places must lie in the file, and its numbers be sensible.
pub(super) fn is_sound(resolved: &Resolved, size: u64) -> Result<(), ResolverError> {
    let inside = |at: u64, length: u64| at.checked_add(length).is_some_and(|end| end <= size);
    let Resolved { resolution, code } = resolved;
    let functions = || resolution.functions.values().flatten();
    let is_inside = functions().all(|function| inside(function.uprobe_place().0, 1))
        && code.parts().all(|(at, length)| inside(at.0, length));
    let items = functions().count()
        + resolution.layouts.structs.len()
        + resolution.symmetric_kernels.len()
        + resolution.problems.len();
    if !is_inside {
        return Err(ResolverError::Garbage("a function that is not in the file".to_owned()));
    }
    if items > MAX_ITEMS {
        return Err(ResolverError::Garbage(format!("{items} functions, structs, kernels and problems")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nccl_library::{
        elf::{ElfVaddr, FileOffset, Machine},
        layouts::Layouts,
        symbols::{Code, FoundBy, Function, LayoutSource, ParamSource, Resolution, SymbolSource},
    };

    use super::*;

    fn resolved(file_offset: u64, uprobe_offset: u64) -> Resolved {
        let function = Function {
            name: "f".to_owned(),
            symbol: "f".to_owned(),
            found_by: FoundBy::Symbol,
            vaddr: ElfVaddr(0),
            file_offset: FileOffset(file_offset),
            uprobe_offset,
            size: 1,
            params: Vec::new(),
            params_from: ParamSource::Unknown,
        };
        let resolution = Resolution {
            build_id: None,
            nccl_version: None,
            cuda_version: None,
            machine: Machine::X86_64,
            symbol_source: SymbolSource::OwnDwarf,
            debug_file: None,
            layouts_from: LayoutSource::Dwarf,
            functions: BTreeMap::from([("f".to_owned(), vec![function])]),
            layouts: Layouts::default(),
            variables: std::collections::BTreeMap::new(),
            symmetric_kernels: Vec::new(),
            problems: Vec::new(),
        };
        Resolved { resolution, code: Code::default() }
    }

    #[test]
    fn a_place_that_is_not_in_the_file_is_not_believed() {
        assert!(is_sound(&resolved(99, 0), 100).is_ok());
        for (at, further) in [(100, 0), (99, 1), (u64::MAX, 1), (0, u64::MAX)] {
            assert!(
                matches!(is_sound(&resolved(at, further), 100), Err(ResolverError::Garbage(_))),
                "{at} {further}"
            );
        }
    }
}
