//! `ncclflow record --level flow --api` and `--level steps --api` on the real NCCL: each call with its op. The
//! truth is NCCL's own log of the calls, and what a call and its op say independently of each other: function,
//! bytes, root or peer, and that no other call was made between them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{
    api_trace::ApiTrace,
    compare,
    harness::prelude::*,
    truth::{call_log::Call, debug_log::DebugLog, plugin::PluginTruth},
};

const ALL_OPS: &str = "allreduce,allgather,reducescatter,broadcast,bcast,reduce,sendrecv,alltoall";

struct Run {
    session: Value,
    plugin: PluginTruth,
    log: DebugLog,
    trace: ApiTrace,
    /// What the program says it called.
    called: Vec<Call>,
    /// Of each rank of each communicator: its calls, and its ops on their first channels.
    ranks: BTreeMap<(String, i64), (Vec<Value>, Vec<Value>)>,
}

fn run(version: &str, options: &str, workload: &str) -> Option<Run> {
    let workload = format!("{DEBUG_LOG} {CALL_LOG} {PLUGIN_LOG} --bytes 4096 {workload}");
    let mut world = World::start(version, &workload)?;
    world.record_all(&format!("--strict --api {options}"));
    world.check_export();
    let (out, session) = (world.out(), world.session());
    let mut ranks = BTreeMap::new();
    for row in list(&session["communicators"]) {
        let (name, rank) = (text(&row["folder"]).to_owned(), row["rank"].as_i64().unwrap());
        let files = ["api", "proxy_flow"]
            .map(|kind| read_lines(&out.join(&name).join(format!("{kind}_rank{rank}.jsonl"))));
        let [calls, all_ops] = files;
        assert_eq!(
            (row["apiLines"].as_u64(), row["proxyFlowLines"].as_u64()),
            (Some(calls.len() as u64), Some(all_ops.len() as u64))
        );
        let mut ops: Vec<Value> = Vec::new();
        for op in all_ops {
            match ops.iter().find(|known| known["seq"] == op["seq"]) {
                Some(known) => assert_eq!(known["apiCall"], op["apiCall"], "channels of one op"),
                None => ops.push(op),
            }
        }
        check_flow_rank(&out.join(&name).join(format!("flow_rank{rank}.json")), &ops);
        assert!(ranks.insert((name, rank), (calls, ops)).is_none(), "a rank has one row");
    }
    let plugin = PluginTruth::read(&world.path("truth")).unwrap();
    let trace = ApiTrace::read(&out).unwrap();
    Some(Run { session, plugin, log: world.log(), trace, called: world.calls(), ranks })
}

/// Each op names the call that its lines name.
fn check_flow_rank(path: &Path, ops: &[Value]) {
    let flow = read_json(path);
    let of_ops = |op: &Value| (number(&op["seq"]), op.get("apiCall").cloned());
    let theirs: BTreeMap<_, _> = list(&flow["ops"]).iter().map(of_ops).collect();
    assert_eq!(theirs, ops.iter().map(of_ops).collect(), "{}", path.display());
}

/// A call and its op, in what both say.
fn check_pair(call: &Value, op: &Value) {
    let is_p2p = number(&op["seq"]) & 1 == 1;
    let function = if op["collApi"].is_null() { &op["coll"] } else { &op["collApi"] };
    assert_eq!(call["function"], *function, "{call} {op}");
    assert!(call["ts_ns"].as_u64() < op["ts_ns"].as_u64(), "{call} {op}");
    assert_eq!((&call["pid"], &call["comm_hash"]), (&op["pid"], &op["comm_hash"]));
    if is_p2p {
        if matches!(call["function"].as_str(), Some("Send" | "Recv")) {
            assert_eq!((&call["peer"], &call["bytes"]), (&op["root"], &op["bytes"]), "{call} {op}");
            assert_eq!(call["seq"], op["seq"]);
        } else {
            assert!(call["seq"].is_null(), "a call of several ops names none");
        }
        return;
    }
    assert_eq!(call["seq"], op["seq"], "{call} {op}");
    if !call["root"].is_null() {
        assert_eq!(call["root"], op["root"], "{call} {op}");
    }
}

