//! The NCCL libraries of this host: those that processes have mapped, and those in the usual places. Before,
//! a file is tried that is there in any case: in the child that looks at libraries, through
//! `/proc/PID/map_files`.

use std::{collections::BTreeSet, ffi::OsStr, fs, io, path::PathBuf};

use super::{
    host::{self, Facts},
    report::{Check, degraded, no, ok},
};
use flow::{
    session::{CallSource, Level, ProbeStrategy},
    text::counted,
};
use inspect::{
    process::{Discovered, LibraryError, LibraryId, MappedLibrary, Process, denied_remedy, in_brackets},
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

/// Remedy where root is refused.
const REFUSED: &str = "run outside of what confines this program (AppArmor, SELinux, a seccomp filter); where nothing does, report this with the whole output";

/// Remedy where this host had no room at that moment.
const BUSY: &str = "run it again: no thread or memory was left (ulimit -u, pids.max of the control group)";

/// Reads the file that this program has mapped as its own code: it exists even where no job runs.
pub(super) fn own_program() -> Check {
    judge_own(read_own_program())
}

fn read_own_program() -> Result<(), ResolverError> {
    let pid = std::process::id();
    let process = Process::open(pid).map_err(|error| ResolverError::Unavailable(error.to_string()))?;
    let mappings = resolver::maps(pid).map_err(ResolverError::Refused)?;
    let code = mappings.iter().find(|mapping| mapping.is_file_code());
    let code = code.ok_or_else(|| ResolverError::Unavailable("this program has no file".to_owned()))?;
    let program = resolver::open_mapping(&process, code)?;
    // Only read: no symbol is wanted.
    resolver::symbols(&program, None, Some(Vec::new())).map(drop)
}

pub(super) fn judge_own(read: Result<(), ResolverError>) -> Check {
    match read {
        Ok(()) => ok("the helper process opens and reads them"),
        // Not refused by the kernel: a file system that ncclflow does not ask, or a file that was replaced.
        Err(ResolverError::Refused(why)) if why.raw_os_error().is_none() => degraded(
            format!("not known, as this program's own file was not read: {why}"),
            "see the libraries below",
        ),
        Err(why) => no(
            format!("the helper process cannot read this program's own file, so no library either: {why}"),
            REFUSED,
        ),
    }
}

/// Tells whether the kernel refused it, and not a rule of ncclflow's.
fn is_refused(error: &io::Error) -> bool {
    error.raw_os_error().is_some() && error.kind() == io::ErrorKind::PermissionDenied
}

/// Returns a check for each library, and for processes not examined; one check if there is no library.
pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let opens_all = host::opens_all(facts);
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
                checks.extend(new.map(|library| {
                    let deleted = if library.deleted { ", deleted" } else { "" };
                    let whose = format!("process {}{deleted}", process.pid());
                    judge(library, &whose, opens_all).named("NCCL")
                }));
            }
            Err(error) => {
                let check = unexamined(&error, process.is_ending(), opens_all);
                checks.extend(check.map(|check| check.named(format!("process {}", process.pid()))));
            }
        }
    }
    if found.denied > 0 {
        let (count, named) =
            (counted(found.denied, "process"), in_brackets(&found.denied_pids, found.denied));
        let what = format!("cannot inspect {count}{named}");
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
    let files = PLACES.into_iter().flat_map(fs::read_dir).flatten().flatten();
    files.map(|file| file.path()).filter(|path| {
        path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("libnccl.so"))
    })
}

/// Judges that a process was not examined which had NCCL a moment ago. There is nothing to be said of one
/// that has ended meanwhile, or runs another program.
pub(super) fn unexamined(error: &LibraryError, is_ending: bool, opens_all: bool) -> Option<Check> {
    if is_ending {
        return None;
    }
    match error {
        LibraryError::NoNccl { .. } => None,
        LibraryError::Maps(_, why) | LibraryError::Open { error: why, .. } if is_busy(why) => {
            Some(degraded(format!("not examined: {error}"), BUSY))
        }
        error => Some(unopened(error, opens_all)),
    }
}

/// Tells whether there was no room for a thread, a process or memory.
fn is_busy(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory)
}

/// Judges a mapped library that cannot be opened. A process that may open all and is refused can trace
/// nothing.
pub(super) fn unopened(error: &LibraryError, opens_all: bool) -> Check {
    match error {
        LibraryError::Open { error: why, .. } if opens_all && is_refused(why) => {
            no(error.to_string(), REFUSED)
        }
        _ => degraded(error.to_string(), "run as root, or see the capabilities above"),
    }
}

fn judge(library: &MappedLibrary, whose: &str, opens_all: bool) -> Check {
    let path = library.shown();
    let files = DebugFiles::new(Vec::new(), Vec::new());
    match resolver::resolve(library, What::Api, &files) {
        Ok(resolved) => of_resolution(&path, whose, &resolved.resolution),
        Err(ResolverError::Refused(why)) if opens_all && is_refused(&why) => {
            no(format!("{path} ({whose}): cannot be opened: {why}"), REFUSED)
        }
        Err(error) => degraded(
            format!("{path} ({whose}): {error}"),
            "another copy of the library; `ncclflow symbols` says more",
        ),
    }
}

fn of_resolution(path: &str, whose: &str, resolution: &Resolution) -> Check {
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
    match probes.strategy {
        Some(ProbeStrategy::PerCall) => degraded(
            format!("{found}; a probe hit for each operation and peer slows launches down"),
            "NCCL 2.23 or later, or --level api",
        ),
        Some(ProbeStrategy::Plan) | None => ok(found),
    }
}
