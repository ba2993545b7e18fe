//! Resolves a request for a library by the ladder of sources, best first.

use std::collections::BTreeMap;
use std::mem;

use super::copies::Copies;
use super::debug_file::DebugFiles;
use super::identity;
use super::params::Knowledge;
use super::probe_point::{self, MAX_FUNCTION};
use super::stripped::{self, FoundFunction, Search};
use super::{
    Function, LayoutSource, Param, Request, Resolution, SymbolSource, SymmetricKernel, mangled, problems,
    symmetric_kernels,
};
use crate::dwarf::{self, Found};
use crate::elf::{Budget, ElfVaddr, Error, FileOffset, Image, Machine, SymbolTable, TableKind};
use crate::layouts::Layouts;
use crate::nccl::find_versions;

/// Answers of the best usable source, besides what it states in the [`Resolution`].
#[derive(Default)]
struct Evidence {
    copies: Copies,
    found: Found,
    /// Reason why there are no layouts.
    no_layouts: Option<String>,
    /// The search for functions without symbols, if there was one.
    search: Option<Search>,
}

/// Looks up a request in the library itself and in the shipped table.
pub fn resolve(image: &Image, request: &Request) -> Result<Resolution, Error> {
    resolve_with(image, request, &DebugFiles::default())
}

/// Looks up a request. Separate debug files are looked for only if the library has no usable debugging
/// information itself.
///
/// Missing things are part of the answer ([`Resolution::problems`]), not an error.
///
/// # Errors
/// When the symbol table cannot be read.
pub fn resolve_with(image: &Image, request: &Request, debug_files: &DebugFiles) -> Result<Resolution, Error> {
    let mut budget = Budget::default();
    let versions = find_versions(image, &mut budget)?;
    let mut resolution = Resolution {
        nccl_version: versions.map(|(nccl, _)| nccl),
        cuda_version: versions.map(|(_, cuda)| cuda),
        ..unresolved(image, SymbolSource::OwnDwarf, LayoutSource::Dwarf)
    };
    let table = SymbolTable::read(image, &mut budget)?;
    let copies = table.as_ref().map(|table| Copies::of_table(table, request)).unwrap_or_default();
    resolution.symmetric_kernels = kernels_in(table.as_ref(), request);
    let own = match dwarf::search(image, &copies.wanted(request), &mut budget) {
        // Some object files have it, but none of NCCL's own: no better than none.
        Ok(Some(found)) if says_nothing(&found) => {
            problems::of_faults(&found, &mut resolution.problems);
            None
        }
        Ok(found) => found,
        Err(error) => {
            resolution.problems.push(problems::debug_information("debugging information", &error));
            None
        }
    };
    let evidence = if let Some(found) = own {
        Evidence { copies, found, ..Evidence::default() }
    } else if let Some(evidence) = of_debug_file(image, request, debug_files, &mut budget, &mut resolution) {
        evidence
    } else {
        without_debugging_information(image, request, table.as_ref(), copies, &mut budget, &mut resolution)
    };
    let shipped = mem::take(&mut resolution.variables);
    resolution.variables = variables(image, request, table.as_ref(), shipped);
    answer(image, request, evidence, &mut budget, &mut resolution);
    Ok(resolution)
}

/// Looks up exported functions of a library that is not NCCL, and nothing else.
///
/// # Errors
/// When the symbol table cannot be read.
pub fn resolve_exports(image: &Image, request: &Request) -> Result<Resolution, Error> {
    let mut budget = Budget::default();
    let table = SymbolTable::read_exported(image, &mut budget)?;
    let copies = table.as_ref().map(|table| Copies::of_table(table, request)).unwrap_or_default();
    let mut resolution = unresolved(image, SymbolSource::ExportsOnly, LayoutSource::Unknown);
    answer(image, request, Evidence { copies, ..Evidence::default() }, &mut budget, &mut resolution);
    Ok(resolution)
}

fn unresolved(image: &Image, symbol_source: SymbolSource, layouts_from: LayoutSource) -> Resolution {
    Resolution {
        build_id: image.build_id().cloned(),
        nccl_version: None,
        cuda_version: None,
        machine: image.machine(),
        symbol_source,
        debug_file: None,
        layouts_from,
        functions: BTreeMap::new(),
        layouts: Layouts::default(),
        variables: BTreeMap::new(),
        symmetric_kernels: Vec::new(),
        problems: Vec::new(),
    }
}

/// Returns the kernels on symmetric memory, if functions are asked for.
fn kernels_in(table: Option<&SymbolTable>, request: &Request) -> Vec<SymmetricKernel> {
    table.filter(|_| !request.functions.is_empty()).map(symmetric_kernels::find).unwrap_or_default()
}

fn says_nothing(found: &Found) -> bool {
    let types = found.layouts.structs.len() + found.layouts.enums.len() + found.ambiguous.len();
    found.functions.is_empty() && found.declared.is_empty() && types == 0
}

/// Reads symbols and debugging information of a separate file. Resolution goes on without a file that cannot
/// be read.
fn of_debug_file(
    image: &Image,
    request: &Request,
    debug_files: &DebugFiles,
    budget: &mut Budget,
    resolution: &mut Resolution,
) -> Option<Evidence> {
    let file = debug_files.find(image, budget, &mut resolution.problems)?;
    let mut budget = Budget::default();
    let mut read = || -> Result<Option<Evidence>, Error> {
        let table = SymbolTable::read(&file, &mut budget)?;
        let copies = table.as_ref().map(|table| Copies::of_table(table, request)).unwrap_or_default();
        if resolution.symmetric_kernels.is_empty() {
            resolution.symmetric_kernels = kernels_in(table.as_ref(), request);
        }
        let found = dwarf::search(&file, &copies.wanted(request), &mut budget)?;
        Ok(found.map(|found| Evidence { copies, found, ..Evidence::default() }))
    };
    match read() {
        Ok(None) => None,
        Ok(evidence) => {
            resolution.symbol_source = SymbolSource::DebugFile;
            resolution.debug_file = Some(file.name().replace(char::is_control, "?"));
            evidence
        }
        Err(error) => {
            resolution.problems.push(problems::debug_information("debug file", &error));
            None
        }
    }
}

