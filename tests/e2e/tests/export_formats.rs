//! `ncclflow export` of recordings of the real NCCL: Megatrace's logs as its analyzers read them, against what the program itself says
//! it called; the extractor's files; parts of recordings that go on or were killed.

use ncclflow_e2e::{harness::prelude::*, truth::call_log::Call};

/// A bed that waits for the word, with a log of its calls.
fn world(workload: &str) -> Option<World> {
    World::start("2.27.5-cu12", &format!("{CALL_LOG} --timeout 300 {workload}"))
}

/// Exports the world's recording to a folder of this name.
fn export(world: &World, to: &str, options: &str) -> Ran {
    ncclflow_of(&format!("export {options} -o"), &[world.path(to), world.out()])
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
    let workload = "--mode processes --ranks 3 --comms 2 --iters 4 \
         --ops allreduce,allgather,reducescatter,broadcast,reduce,sendrecv";
    let Some(mut world) = world(workload) else { return };
    world.record_all("--level api");
    let summary = export(&world, "logs", "--json -f megatrace").ok().json();
    let offset = number(&world.session()["clock"]["offset_ns"]);
    let mut truth: BTreeMap<u32, Vec<Call>> = BTreeMap::new();
    for call in world.calls() {
        truth.entry(call.pid).or_default().push(call);
    }
    let communicates = ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Send", "Recv"]
        .map(|name| format!("nccl{name}"));
    let mut files = 0;
    for (rank, pid) in (0u32..).zip(&world.bed.ready.pids) {
        let text = fs::read_to_string(world.path(&format!("logs/rank_{rank}.log"))).unwrap();
        let lines: Vec<Logged> =
            text.lines().map(|line| logged(line).unwrap_or_else(|| panic!("{line}"))).collect();
        let calls: Vec<&Call> =
            truth[pid].iter().filter(|call| communicates.contains(&call.function)).collect();
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
    assert_eq!((files, fs::read_dir(world.path("logs")).unwrap().count()), (3, 3));
    assert!(text(&summary["notes"][0]).contains("derived"), "{summary}");
    export(&world, "flat", "-f jsonl --flat").refused(&["--flat is for -f compat only"]);
    assert!(!world.path("flat").exists());
}

/// What a recording of steps has: a line for each FIFO step, as many as the messages of ours take.
#[test]
fn the_extractors_files_have_a_line_for_each_step() {
    let workload = "--ranks 2 --iters 20 --bytes 300000 --ops allreduce,allgather,sendrecv";
    let Some(mut world) = world(workload) else { return };
    world.record_all("--level flow");
    export(&world, "compat", "-f compat").ok();
    // Ops have no such log.
    export(&world, "logs", "-f megatrace").refused(&["record --level api"]);
    let mut compared = 0;
    for (name, ours) in exported::files_below(&world.out()) {
        if !name.to_string_lossy().contains("flow_steps_rank") {
            continue;
        }
        let key =
            |line: &Value| format!("{} {} {} {}", line["opCount"], line["channel"], line["op"], line["peer"]);
        let mut slots: BTreeMap<String, u64> = BTreeMap::new();
        for line in lines(&String::from_utf8(ours).unwrap()) {
            *slots.entry(key(&line)).or_default() += number(&line["slots"]);
        }
        let mut steps: BTreeMap<String, u64> = BTreeMap::new();
        for line in read_lines(&world.path("compat").join(&name)) {
            assert_eq!(line.as_object().unwrap().len(), 10, "{line}");
            let step = steps.entry(key(&line)).or_default();
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
    let workload = "--ranks 2 --bytes 4096 --iters 1000000 --interval-ms 1 --sync";
    let Some(world) = world(workload) else { return };
    let recorder = world.record("");
    world.bed.go().unwrap();
    progress::wait_for_blocks(&world.out(), 3);
    // How much came in the last second, the machine decides.
    let mut tries = 0;
    wait_until("the last second has something, and so has what was before", Duration::from_mins(1), || {
        tries += 1;
        let options = "--json -f jsonl --last 1s --rank 0";
        let summary = export(&world, &format!("part{tries}"), options).ok().json();
        assert_eq!(summary["sources"][0]["isCut"], true);
        ["ops", "leftOut"].iter().all(|rows| number(&summary["rows"][rows]) > 10)
    });
    recorder.signal(Signal::KILL).unwrap();
    recorder.finish().unwrap();
    let part = exported::files_below(&world.path(&format!("part{tries}")));
    let flows: Vec<_> = part.keys().filter(|name| name.to_string_lossy().contains("proxy_flow")).collect();
    assert!(
        flows.iter().all(|name| name.ends_with("proxy_flow_rank0.jsonl")) && !flows.is_empty(),
        "{flows:?}"
    );
    let whole = export(&world, "whole", "-f jsonl").ok();
    assert!(whole.stdout.contains("the recording is incomplete"), "{whole:?}");
    // The same rows as in the whole.
    let whole = exported::files_below(&world.path("whole"));
    for name in flows {
        let all = String::from_utf8_lossy(&whole[name]).into_owned();
        for line in String::from_utf8_lossy(&part[name]).lines() {
            assert!(all.contains(line), "{line}");
        }
    }
}
