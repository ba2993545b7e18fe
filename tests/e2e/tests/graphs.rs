//! Launches of CUDA graphs: what is recorded of replays, against what each rank has launched. The ranks capture,
//! instantiate, launch, update and destroy graphs through a double of CUDA's driver; one of them is captured before the
//! recording, and one when it begins.

use ncclflow_e2e::harness::prelude::*;

/// 2.21 sees ops call by call; 2.24 and 2.27 differ in how NCCL ties its plans to a graph.
const VERSIONS: [&str; 4] = ["2.21.5-cu12", "2.24.3-cu12", "2.27.5-cu12", "2.32.3-cu12"];

const SHARED_MEMORY: &str = "--env NCCL_SHM_DISABLE=0";

/// Starts a job that has captured its first graph, and waits for the word.
fn job(version: &str, options: &str) -> Option<World> {
    World::start(version, &workload(&programs::cuda_double()?, options)).map(ready)
}

fn workload(cuda: &Path, options: &str) -> String {
    format!("--mode processes --graphs {{}}/graphs --cuda {} {options}", cuda.display())
}

fn ready(world: World) -> World {
    if let Err(error) = world.bed.go() {
        panic!("the job does not begin: {error:#}");
    }
    let is_ready = || (0..2).all(|rank| world.path(&format!("graphs.ready.{rank}")).exists());
    wait_until("each rank has captured a graph", Duration::from_mins(1), is_ready);
    world
}

/// What the ranks say that they have launched.
fn truths(world: &World) -> Vec<Value> {
    (0..2).map(|rank| read_json(&world.path(&format!("graphs.{rank}")))).collect()
}

/// By operation, how often each rank ran it, as one says: function and elements.
type Counts = BTreeMap<String, u64>;

fn replayed(truth: &Value) -> Counts {
    let all = truth["replayed"].as_object().into_iter().flatten();
    let each = all.flat_map(|(name, times)| {
        let (function, elements) = name.split_once(' ').unwrap_or((name, ""));
        let functions = if function == "SendRecv" { vec!["Send", "Recv"] } else { vec![function] };
        functions.into_iter().map(move |function| (format!("{function} {elements}"), number(times)))
    });
    each.collect()
}

fn operation(version: &str, line: &Value) -> String {
    let function = text(&line["coll"]);
    let count = line["count"].as_u64();
    let elements = match function {
        // The count is that of the call; later NCCL has made bytes of it.
        _ if version.starts_with("2.21") => count,
        "Send" | "Recv" => line["bytes"].as_u64().map(|bytes| bytes / 4),
        "AllGather" => count.map(|bytes| bytes / 4),
        _ => count,
    };
    format!("{function} {}", elements.unwrap_or(0))
}

/// The lines of a rank's ops.
fn ops(world: &World, rank: usize) -> Vec<Value> {
    let files = exported::files_below(&world.out());
    let wanted = format!("proxy_flow_rank{rank}.jsonl");
    let of_rank = files.iter().filter(|(name, _)| name.to_string_lossy().ends_with(&wanted));
    of_rank.flat_map(|(_, content)| lines(str::from_utf8(content).unwrap_or_default())).collect()
}

fn check_counts(session: &Value, truths: &[Value], ops: u64) {
    let graphs = &session["model"]["graphs"];
    let all = |key: &str| truths.iter().map(|truth| number(&truth[key])).sum::<u64>();
    let (launches, unknown, without) = (all("launches"), all("unknown"), all("without_ops"));
    let replays = launches - unknown - without;
    assert_eq!(
        *graphs,
        json!({ "launches": launches, "replays": replays, "unknown": unknown, "without_ops": without,
            "ops": ops, "left_out": 0 })
    );
    // One hit a launch.
    let of_launches = |probe: &&Value| text(&probe["function"]).starts_with("cuGraphLaunch");
    let hits: u64 =
        list(&session["probes"]).iter().filter(of_launches).map(|probe| number(&probe["hits"])).sum();
    assert_eq!(hits, launches);
}

