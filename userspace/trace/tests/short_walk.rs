//! Launches of real libraries have the short way through their walk, where the probe's own record is made of
//! copies alone: from 2.26 on.
//!
//! What it sends is held against the direct way in `tests/e2e/tests/plans.rs`; without it the same comes, and
//! slower, so only this test would say that it is gone. Libraries come from the cache, as in `layouts.rs`.

use std::collections::BTreeSet;

use flow::session::{Level, ProbeStrategy};
use nccl_library::{
    elf::Image,
    symbols::{nccl_request, resolve},
};
use trace::kernel::probe::{self};

use test_support::{libraries, nccl};

#[test]
fn a_launch_has_a_short_way() {
    let mut seen = BTreeSet::new();
    for (name, library) in libraries() {
        let resolution = resolve(&Image::open(&library).unwrap(), &nccl_request()).unwrap();
        let set = probe::compile(&resolution, Level::Flow, None);
        let launch = set.probes.iter().find(|probe| probe.function == "ncclLaunchKernelAfter_NoCuda");
        let Some(walk) = launch
            .filter(|_| set.strategy == Some(ProbeStrategy::Plan))
            .and_then(|probe| probe.walk.as_ref())
        else {
            continue;
        };
        // 2.26 gave ops the counter that ours is read beside.
        let expected = resolution.layouts.field("ncclProxyOp", "workCounter").is_some();
        assert_eq!(walk.walk.short.heads_len != 0, expected, "{name}");
        if expected {
            seen.insert(name);
        }
    }
    for name in ["2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"] {
        // A launch whose plan is not walked would be passed over above.
        assert!(nccl(name).is_none() || seen.contains(name), "{name} has no walk");
    }
}
