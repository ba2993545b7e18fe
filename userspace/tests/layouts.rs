//! Struct layouts, enumerations and entry registers of real NCCL libraries, against an independent reader's.
//!
//! Libraries come from `$NCCLFLOW_NCCL_CACHE` (default `${XDG_CACHE_HOME:-$HOME/.cache}/ncclflow/nccl`), one directory per
//! build: `<version>-cu12/libnccl.so.2`. The independent layouts come from `$NCCLFLOW_LAYOUTS` (default
//! `../shared/nccl-layouts` beside the repository): `st-<version>.json`. What is not there is skipped, and said; name it in
//! `$NCCLFLOW_REQUIRE` (a comma list of `nccl`, `layouts`) to fail instead.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ncclflow::elf::{Image, Machine};
use ncclflow::symbols::{
    Layouts, ParamLocation, ParamSource, Resolution, Rung, nccl_request, register_name, render, resolve,
};
use serde_json::Value;

/// Reports that something was skipped, or fails if it is required.
fn skip(thing: &str, why: &str) {
    let required = env::var("NCCLFLOW_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name.trim() == thing), "required, but skipped: {thing}: {why}");
    eprintln!("SKIPPED {thing}: {why}");
}

fn cache() -> PathBuf {
    if let Some(path) = env::var_os("NCCLFLOW_NCCL_CACHE") {
        return path.into();
    }
    let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    base.unwrap_or_else(|| PathBuf::from("/nonexistent")).join("ncclflow/nccl")
}

fn layouts_directory() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/nccl-layouts");
    env::var_os("NCCLFLOW_LAYOUTS").map_or_else(default, PathBuf::from)
}

/// The libraries of the cache, by directory name.
fn libraries() -> BTreeMap<String, PathBuf> {
    let directory = cache();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
        let library = entry.path().join("libnccl.so.2");
        let name = entry.file_name().to_string_lossy().into_owned();
        if library.is_file() && name.contains("-cu") {
            found.insert(name, library);
        }
    }
    if found.is_empty() {
        skip("nccl", &format!("no library in {}; `cargo xtask nccl fetch` fills it", directory.display()));
    }
    found
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

/// What was compared, and what differs.
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
            let known = layouts.enums().find(|(known, _)| *known == name).map(|(_, layout)| layout);
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
        let version = name.split('-').next().unwrap();
        let file = layouts_directory().join(format!("st-{version}.json"));
        let Ok(text) = fs::read_to_string(&file) else {
            skip("layouts", &format!("{name}: no {}", file.display()));
            continue;
        };
        let independent: Value = serde_json::from_str(&text).unwrap();
        let resolution = resolved(&library, Some(&independent));
        assert_eq!(resolution.nccl_version.map(|found| found.to_string()).as_deref(), Some(version));
        assert_eq!(resolution.rung, Rung::OwnDwarf);
        if resolution.machine != Machine::X86_64 {
            // `pthread_mutex_t` has other sizes elsewhere, so a few structs do, too.
            eprintln!("SKIPPED {name}: the independent layouts are those of x86-64");
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
    if compared == 0 {
        skip("layouts", "no library has independent layouts to compare with");
    }
}

/// How a parameter arrives, in the words of the report.
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
