//! `ncclflow export` of recordings of the real NCCL: Megatrace's logs as its analyzers read them, against what the program itself says
//! it called; the extractor's files; parts of recordings that go on or were killed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use ncclflow_e2e::{
    harness::{bed::Bed, exported, programs, progress, recorder::Recorder},
    truth::call_log::{self, Call},
};
use rustix::process::Signal;
use serde_json::Value;
use test_support::{root, wait_until};

const NCCL: &str = "2.27.5-cu12";

struct Run {
    ncclflow: PathBuf,
    folder: tempfile::TempDir,
    bed: Bed,
}

impl Run {
    /// A bed that waits for the word, with a log of its calls.
    fn new(workload: &[&str]) -> Option<Self> {
        let (ncclflow, bed, library) = (programs::ncclflow()?, programs::bed()?, programs::nccl(NCCL)?);
        if !root() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let calls = folder.path().join("calls").display().to_string();
        let arguments = [&["--call-log", &calls, "--timeout", "300"][..], workload].concat();
        let bed = Bed::start(&bed, &library, folder.path(), &arguments).unwrap();
        Some(Self { ncclflow, folder, bed })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn record(&self, options: &[&str]) -> Recorder {
        Recorder::start(&self.ncclflow, &self.bed.pid_list(), &self.path("out"), options).unwrap()
    }

    /// Records the whole job.
    fn record_all(&mut self, options: &[&str]) {
        let recorder = self.record(options);
        self.bed.go().unwrap();
        assert!(self.bed.finish().unwrap().1.ok);
        let (status, said) = recorder.finish().unwrap();
        assert!(status.success(), "{said}");
    }

    fn export(&self, arguments: &[&str]) -> Output {
        let out = self.path("out");
        Command::new(&self.ncclflow).arg("export").arg(out).args(arguments).output().unwrap()
    }

    /// The same, which must succeed and gives its summary.
    fn summary(&self, to: &str, arguments: &[&str]) -> Value {
        let to = self.path(to).display().to_string();
        let done = self.export(&[&["--json", "-o", &to][..], arguments].concat());
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        serde_json::from_slice(&done.stdout).unwrap()
    }
}

/// A line as the analyzers' expressions find it:
/// `\[save_count (\d+)\] \[([\d.]+)\] \[Rank (\d+)\] Fun (\w+) Data (\d+) stream (0x[0-9a-fA-F]+) opCount (\d+) groupHash (-?\d+)`
#[derive(Debug)]
struct Logged {
    time_ns: u64,
    rank: u32,
    function: String,
    count: u64,
    stream: u64,
    op_count: u64,
    group: i64,
}

fn logged(line: &str) -> Option<Logged> {
    let rest = line.strip_prefix("[save_count ")?;
    let (save, rest) = rest.split_once("] [")?;
    let (time, rest) = rest.split_once("] [Rank ")?;
    let (rank, rest) = rest.split_once("] Fun ")?;
    let (function, rest) = rest.split_once(" Data ")?;
    let (data, rest) = rest.split_once(" stream 0x")?;
    let (stream, rest) = rest.split_once(" opCount ")?;
    let (op_count, group) = rest.split_once(" groupHash ")?;
    let (seconds, nanoseconds) = time.split_once('.')?;
    save.parse::<u64>().ok()?;
    Some(Logged {
        time_ns: format!("{seconds}{nanoseconds}").parse().ok().filter(|_| nanoseconds.len() == 9)?,
        rank: rank.parse().ok()?,
        function: function.to_owned(),
        count: data.parse().ok()?,
        stream: u64::from_str_radix(stream, 16).ok()?,
        op_count: op_count.parse().ok()?,
        group: group.parse().ok()?,
    })
}

/// One file for each rank, found by its name, with all calls of its process in their order.
#[test]
fn megatrace_analyzers_find_each_ranks_calls() {
    let ops = "allreduce,allgather,reducescatter,broadcast,reduce,sendrecv";
    let workload = ["--mode", "processes", "--ranks", "3", "--comms", "2", "--iters", "4", "--ops", ops];
    let Some(mut run) = Run::new(&workload) else { return };
    run.record_all(&["--level", "api"]);
    let summary = run.summary("logs", &["-f", "megatrace"]);
    let session: Value = serde_json::from_slice(&fs::read(run.path("out/session.json")).unwrap()).unwrap();
    let offset = session["clock"]["offset_ns"].as_u64().unwrap();
    let mut truth: BTreeMap<u32, Vec<Call>> = BTreeMap::new();
    for call in call_log::read(&run.path("calls")).unwrap() {
        truth.entry(call.pid).or_default().push(call);
    }
    let communicates = [
        "ncclAllReduce",
        "ncclAllGather",
        "ncclReduceScatter",
        "ncclBroadcast",
        "ncclReduce",
        "ncclSend",
        "ncclRecv",
    ];
    let mut files = 0;
    for (rank, pid) in (0u32..).zip(&run.bed.ready.pids) {
        let text = fs::read_to_string(run.path("logs").join(format!("rank_{rank}.log"))).unwrap();
        let lines: Vec<Logged> =
            text.lines().map(|line| logged(line).unwrap_or_else(|| panic!("{line}"))).collect();
        let calls: Vec<&Call> =
            truth[pid].iter().filter(|call| communicates.contains(&call.function.as_str())).collect();
        assert!(lines.len() >= 28, "{}", lines.len());
        assert_eq!(lines.len(), calls.len(), "rank {rank}");
        // Each call of a function is of as many elements as every other.
        let counts: BTreeSet<(&str, u64)> = lines.iter().map(|line| (&*line.function, line.count)).collect();
        assert!(
            counts.len() == communicates.len() && counts.iter().all(|(_, count)| *count > 0),
            "{counts:?}"
        );
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for (line, call) in lines.iter().zip(&calls) {
            assert_eq!((line.rank, &line.function), (rank, &call.function));
            let within = call.begin_ns + offset..=call.end_ns + offset;
            assert!(within.contains(&line.time_ns), "{line:?} {call:?}");
            let count = counts.entry(line.stream).or_default();
            *count += 1;
            assert_eq!(line.op_count, *count, "calls on a stream are counted");
        }
        let groups: BTreeSet<i64> = lines.iter().map(|line| line.group).collect();
        assert_eq!(groups.len(), 2, "two communicators in one file");
        files += 1;
    }
    assert_eq!((files, fs::read_dir(run.path("logs")).unwrap().count()), (3, 3));
    assert!(summary["notes"][0].as_str().unwrap().contains("derived"), "{summary}");
    // Ops have no such log.
    let refused = run.export(&["-f", "jsonl", "--flat", "-o", "x"]);
    assert!(!refused.status.success() && !Path::new("x").exists());
}

/// What a recording of steps has: a line for each FIFO step, as many as the messages of ours take.
#[test]
fn the_extractors_files_have_a_line_for_each_step() {
    let workload =
        ["--ranks", "2", "--iters", "20", "--bytes", "300000", "--ops", "allreduce,allgather,sendrecv"];
    let Some(mut run) = Run::new(&workload) else { return };
    run.record_all(&["--level", "flow"]);
    run.summary("compat", &["-f", "compat"]);
    let refused = run.export(&["-f", "megatrace", "-o", &run.path("logs").display().to_string()]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("record --level api"), "{refused:?}");
    let mut compared = 0;
    for (name, ours) in exported::files_below(&run.path("out")) {
        if !name.to_string_lossy().contains("flow_steps_rank") {
            continue;
        }
        let theirs = fs::read_to_string(run.path("compat").join(&name)).unwrap();
        let mut slots: BTreeMap<String, u64> = BTreeMap::new();
        for line in String::from_utf8(ours).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let key = format!("{} {} {} {}", line["opCount"], line["channel"], line["op"], line["peer"]);
            *slots.entry(key).or_default() += line["slots"].as_u64().unwrap();
        }
        let mut steps: BTreeMap<String, u64> = BTreeMap::new();
        for line in theirs.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!(line.as_object().unwrap().len(), 10, "{line}");
            let key = format!("{} {} {} {}", line["opCount"], line["channel"], line["op"], line["peer"]);
            let step = steps.entry(key).or_default();
            assert_eq!(line["step"], *step);
            *step += 1;
        }
        assert_eq!(steps, slots, "{}", name.display());
        compared += steps.len();
    }
    assert!(compared > 100, "{compared}");
}

