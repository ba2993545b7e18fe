//! What a file holds after the calls that NCCL makes.

use serde_json::Value;

use super::*;
use crate::event::{Coll, ProxyOp};

fn coll(comm_hash: Option<u64>) -> Start {
    let coll = Coll { comm_hash, func: "AllReduce".into(), count: 10, ..Coll::default() };
    Start { event: Event::Coll(coll), parent: None, rank: 2 }
}

fn proxy_op(parent: Handle) -> Start {
    let op = ProxyOp {
        origin_pid: process::id().cast_signed(),
        channel: 1,
        peer: 3,
        steps: 6,
        chunk_size: 4096,
        is_send: true,
    };
    Start { event: Event::ProxyOp(op), parent: Some(parent), rank: 2 }
}

fn step(op: Handle, step: i32) -> Start {
    Start { event: Event::ProxyStep { step }, parent: Some(op), rank: 2 }
}

fn transition(state: i32, size: u64) -> Transition {
    Transition { state, trans_size: Some(size), steps: None }
}

fn lines(directory: &std::path::Path) -> Vec<Value> {
    let files: Vec<_> = fs::read_dir(directory).unwrap().collect();
    assert_eq!(files.len(), 1, "one file per context");
    let text = fs::read_to_string(files[0].as_ref().unwrap().path()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn calls_ops_and_steps_are_written_with_their_parents() {
    let directory = tempfile::tempdir().unwrap();
    let context = Context::new(Handle::of_context(1).unwrap(), 3, directory.path().to_path_buf(), None);
    let call = context.start(&coll(Some(0xabc))).unwrap();
    let op = context.start(&proxy_op(call)).unwrap();
    let first = context.start(&step(op, 0)).unwrap();
    assert_eq!(context.start(&step(op, 0)), Some(first), "a step that is started twice is one step");
    context.record(first, 20, Some(transition(20, 0)));
    context.record(first, 20, Some(transition(20, 0)));
    context.record(first, 9, Some(transition(9, 100)));
    context.stop(first);
    let open = context.start(&step(op, 1)).unwrap();
    context.record(open, 8, None);
    context.stop(call);
    context.finalize();
    context.stop(op);

    let lines = lines(directory.path());
    let kinds: Vec<_> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    let expected = [
        "context",
        "coll",
        "proxyOp",
        "proxyStep",
        "state",
        "state",
        "stop",
        "proxyStep",
        "state",
        "stop",
        "finalize",
        "stop",
    ];
    assert_eq!(kinds, expected, "repeated states are written once");
    assert_eq!(lines[0]["commHash"], "0xabc");
    assert_eq!(lines[0]["rank"], 2);
    assert_eq!(lines[2]["parent"], lines[1]["id"]);
    assert_eq!(lines[3]["op"], lines[2]["id"]);
    assert_eq!((&lines[5]["id"], &lines[5]["state"]), (&lines[3]["id"], &Value::from(9)));
    assert_eq!(lines[5]["transSize"], 100);
    assert_eq!(lines[6]["id"], lines[3]["id"]);
    assert!(lines[8].get("transSize").is_none(), "NCCL said no size");
}

#[test]
fn an_op_without_any_call_before_is_reported_not_invented() {
    let directory = tempfile::tempdir().unwrap();
    let context = Context::new(Handle::of_context(1).unwrap(), 1, directory.path().to_path_buf(), None);
    let call = Handle::of_context(1).unwrap().object(9);
    assert!(context.start(&proxy_op(call)).is_some());
    assert!(context.lock().broken);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
