//! Inputs of the fuzz targets that are kept (`tests/fuzz/kept/TARGET/`): seeds, and what the fuzzer found to
//! be worth keeping. Each is used as its target uses it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path, sync::atomic::Ordering};

#[path = "../../../tests/fuzz/src/lib.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::pedantic,
    reason = "they belong to a crate of their own, which makes seeds, too"
)]
mod targets;

/// Runs all inputs of a target; how many there were.
fn run(target: &str, use_input: fn(&[u8])) {
    // Tests are built without optimisation, and run side by side.
    targets::LIMIT.store(30, Ordering::Relaxed);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/kept").join(target);
    let mut inputs = 0;
    for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        let input = fs::read(&path).unwrap();
        let done = std::panic::catch_unwind(|| use_input(&input));
        assert!(done.is_ok(), "{}", path.display());
        inputs += 1;
    }
    assert!(inputs > 0, "no inputs in {}", folder.display());
}

#[test]
fn files_of_libraries() {
    run("library", targets::use_library);
    run("sections", |input| {
        let Some((first, input)) = input.split_first() else { return };
        let machine = [62, 183][usize::from(first & 1)];
        targets::use_library(&targets::assembly::library(input, machine));
    });
}

#[test]
fn what_was_recorded() {
    run("recording", targets::recording::use_recording);
    run("kernel-records", targets::kernel_records::use_items);
}

#[test]
fn memory_of_processes() {
    run("python", targets::python::use_memory);
    run("torch", targets::torch::use_memory);
    run("dump", targets::dump::use_memory);
}

/// What the target `python` changes has a dictionary of interned strings.
#[test]
fn memory_that_is_made_up_has_a_dictionary_of_interned_strings() {
    for minor in [8, 11] {
        let name = format!("interned_3_{minor}");
        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fuzz/kept/python");
        let input = std::fs::read(std::path::Path::new(kept).join(&name)).unwrap();
        assert!(targets::python::find_interned(&input).is_some(), "{name}");
    }
}

/// What the target `dump` changes is a communicator of two ranks, or else nothing behind the search would be
/// tried.
#[test]
fn memory_that_is_made_up_has_a_communicator_in_every_layout_with_magic_words() {
    targets::LIMIT.store(30, Ordering::Relaxed);
    let made = (0..targets::dump::libraries()).filter(|library| targets::dump::has_magics(*library));
    let found: Vec<usize> =
        made.map(|library| targets::dump::dump_of(&[u8::try_from(library).unwrap()])).collect();
    assert!(found.len() > 10 && found.iter().all(|ranks| *ranks == 2), "{found:?}");
}

#[test]
fn files_of_others() {
    run("trace", targets::trace::use_trace);
    run("merge", targets::merge::use_dumps);
    run("proc-files", targets::proc_files::use_file);
}
