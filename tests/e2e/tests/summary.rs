//! `ncclflow summary`: what went over each link, against the bytes that the emulated kernels put into its
//! slots.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, process::Command};

use ncclflow_e2e::{
    direction::Direction,
    harness::{
        programs,
        traced_run::{Plugin, TracedRun},
    },
};
use serde_json::Value;

/// Rank, direction, peer and channel.
type Link = (i64, String, i64, u64);

/// Messages, and what they take in the slots.
type Traffic = (u64, u64);

fn summary(run: &TracedRun) -> Value {
    let output = Command::new(programs::ncclflow().unwrap())
        .args(["summary", "--json"])
        .arg(run.folder().join("out"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// As the kernels moved them, by link.
fn moved(run: &TracedRun) -> BTreeMap<Link, Traffic> {
    let mut moved: BTreeMap<Link, Traffic> = BTreeMap::new();
    for transfer in run.transfers().ranks.values().flatten() {
        let direction = if transfer.direction == Direction::Send { "SEND" } else { "RECV" };
        let link =
            (transfer.rank.into(), direction.to_owned(), transfer.peer.into(), transfer.channel.into());
        let (messages, bytes) = moved.entry(link).or_default();
        *messages += transfer.messages;
        *bytes += transfer.wire_bytes;
    }
    moved
}

#[test]
fn links_have_the_messages_and_bytes_that_went_over_them() {
    for version in ["2.27.5-cu12", "2.32.3-cu12"] {
        let arguments = ["--ranks", "4", "--mode", "processes", "--ops", "allreduce,alltoall,sendrecv"];
        let sizes = ["--bytes", "300000", "--iters", "4", "--channels", "2"];
        let all = [&arguments[..], &sizes].concat();
        let Some(run) = TracedRun::traced(&["--level", "steps"], version, Plugin::No, &all) else { return };
        let report = summary(&run);
        let mut seen: BTreeMap<Link, Traffic> = BTreeMap::new();
        for rank in report["ranks"].as_array().unwrap() {
            for link in rank["links"].as_array().unwrap() {
                let number = |key: &str| link[key].as_u64().unwrap();
                let direction = link["op"].as_str().unwrap().to_owned();
                let key = (
                    rank["rank"].as_i64().unwrap(),
                    direction,
                    link["peer"].as_i64().unwrap(),
                    number("channel"),
                );
                assert_eq!(link["transport"], "NET", "{link:#}");
                assert_eq!(number("messages"), number("messagesMeasured"), "{link:#}");
                // No message can have waited for longer than ops were under way on the link.
                for wait in link["waits"].as_object().unwrap().values() {
                    let of = |key: &str| wait[key].as_u64().unwrap();
                    assert!(of("messages") <= number("messages"), "{link:#}");
                    assert!(of("max_ns") <= number("busy_ns") && of("total_ns") >= of("max_ns"), "{link:#}");
                    assert!(of("p50_ns") <= of("p99_ns"), "{link:#}");
                }
                assert!(link["waits"]["network"]["messages"] == link["messages"], "{link:#}");
                assert!(seen.insert(key, (number("messages"), number("bytes"))).is_none(), "twice: {link:#}");
            }
        }
        assert_eq!(seen, moved(&run), "{version}");
    }
}
