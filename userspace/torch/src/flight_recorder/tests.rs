//! Written files, as Python's own reader finds them.

use std::{
    io::{self, Write},
    process::Command,
};

use serde_json::{Value, json};

use super::*;
use flow::schema::PythonFrame;

fn frame(name: &str, line: u32) -> PythonFrame {
    let file = "/home/user/train.py".to_owned();
    PythonFrame { function: name.to_owned(), file, line: Some(line), qualname: None }
}

fn entry(record_id: u64) -> Entry {
    Entry {
        record_id,
        pg_id: 1,
        process_group: ["0x0000000000000007", "tensor \"parallel\" \u{e4}"].map(Into::into),
        collective_seq_id: record_id + 1,
        op_id: record_id + 1,
        profiling_name: "nccl:all_reduce".to_owned(),
        time_created_ns: 1_795_359_117_880_180_422,
        input_sizes: vec![vec![32, 512], vec![]],
        input_dtypes: vec!["Float".to_owned(), "Long".to_owned()],
        output_sizes: vec![vec![70_000]],
        output_dtypes: vec!["Float".to_owned()],
        thread_id: Some(4242),
        frames: Some([frame("step", 41), frame("<module>", 300 + u32::from(record_id == 1))].into()),
        ..Entry::default()
    }
}

fn write<W: Write>(dump: &Dump, out: W) -> io::Result<W> {
    let mut writer = DumpWriter::new(out)?;
    dump.entries.iter().try_for_each(|entry| writer.entry(entry))?;
    writer.finish(&dump.groups, dump.comm_lib_version.as_deref())
}

/// Loads with `pickle.load`, and returns what Python prints of `expression`, where `d` is the dump.
fn loaded(dump: &Dump, expression: &str) -> Option<Value> {
    let has_python = Command::new("python3").arg("--version").output().is_ok();
    if !test_support::need("python3", has_python, "install it (Debian: python3)") {
        return None;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    write(dump, std::io::BufWriter::new(file.as_file())).unwrap().into_inner().unwrap();
    let program = format!(
        "import json, pickle, sys\nd = pickle.load(open(sys.argv[1], 'rb'))\nprint(json.dumps({expression}))"
    );
    let output = Command::new("python3").args(["-c", &program]).arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn python_reads_what_was_written() {
    let completed = Work { seq: 0x1_0000_0000, ..Work::default() };
    let status = GroupStatus { last_completed: completed, ..GroupStatus::enqueued(3) };
    let group = ProcessGroup {
        pg_id: Some(1),
        name: "0x0000000000000007".into(),
        description: "undefined".into(),
        ranks: vec![0, 1, 300],
        status: Some(status),
    };
    let mut second = entry(1);
    (second.duration_ms, second.timeout_ms, second.retired) = (Some(1.5), Some(-1), true);
    (second.state, second.time_discovered_completed_ns) = (State::Completed, Some(5));
    (second.is_p2p, second.thread_id, second.thread_name) = (true, None, Some("python3".to_owned()));
    let bare = Entry { frames: None, ..Entry::default() };
    let dump = Dump {
        comm_lib_version: Some("2.28.9".to_owned()),
        groups: vec![group, ProcessGroup::default()],
        entries: vec![entry(0), second, bare, entry(0)],
    };
    let Some(found) = loaded(&dump, "{**d, 'pair': isinstance(d['entries'][0]['process_group'], tuple)}")
    else {
        return;
    };
    let frames = |last: u32| {
        json!([
            {"name": "step", "filename": "/home/user/train.py", "line": 41},
            {"name": "<module>", "filename": "/home/user/train.py", "line": last}
        ])
    };
    let first = json!({
        "record_id": 0, "pg_id": 1, "process_group": ["0x0000000000000007", "tensor \"parallel\" \u{e4}"],
        "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1, "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_795_359_117_880_180_422_u64, "input_sizes": [[32, 512], []],
        "input_dtypes": ["Float", "Long"], "output_sizes": [[70_000]], "output_dtypes": ["Float"],
        "state": "scheduled", "time_discovered_started_ns": null, "time_discovered_completed_ns": null,
        "retired": false, "timeout_ms": null, "is_p2p": false, "thread_id": "4242", "frames": frames(300)
    });
    assert_eq!((&found["entries"][0], &found["entries"][3]), (&first, &first));
    let mut expected = first.clone();
    let changes = json!({
        "record_id": 1, "collective_seq_id": 2, "op_id": 2, "duration_ms": 1.5, "timeout_ms": -1, "retired": true,
        "state": "completed", "time_discovered_completed_ns": 5, "is_p2p": true, "thread_name": "python3",
        "frames": frames(301)
    });
    for (key, value) in changes.as_object().unwrap() {
        expected[key] = value.clone();
    }
    expected.as_object_mut().unwrap().remove("thread_id");
    assert_eq!(found["entries"][1], expected);
    assert!(found["entries"][2].get("frames").is_none());
    assert_eq!(found["pair"], true);
    assert_eq!((&found["version"], &found["comm_lib_version"]), (&json!("2.10"), &json!("2.28.9")));
    let config = json!({
        "0x0000000000000007": {"name": "0x0000000000000007", "desc": "undefined", "ranks": "[0, 1, 300]"},
        "": {"name": "", "desc": "", "ranks": "[]"}
    });
    assert_eq!(found["pg_config"], config);
    let status = json!({"1": {
        "last_enqueued_collective": 3, "last_started_collective": -1, "last_completed_collective": 0x1_0000_0000_u64
    }});
    assert_eq!(found["pg_status"], status);
}

/// More entries than a batch and more texts than a byte can number; and an empty dump.
#[test]
fn long_and_empty_dumps_are_read() {
    let numbered = |number: u64| Entry {
        profiling_name: format!("nccl:all_reduce{}", number % 600),
        frames: Some([frame(&format!("f{}", number % 700), 7)].into()),
        ..entry(number)
    };
    let dump = Dump { entries: (0..2500).map(numbered).collect(), ..Dump::default() };
    let expression = "[[e['record_id'], e['profiling_name'], e['frames'][0]['name']] for e in d['entries']]";
    let Some(found) = loaded(&dump, expression) else { return };
    let expected: Vec<Value> = (0..2500u64)
        .map(|number| {
            json!([number, format!("nccl:all_reduce{}", number % 600), format!("f{}", number % 700)])
        })
        .collect();
    assert_eq!(found, Value::Array(expected));
    let empty = loaded(&Dump::default(), "d").unwrap();
    assert_eq!(empty, json!({"version": "2.10", "entries": [], "pg_config": {}, "pg_status": {}}));
}
