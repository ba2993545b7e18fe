//! Launches without proxy ops: what is recorded through real probes in NCCL's own functions, against what was
//! launched.

use ncclflow_e2e::harness::{conformance::Programs, prelude::*};

/// Each has a form of its own of the plan and its arguments.
const VERSIONS: [&str; 3] = ["2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"];

#[test]
fn each_launch_has_its_lines() {
    let Some(all) = Programs::find() else { return };
    for version in VERSIONS {
        let Some((_, _, library)) = programs::needed(version) else { return };
        let (launched, world) = all.launches(&library).unwrap();
        let mut recorded = Vec::new();
        for (name, content) in exported::files_below(&world.out()) {
            if name.to_string_lossy().contains("proxy_flow") {
                recorded.extend(lines(&String::from_utf8(content).unwrap()));
            }
        }
        recorded.sort_by_key(|line| (line["ts_ns"].as_u64(), line["seq"].as_u64()));
        let told: Vec<Value> = recorded
            .iter()
            .map(|line| {
                let peers = line["peers"].as_array().unwrap().iter();
                let peers: Vec<_> = peers.map(|peer| json!([peer["op"], peer["peer"]])).collect();
                json!({ "launch": line["launch"], "coll": line["coll"], "bytes": line["bytes"], "peers": peers })
            })
            .collect();
        let first = launched.iter().zip(&told).find(|(launched, told)| launched != told);
        assert_eq!((first, told.len()), (None, launched.len()), "{version}");
        assert!(told.len() >= 20, "{version}");

        let session = world.session();
        let plans = &session["model"]["plans"];
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for line in &launched {
            *counts.entry(line["launch"].as_str().unwrap()).or_default() += 1;
        }
        let count = |kind: &str| counts.get(kind).copied().unwrap_or(0);
        assert_eq!(plans["symmetric"], count("symmetric"), "{version}: {plans}");
        assert_eq!(plans["copy_engine"], count("copy_engine"), "{version}: {plans}");
        assert_eq!(plans["one_sided"], count("one_sided_proxy"), "{version}: {plans}");
        assert_eq!(
            (&plans["untold"], &plans["empty"], &plans["incomplete"]),
            (&json!(0), &json!(0), &json!(0))
        );
    }
}
