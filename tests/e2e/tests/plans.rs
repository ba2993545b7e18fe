//! Walked plans against single calls: two tracers on one job, one that sees whole plans and one that sees
//! each call of NCCL's proxy functions, and both must write the same records.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::prelude::*;

/// Of different eras of plans and of the tasks in them, one built for CUDA 13.
const VERSIONS: [&str; 3] = ["2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"];

const ALL_OPS: &str = "allreduce,allgather,reducescatter,broadcast,reduce,sendrecv,alltoall";

/// Kernels that complete at once and move nothing, and ranks that reach each other through shared memory: no
/// op needs a proxy, so none is queued, and all are derived.
const NO_PROXIES: &str = "--no-emulate --env NCCL_SHM_DISABLE=0";

/// Fields that say where something was seen, and so differ.
const OF_THE_PLACE: [&str; 2] = ["tid", "derived"];

/// What the two tracers wrote.
struct Both {
    plans: BTreeMap<String, Vec<Value>>,
    calls: BTreeMap<String, Vec<Value>>,
    /// `session.json` of the one that walks plans.
    session: Value,
    /// Of each op of the one that walks plans.
    derived: Vec<bool>,
}

/// Runs the bed under both. `None` if the machine lacks something.
fn both(version: &str, workload: &str) -> Option<Both> {
    both_with(version, workload, "--strict")
}

fn both_with(version: &str, workload: &str, options: &str) -> Option<Both> {
    let mut world = World::start(version, workload)?;
    let recorders = [("plans", "plan"), ("calls", "per-call")]
        .map(|(name, probes)| world.record_to(name, &format!("{options} --probes {probes}")));
    world.run();
    for recorder in recorders {
        recorder.end().unwrap();
    }
    let mut derived = Vec::new();
    let plans = lines_below(&world.path("plans"), |line| derived.extend(line["derived"].as_bool()));
    let calls = lines_below(&world.path("calls"), |line| assert_ne!(line["derived"], true, "{line}"));
    Some(Both { plans, calls, derived, session: session(&world.path("plans")) })
}

/// The lines of every `.jsonl` file, without what depends on the place, by the file's path.
fn lines_below(folder: &Path, mut look: impl FnMut(&Value)) -> BTreeMap<String, Vec<Value>> {
    let mut files = BTreeMap::new();
    for (name, content) in exported::files_below(folder) {
        let is_lines = name.extension().is_some_and(|extension| extension == "jsonl");
        if !is_lines || name.components().count() != 2 {
            continue;
        }
        let mut lines = lines(&String::from_utf8(content).unwrap());
        for line in &mut lines {
            look(line);
            let fields = line.as_object_mut().unwrap();
            fields.retain(|key, _| !key.ends_with("ts_ns") && !OF_THE_PLACE.contains(&key.as_str()));
        }
        // Ops of one plan that are posted and that are not come out in another order.
        lines.sort_by_key(ToString::to_string);
        files.insert(name.display().to_string(), lines);
    }
    files
}

impl Both {
    fn check(&self, what: &str) {
        assert_eq!(self.plans.keys().collect::<Vec<_>>(), self.calls.keys().collect::<Vec<_>>(), "{what}");
        let mut compared = 0;
        for (file, plans) in &self.plans {
            let calls = &self.calls[file];
            let first = plans.iter().zip(calls).find(|(plan, call)| plan != call);
            assert_eq!((first, plans.len()), (None, calls.len()), "{what}: {file}");
            compared += calls.len();
        }
        assert!(compared > 0, "{what}");
        // What was derived is what was queued, wherever both are known.
        let plans = &self.session["model"]["plans"];
        for doubt in
            ["cut", "incomplete", "underived", "derived_otherwise", "without_messages", "without_graphs"]
        {
            assert_eq!(plans[doubt], 0, "{what}: {plans}");
        }
        // Two hits for each launch at most, as the kernel counts them.
        let probes = list(&self.session["probes"]).iter().filter(|probe| probe["part"].is_null());
        let hits: u64 = probes.map(|probe| number(&probe["hits"])).sum();
        let launches = number(&plans["plans"]);
        assert!(launches > 0 && hits <= 2 * launches, "{what}: {hits} hits for {launches} launches");
        eprintln!("{what}: {compared} records are the same; {hits} hits for {launches} launches");
    }

