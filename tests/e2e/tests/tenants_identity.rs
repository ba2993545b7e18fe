//! A tenant does not choose which tenant it is: a control group's name counts only where root gave it.

#![cfg(target_arch = "x86_64")]

use ncclflow_e2e::harness::{
    callers::{self, Caller, Reduce},
    cgroup::Groups,
    prelude::*,
};

const VICTIM: u32 = 1_234_003;
const FORGER: u32 = 1_234_004;
const POD: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
const ID: &str = "4f1c0d7e9a2b4c6d8e0f11223344556677889900aabbccddeeff001122334455";

/// A user makes the pod of another below the folder that systemd handed over. `--container` takes the pod's own
/// process and not the forger's, and `ps` does not show the forger as that pod.
#[test]
fn a_forged_pod_gains_nothing_and_is_not_shown_as_that_pod() {
    let Some(_ncclflow) = programs::tracer() else { return };
    let Some(mut groups) = Groups::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = callers::library(&folder.path().join("libnccl.so.2"), Reduce::Returns(1)).unwrap()
    else {
        return;
    };
    let caller = callers::program(folder.path()).unwrap().unwrap();
    // Others than root must be able to read it.
    std::process::Command::new("chmod").args(["-R", "a+rX"]).arg(folder.path()).status().unwrap();
    let start = |uid| Caller::start(&caller, &library, uid, 1, 0).unwrap();
    // The forger's numbers are lower: who looks at processes comes to them first.
    let (forger, other, victim) = (start(FORGER), start(FORGER), start(VICTIM));
    let service = format!("user.slice/user-{FORGER}.slice/user@{FORGER}.service");
    groups.make(&service, FORGER).unwrap();
    groups.put(forger.pid(), &format!("{service}/kubepods/pod{POD}/{ID}"), FORGER).unwrap();
    groups.put(other.pid(), &format!("{service}/docker-{ID}.scope"), FORGER).unwrap();
    groups.put(victim.pid(), &format!("kubepods/pod{POD}/{ID}"), 0).unwrap();

    let out = folder.path().join("out");
    let recorder = Recorder::of_node(&out, &format!("--level api --container {POD}")).unwrap();
    wait_until("the pod is traced", Duration::from_secs(30), || {
        are_traced(&session_so_far(&out), &[victim.pid()])
    });
    recorder.interrupt().unwrap();
    let recorded = session(&out);
    for pid in [forger.pid(), other.pid()] {
        assert!(target(&recorded, pid).is_none(), "{recorded:#}");
    }
    let shown = ncclflow("ps --json").ok().json();
    let shown = list(&shown["processes"]);
    let container = |pid: u32| {
        let of = shown.iter().find(|process| process["pid"] == pid).unwrap();
        of["container"].clone()
    };
    assert_eq!(container(victim.pid())["pod"], POD);
    assert_eq!((container(forger.pid()), container(other.pid())), (Value::Null, Value::Null));
}
