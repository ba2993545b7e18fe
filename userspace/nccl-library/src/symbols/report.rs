//! A resolution as text for people.

use std::fmt::Write as _;

use super::registers::{register_name, stack_pointer};
use super::{FoundBy, Function, LayoutSource, Param, ParamSource, Problem, ProblemKind, Request, Resolution};
use crate::elf::Machine;
use crate::layouts::Layouts;
use crate::parameter::ParamLocation;

/// Renders the functions that were found, where, how each parameter arrives, and what is lost.
pub fn render(resolution: &Resolution, request: &Request) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    _ = identity(&mut out, resolution);
    _ = functions(&mut out, resolution, request);
    _ = layouts(&mut out, resolution, request);
    _ = problems(&mut out, resolution);
    out
}

fn identity(out: &mut String, resolution: &Resolution) -> std::fmt::Result {
    let version = resolution
        .nccl_version
        .map_or_else(|| "of unknown version".to_owned(), |version| version.to_string());
    let cuda = resolution.cuda_version.map(|(major, minor)| format!(" for CUDA {major}.{minor}"));
    let machine = match resolution.machine {
        Machine::X86_64 => "x86-64".to_owned(),
        Machine::Aarch64 => "aarch64".to_owned(),
        Machine::Other(number) => format!("ELF machine {number}"),
    };
    writeln!(out, "NCCL      {version}{}, {machine}", cuda.unwrap_or_default())?;
    let build_id = resolution.build_id.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
    writeln!(out, "build-id  {build_id}")?;
    let file = resolution.debug_file.as_ref().map(|file| format!(": {file}")).unwrap_or_default();
    writeln!(out, "symbols   {}{file}", resolution.symbol_source.describe())?;
    let layouts = match resolution.layouts_from {
        LayoutSource::Dwarf => "debugging information",
        LayoutSource::ShippedForBuildId => "shipped with ncclflow for this build-id",
        LayoutSource::ShippedForVersion => {
            "shipped with ncclflow for this version and CUDA; the library's code agrees with them"
        }
        LayoutSource::Unknown => "none",
    };
    writeln!(out, "layouts   {layouts}")
}

fn functions(out: &mut String, resolution: &Resolution, request: &Request) -> std::fmt::Result {
    writeln!(out, "\nfunctions")?;
    let copies: Vec<&Function> =
        request.functions.iter().flat_map(|spec| resolution.functions(spec.name)).collect();
    let label = |function: &Function| format!("{}{}", function.name, function.clone_suffix());
    let width = copies.iter().map(|function| label(function).len()).max().unwrap_or(0);
    for function in &copies {
        let params = params(function, resolution.machine);
        let mut marks: Vec<&str> = Vec::new();
        marks.extend(found_mark(function.found_by).map(|(mark, _)| mark));
        marks.extend(mark(function.params_from).map(|(mark, _)| mark));
        let marks = if marks.is_empty() { String::new() } else { format!("[{}]", marks.join(", ")) };
        let space = if params.is_empty() || marks.is_empty() { "" } else { " " };
        let params = format!("{params}{space}{marks}");
        let after =
            if function.uprobe_offset == 0 { String::new() } else { format!("+{}", function.uprobe_offset) };
        let place = format!("{}{after}", function.file_offset);
        let line = format!("  {:width$}  {place:>13}  {:>6} B  {params}", label(function), function.size);
        writeln!(out, "{}", line.trim_end())?;
    }
    let mut legend: Vec<(&str, &str)> = Vec::new();
    let found = copies.iter().filter_map(|function| found_mark(function.found_by));
    for mark in found.chain(copies.iter().filter_map(|function| mark(function.params_from))) {
        if !legend.contains(&mark) {
            legend.push(mark);
        }
    }
    for (mark, meaning) in legend {
        writeln!(out, "  [{mark}] {meaning}")?;
    }
    Ok(())
}

/// Says how a function without a symbol was found: in brief, and what it means.
fn found_mark(found_by: FoundBy) -> Option<(&'static str, &'static str)> {
    match found_by {
        FoundBy::Symbol | FoundBy::Export => None,
        FoundBy::OwnName => {
            Some(("own name", "found without a symbol: its code refers to the string that is its name"))
        }
        FoundBy::Calls => {
            Some(("calls", "found without a symbol: by the functions that call it, and what they give it"))
        }
    }
}

/// Says how parameters were found that the debugging information does not state: in brief, and what it means.
fn mark(source: ParamSource) -> Option<(&'static str, &'static str)> {
    match source {
        ParamSource::DwarfAtEntry => None,
        ParamSource::CallingConvention => {
            Some(("convention", "declared in the debugging information, placed by the calling convention"))
        }
        ParamSource::Prototype => {
            Some(("prototype", "declared in NCCL's source, placed by the calling convention"))
        }
        ParamSource::EntryCode => Some((
            "entry code",
            "declared in NCCL's source, placed by what the code at the entry tests first",
        )),
        ParamSource::Unknown => Some(("parameters unknown", "its probe could read none of them")),
    }
}

/// Renders each parameter once: one that was split into parts has several entries of one name.
fn params(function: &Function, machine: Machine) -> String {
    let mut shown: Vec<&str> = Vec::new();
    let mut text: Vec<String> = Vec::new();
    for param in &function.params {
        if shown.contains(&param.name.as_str()) {
            continue;
        }
        shown.push(&param.name);
        if let Some(best) = function.param(&param.name) {
            text.push(format!("{}={}", best.name, location(best, machine)));
        }
    }
    text.join(" ")
}

fn location(param: &Param, machine: Machine) -> String {
    match &param.location {
        ParamLocation::Register(number) => register_name(machine, *number, param.size),
        ParamLocation::EntryStack { sp_offset } => format!("[{}{sp_offset:+}]", stack_pointer(machine)),
        ParamLocation::Unknown(_) => "?".to_owned(),
    }
}

fn layouts(out: &mut String, resolution: &Resolution, request: &Request) -> std::fmt::Result {
    let Layouts { structs, enums } = &resolution.layouts;
    list(out, "structs", "B", &request.structs, |name| structs.get(name).map(|layout| layout.size))?;
    list(out, "enums", "names", &request.enums, |name| {
        enums.get(name).map(|layout| layout.values.len() as u64)
    })
}

fn list(
    out: &mut String,
    title: &str,
    unit: &str,
    asked: &[String],
    measure: impl Fn(&String) -> Option<u64>,
) -> std::fmt::Result {
    let found: Vec<(&String, u64)> = asked.iter().filter_map(|name| Some((name, measure(name)?))).collect();
    writeln!(out, "\n{title:9} {} of {} asked for", found.len(), asked.len())?;
    let width = found.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, number) in found {
        writeln!(out, "  {name:width$}  {number:>8} {unit}")?;
    }
    Ok(())
}

fn problems(out: &mut String, resolution: &Resolution) -> std::fmt::Result {
    if resolution.problems.is_empty() {
        return writeln!(out, "\nnothing is missing");
    }
    writeln!(out, "\nnot known")?;
    let width = resolution.problems.iter().map(|problem| problem.subject.chars().count()).max().unwrap_or(0);
    for Problem { kind, subject, what, lost } in &resolution.problems {
        let lost = match (kind, lost.as_str()) {
            (_, "") => String::new(),
            (ProblemKind::RequiredFunctionMissing, lost) => format!("; nothing can be traced without {lost}"),
            (_, lost) => format!("; lost: {lost}"),
        };
        writeln!(out, "  {subject:width$}  {what}{lost}")?;
    }
    Ok(())
}
