//! Walked plans against single calls: two tracers on one job, one that sees whole plans and one that sees
//! each call of NCCL's proxy functions, and both must write the same records.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use ncclflow_e2e::harness::{bed::Bed, programs, recorder::Recorder};
use serde_json::Value;
use test_support::root;

/// Of different eras of plans and of the tasks in them, one built for CUDA 13.
const VERSIONS: [&str; 3] = ["2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"];

const ALL_OPS: &str = "allreduce,allgather,reducescatter,broadcast,reduce,sendrecv,alltoall";

/// Kernels that complete at once and move nothing, and ranks that reach each other through shared memory: no
/// op needs a proxy, so none is queued, and all are derived.
const NO_PROXIES: [&str; 3] = ["--no-emulate", "--env", "NCCL_SHM_DISABLE=0"];

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
fn both(version: &str, arguments: &[&str]) -> Option<Both> {
    both_with(version, arguments, &["--strict"])
}

fn both_with(version: &str, arguments: &[&str], options: &[&str]) -> Option<Both> {
    let (ncclflow, bed, library) = (programs::ncclflow()?, programs::bed()?, programs::nccl(version)?);
    if !root() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name);
    let mut bed = Bed::start(&bed, &library, folder.path(), arguments).unwrap();
    let pids = bed.pid_list();
    let start = |name: &str, probes: &str| {
        let options = [options, &["--probes", probes]].concat();
        Recorder::start(&ncclflow, &pids, &out(name), &options).unwrap()
    };
    let recorders = [start("plans", "plan"), start("calls", "per-call")];
    bed.go().unwrap();
    let (status, summary) = bed.finish().unwrap();
    assert!(status.success() && summary.ok, "{summary:?}");
    for recorder in recorders {
        let (status, said) = recorder.finish().unwrap();
        assert!(status.success(), "{said}");
    }
    let session = fs::read_to_string(out("plans").join("session.json")).unwrap();
    let mut derived = Vec::new();
    let plans = lines_below(&out("plans"), |line| derived.extend(line["derived"].as_bool()));
    let calls = lines_below(&out("calls"), |line| assert_ne!(line["derived"], true, "{line}"));
    Some(Both { plans, calls, derived, session: serde_json::from_str(&session).unwrap() })
}

/// The lines of every `.jsonl` file, without what depends on the place, by the file's path.
fn lines_below(folder: &Path, mut look: impl FnMut(&Value)) -> BTreeMap<String, Vec<Value>> {
    let mut files = BTreeMap::new();
    for communicator in
        fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir())
    {
        for file in fs::read_dir(communicator.path()).unwrap().map(Result::unwrap) {
            let path = file.path();
            if path.extension().is_none_or(|extension| extension != "jsonl") {
                continue;
            }
            let lines = fs::read_to_string(&path).unwrap();
            let mut lines: Vec<Value> = lines
                .lines()
                .map(|line| {
                    let mut line: Value = serde_json::from_str(line).unwrap();
                    look(&line);
                    line.as_object_mut()
                        .unwrap()
                        .retain(|key, _| !key.ends_with("ts_ns") && !OF_THE_PLACE.contains(&key.as_str()));
                    line
                })
                .collect();
            // Ops of one plan that are posted and that are not come out in another order.
            lines.sort_by_key(ToString::to_string);
            files.insert(path.strip_prefix(folder).unwrap().display().to_string(), lines);
        }
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
        let hits: u64 = self.session["probes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|probe| probe["part"].is_null())
            .map(|probe| probe["hits"].as_u64().unwrap())
            .sum();
        let launches = plans["plans"].as_u64().unwrap();
        assert!(launches > 0 && hits <= 2 * launches, "{what}: {hits} hits for {launches} launches");
        eprintln!("{what}: {compared} records are the same; {hits} hits for {launches} launches");
    }

    /// Whether every op, or none, was derived.
    fn all_derived(&self) -> Option<bool> {
        self.derived.iter().all(|derived| *derived == self.derived[0]).then(|| self.derived[0])
    }

    fn transports(&self) -> Vec<&str> {
        self.texts("flow_steps", "transport")
    }

    fn patterns(&self) -> Vec<&str> {
        self.texts("proxy_flow", "pattern")
    }

    fn channels(&self) -> BTreeSet<u64> {
        let lines = self.plans.iter().filter(|(file, _)| file.contains("proxy_flow")).flat_map(|file| file.1);
        lines.map(|line| line["channel"].as_u64().unwrap()).collect()
    }

    /// What a field of the lines of some files says.
    fn texts(&self, files: &str, field: &str) -> Vec<&str> {
        let lines = self.plans.iter().filter(|(file, _)| file.contains(files)).flat_map(|file| file.1);
        let mut texts: Vec<&str> = lines.map(|line| line[field].as_str().unwrap()).collect();
        texts.sort_unstable();
        texts.dedup();
        texts
    }
}