/// A recording that goes on is exported, in part; one that was killed too. Both say that there is no end.
#[test]
fn a_part_of_a_recording_that_goes_on() {
    let workload = ["--ranks", "2", "--bytes", "4096", "--iters", "1000000", "--interval-ms", "1", "--sync"];
    let Some(run) = Run::new(&workload) else { return };
    let recorder = run.record(&[]);
    run.bed.go().unwrap();
    progress::wait_for_blocks(&run.path("out"), 3);
    // How much came in the last second, the machine decides.
    let mut tries = 0;
    wait_until("the last second has something, and so has what was before", Duration::from_mins(1), || {
        tries += 1;
        let summary = run.summary(&format!("part{tries}"), &["-f", "jsonl", "--last", "1s", "--rank", "0"]);
        assert_eq!(summary["sources"][0]["is_cut"], true);
        ["ops", "left_out"].iter().all(|rows| summary["rows"][rows].as_u64().unwrap() > 10)
    });
    recorder.signal(Signal::KILL).unwrap();
    recorder.finish().unwrap();
    let part = exported::files_below(&run.path(&format!("part{tries}")));
    let flows: Vec<_> = part.keys().filter(|name| name.to_string_lossy().contains("proxy_flow")).collect();
    assert!(
        flows.iter().all(|name| name.ends_with("proxy_flow_rank0.jsonl")) && !flows.is_empty(),
        "{flows:?}"
    );
    let whole = run.export(&["-f", "jsonl", "-o", &run.path("whole").display().to_string()]);
    assert!(String::from_utf8_lossy(&whole.stdout).contains("the recording has no end"), "{whole:?}");
    // The same rows as in the whole.
    let whole = exported::files_below(&run.path("whole"));
    for name in flows {
        let all = String::from_utf8_lossy(&whole[name]).into_owned();
        for line in String::from_utf8_lossy(&part[name]).lines() {
            assert!(all.contains(line), "{line}");
        }
    }
}
