//! Debugging information that no compiler writes: references in circles, structs that contain themselves,
//! work without end.
//!
//! Needs an assembler and a linker (`$CC`, default `cc`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use nccl_library::elf::Image;
use nccl_library::symbols::{FunctionSpec, ProblemKind, Request, Resolution, resolve};
use tempfile::TempDir;
use test_support::tool;

/// Abbreviations, one per line: code, tag, has children, then pairs of attribute and form. See the DWARF 4
/// standard, 7.5.
const ABBREVIATIONS: &str = "
1, 0x11, 1, 0x11,0x01, 0x12,0x07
2, 0x2e, 1, 0x11,0x01, 0x12,0x07, 0x31,0x13, 0x40,0x18
3, 0x05, 0, 0x31,0x13
4, 0x16, 0, 0x03,0x08, 0x49,0x13
5, 0x13, 1, 0x03,0x08, 0x0b,0x07
6, 0x0d, 0, 0x03,0x08, 0x49,0x13, 0x38,0x0f
7, 0x01, 1, 0x49,0x13
8, 0x21, 0, 0x2f,0x07
9, 0x24, 0, 0x03,0x08, 0x0b,0x0b, 0x3e,0x0b
10, 0x0f, 0, 0x49,0x13
11, 0x39, 1
12, 0x13, 1, 0x03,0x08, 0x0b,0x07, 0x01,0x13
";

/// Assembles a library with one function and these entries below the unit's root, and resolves it.
fn resolved(entries: &str, more_abbreviations: &str) -> Option<Resolution> {
    let mut assembly = String::from(
        ".text\n.globl f\n.hidden f\n.type f,@function\nf: nop\n.size f,1\n.section .debug_abbrev,\"\",@progbits\n",
    );
    for line in ABBREVIATIONS.lines().filter(|line| !line.is_empty()) {
        writeln!(assembly, ".uleb128 {line}, 0, 0").unwrap();
    }
    assembly += more_abbreviations;
    assembly += ".uleb128 0\n.section .debug_info,\"\",@progbits\nunit: .long end - start\nstart: .value 4\n.long 0\n.byte 8\n";
    assembly += ".uleb128 1\n.quad f, 1\n";
    assembly += entries;
    assembly += "\n.byte 0\nend:\n";
    let directory = TempDir::new().unwrap();
    let (source, library) = (directory.path().join("hostile.s"), directory.path().join("hostile.so"));
    fs::write(&source, assembly).unwrap();
    let built =
        tool("cc", "CC", "cc")?.args(["-shared", "-nostdlib", "-o"]).args([&library, &source]).status();
    assert!(built.unwrap().success(), "assembling the fixture");
    let request = Request {
        functions: vec![FunctionSpec::optional("f", &[("x", "int", 4)], "nothing")],
        structs: ["Circle", "Other", "Huge", "Deep"].map(Into::into).into(),
        enums: vec!["Endless".into()],
        variables: Vec::new(),
    };
    let start = Instant::now();
    let resolution = resolve(&Image::open(&library).unwrap(), &request).unwrap();
    let taken = start.elapsed();
    // An unoptimised build spends some seconds on the whole allowance of work.
    assert!(taken < Duration::from_mins(1), "{taken:?}");
    eprintln!("{taken:?}, problems: {:?}", resolution.problems);
    Some(resolution)
}

/// Writes an entry with a string and a reference to a label of the unit.
fn typedef(label: &str, name: &str, target: &str) -> String {
    format!("{label}: .uleb128 4\n.asciz \"{name}\"\n.long {target} - unit\n")
}

fn structure(label: &str, name: &str, size: u64, members: &[(&str, &str, u64)]) -> String {
    let mut text = format!("{label}: .uleb128 5\n.asciz \"{name}\"\n.quad {size}\n");
    for (name, target, offset) in members {
        writeln!(text, ".uleb128 6\n.asciz \"{name}\"\n.long {target} - unit\n.uleb128 {offset}").unwrap();
    }
    text + ".byte 0\n"
}