#[test]
fn replays_without_a_proxy_are_known_by_the_launches_of_their_graphs() {
    for version in VERSIONS {
        let Some(mut world) = job(version, SHARED_MEMORY) else { return };
        let recorder = world.record("");
        world.touch("graphs");
        world.bed.end();
        recorder.end().unwrap();
        let truths = truths(&world);
        let mut in_all = 0;
        for (rank, truth) in truths.iter().enumerate() {
            let mut recorded = Counts::new();
            let ops = ops(&world, rank);
            let seqs: BTreeSet<u64> =
                ops.iter().filter(|line| line["planned"] == true).map(|line| number(&line["seq"])).collect();
            for line in ops.iter().filter(|line| line["graphLaunch"].is_u64()) {
                *recorded.entry(operation(version, line)).or_default() += 1;
                in_all += 1;
                assert_eq!(
                    (&line["planned"], &line["posted"], &line["peers"]),
                    (&json!(false), &json!(false), &json!([]))
                );
                assert!(line["seq"] == line["capturedSeq"] && seqs.contains(&number(&line["seq"])), "{line}");
            }
            assert_eq!(recorded, replayed(truth), "{version}, rank {rank}");
            let launches: BTreeSet<u64> =
                ops.iter().filter_map(|line| line["graphLaunch"].as_u64()).collect();
            let known =
                number(&truth["launches"]) - number(&truth["unknown"]) - number(&truth["without_ops"]);
            assert_eq!(launches.len() as u64, known, "{version}");
        }
        let session = world.session();
        check_counts(&session, &truths, in_all);
        assert_no_loss(&session);
    }
}

#[test]
fn replays_that_the_proxy_gets_are_not_counted_twice() {
    for version in VERSIONS {
        let Some(mut world) = job(version, "") else { return };
        let recorder = world.record("");
        world.touch("graphs");
        world.bed.end();
        recorder.end().unwrap();
        let truths = truths(&world);
        // Before 2.23 an op does not say its size: a replay can be taken for one of a graph that is no more, and whose
        // op had the same address.
        let has_sizes = !version.starts_with("2.21");
        for (rank, truth) in truths.iter().enumerate() {
            let mut posted: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
            for line in ops(&world, rank) {
                assert!(line["graphLaunch"].is_null(), "{version}: {line}");
                if line["posted"] == true && has_sizes {
                    posted.entry(operation(version, &line)).or_default().insert(number(&line["seq"]));
                }
            }
            let mut expected = Counts::new();
            for (name, times) in replayed(truth) {
                // Beside them: a call outside of graphs, the graphs that were captured before, wholly and in part, and
                // the launch behind an update that was refused.
                let others = match name.as_str() {
                    "AllReduce 1024" => 1 + 5 + 2 * 5,
                    "AllReduce 16384" => 1,
                    _ => 0,
                };
                *expected.entry(name).or_default() += times + others;
            }
            let posted: Counts = posted.into_iter().map(|(name, seqs)| (name, seqs.len() as u64)).collect();
            if has_sizes {
                assert_eq!(posted, expected, "{version}, rank {rank}");
            }
        }
        let session = world.session();
        check_counts(&session, &truths, 0);
        assert_no_loss(&session);
    }
}

#[test]
fn of_a_whole_node_the_driver_is_probed_only_in_jobs_of_nccl() {
    let Some(mut world) = job("2.27.5-cu12", SHARED_MEMORY) else { return };
    let pids: BTreeSet<u32> = world.bed.ready.pids.iter().copied().collect();
    let recorder = Recorder::start_all(&world.ncclflow, &world.out(), &["--comm", "ncclflow-bed"]).unwrap();
    // Jobs of others can run here.
    wait_for_targets("both ranks are followed", &world, &pids, has_driver);
    world.touch("graphs");
    world.bed.end();
    recorder.interrupt().unwrap();
    let truths = truths(&world);
    let in_all: u64 = truths.iter().flat_map(|truth| replayed(truth).into_values()).sum();
    let replays = |line: &&Value| line["graphLaunch"].is_u64();
    let is_ours = |line: &&Value| pids.contains(&u32::try_from(number(&line["pid"])).unwrap());
    let lines: Vec<Value> = (0..2).flat_map(|rank| ops(&world, rank)).collect();
    assert_eq!(lines.iter().filter(is_ours).filter(replays).count() as u64, in_all);
}

