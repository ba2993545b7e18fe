//! Structs that the tables of shipped layouts lack: what is stated of them, against the debugging information of NCCL's own
//! libraries.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use nccl_library::{
    elf::Image,
    fields::{IntField, bootstrap_state, ras::RasPeerLayout},
    symbols::{Request, Resolution, resolve},
};
use test_support::libraries;

fn resolution(library: &std::path::Path) -> Resolution {
    let structs = ["rasPeerInfo", "bootstrapState"].map(str::to_owned).to_vec();
    let variables = nccl_library::fields::ras::VARIABLES.to_vec();
    let request = Request { structs, variables, ..Request::default() };
    resolve(&Image::open(library).unwrap(), &request).unwrap()
}

#[test]
fn processes_of_the_reliability_service_are_laid_out_as_is_stated() {
    let mut compared = 0;
    for (name, library) in libraries() {
        let resolution = resolution(&library);
        let layouts = &resolution.layouts;
        let stated = RasPeerLayout::of(resolution.nccl_version);
        assert_eq!(stated.is_some(), layouts.struct_size("rasPeerInfo").is_some(), "{name}");
        let Some(stated) = stated else { continue };
        assert_eq!(Some(stated.size), layouts.struct_size("rasPeerInfo"), "{name}");
        let fields = [
            ("pid", Some(stated.pid)),
            ("cudaDevs", Some(stated.cuda_devs)),
            ("nvmlDevs", Some(stated.nvml_devs)),
            ("hostHash", stated.host_hash),
            ("pidHash", stated.pid_hash),
        ];
        let place = |field: IntField| (field.offset(), field.size());
        for (path, stated) in fields {
            let found = layouts.field("rasPeerInfo", path).and_then(|field| IntField::of(&field));
            assert_eq!(stated.map(place), found.map(place), "{name}: {path}");
        }
        let address = layouts.field("rasPeerInfo", "addr").unwrap();
        assert_eq!((address.offset, address.size), (0, nccl_library::fields::ras::ADDRESS_SIZE), "{name}");
        assert_eq!(resolution.variables.len(), 4, "{name}: {:?}", resolution.variables);
        compared += 1;
    }
    assert!(compared >= 2, "too few libraries of 2.24 and later: {compared}");
}

/// By the versions that the names state, as `field_versions.rs` does for what is shipped.
#[test]
fn the_state_of_a_set_up_has_the_fields_that_are_stated() {
    for (name, library) in libraries() {
        let resolution = resolution(&library);
        let is_new = resolution.nccl_version.is_some_and(|version| (version.major, version.minor) >= (2, 23));
        for field in bootstrap_state::STRUCT.fields {
            assert!(field.find_int(&resolution.layouts).is_some(), "{name}: {field:?}");
            if let [new, old] = field.names() {
                let has = |path| resolution.layouts.field("bootstrapState", path).is_some();
                assert_eq!((has(new.path), has(old.path)), (is_new, !is_new), "{name}: {field:?}");
            }
        }
    }
}
