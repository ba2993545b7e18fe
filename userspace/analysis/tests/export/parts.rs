//! A row of a part is the row of the whole, and a part is read without the rest.

use std::{collections::HashSet, path::Path, time::Duration};

use analysis::export::{Choice, Exported, Format, Moment};
use serde_json::Value;

use crate::traces::{Recorded, lines, recorded, run};

struct World {
    folder: tempfile::TempDir,
    recorded: Recorded,
}

/// The recording `recording`, and all its lines in `whole`.
fn world() -> World {
    let recorded = recorded("net_steps").cut_to(45_000);
    let folder = tempfile::tempdir().unwrap();
    recorded.record(&folder.path().join("recording"), 0..recorded.len());
    let whole = run(
        &[&folder.path().join("recording")],
        &folder.path().join("whole"),
        Format::Jsonl,
        Choice::default(),
    );
    assert_eq!((whole.rows.left_out, whole.rows.numbered_locally), (0, 0));
    World { folder, recorded }
}

impl World {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn export(&self, name: &str, choice: Choice) -> Exported {
        run(&[&self.path("recording")], &self.path(name), Format::Jsonl, choice)
    }

    /// From a half to three quarters of the time, by the records' clock.
    fn middle(&self) -> (u64, u64) {
        let (first, last) = self.recorded.span();
        (first + (last - first) / 2, first + (last - first) / 4 * 3)
    }

    fn middle_choice(&self) -> Choice {
        let (from, until) = self.middle();
        let wall = |at: u64| Some(Moment::Wall(at + self.recorded.offset()));
        Choice { from: wall(from), to: wall(until), ..Choice::default() }
    }
}

/// Lines, each with its file.
type Lines = Vec<(String, Value)>;

fn is_p2p(line: &Value) -> bool {
    matches!(line["pattern"].as_str().unwrap(), "SEND" | "RECV")
}

/// Lines of the whole whose op was seen in this time: ops, and their messages by the number of the op.
fn lines_of_time(folder: &Path, (from, until): (u64, u64)) -> (Lines, Lines) {
    let is_of_time = |line: &Value| (from..until).contains(&line["ts_ns"].as_u64().unwrap());
    let ops: Vec<_> = lines(folder, "proxy_flow").into_iter().filter(|(_, line)| is_of_time(line)).collect();
    let key = |file: &str, line: &Value| {
        (
            file.rsplit_once("_rank").unwrap().1.to_owned(),
            line["commHash"].clone(),
            line["seq"].clone(),
            line["channel"].clone(),
        )
    };
    let wanted: HashSet<_> = ops.iter().map(|(file, line)| format!("{:?}", key(file, line))).collect();
    let mut messages = lines(folder, "flow_steps");
    messages.retain(|(file, line)| wanted.contains(&format!("{:?}", key(file, line))));
    (ops, messages)
}

/// Without what counts sends and receives from the beginning.
fn without_numbers(lines: &[(String, Value)]) -> Vec<(String, Value)> {
    let mut lines = lines.to_vec();
    for (_, line) in lines.iter_mut().filter(|(_, line)| is_p2p(line)) {
        let line = line.as_object_mut().unwrap();
        line.remove("seq");
        line.remove("seqLocal");
    }
    lines
}

#[test]
fn rows_of_a_part_are_those_of_the_whole() {
    let world = world();
    assert!(!world.path("whole/export.json").exists());
    let part = world.export("part", world.middle_choice());
    let (ops, messages) = lines_of_time(&world.path("whole"), world.middle());
    assert!(ops.len() > 50 && ops.iter().any(|(_, line)| is_p2p(line)), "{}", ops.len());
    let (part_ops, part_messages) =
        (lines(&world.path("part"), "proxy_flow"), lines(&world.path("part"), "flow_steps"));
    for (line, whole) in without_numbers(&part_ops).iter().zip(&without_numbers(&ops)) {
        assert_eq!(line, whole);
    }
    assert_eq!(part_ops.len(), ops.len());
    assert!(without_numbers(&part_messages) == without_numbers(&messages));
    // What is counted from another moment says so, and nothing else does.
    assert!(part_ops.iter().all(|(_, line)| line["seqLocal"].as_bool().unwrap_or(false) == is_p2p(line)));
    let local = part_ops.iter().filter(|(_, line)| is_p2p(line)).count();
    assert_eq!(part.rows.numbered_locally, local as u64);
    assert!(part.sources[0].records < world.recorded.len() as u64 * 9 / 10, "{:?}", part.sources);
    assert!(world.path("part/export.json").exists());
}

/// 10 s before the last 2 of 30 s are read with them.
#[test]
fn the_end_is_read_without_what_was_before() {
    let world = world();
    let from = Some(Moment::BeforeEnd(Duration::from_secs(2)));
    let part = world.export("end", Choice { from, ..Choice::default() });
    let (_, last) = world.recorded.span();
    let (ops, _) = lines_of_time(&world.path("whole"), (last - 2_000_000_000, u64::MAX));
    let found = lines(&world.path("end"), "proxy_flow");
    assert!(
        !ops.is_empty() && without_numbers(&found) == without_numbers(&ops),
        "{} of {}",
        found.len(),
        ops.len()
    );
    assert!(part.sources[0].records < world.recorded.len() as u64 / 2, "{}", part.sources[0].records);
}

#[test]
fn with_exact_the_numbers_are_the_same_too() {
    let world = world();
    let part = world.export("part", Choice { exact: true, ..world.middle_choice() });
    let (ops, messages) = lines_of_time(&world.path("whole"), world.middle());
    assert!(lines(&world.path("part"), "proxy_flow") == ops);
    assert!(lines(&world.path("part"), "flow_steps") == messages);
    assert_eq!(part.rows.numbered_locally, 0);
}

#[test]
fn a_communicator_and_a_rank_are_chosen() {
    let world = world();
    let whole = lines(&world.path("whole"), "proxy_flow");
    let hash = whole[0].1["commHash"].as_str().unwrap().to_owned();
    assert!(
        whole.iter().any(|(_, line)| line["commHash"] != hash.as_str()),
        "there is one communicator only"
    );
    let expected: Vec<_> = whole
        .iter()
        .filter(|(_, line)| line["commHash"] == hash.as_str() && line["rank"] == 1)
        .cloned()
        .collect();
    // The first digits, as people type them.
    let choice = Choice {
        comms: vec![hash[..6].to_uppercase().replace("0X", "0x")],
        ranks: vec!["1-3".parse().unwrap()],
        ..Choice::default()
    };
    let exported = world.export("chosen", choice);
    assert!(!expected.is_empty() && lines(&world.path("chosen"), "proxy_flow") == expected);
    assert_eq!(exported.rows.ops, expected.len() as u64);
}

#[test]
fn who_owns_a_process_is_asked_of_recordings_that_say_it_only() {
    let recorded = recorded("net_steps");
    let recorded = recorded.cut_to(1000);
    let folder = tempfile::tempdir().unwrap();
    recorded.record(&folder.path().join("recording"), 0..1000);
    let options = analysis::export::ExportOptions {
        inputs: vec![folder.path().join("recording")],
        output: folder.path().join("out"),
        format: Format::Jsonl,
        view: analysis::export::ViewOptions::default(),
        choice: Choice { users: vec!["ann".to_owned()], ..Choice::default() },
    };
    let error = analysis::export::export(options, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("what --user asks for"), "{error}");
    assert!(!folder.path().join("out").exists());
}
