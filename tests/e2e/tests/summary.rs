//! `ncclflow summary`: what went over each link, against the bytes that the emulated kernels put into its
//! slots.

use ncclflow_e2e::{
    direction::Direction,
    harness::{
        prelude::*,
        traced_run::{Plugin, TracedRun},
    },
};

/// Rank, direction, peer and channel.
type Link = (i64, String, i64, u64);

/// Messages, and what they take in the slots.
type Traffic = (u64, u64);

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
        let workload = "--ranks 4 --mode processes --ops allreduce,alltoall,sendrecv \
             --bytes 300000 --iters 4 --channels 2";
        let Some(run) = TracedRun::new("--level steps", version, Plugin::No, workload) else { return };
        let report = ncclflow_of("summary --json", &[run.out()]).ok().json();
        let mut seen: BTreeMap<Link, Traffic> = BTreeMap::new();
        for rank in list(&report["ranks"]) {
            for link in list(&rank["links"]) {
                let number = |key: &str| number(&link[key]);
                let (from, to) = (rank["rank"].as_i64().unwrap(), link["peer"].as_i64().unwrap());
                let key = (from, text(&link["op"]).to_owned(), to, number("channel"));
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
