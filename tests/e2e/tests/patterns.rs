//! Every pattern that NCCL has, through the real `ncclProxySaveOp`: also those that the bed cannot make.

use nccl_library::nccl::{NcclVersion, PatRule, Pattern};
use ncclflow_e2e::{
    compare,
    harness::{
        conformance::{Programs, Subject},
        job::VERSIONS,
        programs, stripped,
    },
};

#[test]
fn every_pattern() {
    let Some(all) = Programs::find() else { return };
    for version in VERSIONS {
        let Some((_, _, library)) = programs::needed(version) else { return };
        let findings = all.patterns(Subject { library: &library, symbols: None }).unwrap();
        eprintln!("{version}: {findings}");
        findings.assert_clean(version);
    }
}

#[test]
fn every_pattern_of_a_stripped_library() {
    let Some(all) = Programs::find() else { return };
    let Some((_, _, library)) = programs::needed("2.27.5-cu12") else { return };
    let folder = tempfile::tempdir().unwrap();
    let copy = stripped::copy(&library, folder.path(), &["--strip-all"]).unwrap();
    let findings = all.patterns(Subject { library: &copy, symbols: Some(&library) }).unwrap();
    findings.assert_clean("stripped");
}

/// PAT's messages by the rule of the version, against the library's own count: communicators of 2 to 129
/// ranks, from one byte to many chunks; and with two ranks on each node, between which it runs from 2.31 on.
#[test]
fn messages_of_pat() {
    let Some(all) = Programs::find() else { return };
    for version in VERSIONS.into_iter().skip(1) {
        let Some(library) = programs::nccl(version) else { return };
        let number: NcclVersion = version.split('-').next().unwrap().parse().unwrap();
        let rule = PatRule::of(number).unwrap();
        for local_ranks in [1, 2] {
            let counts = all.pat_counts(Subject { library: &library, symbols: None }, local_ranks).unwrap();
            let findings = compare::pat_messages(&counts, rule.between_nodes, |op, members, bytes| {
                let pattern = Pattern::from_enumerator(&format!("ncclPattern{}", op.pattern))?;
                rule.messages(pattern, members, op.chunk_size, bytes)
            });
            eprintln!("{version}, {local_ranks} ranks a node: {findings}");
            findings.assert_clean(version);
        }
    }
}
