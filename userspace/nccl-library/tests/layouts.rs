//! Struct layouts, enumerations and entry registers of real NCCL libraries, against an independent reader's.
//!
//! Libraries come from the cache that `cargo xtask nccl fetch` fills. The independent layouts
//! (`tests/layouts/st-<version>.json`) were read by another DWARF reader from the x86-64 libraries for
//! CUDA 12.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::fs;
use std::path::Path;
use std::time::Instant;

use nccl_library::elf::{Image, Machine};
use nccl_library::symbols::shipped::Table;
use nccl_library::{
    layouts::Layouts,
    parameter::ParamLocation,
    symbols::{ParamSource, Resolution, SymbolSource, nccl_request, register_name, render, resolve},
};
use serde_json::Value;

use test_support::libraries;

/// Returns the independent reader's layouts of a version; `None` for versions that came after it.
fn independent_layouts(version: &str) -> Option<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layouts");
    let text = fs::read_to_string(folder.join(format!("st-{version}.json"))).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

/// Resolves all that ncclflow needs, and all that the independent reader has.
fn resolved(library: &Path, independent: Option<&Value>) -> Resolution {
    let mut request = nccl_request();
    for (name, layout) in independent.and_then(Value::as_object).into_iter().flatten() {
        let names = if layout.get("enum").is_some() { &mut request.enums } else { &mut request.structs };
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    let start = Instant::now();
    let image = Image::open(library).unwrap();
    let resolution = resolve(&image, &request).unwrap();
    eprintln!("{}: {:.1} ms", library.display(), start.elapsed().as_secs_f64() * 1e3);
    if env::var_os("NCCLFLOW_SHOW").is_some() {
        eprintln!("{}", render(&resolution, &request));
    }
    resolution
}

/// Counts of comparisons, and the differences.
#[derive(Default)]
struct Comparison {
    structs: usize,
    fields: usize,
    enums: usize,
    values: usize,
    differences: Vec<String>,
}

impl Comparison {
    fn compare(&mut self, layouts: &Layouts, name: &str, expected: &Value) {
        if let Some(values) = expected.get("enum").and_then(Value::as_array) {
            self.enums += 1;
            let known = layouts.enums.get(name);
            let Some(known) = known else { return self.differences.push(format!("{name} is missing")) };
            if Some(known.size) != expected["size"].as_u64() || known.values.len() != values.len() {
                self.differences.push(format!("{name}: size or number of values"));
            }
            for value in values {
                self.values += 1;
                let (enumerator, number) = (value[0].as_str().unwrap(), value[1].as_i64());
                if layouts.enum_value(name, enumerator) != number {
                    self.differences.push(format!("{name}::{enumerator} is not {number:?}"));
                }
            }
            return;
        }
        self.structs += 1;
        if layouts.struct_size(name) != expected["size"].as_u64() {
            let ours = layouts.struct_size(name);
            return self.differences.push(format!("sizeof({name}) is {ours:?}, not {}", expected["size"]));
        }
        for member in expected["m"].as_array().into_iter().flatten() {
            let path = member[0].as_str().unwrap();
            // The independent reader lists an unnamed union itself, too, and then its members.
            if path.is_empty() || path.ends_with('.') {
                continue;
            }
            self.fields += 1;
            let ours = layouts.field(name, path).map(|field| (field.offset, field.size));
            let expected = (member[1].as_u64().unwrap(), member[2].as_u64().unwrap());
            if ours != Some(expected) {
                self.differences.push(format!("{name}.{path} is {ours:?}, not {expected:?} ({})", member[3]));
            }
        }
    }
}

#[test]
fn layouts_equal_those_of_an_independent_reader() {
    let mut compared = 0;
    for (name, library) in libraries() {
        // Wheels that were made anew have a `.post1` that the library does not state.
        let version = name.split('-').next().unwrap();
        let version = version.split(".post").next().unwrap();
        let Some(independent) = independent_layouts(version) else { continue };
        let resolution = resolved(&library, Some(&independent));
        assert_eq!(resolution.nccl_version.map(|found| found.to_string()).as_deref(), Some(version));
        assert_eq!(resolution.symbol_source, SymbolSource::OwnDwarf);
        if resolution.machine != Machine::X86_64 {
            // `pthread_mutex_t` has other sizes elsewhere, so a few structs do, too.
            continue;
        }
        let mut comparison = Comparison::default();
        for (name, expected) in independent.as_object().unwrap() {
            comparison.compare(&resolution.layouts, name, expected);
        }
        let Comparison { structs, fields, enums, values, differences } = comparison;
        eprintln!("{name}: {structs} structs, {fields} fields, {enums} enums, {values} values");
        assert!(differences.is_empty(), "{name}: {} differences: {differences:#?}", differences.len());
        compared += 1;
    }
    assert!(compared > 0 || libraries().is_empty(), "no library has independent layouts to compare with");
}

#[test]
fn shipped_layouts_equal_those_of_an_independent_reader() {
    let table = Table::shipped().unwrap();
    let request = nccl_request();
    let mut compared = 0;
    for library in table.libraries() {
        let (major, minor) = library.cuda;
        if library.machine != Machine::X86_64 || library.cuda < (11, 3) {
            // `pthread_mutex_t` has other sizes elsewhere, and `ncclStrongStream` for older CUDAs, and so
            // have those that contain them.
            continue;
        }
        let Some(independent) = independent_layouts(&library.nccl.to_string()) else { continue };
        let layouts = table.layouts(library).unwrap();
        let mut comparison = Comparison::default();
        for (name, expected) in independent.as_object().unwrap() {
            let asked_for = request.structs.contains(name) || request.enums.contains(name);
            if asked_for || layouts.struct_size(name).is_some() {
                comparison.compare(&layouts, name, expected);
            }
        }
        let Comparison { structs, fields, enums, values, differences } = comparison;
        eprintln!(
            "shipped {} for CUDA {major}.{minor}: {structs} structs, {fields} fields, {enums} enums, {values} values",
            library.nccl
        );
        assert!(differences.is_empty(), "{}: {differences:#?}", library.nccl);
        assert!(structs >= 20 && fields >= 300 && enums >= 4, "too little to compare with");
        compared += 1;
    }
    assert!(compared > 0, "no shipped layout has an independent one to compare with");
}

/// Says how a parameter arrives, in the words of the report.
fn arrives(resolution: &Resolution, function: &str, copy: usize, param: &str) -> String {
    let function = &resolution.functions(function)[copy];
    match function.param(param).map(|param| &param.location) {
        Some(ParamLocation::Register(number)) => register_name(resolution.machine, *number, None),
        Some(ParamLocation::EntryStack { sp_offset }) => format!("[{sp_offset:+}]"),
        Some(ParamLocation::Unknown(_)) => "unknown".to_owned(),
        None => "absent".to_owned(),
    }
}

#[test]
fn parameters_arrive_where_disassembly_says() {
    for (name, library) in libraries() {
        let resolution = resolved(&library, None);
        assert_eq!(resolution.missing_required().count(), 0, "{name}");
        if resolution.machine != Machine::X86_64 {
            eprintln!("SKIPPED {name}: the registers are those of x86-64");
            continue;
        }
        let version = resolution.nccl_version.unwrap();
        let expected: &[(&str, &str)] = if (version.major, version.minor) >= (2, 18) {
            &[
                ("comm", "rdi"),
                ("type", "rcx"),
                ("peer", "r8"),
                ("op", "r9"),
                ("connIndex", "[+8]"),
                ("justInquire", "[+16]"),
            ]
        } else {
            &[
                ("comm", "absent"),
                ("type", "rdx"),
                ("peer", "rcx"),
                ("op", "r8"),
                ("connIndex", "r9"),
                ("justInquire", "[+8]"),
            ]
        };
        for (param, place) in expected {
            assert_eq!(arrives(&resolution, "SaveProxy", 0, param), *place, "{name}: SaveProxy {param}");
        }
        for (param, place) in [("comm", "rdi"), ("op", "rsi"), ("justInquire", "rdx")] {
            assert_eq!(arrives(&resolution, "ncclProxySaveOp", 0, param), place, "{name}: {param}");
        }
        assert_eq!(arrives(&resolution, "ncclEnqueueCheck", 0, "info"), "rdi", "{name}");
        for param in ["comm", "plan"] {
            let place = if param == "comm" { "rdi" } else { "rsi" };
            assert_eq!(arrives(&resolution, "ncclLaunchKernel", 0, param), place, "{name}: {param}");
        }
        if (version.major, version.minor) >= (2, 24) {
            // Its body equals that of its sibling, so GCC gave it an address and nothing else.
            let folded = &resolution.functions("ncclProfilerStartRecvProxyStepEvent")[0];
            assert_eq!(folded.params_from, ParamSource::CallingConvention, "{name}");
            for (param, place) in [("s", "rdi"), ("args", "rsi"), ("stepId", "rdx")] {
                assert_eq!(arrives(&resolution, "ncclProfilerStartRecvProxyStepEvent", 0, param), place);
            }
        }
    }
}