#[test]
fn references_in_circles_end() {
    // A function and a parameter that are copies of themselves; types that stand for each other.
    let function = "fn: .uleb128 2\n.quad f, 1\n.long fn - unit\n.uleb128 1\n.byte 0x9c\nparam: .uleb128 3\n.long param - unit\n.byte 0\n";
    let entries = [
        function.to_owned(),
        typedef("one", "Endless", "two"),
        typedef("two", "Circle", "one"),
        format!("three: .uleb128 10\n.long {} - unit\n", "three"),
    ];
    let Some(resolution) = resolved(&entries.concat(), "") else { return };
    let [function] = resolution.functions("f") else { panic!("one copy") };
    assert_eq!(function.params.len(), 1);
    assert_eq!(function.params[0].name, "");
    assert_eq!(resolution.layouts.structs.len(), 0);
    assert_eq!(resolution.layouts.enums.len(), 0);
}

#[test]
fn a_struct_that_contains_itself_ends() {
    let entries = [
        structure("circle", "Circle", 8, &[("self", "circle", 0), ("other", "other", 0), ("", "other", 0)]),
        structure("other", "Other", 8, &[("back", "circle", 0), ("", "other", 0)]),
    ];
    let Some(resolution) = resolved(&entries.concat(), "") else { return };
    // The rest of the layout can be asked without end.
    let path = vec!["self"; 1000].join(".");
    _ = resolution.layouts.field("Circle", &path);
    assert!(resolution.problems.iter().any(|problem| problem.kind == ProblemKind::DebugInfo));
}

#[test]
fn sizes_that_overflow_are_not_known() {
    let entries = [
        "byte: .uleb128 9\n.asciz \"int\"\n.byte 4, 5\n".to_owned(),
        "array: .uleb128 7\n.long byte - unit\n.uleb128 8\n.quad 0x7fffffffffffffff\n.uleb128 8\n.quad 0x7fffffffffffffff\n.byte 0\n".to_owned(),
        structure("huge", "Huge", u64::MAX, &[("a", "array", 8), ("b", "byte", u64::MAX), ("c", "byte", 4)]),
        structure("deep", "Deep", 8, &[("", "huge", 2), ("d", "huge", u64::MAX)]),
    ];
    let Some(resolution) = resolved(&entries.concat(), "") else { return };
    let layouts = &resolution.layouts;
    assert_eq!(layouts.field("Huge", "c").map(|field| field.offset), Some(4));
    assert_eq!(layouts.field("Huge", "b").map(|field| field.offset), Some(u64::MAX));
    assert_eq!(layouts.field("Huge", "a[1]"), None);
    assert_eq!(layouts.field("Deep", "c").map(|field| field.offset), Some(6));
    assert_eq!(layouts.field("Deep", "b"), None);
    assert_eq!(layouts.field("Deep", "d.c"), None);
}

#[test]
fn deep_nesting_costs_no_stack() {
    let entries = format!(
        ".rept 1000000\n.uleb128 11\n.endr\n.rept 1000000\n.byte 0\n.endr\n{}",
        structure("deep", "Deep", 8, &[])
    );
    let Some(resolution) = resolved(&entries, "") else { return };
    assert_eq!(resolution.layouts.struct_size("Deep"), Some(8));
    // A chain of structs, each by value in the next.
    let mut entries = String::new();
    for link in 0..2000 {
        let (label, next) = (format!("link{link}"), format!("link{}", (link + 1).min(1999)));
        let name = if link == 0 { "Deep".to_owned() } else { label.clone() };
        entries += &structure(&label, &name, 8, &[("m", &next, 0)]);
    }
    let Some(resolution) = resolved(&entries, "") else { return };
    assert_eq!(resolution.layouts.struct_size("Deep"), None);
    assert!(
        resolution.problems.iter().any(|problem| problem.what.contains("too many structs inside structs"))
    );
}

#[test]
fn work_is_bounded() {
    // Entries of one byte whose thousand attributes take no space: each byte of the file is a thousand steps
    // of work.
    let attributes = ".uleb128 20, 0x34, 0\n.rept 1000\n.uleb128 0x3f, 0x19\n.endr\n.uleb128 0, 0\n";
    let entries = ".rept 4000000\n.uleb128 20\n.endr\n";
    let Some(resolution) = resolved(entries, attributes) else { return };
    assert!(resolution.problems.iter().any(|problem| problem.what.contains("limit of work")));
}

#[test]
fn a_sibling_that_lies_behind_is_not_followed() {
    let entries = "back: .uleb128 12\n.asciz \"Circle\"\n.quad 8\n.long back - unit\n.byte 0\n";
    let Some(resolution) = resolved(entries, "") else { return };
    assert_eq!(resolution.layouts.struct_size("Circle"), Some(8));
}