impl Run {
    /// Every op's call, which has to exist and to fit. Gives how many ops have none, and how many calls.
    fn check(&self) -> (usize, usize) {
        let (mut ops_without, mut calls_without) = (0, 0);
        for ((name, rank), (calls, ops)) in &self.ranks {
            // The calls are those that NCCL logs, in its order.
            let comm = u64::from_str_radix(&text(&calls[0]["comm"])[2..], 16).unwrap();
            let pid = number(&calls[0]["pid"]);
            let mut logged = self.log.communicators.iter();
            let logged = logged.find(|logged| logged.comm == comm && u64::from(logged.pid) == pid).unwrap();
            let functions = |call: &Value| text(&call["function"]).to_owned();
            let logged: Vec<_> = logged.calls.iter().map(|logged| logged.call.func.clone()).collect();
            assert_eq!(calls.iter().map(functions).collect::<Vec<_>>(), logged, "{name} rank {rank}");
            let numbers = calls.iter().map(|call| number(&call["call"]));
            assert!(numbers.eq(0..calls.len() as u64), "in their order, each once");
            let mut of_calls: BTreeMap<u64, usize> = BTreeMap::new();
            for op in ops {
                assert!(op.get("apiCall").is_some(), "{op}");
                let Some(call) = op["apiCall"].as_u64() else {
                    ops_without += 1;
                    continue;
                };
                check_pair(&calls[usize::try_from(call).unwrap()], op);
                *of_calls.entry(call).or_default() += 1;
            }
            for call in calls {
                let several = !matches!(call["function"].as_str(), Some("AlltoAll" | "Gather" | "Scatter"));
                let joined = of_calls.get(&number(&call["call"])).copied().unwrap_or(0);
                assert!(joined <= 1 || !several, "{call} became {joined} ops");
                assert_eq!(call["seq"].is_null(), joined != 1 || !several, "{call}");
                calls_without += usize::from(joined == 0);
            }
        }
        (ops_without, calls_without)
    }

    fn hits(&self, function: &str) -> u64 {
        let probes = list(&self.session["probes"]).iter();
        let of_function = probes.filter(|probe| probe["function"] == function && probe["part"].is_null());
        of_function.map(|probe| number(&probe["hits"])).sum()
    }

    fn logged_calls(&self) -> u64 {
        self.log.communicators.iter().map(|logged| logged.calls.len() as u64).sum()
    }
}

/// One call after the other: each is joined with what NCCL launched before the next.
#[test]
fn calls_outside_of_groups_are_all_joined() {
    let per_call = "--probes per-call";
    for (version, tracing) in [
        ("2.21.5-cu12", ""),
        ("2.27.5-cu12", ""),
        ("2.27.5-cu12", per_call),
        ("2.28.9-cu13", "--level steps"),
        ("2.32.3-cu12", ""),
    ] {
        let workload = "--ops allreduce,allgather,reducescatter,broadcast,bcast,reduce \
             --iters 4 --ranks 3 --mode processes";
        let Some(run) = run(version, tracing, workload) else { return };
        assert_eq!(run.check(), (0, 0), "{version}");
        for (calls, ops) in run.ranks.values() {
            assert_eq!((calls.len(), ops.len()), (24, 24));
            // Nothing else was called between a call and its op.
            for op in ops {
                let call = usize::try_from(number(&op["apiCall"])).unwrap();
                let next = calls.get(call + 1).map_or(u64::MAX, |next| number(&next["ts_ns"]));
                assert!(number(&op["ts_ns"]) < next, "{op}");
            }
        }
        if version > "2.23" && tracing != per_call {
            // Two hits a call, and no more.
            let hits =
                ["ncclEnqueueCheck", "ncclLaunchKernelAfter_NoCuda"].map(|function| run.hits(function));
            assert_eq!(hits, [run.logged_calls(); 2], "{version}");
        }
        assert_eq!(run.session["api"], true);
    }
}

/// In groups, where NCCL sorts; on two communicators; sends and receives, and calls of which each becomes
/// several ops. All of them have buffers of their own.
#[test]
fn calls_of_groups_are_joined_by_what_was_given() {
    for version in ["2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"] {
        let workload = format!("--ops {ALL_OPS} --iters 3 --ranks 3 --comms 2 --group 6 --mode threads");
        let Some(run) = run(version, "", &workload) else { return };
        let (ops_without, calls_without) = run.check();
        println!("{version}: {ops_without} ops without their call, {calls_without} calls without an op");
        assert_eq!(ops_without, 0, "{version}");
        // Sends to oneself are copies and have no op.
        let to_self = run.ranks.iter().flat_map(|((_, rank), (calls, _))| {
            calls.iter().filter(move |call| call["peer"].as_i64() == Some(*rank))
        });
        assert_eq!(calls_without, to_self.count(), "{version}");
    }
}

/// Calls of one group that differ in nothing but their buffers. NCCL's plugin interface says which buffer the
/// op with which number has.
#[test]
fn calls_that_differ_in_their_buffers_only_are_told_apart() {
    for version in ["2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"] {
        let workload = "--ops allreduce --iters 12 --ranks 2 --group 4 --mode processes";
        let Some(run) = run(version, "", workload) else { return };
        assert_eq!((run.check(), run.plugin.ranks.len()), ((0, 0), 2), "{version}");
        let mut orders = 0;
        for (member, truth) in &run.plugin.ranks {
            let (calls, ops) =
                &run.ranks[&(format!("0x{:016x}", member.comm_hash.0), i64::from(member.rank))];
            assert_eq!(truth.colls.len(), ops.len());
            let first = truth.colls.iter().map(|coll| coll.seq_number).min().unwrap();
            for op in ops {
                let seq = number(&op["seq"]) / 2;
                let coll = truth.colls.iter().find(|coll| coll.seq_number - first == seq).unwrap();
                let call = &calls[usize::try_from(number(&op["apiCall"])).unwrap()];
                assert_eq!(call["sendbuff"], format!("{:#x}", coll.send_buff.unwrap()), "{call} {op}");
                orders += usize::from(op["apiCall"] != seq);
            }
        }
        println!("{version}: {orders} ops that were not launched in the order of their calls");
    }
}