    /// Whether every op, or none, was derived.
    fn all_derived(&self) -> Option<bool> {
        self.derived.iter().all(|derived| *derived == self.derived[0]).then(|| self.derived[0])
    }

    fn transports(&self) -> BTreeSet<&str> {
        self.values("flow_steps", "transport").map(text).collect()
    }

    /// What a field of the lines of some files says.
    fn values(&self, files: &str, field: &str) -> impl Iterator<Item = &Value> {
        let lines = self.plans.iter().filter(move |(file, _)| file.contains(files)).flat_map(|file| file.1);
        lines.map(move |line| &line[field])
    }
}

#[test]
fn every_operation_through_the_network() {
    for (version, mode) in VERSIONS.into_iter().zip(["processes", "threads", "processes"]) {
        let workload = format!("--ranks 4 --mode {mode} --ops {ALL_OPS} --iters 2 --bytes 1000004");
        let Some(run) = both(version, &workload) else { return };
        run.check(&format!("{version}, {mode}"));
        assert_eq!((run.transports(), run.all_derived()), (BTreeSet::from(["NET"]), Some(false)));
        let workload = "--ranks 4 --algo tree --iters 3 --bytes 3000000";
        let Some(run) = both(version, workload) else { return };
        run.check(&format!("{version}, tree"));
    }
}

#[test]
fn every_operation_that_needs_no_proxy() {
    for (version, proto) in VERSIONS.into_iter().zip(["ll", "ll128", "ll"]) {
        let ring = format!("--ranks 4 --ops {ALL_OPS} --iters 2 --bytes 3000000 {NO_PROXIES}");
        let Some(run) = both(version, &ring) else { return };
        run.check(&format!("{version}, no proxies"));
        assert_eq!((run.transports(), run.all_derived()), (BTreeSet::from(["SHM"]), Some(true)));
        let tree = format!("--proto {proto} --algo tree --ops allreduce --bytes 70000");
        let Some(run) = both(version, &format!("--ranks 4 --iters 2 {tree} {NO_PROXIES}")) else { return };
        run.check(&format!("{version}, tree, {proto}, no proxies"));
    }
}

/// How many messages of PAT go to whom NCCL counts where the call of each op is; a plan does not say it.
#[test]
fn messages_of_pat() {
    // Parts of many chunks, and such that share messages.
    let jobs = [("5", "1000004"), ("7", "4")];
    for ((version, mode), odd) in
        VERSIONS.into_iter().zip(["threads", "processes", "threads"]).zip(["2", "6", "9"])
    {
        for (ranks, bytes) in jobs.into_iter().chain([(odd, "9000")]) {
            let fixed = "--algo pat --ops allgather,reducescatter --iters 2 --channels 2";
            let workload = format!("--ranks {ranks} --mode {mode} --bytes {bytes} {fixed}");
            let Some(run) = both(version, &workload) else { return };
            run.check(&format!("{version}, PAT with {ranks} ranks of {bytes} bytes"));
            assert_eq!((run.transports(), run.all_derived()), (BTreeSet::from(["NET"]), Some(false)));
            let patterns: BTreeSet<&str> = run.values("proxy_flow", "pattern").map(text).collect();
            assert_eq!(patterns, BTreeSet::from(["PAT_DOWN", "PAT_UP"]));
        }
    }
}

