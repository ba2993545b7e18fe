//! From a library and a request to a resolution.

use std::collections::{BTreeMap, HashMap};

use super::mangled;
use super::{
    Function, FunctionSpec, Param, ParamLocation, ParamSource, Problem, ProblemKind, Request, Resolution,
    Rung,
};
use super::{catalog, convention, version};
use crate::dwarf::{self, EntryParam, Found, Wanted};
use crate::elf::{Budget, ElfVaddr, Error, Image, Machine, SymbolTable, TableKind};

/// More copies of one function than this are not taken; NCCL has at most two.
const MAX_COPIES: usize = 64;

/// A copy of a wanted function, as the symbol table has it.
struct Copy<'a> {
    symbol: &'a str,
    parsed: mangled::Symbol<'a>,
    address: ElfVaddr,
    size: u64,
}

/// Looks up what is requested.
///
/// A separate debug file, or a table of shipped layouts, would come in where the library's own debugging information
/// gives `None`: [`dwarf::search`] takes any image, and a [`Found`] is all that is used of it.
///
/// What is missing is part of the answer ([`Resolution::problems`]), not an error.
///
/// # Errors
/// When the symbol table cannot be read.
pub fn resolve(image: &Image, request: &Request) -> Result<Resolution, Error> {
    let mut budget = Budget::default();
    let mut problems = Vec::new();
    let version = version::find(image, &mut budget)?;
    let table = SymbolTable::read(image, &mut budget)?;
    let copies = table.as_ref().map(|table| find_copies(table, request)).unwrap_or_default();
    let found = match dwarf::search(image, &wanted(request, &copies), &mut budget) {
        Ok(found) => found,
        Err(error) => {
            problems.push(Problem {
                kind: ProblemKind::DebugInfo,
                subject: "debugging information".to_owned(),
                what: error.to_string(),
                lost: "parameter locations and struct layouts".to_owned(),
            });
            None
        }
    };
    let rung = match (&found, table.as_ref().map(SymbolTable::kind)) {
        (Some(_), _) => Rung::OwnDwarf,
        (None, Some(TableKind::Full)) => Rung::SymtabOnly,
        (None, _) => Rung::ExportsOnly,
    };
    let found = found.unwrap_or_default();
    let mut functions = BTreeMap::new();
    for spec in &request.functions {
        let copies = copies.get(&*spec.name).map_or(&[][..], Vec::as_slice);
        let copies: Vec<Function> =
            copies.iter().filter_map(|copy| function(image, spec, copy, &found)).collect();
        if !copies.is_empty() {
            functions.insert(spec.name.to_string(), copies);
        }
    }
    report_functions(request, &functions, &copies, rung, &mut problems);
    report_types(request, &found, rung, &mut problems);
    Ok(Resolution {
        build_id: image.build_id().cloned(),
        nccl_version: version.map(|(nccl, _)| nccl),
        cuda_version: version.map(|(_, cuda)| cuda),
        machine: image.machine(),
        rung,
        functions,
        layouts: found.layouts,
        problems,
    })
}

/// All copies of each wanted function, by address.
fn find_copies<'a>(table: &'a SymbolTable, request: &'a Request) -> HashMap<&'a str, Vec<Copy<'a>>> {
    let mut copies: HashMap<&str, Vec<Copy<'a>>> =
        request.functions.iter().map(|spec| (&*spec.name, Vec::new())).collect();
    for function in table.functions() {
        let Some(parsed) = mangled::parse(function.name) else { continue };
        let Some(known) = copies.get_mut(parsed.name) else { continue };
        if known.len() < MAX_COPIES && known.iter().all(|copy| copy.address != function.address) {
            known.push(Copy {
                symbol: function.name,
                parsed,
                address: function.address,
                size: function.size,
            });
        }
    }
    for known in copies.values_mut() {
        known.sort_by_key(|copy| copy.address);
    }
    copies
}

fn wanted<'a>(request: &'a Request, copies: &HashMap<&'a str, Vec<Copy<'a>>>) -> Wanted<'a> {
    let all = || copies.values().flatten();
    Wanted {
        entries: all().map(|copy| copy.address.0).collect(),
        linkage_names: all().filter(|copy| !copy.parsed.is_clone).map(|copy| copy.parsed.base).collect(),
        structs: request.structs.iter().map(String::as_str).collect(),
        enums: request.enums.iter().map(String::as_str).collect(),
    }
}

/// `None` for an address that is not loaded from the file: no probe can go there.
fn function(image: &Image, spec: &FunctionSpec, copy: &Copy<'_>, found: &Found) -> Option<Function> {
    let (params, params_from) = params(image.machine(), copy, found);
    Some(Function {
        name: spec.name.to_string(),
        symbol: copy.symbol.to_owned(),
        vaddr: copy.address,
        file_offset: image.file_offset(copy.address)?,
        size: copy.size,
        params,
        params_from,
    })
}