/// What is known so far of these processes.
fn targets(world: &World, pids: &BTreeSet<u32>) -> Vec<Value> {
    let session = session_so_far(&world.out());
    let is_one = |target: &&Value| pids.iter().any(|pid| u64::from(*pid) == number(&target["pid"]));
    list(&session["targets"]).iter().filter(is_one).cloned().collect()
}

fn wait_for_targets(what: &str, world: &World, pids: &BTreeSet<u32>, is_so: impl Fn(&Value) -> bool) {
    wait_until(what, Duration::from_mins(1), || {
        let targets = targets(world, pids);
        targets.len() == pids.len() && targets.iter().all(&is_so)
    });
}

fn has_driver(target: &Value) -> bool {
    list(&target["libraries"]).len() == 2
}

#[test]
fn a_job_whose_nccl_has_changed_is_not_traced_whatever_else_it_has() {
    let Some(cuda) = programs::cuda_double() else { return };
    let copy = |library: &Path, folder: &Path| {
        let copy = folder.join("libnccl.so.2");
        fs::copy(library, &copy)?;
        Ok(copy)
    };
    let Some(world) = World::of_copy("2.27.5-cu12", copy, &workload(&cuda, SHARED_MEMORY)) else { return };
    let mut world = ready(world);
    let pids: BTreeSet<u32> = world.bed.ready.pids.iter().copied().collect();
    let recorder = Recorder::start_all(&world.ncclflow, &world.out(), &["--comm", "ncclflow-bed"]).unwrap();
    wait_for_targets("both ranks are followed", &world, &pids, has_driver);
    let mut library = File::options().append(true).open(&world.library).unwrap();
    std::io::Write::write_all(&mut library, b"more").unwrap();
    wait_for_targets("both ranks are let go", &world, &pids, |target| {
        list(&target["libraries"]).is_empty() || target["untraced"].is_string()
    });
    let targets = targets(&world, &pids);
    world.touch("graphs");
    world.bed.end();
    recorder.interrupt().unwrap();
    assert!(targets.iter().all(|target| target["untraced"].is_string()), "{targets:#?}");
}

/// A name is the process's own choice.
#[test]
fn the_driver_under_the_name_of_nccl_is_no_nccl() {
    let Some(cuda) = programs::cuda_double() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [driver, misnamed] = ["libcuda.so.1", "libnccl.so.2"].map(|name| folder.path().join(name));
    fs::copy(cuda, &driver).unwrap();
    fs::hard_link(&driver, &misnamed).unwrap();
    let Some(world) = World::start("2.27.5-cu12", &workload(&driver, SHARED_MEMORY)) else { return };
    let mut world = ready(world);
    let pids: BTreeSet<u32> = world.bed.ready.pids.iter().copied().collect();
    let recorder = Recorder::start_all(&world.ncclflow, &world.out(), &[]).unwrap();
    wait_for_targets("both ranks are followed", &world, &pids, has_driver);
    let text = "import mmap, sys, time\n\
                file = open(sys.argv[1], 'rb')\n\
                code = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)\n\
                print('done', flush=True)\ntime.sleep(600)\n";
    let mut other = Killed::start(Command::new("python3").args(["-c", text]).arg(&misnamed)).unwrap();
    assert_eq!(other.line().unwrap(), "done");
    let pid = BTreeSet::from([other.0.id()]);
    wait_for_targets("the other process is looked at", &world, &pid, |_| true);
    let found = targets(&world, &pid);
    world.touch("graphs");
    world.bed.end();
    recorder.interrupt().unwrap();
    assert!(found.iter().all(|target| target["untraced"].is_string()), "{found:#?}");
}

#[test]
fn who_has_no_driver_is_told_so() {
    let Some(mut world) = World::start("2.27.5-cu12", SHARED_MEMORY) else { return };
    world.record_all("");
    let session = world.session();
    let said = text(&session["targets"][0]["no_graph_launches"]);
    assert!(said.contains("libcuda.so"), "{said}");
    assert_eq!(session["model"]["graphs"]["launches"], 0);
}
