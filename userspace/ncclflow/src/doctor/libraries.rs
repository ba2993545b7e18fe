//! The NCCL libraries of this host: those that processes have mapped, and those in the usual places.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::checks::{Check, Verdict};
use crate::{
    kernel::probe::{Level, ProbeStrategy, compile},
    target::{LibraryId, MappedLibrary, denied_remedy, nccl_libraries, nccl_processes, printable},
};
use nccl_library::{
    elf::Image,
    symbols::{DebugFiles, Resolution, nccl_request, resolve_with},
};

/// At most this many libraries are examined. Each takes some tenths of a second.
const MAX_LIBRARIES: usize = 32;
/// Folders into which packages install NCCL.
const PLACES: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/nccl/lib",
    "/usr/local/cuda/lib64",
];

/// A check for each library, and for processes that could not be examined; one check if there is no library.
pub(super) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    let mut seen: BTreeSet<LibraryId> = BTreeSet::new();
    match nccl_processes() {
        Ok(found) => {
            for process in &found.processes {
                match nccl_libraries(process, None) {
                    Ok(libraries) => {
                        for library in libraries {
                            if seen.len() < MAX_LIBRARIES && seen.insert(library.id) {
                                checks.push(mapped(&library, process.pid()));
                            }
                        }
                    }
                    Err(error) => {
                        let remedy = "run as root, or see the capabilities above";
                        checks.push(Check::degraded(
                            &format!("process {}", process.pid()),
                            error.to_string(),
                            remedy,
                        ));
                    }
                }
            }
            if found.denied > 0 {
                let what = format!("{} may not be looked at", found.denied);
                checks.push(Check::degraded("processes", what, denied_remedy()));
            }
        }
        Err(error) => {
            let remedy = "mount it, or run where it is";
            checks.push(Check::no("processes", format!("/proc cannot be read: {error}"), remedy));
        }
    }
    for path in installed() {
        let Ok(metadata) = fs::metadata(&path) else { continue };
        let id = LibraryId { device: metadata.dev(), inode: metadata.ino() };
        if seen.len() < MAX_LIBRARIES && seen.insert(id) {
            let shown = printable(&path.to_string_lossy());
            checks.push(judge(&shown, "installed", Image::open(&path).map_err(|error| error.to_string())));
        }
    }
    if checks.is_empty() {
        let found = "none: no process has one mapped now, and none is in the usual places";
        checks.push(Check::ok("NCCL", found));
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

fn mapped(library: &MappedLibrary, pid: u32) -> Check {
    let image = library.try_clone_file().map_err(|error| error.to_string());
    let image = image.and_then(|file| Image::from_file(file).map_err(|error| error.to_string()));
    let deleted = if library.deleted { ", deleted" } else { "" };
    judge(&library.shown(), &format!("process {pid}{deleted}"), image)
}

fn judge(path: &str, whose: &str, image: Result<Image, String>) -> Check {
    let resolution = image.and_then(|image| {
        let files = DebugFiles::new(Vec::new(), Vec::new());
        resolve_with(&image, &nccl_request(), &files).map_err(|error| error.to_string())
    });
    match resolution {
        Ok(resolution) => of_resolution(path, whose, &resolution),
        Err(error) => Check::degraded(
            "NCCL",
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
    let check =
        |verdict, found, remedy| Check { name: "NCCL".to_owned(), verdict, found, remedy: Some(remedy) };
    if resolution.missing_required().next().is_some() || probes.probes.is_empty() {
        return check(
            Verdict::Degraded,
            format!("{found}; ops cannot be traced"),
            format!("its debugging information (--debug-file, --debug-dir); {symbols}"),
        );
    }
    if !probes.missing.is_empty() {
        return check(
            Verdict::Degraded,
            format!("{found}; {} probes are missing", probes.missing.len()),
            symbols,
        );
    }
    match probes.way {
        Some(ProbeStrategy::PerCall) => check(
            Verdict::Degraded,
            format!("{found}; a probe hit for each op and peer slows launches down"),
            "NCCL 2.23 or later, or --level api".to_owned(),
        ),
        Some(ProbeStrategy::Plan) | None => Check::ok("NCCL", found),
    }
}
