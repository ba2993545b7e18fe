//! The NCCL libraries of this host: those that processes have mapped, and those in the usual places.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{
    checks::{Check, Finding, degraded, no, ok},
    facts::Facts,
    files, privileges,
};
use flow::session::{CallSource, Level, ProbeStrategy};
use inspect::{
    process::{Discovered, LibraryError, LibraryId, MappedLibrary, denied_remedy},
    resolver::{self, ResolverError, What},
};
use nccl_library::symbols::{DebugFiles, Resolution};
use trace::kernel::probe::compile;

/// Most libraries that are examined. Each takes some tenths of a second.
const MAX_LIBRARIES: usize = 32;
const PLACES: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/nccl/lib",
    "/usr/local/cuda/lib64",
];

/// Returns a check for each library, and for processes not examined; one check if there is no library.
pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let opens_all = privileges::opens_all(facts);
    let mut checks = Vec::new();
    let mut seen: BTreeSet<LibraryId> = BTreeSet::new();
    let mut is_new = |id| seen.len() < MAX_LIBRARIES && seen.insert(id);
    let found = resolver::nccl_processes().unwrap_or_else(|error| {
        let remedy = "mount /proc, or run where it is mounted";
        checks.push(no(format!("/proc cannot be read: {error}"), remedy).named("processes"));
        Discovered::default()
    });
    for process in &found.processes {
        match resolver::libraries(process, None) {
            Ok(libraries) => {
                let new = libraries.iter().filter(|library| is_new(library.id));
                checks.extend(new.map(|library| mapped(library, process.pid(), opens_all).named("NCCL")));
            }
            Err(_) if process.has_exited() => {}
            Err(error) => {
                checks.push(unopened(&error, opens_all).named(format!("process {}", process.pid())));
            }
        }
    }
    if found.denied > 0 {
        let what = format!("{} may not be inspected", found.denied);
        checks.push(degraded(what, denied_remedy()).named("processes"));
    }
    for path in installed() {
        let Ok(library) = resolver::take_hold(&path) else { continue };
        if is_new(library.id) {
            checks.push(judge(&library, "installed", false).named("NCCL"));
        }
    }
    if checks.is_empty() {
        let found = "none: no process has one mapped now, and none is in the usual places";
        checks.push(ok(found).named("NCCL"));
    }
    checks
}

fn installed() -> impl Iterator<Item = PathBuf> {
    PLACES.into_iter().filter_map(|place| fs::read_dir(Path::new(place)).ok()).flatten().flatten().filter_map(
        |entry| {
            let name = entry.file_name();
            name.to_str()?.starts_with("libnccl.so").then(|| entry.path())
        },
    )
}

fn mapped(library: &MappedLibrary, pid: u32, opens_all: bool) -> Finding {
    let deleted = if library.deleted { ", deleted" } else { "" };
    judge(library, &format!("process {pid}{deleted}"), opens_all)
}

/// Judges a mapped library that cannot be opened. A process that may open all and is refused can trace
/// nothing.
pub(super) fn unopened(error: &LibraryError, opens_all: bool) -> Finding {
    match error {
        LibraryError::Open { error: why, .. } if opens_all && files::is_refused(why) => {
            no(error.to_string(), files::REFUSED)
        }
        _ => degraded(error.to_string(), "run as root, or see the capabilities above"),
    }
}

fn judge(library: &MappedLibrary, whose: &str, opens_all: bool) -> Finding {
    let path = library.shown();
    let files = DebugFiles::new(Vec::new(), Vec::new());
    match resolver::resolve(library, What::Api, &files) {
        Ok(resolved) => of_resolution(&path, whose, &resolved.resolution),
        Err(ResolverError::Refused(why)) if opens_all && files::is_refused(&why) => {
            no(format!("{path} ({whose}): cannot be opened: {why}"), files::REFUSED)
        }
        Err(error) => degraded(
            format!("{path} ({whose}): {error}"),
            "another copy of the library; `ncclflow symbols` says more",
        ),
    }
}

fn of_resolution(path: &str, whose: &str, resolution: &Resolution) -> Finding {
    let version = resolution.nccl_version.map_or_else(|| "?".to_owned(), |version| version.to_string());
    let found = format!("{version}, {}: {path} ({whose})", resolution.symbol_source.describe());
    let probes = compile(resolution, Level::Flow, None);
    let symbols = format!("see `ncclflow symbols {path}`");
    if resolution.missing_required().next().is_some() || probes.probes.is_empty() {
        let calls = match compile(resolution, Level::Api, None).calls {
            Some(CallSource::EnqueueCheck) => ", API calls can (--level api)",
            Some(CallSource::ExportedFunctions) => {
                ", API calls can, by the arguments of the exported functions (--level api)"
            }
            None => "",
        };
        return degraded(
            format!("{found}; operations cannot be traced{calls}"),
            format!("its debugging information (--debug-file, --debug-dir); {symbols}"),
        );
    }
    if !probes.missing.is_empty() {
        return degraded(format!("{found}; {} probes are missing", probes.missing.len()), symbols);
    }
    match probes.way {
        Some(ProbeStrategy::PerCall) => degraded(
            format!("{found}; a probe hit for each operation and peer slows launches down"),
            "NCCL 2.23 or later, or --level api",
        ),
        Some(ProbeStrategy::Plan) | None => ok(found),
    }
}
