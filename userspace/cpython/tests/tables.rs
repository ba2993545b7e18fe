//! The table of layouts, and the layouts that 3.13 and later state, against the headers of every CPython that
//! is found.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::process::Command;

use cpython::{Offsets, ShippedRow, shipped};
use support::Subject;
use test_support::{Interpreter, need_pythons, skip, tool};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/shipped/offsets.c");

/// Returns the offsets by the headers; `None` if there are none.
fn of_headers(python: &Interpreter, mut compiler: Command) -> Option<Offsets> {
    let script = "import os, sysconfig; print(sysconfig.get_path('include'))";
    let output = Command::new(&python.program).args(["-I", "-c", script]).output().unwrap();
    let include = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    if !std::path::Path::new(&include).join("Python.h").exists() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("offsets");
    let internal = format!("-I{include}/internal");
    compiler.arg(SOURCE).arg("-o").arg(&program).arg(format!("-I{include}")).arg(internal);
    assert!(compiler.status().unwrap().success());
    let row = Command::new(&program).output().unwrap();
    let row: ShippedRow = serde_json::from_slice(&row.stdout).unwrap();
    assert_eq!(row.made_from, python.release);
    Some(row.offsets)
}

/// The offsets that are used, of the table or of the interpreter itself, against the headers.
#[test]
fn layouts_are_those_of_the_headers_of_every_interpreter() {
    let Some(pythons) = need_pythons() else { return };
    let mut compared = 0;
    for python in &pythons {
        let Some(compiler) = tool("cc", "CC", "cc") else { return };
        let Some(expected) = of_headers(python, compiler) else {
            println!("{}: no headers", python.program.display());
            continue;
        };
        let mut subject = Subject::start(Command::new(&python.program).args([
            "-I",
            "-c",
            "import os; os.write(1, b'\\n'); os.read(0, 1)",
        ]));
        subject.line().unwrap();
        assert_eq!(subject.python().offsets, expected, "{}", python.program.display());
        // 3.13 and later state them themselves.
        let from_table = shipped(expected.version);
        assert_eq!(from_table.is_some(), python.minor < 13, "{}", python.release);
        compared += 1;
    }
    if compared == 0 {
        skip("python headers", "install CPython's headers (Debian: python3-dev)");
    }
}
