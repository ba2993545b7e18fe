//! Stripped copies of real NCCL libraries: what is found in them without symbols or debugging information
//! equals what the unstripped library states.
//!
//! Libraries come from the cache; `strip` (`$STRIP`) from binutils.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flow::session::{Level, ProbeStrategy};
use nccl_library::elf::{Image, Machine};
use nccl_library::symbols::{
    FoundBy, Function, LayoutSource, ParamSource, Resolution, SymbolSource, nccl_request, render, resolve,
};
use tempfile::TempDir;
use trace::kernel::probe::{self};

use test_support::{libraries, tool};

/// Runs binutils' `strip` on a copy; `None` if there is none.
fn stripped(options: &[&str], library: &Path, directory: &TempDir) -> Option<PathBuf> {
    let copy = directory.path().join("libnccl.so.2");
    let status = tool("binutils", "STRIP", "strip")?.args(options).arg(library).arg("-o").arg(&copy).status();
    assert!(status.unwrap().success(), "strip {options:?} {}", library.display());
    Some(copy)
}

fn resolved(library: &Path) -> (Resolution, Duration) {
    let image = Image::open(library).unwrap();
    let start = Instant::now();
    let resolution = resolve(&image, &nccl_request()).unwrap();
    (resolution, start.elapsed())
}

/// What was compared.
#[derive(Debug, Default)]
struct Tally {
    functions: usize,
    params: usize,
    only_by_debugging_information: Vec<String>,
}

/// Each function found in the copy is one of the library, and each parameter whose place is known is there.
fn compare(library: &Resolution, copy: &Resolution, name: &str) -> Tally {
    let mut tally = Tally::default();
    for (function, found) in &copy.functions {
        let stated = library.functions(function);
        let addresses = |functions: &[Function]| {
            functions.iter().map(|copy| (copy.vaddr, copy.file_offset, copy.size)).collect::<Vec<_>>()
        };
        assert_eq!(addresses(found), addresses(stated), "{name}: {function}");
        for (found, stated) in found.iter().zip(stated) {
            tally.functions += 1;
            for param in &found.params {
                let Some(stated) = stated.param(&param.name) else {
                    panic!("{name}: {function} has no {}", param.name)
                };
                assert_eq!(
                    param.location.is_known(),
                    stated.location.is_known(),
                    "{name}: {function} {}",
                    param.name
                );
                if param.location.is_known() {
                    assert_eq!(param, stated, "{name}: {function}");
                    tally.params += 1;
                }
            }
            let known = |function: &Function| function.params_from != ParamSource::Unknown;
            if known(stated) && !known(found) {
                tally.only_by_debugging_information.push(format!("{function}{}", stated.clone_suffix()));
            }
        }
    }
    let missing = library.functions.keys().filter(|function| !copy.functions.contains_key(*function));
    tally.only_by_debugging_information.extend(missing.map(|function| format!("{function} (not found)")));
    tally
}

const ONE_SIDED: &str = "ncclLaunchRma";

/// Ties plans to graphs.
const TIE: &str = "ncclCudaGraphAddDestructor";

/// What the probes read is the same, apart from the names of symbols. Without symbols nobody finds
/// `ncclLaunchRma`: one-sided calls are then only counted; nor `ncclCudaGraphAddDestructor`, without which launches of
/// graphs are.
fn compare_probes(library: &Resolution, copy: &Resolution, level: Level, name: &str) {
    for way in [None, Some(ProbeStrategy::PerCall)] {
        let view = |resolution: &Resolution| {
            let set = probe::compile(resolution, level, way);
            let is_of_both = |function: &str| ![ONE_SIDED, TIE].contains(&function);
            let probes = set.probes.iter().filter(|probe| is_of_both(&probe.function)).map(|probe| {
                let text = format!(
                    "{} {} {:?} {:?} {:?}",
                    probe.function, probe.file_offset, probe.kind, probe.plan, probe.walk
                );
                text.replace("one_sided_elsewhere: true", "one_sided_elsewhere: false")
            });
            let missing = set.missing.iter().map(|missing| missing.function.clone());
            let missing = missing.filter(|function| is_of_both(function));
            (set.strategy, probes.collect::<Vec<_>>(), missing.collect::<Vec<_>>())
        };
        assert_eq!(view(library), view(copy), "{name}");
    }
    let sees_ops = |probe: &probe::Probe| probe.walk.is_some() || probe.function == "ncclProxySaveOp";
    assert!(probe::compile(copy, level, None).probes.iter().any(sees_ops), "{name}");
}

