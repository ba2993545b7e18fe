//! Structs and variables that only `ncclflow dump` asks for, in NCCL's own libraries and in stripped copies:
//! against NCCL's source, and against `nm`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use nccl_library::{
    elf::{BuildId, ElfVaddr, Image, Machine},
    fields::{AskedBy, bootstrap_state, nets, ras_peer, structs_of, variables_of_dump},
    layouts::Layouts,
    nccl::NcclVersion,
    symbols::{LayoutSource, Request, Resolution, resolve, shipped::Table},
};
use tempfile::TempDir;
use test_support::{libraries, tool};

fn resolution(library: &Path) -> Resolution {
    let structs = structs_of(&[AskedBy::Dump]);
    let request = Request { structs, variables: variables_of_dump(), ..Request::default() };
    resolve(&Image::open(library).unwrap(), &request).unwrap()
}

/// Offset and size of each field of a `rasPeerInfo`, and the size of it, by its declaration
/// (src/ras/ras_internal.h).
fn declared(version: NcclVersion) -> Option<(u64, Vec<(u64, u64)>)> {
    let since = |minor| (version.major, version.minor) >= (2, minor);
    let fields = vec![(0, 28), (28, 4), (40, 8), (48, 8), (56, 8)];
    match (since(24), since(26)) {
        (true, true) => Some((64, fields)),
        (true, false) => Some((48, fields[..3].to_vec())),
        _ => None,
    }
}

fn ras_peer_of(layouts: &Layouts) -> Option<(u64, Vec<(u64, u64)>)> {
    let fields = ras_peer::STRUCT.fields.iter().filter_map(|field| field.find(layouts));
    let fields = fields.map(|field| (field.offset, field.size)).collect();
    Some((layouts.struct_size(ras_peer::STRUCT.name)?, fields))
}

#[test]
fn processes_of_the_reliability_service_are_laid_out_as_they_are_declared() {
    let mut compared = 0;
    for (name, library) in libraries() {
        let resolution = resolution(&library);
        let declared = declared(resolution.nccl_version.unwrap());
        assert_eq!(ras_peer_of(&resolution.layouts), declared, "{name}");
        compared += usize::from(declared.is_some());
    }
    assert!(compared >= 2, "too few libraries of 2.24 and later: {compared}");
}

#[test]
fn the_shipped_table_has_them_of_all_versions_that_have_them() {
    let table = Table::shipped().unwrap();
    for library in table.libraries() {
        let version = library.nccl;
        let layouts = table.layouts(library).unwrap();
        assert_eq!(ras_peer_of(&layouts), declared(version), "{library:?}");
        let since = |minor| (version.major, version.minor) >= (2, minor);
        let [global, hidden] = nets::SOCKET_DEVICES;
        let wanted = variables_of_dump().into_iter().filter(|name| match *name {
            name if nets::IB_DEVICES.contains(&name) => since(20),
            name if name == global => since(32),
            name if name == hidden => !since(32),
            _ => since(24),
        });
        let wanted: BTreeSet<&str> = wanted.collect();
        let names: BTreeSet<&str> = library.variables.keys().map(String::as_str).collect();
        assert_eq!(names, wanted, "{library:?}");
        for field in bootstrap_state::STRUCT.fields {
            assert!(field.find_int(&layouts).is_some(), "{library:?}: {field:?}");
        }
    }
}

/// Returns the addresses of the variables by `nm`; `None` if there is no `nm`.
fn by_nm(library: &Path) -> Option<BTreeMap<String, ElfVaddr>> {
    let output = tool("binutils", "NM", "nm")?.arg(library).output().unwrap();
    assert!(output.status.success(), "nm {}", library.display());
    let wanted = variables_of_dump();
    let mut found = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let [address, _, name] = parts[..] else { continue };
        if wanted.contains(&name) {
            found.insert(name.to_owned(), ElfVaddr(u64::from_str_radix(address, 16).unwrap()));
        }
    }
    Some(found)
}

#[test]
fn a_stripped_copy_has_the_layouts_and_the_variables_of_its_library() {
    for (name, library) in libraries() {
        let own = resolution(&library);
        let Some(by_nm) = by_nm(&library) else { return };
        assert_eq!(own.variables, by_nm, "{name}");
        if own.machine != Machine::X86_64 {
            // binutils may know this machine's processor only.
            continue;
        }
        let folder = TempDir::new().unwrap();
        let copy = folder.path().join("libnccl.so.2");
        let Some(mut strip) = tool("binutils", "STRIP", "strip") else { return };
        assert!(strip.args(["--strip-all", "-o"]).args([&copy, &library]).status().unwrap().success());
        let stripped = resolution(&copy);
        assert_eq!(stripped.layouts_from, LayoutSource::ShippedForBuildId, "{name}");
        assert_eq!(stripped.layouts, own.layouts, "{name}");
        assert_eq!(stripped.variables, by_nm, "{name}");
        // Another build of the same version has its variables elsewhere.
        let other = folder.path().join("other.so");
        let mut strip = tool("binutils", "STRIP", "strip").unwrap();
        strip.args(["--strip-all", "--remove-section", ".note.gnu.build-id", "-o"]).args([&other, &library]);
        assert!(strip.status().unwrap().success());
        let other = resolution(&other);
        assert_eq!(other.build_id, None::<BuildId>, "{name}");
        assert_eq!(other.variables, BTreeMap::new(), "{name}");
    }
}
