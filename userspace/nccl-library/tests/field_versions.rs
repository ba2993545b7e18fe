//! The versions that `fields` states for each name of each field, against NCCL's libraries: by an independent
//! reader's layouts (see `layouts.rs` for where they are), and by the shipped layouts, which have structs
//! that the reader does not.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, fs, path::Path};

use nccl_library::{
    elf::Machine,
    fields::{self, AskedBy, FieldName},
    nccl::NcclVersion,
    symbols::shipped::Table,
};
use serde_json::Value;

/// Returns the numbers of a version as the table states it, or `default` if it states none. `patch` is used
/// if the version has none.
fn bound(version: &str, patch: u32, default: NcclVersion) -> NcclVersion {
    match version.split('.').count() {
        1 if version.is_empty() => default,
        2 => format!("{version}.{patch}").parse().unwrap(),
        _ => version.parse().unwrap(),
    }
}

/// Tells whether a version has the field there.
fn is_in(name: &FieldName, version: NcclVersion) -> bool {
    let none = NcclVersion { major: 0, minor: 0, patch: 0 };
    let all = NcclVersion { major: u32::MAX, ..none };
    let gap = bound(name.except[0], 0, all)..=bound(name.except[1], u32::MAX, none);
    (bound(name.since, 0, none)..=bound(name.until, u32::MAX, all)).contains(&version)
        && !gap.contains(&version)
}

#[test]
fn versions_are_read_from_the_table() {
    let is_in = |name: &FieldName, version: &str| is_in(name, version.parse().unwrap());
    let now = FieldName { path: "id.hash", since: "2.33", until: "", except: ["", ""] };
    let before = FieldName { path: "commHash", since: "2.18.3", until: "2.32", except: ["2.20", "2.21"] };
    assert!(is_in(&now, "2.33.1") && is_in(&now, "2.40.0") && !is_in(&now, "2.32.9"));
    assert!(is_in(&before, "2.18.3") && is_in(&before, "2.32.9") && is_in(&before, "2.22.0"));
    assert!(!is_in(&before, "2.18.1") && !is_in(&before, "2.20.5") && !is_in(&before, "2.21.5"));
}

/// Returns where the stated versions are wrong. `has`: whether the version has this path of the struct;
/// `None` where that is not known.
fn differences(version: NcclVersion, has: impl Fn(&str, &str) -> Option<bool>) -> (usize, Vec<String>) {
    let (mut compared, mut differences) = (0, Vec::new());
    for field in fields::all() {
        for name in field.names {
            let path = name.path;
            let Some(has) = has(field.strukt, path) else { continue };
            compared += 1;
            if has != is_in(name, version) {
                let what = if has { "is" } else { "is not" };
                differences.push(format!("{}.{path} {what} in {version}", field.strukt));
            }
        }
    }
    (compared, differences)
}

/// Tells whether the independent reader has the path. It lists the members of a struct; those of its members'
/// structs only where it was asked for these, too.
fn independent_has(layouts: &Value, strukt: &str, path: &str) -> Option<bool> {
    let members = layouts[strukt]["m"].as_array()?;
    let member = |path: &str| members.iter().find(|member| member[0] == *path);
    if member(path).is_some() {
        return Some(true);
    }
    let Some((first, rest)) = path.split_once('.') else { return Some(false) };
    let Some(member) = member(first) else { return Some(false) };
    let inner = member[3].as_str()?.split(['[', '*']).next()?.trim();
    independent_has(layouts, inner, rest)
}

#[test]
fn stated_versions_are_those_of_an_independent_reader() {
    let mut versions = BTreeSet::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layouts");
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let Some(version) = name.strip_prefix("st-").and_then(|name| name.strip_suffix(".json")) else {
            continue;
        };
        let version: NcclVersion = version.parse().unwrap();
        let layouts: Value = serde_json::from_str(&fs::read_to_string(file.path()).unwrap()).unwrap();
        let (compared, differences) =
            differences(version, |strukt, path| independent_has(&layouts, strukt, path));
        assert!(differences.is_empty(), "{differences:#?}");
        assert!(compared >= 90, "{version}: only {compared} fields to compare with");
        versions.insert(version.minor);
    }
    assert!(versions.len() >= 15, "too few versions to tell first and last ones: {versions:?}");
}

#[test]
fn stated_versions_are_those_of_the_shipped_layouts() {
    let table = Table::shipped().unwrap();
    let mut versions = BTreeSet::new();
    for library in table.libraries() {
        let layouts = table.layouts(library).unwrap();
        let has =
            |strukt: &str, path: &str| (!is_unshipped(strukt)).then(|| layouts.field(strukt, path).is_some());
        let (_, differences) = differences(library.nccl, has);
        assert!(differences.is_empty(), "{:?}: {differences:#?}", library.machine);
        versions.insert((library.nccl.minor, library.machine == Machine::X86_64));
    }
    assert!(versions.len() >= 15, "too few versions to tell first and last ones: {versions:?}");
}

/// Tells whether the table of shipped layouts does not have the struct, whatever the version.
fn is_unshipped(strukt: &str) -> bool {
    fields::structs().any(|known| known.name == strukt && known.asked_by == AskedBy::Unshipped)
}

/// The fields that no table has, in the libraries of the cache by their own debugging information.
#[test]
fn stated_versions_of_what_is_not_shipped_are_those_of_libraries() {
    for (name, library) in test_support::libraries() {
        let image = nccl_library::elf::Image::open(&library).unwrap();
        let request = nccl_library::symbols::nccl_request_of_memory();
        let resolution = nccl_library::symbols::resolve(&image, &request).unwrap();
        let layouts = &resolution.layouts;
        let has =
            |strukt: &str, path: &str| is_unshipped(strukt).then(|| layouts.field(strukt, path).is_some());
        let (compared, differences) = differences(resolution.nccl_version.unwrap(), has);
        assert!(differences.is_empty() && compared > 30, "{name}: {compared} {differences:#?}");
    }
}

/// The fields of launches without proxy ops, in the libraries of the cache by their own debugging
/// information: that is where they come from.
#[test]
fn stated_versions_of_launches_are_those_of_libraries() {
    for (name, library) in test_support::libraries() {
        let image = nccl_library::elf::Image::open(&library).unwrap();
        let request = nccl_library::symbols::nccl_request();
        let resolution = nccl_library::symbols::resolve(&image, &request).unwrap();
        let version = resolution.nccl_version.unwrap();
        let has = |strukt: &str, path: &str| {
            fields::flag_of_launch(strukt)?;
            Some(resolution.layouts.field(strukt, path).is_some())
        };
        let (compared, differences) = differences(version, has);
        assert!(differences.is_empty() && compared > 20, "{name}: {compared} {differences:#?}");
    }
}
