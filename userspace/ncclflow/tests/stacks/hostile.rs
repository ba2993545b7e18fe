//! Traces that somebody has changed: whatever is in them, reading ends, and does not panic.

use std::{
    fs::{self, File},
    io::Read as _,
};

use flate2::read::GzDecoder;
use serde_json::Value;
use stacks::trace::{Query, TraceFile, Window, find_functions, stacks_of};
use test_support::damage::{Random, damage};

use crate::run::{has_python, kineto, python};

const ROUNDS: usize = 200;

/// Some hundred events of a trace: NCCL's kernels, what launched them, and some of all others.
fn small_trace() -> Vec<u8> {
    let mut json = Vec::new();
    GzDecoder::new(File::open(kineto("graph")).unwrap()).read_to_end(&mut json).unwrap();
    let document: Value = serde_json::from_slice(&json).unwrap();
    let events = document["traceEvents"].as_array().unwrap();
    let is_kernel =
        |event: &Value| event["cat"] == "kernel" && event["name"].as_str().unwrap().contains("nccl");
    let of_kernels: Vec<_> =
        events.iter().filter(|event| is_kernel(event)).map(|event| &event["args"]["correlation"]).collect();
    let is_kept = |(number, event): &(usize, &Value)| {
        let correlation = event["args"].get("correlation").or_else(|| event.get("id"));
        number % 20 == 0 || correlation.is_some_and(|number| of_kernels.contains(&number))
    };
    let kept: Vec<_> = events.iter().enumerate().filter(is_kept).map(|(_, event)| event).collect();
    serde_json::to_vec(&kept).unwrap()
}

/// The first packets of a Perfetto trace, up to so many bytes.
fn first_packets(trace: &[u8], bytes: usize) -> &[u8] {
    let mut at = 0;
    while at < bytes {
        // Tag, length, packet.
        let (mut length, mut shift) = (0, 0);
        at += 1;
        loop {
            let byte = trace[at];
            at += 1;
            length |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        at += length;
    }
    &trace[..at]
}

#[test]
fn changed_traces_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let mut traces = vec![small_trace()];
    if has_python() {
        for form in ["plain", "interned", "compressed"] {
            python("to_perfetto.py", &[form, kineto("graph").to_str().unwrap(), path.to_str().unwrap()]);
            let trace = fs::read(&path).unwrap();
            traces.push(first_packets(&trace, 30_000).to_vec());
        }
    }
    for (trace, seed) in traces.iter().zip(1..) {
        let (mut random, mut read) = (Random(seed), 0);
        for round in 0..ROUNDS {
            let bytes =
                if round == 0 { trace.clone() } else { damage(trace, &[(0, trace.len())], &mut random) };
            fs::write(&path, &bytes).unwrap();
            let Ok(mut file) = TraceFile::open(&path) else { continue };
            let functions = find_functions(&mut file, "%a%", &mut |_| ());
            let window =
                functions.ok().and_then(|found| Some(found.get(0)?.window())).unwrap_or(Window::WHOLE);
            for window in [window, Window::WHOLE] {
                let query = Query { window, kernel_name: "%".to_owned(), stack_depth: 12 };
                let found = stacks_of(&mut file, &query, &mut |_| ());
                assert!(found.is_ok() || round > 0, "{found:?}");
                read += usize::from(found.is_ok_and(|found| !found.stacks.is_empty()));
            }
        }
        assert!(read > 0, "trace {seed}");
    }
}
