//! Every pattern that NCCL has, through the real `ncclProxySaveOp`: also those that the bed cannot make.

use ncclflow_e2e::harness::{
    conformance::{Programs, Subject},
    need, programs, stripped,
};

/// Of different eras of `ncclProxyOp`, one built for CUDA 13.
const VERSIONS: [&str; 4] = ["2.21.5-cu12", "2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"];

#[test]
fn every_pattern() {
    let Some(all) = Programs::find() else { return };
    for version in VERSIONS {
        let Some(library) = programs::nccl(version) else { return };
        if !need::root() {
            return;
        }
        let findings = all.patterns(Subject { library: &library, symbols: None }).unwrap();
        eprintln!("{version}: {findings}");
        findings.assert_clean(version);
    }
}

#[test]
fn every_pattern_of_a_stripped_library() {
    let Some(all) = Programs::find() else { return };
    let Some(library) = programs::nccl("2.27.5-cu12") else { return };
    if !need::root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let copy = stripped::copy(&library, folder.path(), &["--strip-all"]).unwrap();
    let findings = all.patterns(Subject { library: &copy, symbols: Some(&library) }).unwrap();
    findings.assert_clean("stripped");
}