/// NCCL 2.29 and later make one op of the broadcasts of a group, with other numbers of messages to the next
/// rank than from the last one, and no task among the collectives'.
#[test]
fn grouped_broadcasts_through_the_network() {
    const VERSION: &str = "2.32.3-cu12";
    // Of all roots, of two, and with a collective behind them that reads the same graphs.
    for (ranks, group, ops) in
        [("4", "8", "broadcast"), ("5", "2", "broadcast"), ("3", "3", "broadcast,allgather")]
    {
        let fixed = "--iters 8 --channels 2 --bytes 2000004";
        let workload = format!("--ranks {ranks} --group {group} --ops {ops} {fixed}");
        let Some(run) = both(VERSION, &workload) else { return };
        run.check(&format!("{VERSION}, {ops} in groups of {group} on {ranks} ranks"));
        assert!(run.values("proxy_flow", "coll").any(|coll| coll == "AllGatherV"));
        assert_eq!(run.transports(), BTreeSet::from(["NET"]));
    }
}

#[test]
fn groups_of_hundreds_of_calls_and_many_channels() {
    let groups = [
        ("--ranks 8 --ops alltoall --iters 20 --group 20 --bytes 20000", ""),
        ("--ranks 2 --ops allreduce,broadcast,sendrecv --iters 60 --group 90", NO_PROXIES),
        ("--ranks 2 --ops allreduce,alltoall --iters 30 --group 30 --comms 2", ""),
        ("--ranks 2 --channels 32 --ops allreduce,sendrecv --iters 2", NO_PROXIES),
    ];
    for ((workload, more), version) in groups.into_iter().zip(VERSIONS.into_iter().cycle()) {
        let Some(run) = both(version, &format!("{workload} {more}")) else { return };
        run.check(&format!("{version}, {workload} {more}"));
    }
}

/// As many as NCCL can have (`MAXCHANNELS`, src/include/device.h), with the network proxy and without.
#[test]
fn all_of_64_channels() {
    let workload = "--ranks 2 --channels 64 --ops allreduce,sendrecv --iters 2 --bytes 16777216";
    for (version, more) in VERSIONS.into_iter().zip(["", NO_PROXIES, ""]) {
        let Some(run) = both(version, &format!("{workload} {more}")) else { return };
        run.check(&format!("{version}, 64 channels, {more}"));
        let channels: BTreeSet<u64> = run.values("proxy_flow", "channel").map(number).collect();
        assert_eq!(channels, (0..64).collect(), "{version}");
    }
}

/// The kernel takes pages away when it needs memory, and a program at a probe may not wait until they are back.
#[test]
fn pages_that_are_not_in_memory_at_a_hit_are_told_and_nothing_is_made_up_for_them() {
    const ITERATIONS: u64 = 40;
    for version in VERSIONS {
        // Of both ranks, which are of one process.
        let hidden = format!("--iters {ITERATIONS} --hide-arguments {ITERATIONS}");
        let workload = format!("--ranks 2 --channels 2 {hidden} --sync {NO_PROXIES}");
        let Some(run) = both_with(version, &workload, "") else { return };
        let plans = &run.session["model"]["plans"];
        let told = number(&plans["cut"]) + number(&plans["incomplete"]);
        println!("{version}: {plans}, {}", run.session["loss"]);
        assert!(told > 0, "{version}: {plans}");
        let (mut missing, mut all) = (0, 0);
        for (file, calls) in &run.calls {
            let plans = run.plans.get(file).map(Vec::as_slice).unwrap_or_default();
            // Each line is one that the other tracer has too.
            let mut rest = calls.clone();
            for line in plans {
                let at = rest.iter().position(|call| call == line);
                rest.remove(at.unwrap_or_else(|| panic!("{version}: {file}: {line}")));
            }
            if file.contains("proxy_flow") {
                missing += rest.len() as u64;
                all += calls.len() as u64;
            }
        }
        // A launch of each rank, on two channels.
        assert!(missing > 0 && missing <= 2 * told, "{version}: {missing} ops are missing; {plans}");
        // Without proxies a rank waits for no other, so the half that is hidden is not half of each rank's.
        assert!(
            2 * missing <= all,
            "{version}: {missing} of {all} ops are missing: some before the pages were hidden"
        );
    }
}