fn without_debugging_information(
    image: &Image,
    request: &Request,
    table: Option<&SymbolTable>,
    mut copies: Copies,
    budget: &mut Budget,
    resolution: &mut Resolution,
) -> Evidence {
    let has_symbols = table.is_some_and(|table| table.kind() == TableKind::Full);
    let mut search = None;
    let mut found_any = false;
    // `strip --discard-all` leaves a symbol table that has exported functions only.
    let lacks = request.functions.iter().any(|spec| spec.required && copies.of(spec.name).is_empty());
    if (!has_symbols && !request.functions.is_empty()) || lacks {
        let name = |symbol| mangled::parse(symbol).map_or(symbol, |parsed| parsed.name);
        let functions = table.into_iter().flat_map(SymbolTable::functions);
        let named = functions.map(|function| (function.address.0, name(function.name))).collect();
        // A library that is too large to be searched still has its exports.
        let found =
            stripped::search(image, resolution.nccl_version, &named, budget).unwrap_or_else(|error| {
                resolution.problems.push(problems::search(&error));
                Search::new()
            });
        found_any = copies.add_found(&found, request);
        search = Some(found);
    }
    resolution.layouts_from = LayoutSource::Unknown;
    let (layouts, no_layouts) = match identity::shipped(image, resolution, budget) {
        Ok(layouts) => (layouts.restricted_to(&request.structs, &request.enums), None),
        Err(why) => (Layouts::default(), Some(why)),
    };
    resolution.symbol_source = match (has_symbols, found_any, no_layouts.is_none()) {
        (true, _, true) => SymbolSource::SymtabWithShippedLayout,
        (true, _, false) => SymbolSource::SymtabOnly,
        (false, true, true) => SymbolSource::Stripped,
        (false, true, false) => SymbolSource::StrippedOnly,
        (false, false, _) => SymbolSource::ExportsOnly,
    };
    Evidence { copies, found: Found { layouts, ..Found::default() }, no_layouts, search }
}

/// Returns the offset from the entry at which a uprobe is attached; 0, the entry, if the code cannot be read:
/// attaching says more then.
fn uprobe_offset(image: &Image, address: ElfVaddr, size: u64, params: &[Param], budget: &mut Budget) -> u64 {
    if image.machine() != Machine::X86_64 || size == 0 || size > MAX_FUNCTION {
        return 0;
    }
    image.loaded_bytes(address, size, budget).map_or(0, |code| probe_point::uprobe_offset(&code, params))
}

/// Adds the functions and the layouts to the resolution, and what is not known of them.
fn answer(
    image: &Image,
    request: &Request,
    evidence: Evidence,
    budget: &mut Budget,
    resolution: &mut Resolution,
) {
    let Evidence { copies, found, no_layouts, search } = evidence;
    let Resolution { nccl_version: version, symbol_source, functions, problems, .. } = resolution;
    let knowledge = Knowledge { image, version: *version, found: &found };
    for spec in &request.functions {
        let known = copies.of(spec.name);
        for copy in known {
            // No probe can go to an address that is not loaded from the file.
            let FoundFunction { address, found_by, size } = copy.found;
            let Some(file_offset) = image.file_offset(address) else { continue };
            let (params, params_from) = knowledge.params(spec.name, copy, known.len(), budget);
            functions.entry(spec.name.to_owned()).or_default().push(Function {
                name: spec.name.to_owned(),
                symbol: copy.symbol.clone(),
                found_by,
                vaddr: address,
                file_offset,
                uprobe_offset: uprobe_offset(image, address, size, &params, budget),
                size,
                params,
                params_from,
            });
        }
    }
    problems::of_functions(request, functions, &copies, search.as_ref(), problems);
    problems::of_types(request, &found, *symbol_source, no_layouts.as_deref(), problems);
    resolution.layouts = found.layouts;
}

/// Finds the requested variables. `shipped` has their addresses by the shipped table, if that has this
/// library.
fn variables(
    image: &Image,
    request: &Request,
    table: Option<&SymbolTable>,
    shipped: BTreeMap<String, ElfVaddr>,
) -> BTreeMap<String, ElfVaddr> {
    let mut found: BTreeMap<String, Option<ElfVaddr>> = BTreeMap::new();
    if request.variables.is_empty() || image.file_offset(ElfVaddr(0)) != Some(FileOffset(0)) {
        return BTreeMap::new();
    }
    for symbol in table.into_iter().flat_map(SymbolTable::objects) {
        if request.variables.contains(&symbol.name) {
            let address = Some(symbol.address);
            found.entry(symbol.name.to_owned()).and_modify(|known| *known = None).or_insert(address);
        }
    }
    let shipped = shipped.into_iter().filter(|(name, _)| request.variables.contains(&name.as_str()));
    for (name, address) in shipped {
        found.entry(name).or_insert(Some(address));
    }
    found.into_iter().filter_map(|(name, address)| Some((name, address?))).collect()
}
