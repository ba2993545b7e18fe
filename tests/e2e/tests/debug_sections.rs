//! Debug sections that are stored compressed, as those of distributions' packages are: what is found in them is what is
//! found in the library as NVIDIA ships it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;

use ncclflow_e2e::harness::{prelude::*, stripped};

/// Functions and layouts, by the program.
fn symbols<I: AsRef<OsStr>>(arguments: &[I]) -> Value {
    let run = Command::new(programs::ncclflow().unwrap())
        .args(["symbols", "--json"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let mut found: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(found["layoutsFrom"], "dwarf", "{found:#}");
    found.as_object_mut().unwrap().remove("path");
    found
}

#[test]
fn compressed_debug_sections_say_what_uncompressed_ones_do() {
    for (version, formats) in [("2.21.5-cu12", &["zlib"][..]), ("2.28.9-cu13", &["zstd", "zlib-gnu"])] {
        let Some((_, _, library)) = programs::needed(version) else { return };
        let folder = tempfile::tempdir().unwrap();
        let truth = symbols(&[&library]);
        for format in formats {
            let copy = folder.path().join("libnccl.so.2");
            stripped::by_objcopy(&library, &copy, &[&format!("--compress-debug-sections={format}")]).unwrap();
            assert!(fs::metadata(&copy).unwrap().len() < fs::metadata(&library).unwrap().len(), "{format}");
            assert_eq!(symbols(&[&copy]), truth, "{version}, {format}");
        }
    }
}

/// A package of debugging information: a file of its own, which has compressed sections and no code.
#[test]
fn a_debug_file_with_compressed_sections_serves_a_stripped_library() {
    let Some((_, _, library)) = programs::needed("2.21.5-cu12") else { return };
    let folder = tempfile::tempdir().unwrap();
    let copy = stripped::copy(&library, folder.path(), &["--strip-all"]).unwrap();
    let debug_file = folder.path().join("libnccl.so.2.debug");
    stripped::by_objcopy(&library, &debug_file, &["--only-keep-debug", "--compress-debug-sections=zlib"])
        .unwrap();
    let found = symbols(&[OsStr::new("--debug-file"), debug_file.as_os_str(), copy.as_os_str()]);
    let truth = symbols(&[&library]);
    assert_eq!(found["symbolSource"], "debug_file", "{}", found["symbolSource"]);
    for key in ["functions", "layouts"] {
        assert_eq!(found[key], truth[key], "{key}");
    }
}
