use super::*;
use std::fmt::Write as _;

/// The events that were told, as text.
#[derive(Default)]
struct Told(Vec<String>);

impl Consumer for Told {
    fn slice(&mut self, slice: &Slice<'_>) -> Result<()> {
        let Slice { track, kind, name, begin, end, correlation, flows, .. } = slice;
        let mut text = format!("{} {kind:?} {name} {begin} ", track.0);
        match end {
            &i64::MAX => text.push('-'),
            end => write!(text, "{end}")?,
        }
        if let Some(correlation) = correlation {
            write!(text, " c{correlation}")?;
        }
        if !flows.is_empty() {
            write!(text, " f{}", flows.len())?;
        }
        self.0.push(text);
        Ok(())
    }

    fn takes_flows(&self) -> bool {
        true
    }

    fn flow(&mut self, end: FlowEnd) -> Result<()> {
        self.0.push(format!("{} {} {}", end.track.0, if end.is_incoming { "<-" } else { "->" }, end.at));
        Ok(())
    }
}

fn told(json: &str) -> Result<(Vec<String>, LeftOut)> {
    let mut told = Told::default();
    let left_out = read(json.as_bytes(), &mut told)?;
    Ok((told.0, left_out))
}

fn refused(json: &str) -> String {
    format!("{:#}", told(json).unwrap_err())
}

const SLICES: &str = r#"
    {"ph": "M", "name": "process_name", "pid": 5, "tid": 0, "args": {"name": "python3"}},
    {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 5, "tid": 6, "ts": 1.5, "dur": 2, "args": {"External id": 1}},
    {"args": {"x": [{"correlation": 1}], "correlation": 7}, "name": "k\u00e9", "cat": "kernel", "ph": "X", "pid": 0, "tid": "7",
     "ts": 3, "dur": 0.5},
    {"ph": "X", "cat": "cuda_runtime", "name": "l", "pid": "5", "tid": 6, "ts": 2, "dur": 0, "args": {"correlation": 7}},
    {"ph": "s", "id": 9, "cat": "ac2g", "name": "ac2g", "pid": 5, "tid": 6, "ts": 2}"#;

const TOLD: [&str; 4] =
    ["0 Cpu a 1500 3500", "1 Kernel ké 3000 3500 c7", "0 CudaCall l 2000 2000 c7", "0 -> 2000"];

#[test]
fn events_are_told_from_both_forms() {
    for json in [
        format!("[{SLICES}]"),
        format!("[{SLICES}"),
        format!("[{SLICES},\n"),
        format!(
            r#"{{"schemaVersion": 1, "deep": [{{"a": [[]]}}], "traceEvents": [{SLICES}], "traceName": "x"}}"#
        ),
    ] {
        let (told, left_out) = told(&json).unwrap();
        assert_eq!(told, TOLD, "{json}");
        assert_eq!(left_out, LeftOut::default());
    }
    assert_eq!(told(r#"{"traceEvents": []}"#).unwrap().0, [""; 0]);
    assert_eq!(told("[]").unwrap().0, [""; 0]);
}

#[test]
fn slices_of_two_events_and_slices_with_flows() {
    let json = r#"[
        {"ph": "B", "name": "a", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "B", "name": "b", "pid": 1, "tid": 1, "ts": 2, "bind_id": "0x1", "flow_out": true},
        {"ph": "B", "name": "other", "pid": 1, "tid": 2, "ts": 2},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 4},
        {"ph": "E", "pid": 1, "tid": 3, "ts": 4},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 3},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 6},
        {"ph": "X", "name": "negative", "pid": 1, "tid": 1, "ts": 6, "dur": -1}]"#;
    let (told, left_out) = told(json).unwrap();
    let expected =
        ["0 Cpu b 2000 4000 f1", "0 Cpu a 1000 3000", "0 Cpu negative 6000 6000", "1 Cpu other 2000 -"];
    assert_eq!(told, expected);
    assert_eq!(left_out, LeftOut { ends_alone: 2, ..LeftOut::default() });
}

#[test]
fn fields_of_another_type_are_not_there() {
    let json = r#"[
        {"ph": "X", "name": 5, "cat": ["kernel"], "pid": {"a": 1}, "tid": null, "ts": "1.25", "dur": true, "args": [1]},
        {"ph": "X", "name": "n", "ts": {}, "args": "x"},
        {"ph": 1, "ts": 1}, {}, {"ph": "long", "ts": 1},
        {"ph": "X", "name": "m", "ts": 1e300},
        {"ph": "X", "name": "o", "ts": 1, "args": {"correlation": -1}},
        {"ph": "X", "name": "p", "ts": 1, "args": {"correlation": "8"}},
        {"ph": "X", "name": "q", "ts": 1, "args": {"correlation": [8]}}]"#;
    let (told, left_out) = told(json).unwrap();
    assert_eq!(told, ["0 Cpu  1250 1250", "0 Cpu o 1000 1000", "0 Cpu p 1000 1000 c8", "0 Cpu q 1000 1000"]);
    assert_eq!(left_out, LeftOut { without_time: 2, ..LeftOut::default() });
}

#[test]
fn what_is_no_trace_says_so() {
    for (json, words) in [
        ("{}", "no `traceEvents`"),
        (r#"{"a": {"traceEvents": []}}"#, "no `traceEvents`"),
        ("[1]", "after 0 events, what follows is not the JSON of a trace: invalid type"),
        (r#"[{"ph": "M"} {}]"#, "after 1 events, what follows is not the JSON of a trace"),
        (r#"{"traceEvents": 5}"#, "an array of events"),
        (r#"{"traceEvents": [{"ph": "M"}], "#, "cut: it ends in the middle, after 1 events"),
        (r#"{"traceEvents": [{"ph": "M"},"#, "cut: it ends in the middle, after 1 events"),
        (r#"[{"ph": "M"}, {"ph"#, "cut: it ends in the middle, after 1 events"),
        ("[] x", "not the JSON of a trace"),
    ] {
        let said = refused(json);
        assert!(said.contains(words), "{json}: {said}");
    }
}

#[test]
fn absurd_events_are_refused() {
    let nested = |count: usize| format!("{}{}", r#"{"a":["#.repeat(count), "]}".repeat(count));
    let skipped = format!(
        "[{{\"ph\": \"X\", \"ts\": 1, \"args\": {}, \"dur\": {}}}]",
        nested(100_000),
        nested(100_000)
    );
    assert_eq!(told(&skipped).unwrap().0, ["0 Cpu  1000 1000"]);
    assert!(refused(&nested(100_000)).contains("no `traceEvents`"));
    let long = format!("[{{\"name\": \"{}\"}}]", "x".repeat(20 << 20));
    assert!(refused(&long).contains("longer than 16 MiB"), "{}", refused(&long));
    let open = format!("[{}]", vec![r#"{"ph": "B", "ts": 1}"#; 10_001].join(","));
    assert!(refused(&open).contains("event 10001"), "{}", refused(&open));
}
