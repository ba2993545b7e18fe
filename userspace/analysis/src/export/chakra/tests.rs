use nccl_library::symbols::SymbolSource;

use super::*;

fn library(probes: Option<ProbeStrategy>) -> LibraryReport {
    let report = json!({
        "path": "lib.so", "deleted": false, "device": 1, "inode": 1, "build_id": null, "nccl_version": null,
        "cuda_version": null, "symbols": SymbolSource::ExportsOnly, "cached": false, "probes": probes, "calls": null,
        "missing_probes": [],
    });
    serde_json::from_value(report).unwrap()
}

#[test]
fn the_driver_of_cuda_changes_nothing_of_the_order() {
    let [plan, calls, driver] = [Some(ProbeStrategy::Plan), Some(ProbeStrategy::PerCall), None].map(library);
    assert!(are_by_launch(std::slice::from_ref(&plan)));
    assert!(are_by_launch(&[plan.clone(), driver.clone()]));
    assert!(!are_by_launch(&[plan, calls]));
    assert!(!are_by_launch(&[driver]) && !are_by_launch(&[]));
}
