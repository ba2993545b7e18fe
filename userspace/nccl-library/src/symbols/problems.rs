//! Problems: what could not be found out, and why.

use std::collections::BTreeMap;

use super::catalog;
use super::copies::Copies;
use super::stripped::Search;
use super::{Function, FunctionSpec, Param, ParamSource, Problem, ProblemKind, Request, SymbolSource};
use crate::dwarf::Found;
use crate::elf::Error;
use crate::fields::{self, FieldRef};
use crate::parameter::ParamLocation;

/// Reports debugging information, of the library or a debug file, that cannot be used.
pub(super) fn debug_information(subject: &str, error: &Error) -> Problem {
    let lost = "parameter locations and struct layouts";
    Problem::new(ProblemKind::DebugInfo, subject, error.to_string(), lost)
}

/// Reports code that could not be searched for functions without symbols.
pub(super) fn search(error: &Error) -> Problem {
    let lost = "the functions that the library does not export";
    Problem::new(ProblemKind::DebugInfo, "functions without symbols", error.to_string(), lost)
}

/// Reports functions that were not found, and parameters without a known location.
pub(super) fn of_functions(
    request: &Request,
    functions: &BTreeMap<String, Vec<Function>>,
    copies: &Copies,
    search: Option<&Search>,
    problems: &mut Vec<Problem>,
) {
    for spec in &request.functions {
        if let Some(copies) = functions.get(spec.name) {
            for copy in copies {
                of_params(spec, copy, problems);
            }
            continue;
        }
        if spec.in_some_versions || spec.alternatives.iter().any(|other| functions.contains_key(*other)) {
            continue;
        }
        let kind =
            if spec.required { ProblemKind::RequiredFunctionMissing } else { ProblemKind::FunctionMissing };
        let what = match search.map(|search| search.get(spec.name)) {
            _ if !copies.of(spec.name).is_empty() => "its address is not loaded from the file".to_owned(),
            None => "no such symbol: not in this version, or inlined into its callers".to_owned(),
            Some(Some(Err(why))) => format!("no symbols, not exported, and {why}"),
            Some(_) => "the library has no full symbol table, and it is not exported".to_owned(),
        };
        problems.push(Problem::new(kind, spec.name, what, spec.lost_without));
    }
}

fn of_params(spec: &FunctionSpec, copy: &Function, problems: &mut Vec<Problem>) {
    let mut unknown = |param: &str, what: &str| {
        let subject = format!("{}{}({param})", spec.name, copy.clone_suffix());
        problems.push(Problem::new(ProblemKind::ParamUnknown, subject, what, ""));
    };
    if copy.params_from == ParamSource::Unknown {
        if !spec.params.is_empty() {
            let params: Vec<&str> = spec.params.iter().map(|(name, ..)| *name).collect();
            unknown(&params.join(", "), "no debugging information says how they arrive at this copy");
        }
        return;
    }
    for (wanted, ..) in spec.params {
        if let Some(Param { location: ParamLocation::Unknown(why), .. }) = copy.param(wanted) {
            unknown(wanted, why);
        }
    }
}

/// Reports parts of the debugging information that cannot be used.
pub(super) fn of_faults(found: &Found, problems: &mut Vec<Problem>) {
    let problem = |fault: &String| Problem::new(ProblemKind::DebugInfo, "debugging information", fault, "");
    problems.extend(found.faults.iter().map(problem));
}

/// Reports structs and enumerations that are not known. `no_layouts` is why, if there are none at all.
pub(super) fn of_types(
    request: &Request,
    found: &Found,
    symbol_source: SymbolSource,
    no_layouts: Option<&str>,
    problems: &mut Vec<Problem>,
) {
    of_faults(found, problems);
    let absent = if !found.faults.is_empty() {
        "not found, and part of the debugging information cannot be read".to_owned()
    } else if let Some(why) = no_layouts {
        format!("the library has no usable debugging information, and {why}")
    } else if matches!(symbol_source, SymbolSource::OwnDwarf | SymbolSource::DebugFile) {
        "not defined in the debugging information: this version has none of that name".to_owned()
    } else {
        "not in the shipped layouts: this version has none of that name".to_owned()
    };
    let mut add = |kind, name: &str, what: &str| {
        let lost = catalog::lost_without_type(name).unwrap_or_default();
        problems.push(Problem::new(kind, name, what, lost));
    };
    let replaced = |name: &str| {
        let others = fields::alternatives(name);
        let is_newer = |flag: FieldRef| !flag.exists(&found.layouts);
        others.iter().any(|other| found.layouts.struct_size(other).is_some())
            || fields::flag_of_launch(name).is_some_and(is_newer)
    };
    for name in &request.structs {
        if found.ambiguous.contains(name) {
            let what = "the library has definitions of different sizes under this name";
            add(ProblemKind::LayoutAmbiguous, name, what);
        } else if found.layouts.struct_size(name).is_none() && !replaced(name) {
            // The version has it, if it has the flag.
            let flagged = fields::flag_of_launch(name).is_some();
            let what = if flagged { "its layout is not known" } else { absent.as_str() };
            add(ProblemKind::StructMissing, name, what);
        }
    }
    for name in &request.enums {
        if found.layouts.enums.get(name).is_none_or(|layout| layout.values.is_empty()) {
            add(ProblemKind::EnumMissing, name, &absent);
        }
    }
}