fn params(machine: Machine, copy: &Copy<'_>, found: &Found) -> (Vec<Param>, ParamSource) {
    let declared = match found.functions.get(&copy.address.0) {
        Some(params) if copy.parsed.is_clone || !is_unoptimised(params) => {
            let params = params.iter().map(|param| Param {
                name: param.declared.name.clone(),
                type_name: param.declared.type_name.clone(),
                size: param.declared.size,
                location: param.location.clone(),
            });
            return (params.collect(), ParamSource::DwarfAtEntry);
        }
        Some(params) => params.iter().map(|param| param.declared.clone()).collect(),
        None if copy.parsed.is_clone => return (Vec::new(), ParamSource::Unknown),
        None => match found.declared.get(copy.parsed.base) {
            Some(declared) => declared.clone(),
            None => return (Vec::new(), ParamSource::Unknown),
        },
    };
    let c_linkage = !copy.symbol.starts_with("_Z");
    let locations = convention::locations(machine, &declared, c_linkage);
    let params = declared.into_iter().zip(locations).map(|(declared, location)| Param {
        name: declared.name,
        type_name: declared.type_name,
        size: declared.size,
        location,
    });
    (params.collect(), ParamSource::CallingConvention)
}

/// Unoptimised code stores its register parameters to its own frame first and states only that place. Such a function is
/// called by the convention: nothing has looked at who calls it.
fn is_unoptimised(params: &[EntryParam]) -> bool {
    params.iter().any(|param| param.own_frame)
        && params.iter().all(|param| param.own_frame || is_on_stack(&param.location))
}

fn is_on_stack(location: &ParamLocation) -> bool {
    matches!(location, ParamLocation::EntryStack { .. })
}

fn report_functions(
    request: &Request,
    functions: &BTreeMap<String, Vec<Function>>,
    symbols: &HashMap<&str, Vec<Copy<'_>>>,
    rung: Rung,
    problems: &mut Vec<Problem>,
) {
    for spec in &request.functions {
        let Some(copies) = functions.get(&*spec.name) else {
            if spec.alternatives.iter().any(|other| functions.contains_key(&**other)) {
                continue;
            }
            let kind = if spec.required {
                ProblemKind::RequiredFunctionMissing
            } else {
                ProblemKind::FunctionMissing
            };
            let what = if symbols.get(&*spec.name).is_some_and(|copies| !copies.is_empty()) {
                "its address is not loaded from the file"
            } else if rung == Rung::ExportsOnly {
                "the library has no full symbol table, and it is not exported"
            } else {
                "no such symbol: not in this version, or inlined into its callers"
            };
            let (subject, lost) = (spec.name.to_string(), spec.lost_without.to_string());
            problems.push(Problem { kind, subject, what: what.to_owned(), lost });
            continue;
        };
        for copy in copies {
            report_params(spec, copy, problems);
        }
    }
}

fn report_params(spec: &FunctionSpec, copy: &Function, problems: &mut Vec<Problem>) {
    let mut unknown = |param: &str, what: &str| {
        problems.push(Problem {
            kind: ProblemKind::ParamUnknown,
            subject: format!("{}{}({param})", spec.name, copy.clone_suffix()),
            what: what.to_owned(),
            lost: String::new(),
        });
    };
    if copy.params_from == ParamSource::Unknown {
        if !spec.params.is_empty() {
            unknown(&spec.params.join(", "), "the debugging information says nothing of this copy");
        }
        return;
    }
    for wanted in &spec.params {
        if let Some(Param { location: ParamLocation::Unknown(why), .. }) = copy.param(wanted) {
            unknown(wanted, why);
        }
    }
}

fn report_types(request: &Request, found: &Found, rung: Rung, problems: &mut Vec<Problem>) {
    for fault in &found.faults {
        problems.push(Problem {
            kind: ProblemKind::DebugInfo,
            subject: "debugging information".to_owned(),
            what: fault.clone(),
            lost: String::new(),
        });
    }
    let absent = if !found.faults.is_empty() {
        "not found, and part of the debugging information cannot be read"
    } else if rung == Rung::OwnDwarf {
        "not defined in the debugging information: this version has none of that name"
    } else {
        "the library has no usable debugging information"
    };
    let lost = |name: &str| catalog::lost_without_type(name).unwrap_or_default().to_owned();
    let replaced = |name: &str| {
        let others = catalog::alternatives_of_type(name);
        others.iter().any(|other| found.layouts.struct_size(other).is_some())
    };
    for name in &request.structs {
        if found.ambiguous.contains(name) {
            let what = "the library has definitions of different sizes under this name";
            let (kind, subject) = (ProblemKind::LayoutAmbiguous, name.clone());
            problems.push(Problem { kind, subject, what: what.to_owned(), lost: lost(name) });
        } else if found.layouts.struct_size(name).is_none() && !replaced(name) {
            let (kind, subject) = (ProblemKind::StructMissing, name.clone());
            problems.push(Problem { kind, subject, what: absent.to_owned(), lost: lost(name) });
        }
    }
    for name in &request.enums {
        if found.layouts.enums.get(name).is_none_or(|layout| layout.values.is_empty()) {
            let (kind, subject) = (ProblemKind::EnumMissing, name.clone());
            problems.push(Problem { kind, subject, what: absent.to_owned(), lost: lost(name) });
        }
    }
}