fn check(options: &[&str], symbol_source: SymbolSource, found_by: FoundBy) {
    let (mut checked, mut slowest) = (0, Duration::ZERO);
    for (name, library) in libraries() {
        let (stated, _) = resolved(&library);
        if stated.machine != Machine::X86_64 {
            // Functions without symbols are looked for on x86-64 only.
            continue;
        }
        let directory = TempDir::new().unwrap();
        let Some(copy) = stripped(options, &library, &directory) else { return };
        let (found, taken) = resolved(&copy);
        if checked == 0 {
            eprintln!("{}", render(&found, &nccl_request()));
        }
        let tally = compare(&stated, &found, &name);
        eprintln!(
            "{name}: {:.1} ms, {} functions and {} parameters equal; only by debugging information: {}",
            taken.as_secs_f64() * 1e3,
            tally.functions,
            tally.params,
            tally.only_by_debugging_information.join(", "),
        );
        assert_eq!(
            (found.symbol_source, found.layouts_from),
            (symbol_source, LayoutSource::ShippedForBuildId),
            "{name}"
        );
        assert_eq!(found.missing_required().count(), 0, "{name}");
        for function in ["ncclProxySaveOp", "SaveProxy", "ncclEnqueueCheck"] {
            let [found] = found.functions(function) else { panic!("{name}: one {function}") };
            assert_eq!(found.found_by, found_by, "{name}: {function}");
            let source =
                if function == "SaveProxy" { ParamSource::EntryCode } else { ParamSource::Prototype };
            assert_eq!(found.params_from, source, "{name}: {function}");
        }
        assert!(found.layouts == stated.layouts, "{name}: the layouts differ");
        compare_probes(&stated, &found, Level::Flow, &name);
        // The profiler's hooks hold no names: without symbols they are told by their calls.
        compare_probes(&stated, &found, Level::Steps, &name);
        slowest = slowest.max(taken);
        checked += 1;
    }
    assert!(checked > 0 || libraries().is_empty(), "no library was for x86-64");
    eprintln!("{checked} libraries, the slowest in {:.1} ms", slowest.as_secs_f64() * 1e3);
}

#[test]
fn without_any_symbols() {
    check(&["--strip-all"], SymbolSource::Stripped, FoundBy::OwnName);
}

#[test]
fn without_debugging_information() {
    check(&["--strip-debug"], SymbolSource::SymtabWithShippedLayout, FoundBy::Symbol);
}

/// Without the build-id, the version and the code prove which layouts fit.
#[test]
fn without_a_build_id() {
    for (name, library) in libraries() {
        let (stated, _) = resolved(&library);
        if stated.machine != Machine::X86_64 {
            continue;
        }
        let directory = TempDir::new().unwrap();
        let options = ["--strip-all", "--remove-section", ".note.gnu.build-id"];
        let Some(copy) = stripped(&options, &library, &directory) else { return };
        let (found, _) = resolved(&copy);
        assert_eq!(found.build_id, None, "{name}");
        assert_eq!(
            (found.symbol_source, found.layouts_from),
            (SymbolSource::Stripped, LayoutSource::ShippedForVersion),
            "{name}"
        );
        assert!(found.layouts == stated.layouts, "{name}: the layouts differ");
        compare_probes(&stated, &found, Level::Flow, &name);
    }
}