#[test]
fn every_operation_through_the_network() {
    for (version, mode) in VERSIONS.into_iter().zip(["processes", "threads", "processes"]) {
        let arguments =
            ["--ranks", "4", "--mode", mode, "--ops", ALL_OPS, "--iters", "2", "--bytes", "1000004"];
        let Some(run) = both(version, &arguments) else { return };
        run.check(&format!("{version}, {mode}"));
        assert_eq!((run.transports(), run.all_derived()), (vec!["NET"], Some(false)));
        let arguments = ["--ranks", "4", "--algo", "tree", "--iters", "3", "--bytes", "3000000"];
        let Some(run) = both(version, &arguments) else { return };
        run.check(&format!("{version}, tree"));
    }
}

#[test]
fn every_operation_that_needs_no_proxy() {
    for (version, proto) in VERSIONS.into_iter().zip(["ll", "ll128", "ll"]) {
        let ring =
            [&["--ranks", "4", "--ops", ALL_OPS, "--iters", "2", "--bytes", "3000000"][..], &NO_PROXIES];
        let Some(run) = both(version, &ring.concat()) else { return };
        run.check(&format!("{version}, no proxies"));
        assert_eq!((run.transports(), run.all_derived()), (vec!["SHM"], Some(true)));
        let tree = ["--proto", proto, "--algo", "tree", "--ops", "allreduce", "--bytes", "70000"];
        let arguments = [&["--ranks", "4", "--iters", "2"][..], &tree, &NO_PROXIES].concat();
        let Some(run) = both(version, &arguments) else { return };
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
            let arguments = ["--ranks", ranks, "--mode", mode, "--algo", "pat", "--bytes", bytes];
            let ops = ["--ops", "allgather,reducescatter", "--iters", "2", "--channels", "2"];
            let Some(run) = both(version, &[&arguments[..], &ops].concat()) else { return };
            run.check(&format!("{version}, PAT with {ranks} ranks of {bytes} bytes"));
            assert_eq!((run.transports(), run.all_derived()), (vec!["NET"], Some(false)));
            assert_eq!(run.patterns(), ["PAT_DOWN", "PAT_UP"]);
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
        let arguments = ["--ranks", ranks, "--group", group, "--ops", ops, "--iters", "8", "--channels", "2"];
        let Some(run) = both(VERSION, &[&arguments[..], &["--bytes", "2000004"]].concat()) else { return };
        run.check(&format!("{VERSION}, {ops} in groups of {group} on {ranks} ranks"));
        assert!(run.texts("proxy_flow", "coll").contains(&"AllGatherV"));
        assert_eq!(run.transports(), ["NET"]);
    }
}

#[test]
fn groups_of_hundreds_of_calls_and_many_channels() {
    let groups: [&[&str]; 4] = [
        &["--ranks", "8", "--ops", "alltoall", "--iters", "20", "--group", "20", "--bytes", "20000"],
        &["--ranks", "2", "--ops", "allreduce,broadcast,sendrecv", "--iters", "60", "--group", "90"],
        &["--ranks", "2", "--ops", "allreduce,alltoall", "--iters", "30", "--group", "30", "--comms", "2"],
        &["--ranks", "2", "--channels", "32", "--ops", "allreduce,sendrecv", "--iters", "2"],
    ];
    for ((number, arguments), more) in groups.iter().enumerate().zip([&[][..], &NO_PROXIES, &[], &NO_PROXIES])
    {
        let version = VERSIONS[number % VERSIONS.len()];
        let Some(run) = both(version, &[arguments, more].concat()) else { return };
        run.check(&format!("{version}, {arguments:?} {more:?}"));
    }
}

/// As many as NCCL can have (`MAXCHANNELS`, src/include/device.h), with the network proxy and without.
#[test]
fn all_of_64_channels() {
    let arguments = [
        "--ranks",
        "2",
        "--channels",
        "64",
        "--ops",
        "allreduce,sendrecv",
        "--iters",
        "2",
        "--bytes",
        "16777216",
    ];
    for (version, more) in VERSIONS.into_iter().zip([&[][..], &NO_PROXIES, &[]]) {
        let Some(run) = both(version, &[&arguments, more].concat()) else { return };
        run.check(&format!("{version}, 64 channels, {more:?}"));
        assert_eq!(run.channels(), (0..64).collect(), "{version}");
    }
}

/// The kernel takes pages away when it needs memory, and a program at a probe may not wait until they are back.
#[test]
fn pages_that_are_not_in_memory_at_a_hit_are_told_and_nothing_is_made_up_for_them() {
    const ITERATIONS: u64 = 40;
    let iterations = ITERATIONS.to_string();
    // Of both ranks, which are of one process.
    let hidden = ITERATIONS.to_string();
    for version in VERSIONS {
        let arguments = [
            "--ranks",
            "2",
            "--channels",
            "2",
            "--iters",
            &iterations,
            "--hide-arguments",
            &hidden,
            "--sync",
        ];
        let Some(run) = both_with(version, &[&arguments, &NO_PROXIES[..]].concat(), &[]) else { return };
        let count = |value: &Value| value.as_u64().unwrap();
        let plans = &run.session["model"]["plans"];
        let told = count(&plans["cut"]) + count(&plans["incomplete"]);
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