/// How each call returned, as the program saw it, beside the ops: in groups all calls return before the first
/// op, outside of them after it.
#[test]
fn calls_have_their_returns_and_their_ops() {
    for (version, tracing, group) in [
        ("2.21.5-cu12", "", 1),
        ("2.27.5-cu12", "", 1),
        ("2.27.5-cu12", "--probes per-call", 3),
        ("2.28.9-cu13", "--level steps --links perf", 3),
        ("2.32.3-cu12", "", 6),
    ] {
        // Before 2.23, a call without a communicator is none that ops can be of, and is counted.
        let refuses = version > "2.23";
        let more = if refuses { "--invalid-calls" } else { "" };
        let workload =
            format!("--ops {ALL_OPS} --iters 3 --ranks 3 --comms 2 --group {group} --mode threads {more}");
        let Some(run) = run(version, &format!("--returns {tracing}"), &workload) else { return };
        let since = number(&run.session["clock"]["started_monotonic_ns"]);
        compare::api_returns(&run.trace, &run.called, since).assert_clean(version);
        let model = &run.session["model"];
        assert_eq!(
            (&model["unreturned_calls"], &model["uncalled_returns"]),
            (&0.into(), &0.into()),
            "{version}"
        );
        let joined =
            run.trace.ranks.iter().flat_map(|rank| &rank.lines).filter(|line| line.seq.is_some()).count();
        assert!(joined >= 3 * 2 * 3 * 5 / 2, "{version}: {joined} calls with their ops");
        let refused = run.trace.ranks.iter().flat_map(|rank| &rank.lines);
        let refused = refused.filter(|line| line.result.as_deref() == Some("ncclInvalidArgument"));
        assert!(refused.clone().all(|line| line.seq.is_none()), "{version}");
        assert_eq!(refused.count(), if refuses { 6 } else { 0 }, "{version}");
    }
}

/// From the middle of a recording, of which what is 10 s before is not read.
#[test]
fn calls_of_a_part_are_those_of_the_whole() {
    let workload = "--ops allreduce,sendrecv --iters 36 --group 2 --interval-ms 400";
    let Some(mut world) = World::start("2.27.5-cu12", workload) else { return };
    world.record_all("--strict --api");
    let path = |name: &str| world.path(name);
    // Until a second before the end; the times by the recording's clock.
    let export = |to: &str, more: &str| {
        let words = format!("export --json -f jsonl --from +11s --to=-1s {more} -o");
        let summary = ncclflow_of(&words, &[path(to), world.out()]).ok().json();
        let source = &summary["sources"][0];
        number(&source["fromNs"])..number(&source["untilNs"])
    };
    let range = export("part", "");
    assert_eq!(export("exact", "--exact"), range);
    let files = exported::files_below(&world.out());
    let of_calls = files.keys().filter(|name| name.to_string_lossy().contains("api_rank"));
    let whole: BTreeMap<_, _> = of_calls.map(|name| (name, read_lines(&world.out().join(name)))).collect();
    assert_eq!(whole.len(), 2);
    let ts_ns = |line: &Value| number(&line["ts_ns"]);
    let first = whole.values().flatten().map(ts_ns).min().unwrap();
    assert_eq!(range.start, first + 11_000_000_000);
    for (name, lines_of_whole) in whole {
        let mut expected = lines_of_whole.clone();
        expected.retain(|line| range.contains(&ts_ns(line)));
        assert!((1..lines_of_whole.len()).contains(&expected.len()), "{}", expected.len());
        assert_eq!(read_lines(&path("exact").join(name)), expected, "{}", name.display());
        // What is counted from the beginning is not known, or counted from another moment, and says so.
        for line in &mut expected {
            line["call"] = Value::Null;
            if !line["peer"].is_null() {
                line.as_object_mut().unwrap().remove("seq").unwrap();
            }
        }
        let mut part = read_lines(&path("part").join(name));
        for line in &mut part {
            let line = line.as_object_mut().unwrap();
            if !line["peer"].is_null() {
                assert_eq!(line.remove("seqLocal"), Some(true.into()), "{line:?}");
                assert!(line.remove("seq").unwrap().is_u64(), "{line:?}");
            }
        }
        assert_eq!(part, expected, "{}", name.display());
    }
}
