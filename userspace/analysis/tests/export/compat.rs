//! What a reader of the NCCL Flow Extractor's files does with ours.

use std::{collections::BTreeMap, fs, path::Path};

use analysis::export::{Choice, ExportOptions, Format, ViewOptions, export};
use serde::Deserialize;

use crate::traces::{lines, recorded, run};

/// `proxy_flow`, as its reader knows it: these keys, these types, no others.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Flow {
    op_count: u64,
    rank: i32,
    channel: u32,
    nsteps: u32,
    nbytes: u64,
    chunk_size: u32,
    slice_steps: u32,
    chunk_steps: u32,
    dtype: u8,
    red_op: u8,
    pattern: String,
    protocol: String,
    ring_prev: i32,
    ring_next: i32,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "named as the keys")]
struct Step {
    op_count: u64,
    rank: i32,
    channel: u32,
    step: u32,
    op: String,
    peer: i32,
    bytes: u64,
    pattern: String,
    protocol: String,
    stage: String,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Aggregated {
    rank: i32,
    meta: Flow,
    steps: Vec<Step>,
}

const FLOW_KEYS: [&str; 14] = [
    "opCount",
    "rank",
    "channel",
    "nsteps",
    "nbytes",
    "chunkSize",
    "sliceSteps",
    "chunkSteps",
    "dtype",
    "redOp",
    "pattern",
    "protocol",
    "ringPrev",
    "ringNext",
];
const STEP_KEYS: [&str; 10] =
    ["opCount", "rank", "channel", "step", "op", "peer", "bytes", "pattern", "protocol", "stage"];

/// A line as C's printf made it: no spaces, keys in their order. Parsed by hand, as serde does not look at
/// the order.
fn read<T: for<'de> Deserialize<'de>>(folder: &Path, name: &str, keys: &[&str]) -> Vec<T> {
    let text = fs::read_to_string(folder.join(name)).unwrap();
    let line = |line: &str| {
        let parts = line.strip_prefix('{').unwrap().strip_suffix('}').unwrap().split(',');
        let found: Vec<&str> =
            parts.map(|part| part.split_once("\":").unwrap().0.strip_prefix('"').unwrap()).collect();
        assert_eq!(found, keys);
        serde_json::from_str(line).unwrap()
    };
    text.lines().map(line).collect()
}

/// `getline` and a search for `"steps"`, as a script does: meta and each step stand on lines of their own.
fn steps_by_line(text: &str) -> Vec<Step> {
    let lines = text.lines().skip_while(|line| line.trim() != "\"steps\": [").skip(1);
    let steps = lines.take_while(|line| line.trim() != "]");
    steps.map(|line| serde_json::from_str(line.trim().trim_end_matches(',')).unwrap()).collect()
}

#[test]
fn readers_of_the_extractor_find_what_they_expect() {
    let recorded = recorded("net_steps");
    let recorded = recorded.cut_to(40_000);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    recorded.record(&path("recording"), 0..40_000);
    run(&[&path("recording")], &path("ours"), Format::Jsonl, Choice::default());
    run(&[&path("recording")], &path("compat"), Format::Compat, Choice::default());
    // Ours by folder and rank, from which its sizes follow by the extractor's own rule.
    let mut expected: BTreeMap<String, Vec<serde_json::Value>> = BTreeMap::new();
    for (file, line) in lines(&path("ours"), "proxy_flow") {
        if line["needed"] == true {
            expected.entry(file).or_default().push(line);
        }
    }
    assert!(expected.len() >= 4, "{:?}", expected.keys());
    let mut stages = std::collections::BTreeSet::new();
    for (file, ours) in expected {
        let (comm, name) = file.split_once('/').unwrap();
        let rank: i32 =
            name.trim_start_matches("proxy_flow_rank").trim_end_matches(".jsonl").parse().unwrap();
        let folder = path("compat").join(comm);
        let flows: Vec<Flow> = read(&folder, name, &FLOW_KEYS);
        let steps: Vec<Step> = read(&folder, &format!("flow_steps_rank{rank}.jsonl"), &STEP_KEYS);
        assert_eq!(flows.len(), ours.len());
        let mut at = steps.iter();
        for (flow, ours) in flows.iter().zip(&ours) {
            assert_eq!((flow.op_count, flow.rank), (ours["opCount"].as_u64().unwrap(), rank));
            assert_eq!(flow.nbytes, ours["nbytes"].as_u64().unwrap());
            // nccl.h: int8 0, float32 7, bfloat16 9; sum 0.
            let dtype = match ours["dtype"].as_str().unwrap() {
                "int8" => 0,
                "float32" => 7,
                "bfloat16" => 9,
                other => panic!("{other}"),
            };
            assert_eq!((flow.dtype, flow.red_op), (dtype, 0), "{ours}");
            for peer in ours["peers"].as_array().unwrap().iter().filter(|peer| peer["proxy"] == true) {
                for number in 0..flow.nsteps {
                    let step = at.next().expect("a line for each FIFO step and peer");
                    let place = (step.op_count, step.channel, step.step, step.peer, step.op.as_str());
                    let peer_rank = i32::try_from(peer["peer"].as_i64().unwrap()).unwrap();
                    assert_eq!(
                        place,
                        (flow.op_count, flow.channel, number, peer_rank, peer["op"].as_str().unwrap())
                    );
                    assert_eq!((step.bytes, &step.protocol), (flow.nbytes, &flow.protocol));
                    let stage = match flow.pattern.as_str() {
                        "RING" => "ring",
                        "RING_TWICE" if number < flow.nsteps / 2 => "reduce-scatter",
                        "RING_TWICE" => "allgather",
                        "TREE_UP_DOWN" if number < flow.nsteps / 2 => "tree-up",
                        "TREE_UP_DOWN" => "tree-down",
                        "SEND" | "RECV" => "generic",
                        other => panic!("{other}"),
                    };
                    assert_eq!(step.stage, stage);
                    stages.insert(stage);
                }
            }
        }
        assert!(at.next().is_none(), "a line that belongs to no op");
        let text = fs::read_to_string(folder.join(format!("flow_rank{rank}.json"))).unwrap();
        let aggregated: Aggregated = serde_json::from_str(&text).unwrap();
        assert_eq!((aggregated.rank, &aggregated.meta), (rank, &flows[0]));
        assert!(aggregated.steps == steps && steps_by_line(&text) == steps);
    }
    assert!(stages.contains("ring") && stages.contains("generic"), "{stages:?}");
}

#[test]
fn flat_is_one_folder() {
    let recorded = recorded("net_steps");
    let recorded = recorded.cut_to(20_000);
    let folder = tempfile::tempdir().unwrap();
    recorded.record(&folder.path().join("recording"), 0..20_000);
    let options = ExportOptions {
        inputs: vec![folder.path().join("recording")],
        output: folder.path().join("flat"),
        format: Format::Compat,
        view: ViewOptions { flat: true, ..ViewOptions::default() },
        choice: Choice::default(),
    };
    let exported = export(options, &mut |_| ()).unwrap();
    let mut names: Vec<String> = fs::read_dir(folder.path().join("flat"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let of_rank = |rank: u32| {
        [
            format!("flow_rank{rank}.json"),
            format!("flow_steps_rank{rank}.jsonl"),
            format!("proxy_flow_rank{rank}.jsonl"),
        ]
    };
    let mut expected: Vec<String> = (0..2).flat_map(of_rank).collect();
    expected.sort();
    assert_eq!(names, expected);
    assert!(exported.notes.iter().any(|note| note.contains("several communicators")), "{:?}", exported.notes);
}

/// Between GPUs on NVLink no op needs a proxy.
#[test]
fn ops_without_a_proxy_are_left_out_and_told() {
    let recorded = recorded("nvlink_flow");
    let recorded = recorded.cut_to(500);
    let folder = tempfile::tempdir().unwrap();
    recorded.record(&folder.path().join("recording"), 0..500);
    let exported = run(
        &[&folder.path().join("recording")],
        &folder.path().join("compat"),
        Format::Compat,
        Choice::default(),
    );
    assert!(exported.rows.ops > 0);
    assert_eq!(fs::read_dir(folder.path().join("compat")).unwrap().count(), 0);
    assert!(exported.notes.iter().any(|note| note.contains("need no proxy")), "{:?}", exported.notes);
}

/// What NCCL Inspector's v4.0 has no place for is refused, and leaves no folder.
#[test]
fn a_recording_without_measured_messages_is_refused_for_inspectors_v4_0() {
    let recorded = recorded("nvlink_flow");
    let folder = tempfile::tempdir().unwrap();
    recorded.cut_to(500).record(&folder.path().join("recording"), 0..500);
    let output = folder.path().join("records");
    let options = ExportOptions {
        inputs: vec![folder.path().join("recording")],
        output: output.clone(),
        format: Format::Inspector,
        view: ViewOptions::default(),
        choice: Choice::default(),
    };
    let refused = export(options, &mut |_| ()).unwrap_err().to_string();
    assert!(refused.contains("--inspector-version v4.3 takes all"), "{refused}");
    assert!(!output.exists());
}
