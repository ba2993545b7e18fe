//! Files of torch's flight recorder, as torch's own analyser reads them, of jobs in which nothing was wrong:
//! against the lines of the same recordings, and beside what torch itself dumped (`tests/traces/fr_ddp_*`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use analysis::export::{Choice, ExportOptions, Exported, Format, ViewOptions, export};
use serde_json::{Value, json};
use test_support::torch_analyser;

use crate::traces::{Recorded, recorded, run};

struct World {
    folder: tempfile::TempDir,
    analyser: PathBuf,
}

impl World {
    fn new(recorded: &Recorded, records: usize) -> Option<Self> {
        let world = Self { analyser: torch_analyser()?, folder: tempfile::tempdir().unwrap() };
        recorded.record(&world.path("recorded"), 0..records);
        Some(world)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Exports into a folder, and gives what is said of it and what Python and the analyser read.
    fn export(&self, name: &str, choice: Choice, collectives_only: bool) -> (Exported, Value) {
        let folder = self.path(name);
        fs::create_dir(&folder).unwrap();
        let options = ExportOptions {
            inputs: vec![self.path("recorded")],
            output: folder.clone(),
            format: Format::FlightRecorder,
            view: ViewOptions { collectives_only, ..ViewOptions::default() },
            choice,
        };
        let exported = export(options, &mut |_| ()).unwrap();
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/exports/flight_recorder_files.py");
        let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/fr_ddp_rank0.pkl.gz");
        let mut read = Command::new("python3");
        read.arg(script).arg(&self.analyser).arg(folder.join("nccl_trace_rank_")).arg(traces);
        let output = read.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (exported, serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Collectives of each rank of each communicator by their number, as the lines have them: function and
    /// time.
    fn collectives(&self) -> BTreeMap<(String, u64), BTreeMap<u64, (String, u64)>> {
        let lines = self.path("lines");
        run(&[&self.path("recorded")], &lines, Format::Jsonl, Choice::default());
        let mut found: BTreeMap<_, BTreeMap<u64, (String, u64)>> = BTreeMap::new();
        for folder in
            fs::read_dir(&lines).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
        {
            for file in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
                if !file.file_name().unwrap().to_string_lossy().starts_with("proxy_flow_rank") {
                    continue;
                }
                for line in fs::read_to_string(&file).unwrap().lines() {
                    let line: Value = serde_json::from_str(line).unwrap();
                    let seq = line["seq"].as_u64().unwrap();
                    if seq.is_multiple_of(2) {
                        let key =
                            (line["commHash"].as_str().unwrap().to_owned(), line["rank"].as_u64().unwrap());
                        let function = line["collApi"].as_str().unwrap().to_owned();
                        found
                            .entry(key)
                            .or_default()
                            .insert(seq / 2, (function, line["ts_ns"].as_u64().unwrap()));
                    }
                }
            }
        }
        found
    }
}

/// Every collective that all ranks have has an entry, and torch's analyser finds that the ranks agree; in
/// parts, too.
#[test]
fn sound_jobs_are_sound_to_torchs_analyser() {
    let names = BTreeMap::from([
        ("AllReduce", "nccl:all_reduce"),
        ("AllGather", "nccl:_all_gather_base"),
        ("ReduceScatter", "nccl:_reduce_scatter_base"),
        ("Broadcast", "nccl:broadcast"),
    ]);
    let Some(world) = World::new(&recorded("nvlink_flow"), 4000) else { return };
    let (exported, found) = world.export("whole", Choice::default(), true);
    let lines = world.collectives();
    let mut compared = 0;
    for ((hash, rank), collectives) in &lines {
        let first = lines.iter().filter(|((other, _), _)| other == hash);
        let (first, last): (Vec<u64>, Vec<u64>) = first
            .map(|(_, collectives)| {
                (*collectives.keys().next().unwrap(), *collectives.keys().next_back().unwrap())
            })
            .unzip();
        // The recording ends between two ranks' launches of one collective.
        let (from, until) = (*first.iter().max().unwrap(), *last.iter().min().unwrap());
        let dump = &found["dumps"][rank.to_string()];
        let entries = dump["entries"].as_array().unwrap().iter();
        let entries: Vec<_> = entries
            .filter(|entry| entry["process_group"][0] == **hash)
            .map(|entry| {
                (entry["collective_seq_id"].as_u64().unwrap(), entry["profiling_name"].as_str().unwrap())
            })
            .collect();
        let expected: Vec<_> = collectives
            .range(from..=until)
            .map(|(number, (function, _))| (number + 1, names[function.as_str()]))
            .collect();
        assert!(
            entries == expected,
            "{hash} rank {rank}: {} entries, {} lines",
            entries.len(),
            expected.len()
        );
        compared += entries.len();
        assert_eq!(dump["pg_config"][hash]["ranks"], "[0, 1]");
    }
    assert!(compared > 100, "{compared}");
    assert_eq!(found["dumps"].as_object().unwrap().len(), 2);
    let failed = |found: &Value| {
        let collectives = found["collectives"].as_array().unwrap().clone();
        let failed =
            collectives.iter().filter(|one| one["passed"] == false || one["missing"] != json!([])).count();
        (failed, collectives.len())
    };
    let (wrong, all) = failed(&found);
    assert!(wrong == 0 && all > 50, "{wrong} of {all}");
    assert_eq!(found["differences"], json!([]), "as torch's own files are");
    assert!(
        exported.notes.iter().any(|note| note.contains("sends and receives are left out")),
        "{:?}",
        exported.notes
    );
    // A part begins with a collective that both ranks have.
    let choice =
        Choice { from: Some("+4s".parse().unwrap()), to: Some("+9s".parse().unwrap()), ..Choice::default() };
    let (_, part) = world.export("part", choice, true);
    let (wrong, all) = failed(&part);
    assert!(wrong == 0 && all > 10, "{wrong} of {all}");
    let numbers = |found: &Value| -> BTreeSet<String> {
        let dumps = found["dumps"].as_object().unwrap().values();
        let entries = dumps.flat_map(|dump| dump["entries"].as_array().unwrap());
        entries.map(|entry| format!("{} {}", entry["process_group"], entry["collective_seq_id"])).collect()
    };
    assert!(numbers(&part).is_subset(&numbers(&found)));
    let first = |rank: &str| part["dumps"][rank]["entries"][0]["record_id"].clone();
    assert_eq!((first("0"), first("1")), (json!(0), json!(0)));
}

/// Sends and receives have entries, with the numbers that torch gives their ends.
#[test]
fn sends_and_receives_have_both_ends() {
    let Some(world) = World::new(&recorded("nvlink_flow"), 4000) else { return };
    let (_, found) = world.export("p2p", Choice::default(), false);
    let p2p = |rank: &str| -> Vec<Value> {
        let entries = found["dumps"][rank]["entries"].as_array().unwrap().iter();
        entries.filter(|entry| entry["is_p2p"] == true).cloned().collect()
    };
    let (first, second) = (p2p("0"), p2p("1"));
    assert!(first.len() > 20 && second.len() > 20, "{} {}", first.len(), second.len());
    for (own, other, entries) in [(0, 1, &first), (1, 0, &second)] {
        let names: BTreeSet<&str> =
            entries.iter().map(|entry| entry["profiling_name"].as_str().unwrap()).collect();
        let ends = [(own, other), (own, own)];
        let allowed: BTreeSet<String> = ends
            .iter()
            .flat_map(|(own, other)| {
                [format!("nccl:send {own}->{other}"), format!("nccl:recv {own}<-{other}")]
            })
            .collect();
        assert!(names.iter().all(|name| allowed.contains(*name)), "{names:?}");
        let ids: Vec<u64> = entries.iter().map(|entry| entry["p2p_seq_id"].as_u64().unwrap()).collect();
        assert!(ids.iter().all(|id| *id > 0), "{ids:?}");
    }
}
