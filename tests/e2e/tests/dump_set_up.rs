//! `ncclflow dump` while communicators are made, and of ranks on other hosts: against which rank stays out or was killed.

use ncclflow_e2e::harness::{
    dumper::{Dump, DumpedCommunicator},
    job::Shape,
    prelude::*,
    stripped,
};

/// Ranks come to rest within this, on a slow machine.
const SETTLE: Duration = Duration::from_secs(300);
/// NCCL's reliability service finds a process dead a minute after it lost it (`RAS_PEER_DEAD_TIMEOUT`, src/ras/ras_internal.h).
const FOUND_DEAD: Duration = Duration::from_secs(150);
const RANKS: Shape = Shape { ranks: 4, processes: true, tree: false };

/// Dumps these ranks until some communicator is judged so.
#[track_caller]
fn dump_until(job: &World, ranks: &[usize], fits: impl Fn(&DumpedCommunicator) -> bool) -> (Dump, usize) {
    dump_within(job, ranks, SETTLE, fits)
}

#[track_caller]
fn dump_within(
    job: &World,
    ranks: &[usize],
    patience: Duration,
    fits: impl Fn(&DumpedCommunicator) -> bool,
) -> (Dump, usize) {
    let pids: Vec<String> = ranks.iter().map(|rank| job.bed.ready.pids[*rank].to_string()).collect();
    let deadline = Instant::now() + patience;
    loop {
        let dump = Dump::take(&job.ncclflow, &pids.join(","), &["--interval", "0.3"]);
        // Until a library is loaded there is nothing to read.
        if let Ok(dump) = dump {
            if let Some(at) = dump.communicators.iter().position(&fits) {
                return (dump, at);
            }
            assert!(Instant::now() < deadline, "{}", dump.text);
        }
        assert!(Instant::now() < deadline, "no dump");
        thread::sleep(Duration::from_millis(300));
    }
}

fn has(communicator: &DumpedCommunicator, words: &str) -> bool {
    communicator.verdict.evidence.iter().any(|sentence| sentence.contains(words))
}

fn says(communicator: &DumpedCommunicator, words: &str) {
    assert!(has(communicator, words), "`{words}`: {:#?}", communicator.verdict.evidence);
}

/// The first communicator of a process, and one that it makes when it has another one, which NCCL's own list names then.
#[test]
fn a_rank_that_never_comes_to_the_set_up_is_named_with_who_waits_for_its_handshake() {
    let jobs = [
        ("2.21.5-cu12", "3@0", ""),
        ("2.27.5-cu12", "3@0", "--env NCCL_RAS_ENABLE=1"),
        ("2.32.3-cu12", "3@1", "--comms 2 --env NCCL_RAS_ENABLE=1"),
    ];
    for (version, out, more) in jobs {
        println!("{version}, {out}");
        let workload = format!("--stays-out {out} {more}");
        let Some(job) = World::going(version, RANKS, &workload).unwrap() else { return };
        let absent = job.bed.ready.pids[3];
        let is_it = |communicator: &DumpedCommunicator, sentences: &[String]| {
            let verdict = &communicator.verdict;
            let is_stuck = verdict.kind.as_deref() == Some("settingUp")
                && verdict.state == "stuck"
                && communicator.ranks.len() == 3;
            // While the first of two is made, another rank can stand on its way.
            assert!(!is_stuck || out == "3@1" || verdict.culprits == [3], "{verdict:#?}");
            is_stuck && verdict.culprits == [3] && sentences.iter().all(|words| has(communicator, words))
        };
        let mut sentences = vec![
            format!("process {absent} is the only other one of this job"),
            "in ncclCommInitRank".to_owned(),
        ];
        sentences.extend(match version {
            "2.21.5-cu12" => vec!["rank 1 waits for all ranks to come".to_owned()],
            _ => ["rank 2 waits for rank 3 to come", "rank 0 waits for rank 3 to connect to it"]
                .map(str::to_owned)
                .to_vec(),
        });
        let (dump, at) = dump_until(&job, &[0, 1, 2, 3], |communicator| is_it(communicator, &sentences));
        let verdict = &dump.communicators[at].verdict;
        assert_eq!((&*verdict.victims, dump.code), (&[0, 1, 2][..], Some(3)), "{}", dump.text);
        assert!(dump.job.sentence.contains("rank 3"), "{}", dump.job.sentence);
        if out == "3@1" {
            let other = dump.communicators.iter().find(|other| other.ranks.len() == 4).unwrap();
            assert_ne!(other.verdict.state, "stuck", "{:#?}", other.verdict);
        }
        // Without its PID nothing tells which process it is.
        let sentences = ["rank 3 is waited for, and was not read".to_owned()];
        dump_until(&job, &[0, 1, 2], |communicator| is_it(communicator, &sentences));
        // Of two that are not there, none is named.
        let (dump, _) = dump_until(&job, &[0, 2], |communicator| {
            communicator.ranks.len() == 2 && !communicator.verdict.evidence.is_empty()
        });
        assert!(dump.communicators.iter().all(|one| one.verdict.state != "stuck"), "{}", dump.text);
    }
}

/// When there is another one, which NCCL's own list has. While ranks wait for all to tell the colour of their part, nothing
/// is known of the new one, and a rank without a colour makes none.
#[test]
fn one_that_is_being_made_is_found_on_stacks_and_no_memory_is_searched() {
    let split = "--makes 0,2=split:0@2 --makes 3=split-out:0@2 --absent 1@2 --iters 4 --sync";
    let second = "--stays-out 3@1 --comms 2";
    let jobs = [
        ("2.24.3-cu12", false, split, "callNotMade", 1),
        ("2.27.5-cu12", true, second, "settingUp", 3),
        ("2.28.9-cu13", true, split, "callNotMade", 1),
        ("2.32.3-cu12", false, second, "settingUp", 3),
    ];
    for (version, is_stripped, workload, kind, culprit) in jobs {
        println!("{version}, {workload}");
        let workload = format!("{workload} --env NCCL_RAS_ENABLE=1");
        let copy = |library: &Path, folder: &Path| stripped::copy(library, folder, &["--strip-all"]);
        let job = if is_stripped {
            World::going_on_copy(version, copy, RANKS, &workload)
        } else {
            World::going(version, RANKS, &workload)
        };
        let Some(job) = job.unwrap() else { return };
        let is_searched = |dump: &Dump| {
            let json: Value = serde_json::from_str(&dump.text).unwrap();
            let mut scans = json["processes"].as_array().unwrap().iter().map(|process| &process["scan"]);
            scans.any(|scan| scan["endedBy"] != "listed" || scan["scannedBytes"] != 0)
        };
        let deadline = Instant::now() + SETTLE;
        let dump = loop {
            let (dump, _) = dump_until(&job, &[0, 1, 2, 3], |communicator| {
                let verdict = &communicator.verdict;
                verdict.state == "stuck"
                    && verdict.kind.as_deref() == Some(kind)
                    && verdict.culprits == [culprit]
            });
            // The first dump can have begun before the first communicator was there.
            if !is_searched(&dump) {
                break dump;
            }
            assert!(Instant::now() < deadline, "{}", dump.text);
        };
        // Each of its ranks was seen to stand, at three readings, for longer than one interval of 0.3 s.
        let ranks = dump.communicators.iter().flat_map(|communicator| &communicator.ranks);
        for motion in ranks.map(|rank| &rank["motion"]) {
            let is_enough = motion["readings"].as_u64() >= Some(3) && motion["seconds"].as_f64() >= Some(0.4);
            assert!(is_enough, "{motion}");
        }
    }
}

/// Unique ids that each rank makes itself (nccl#73), one number twice (nccl#1328), and other sizes (nccl#286).
#[test]
fn a_set_up_that_can_never_end_says_what_does_not_match() {
    let jobs = [
        ("--own-ids", "4 communicators of 4 ranks are being made that together have each rank once"),
        ("--claims 3=1", "are each rank 1 of 4, and none is rank 3"),
        ("--told-size 3=5", "rank 3 called it with 5 ranks"),
    ];
    for (version, (workload, words)) in ["2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"].into_iter().zip(jobs) {
        println!("{version}, {workload}");
        let Some(job) = World::going(version, RANKS, workload).unwrap() else { return };
        let (dump, at) = dump_until(&job, &[0, 1, 2, 3], |communicator| has(communicator, words));
        let verdict = &dump.communicators[at].verdict;
        assert_eq!(
            (&*verdict.state, verdict.kind.as_deref()),
            ("stuck", Some("neverMatches")),
            "{}",
            dump.text
        );
        assert_eq!(dump.code, Some(3), "{}", dump.text);
        let pid = job.bed.ready.pids[3].to_string();
        assert!(dump.text.contains(&pid), "{}", dump.text);
    }
}

/// The absent ranks that ranks of a communicator tell of.
fn absent(communicator: &DumpedCommunicator) -> impl Iterator<Item = &Value> {
    communicator.ranks.iter().filter_map(|rank| rank["absent"].as_array()).flatten()
}

/// NCCL takes the processes of each node of the bed for those of another host. A stripped library has its lists where the
/// shipped table says.
#[test]
fn ranks_of_other_hosts_have_the_pids_and_gpus_that_nccl_knows_of_them() {
    for (version, is_stripped) in [("2.24.3-cu12", false), ("2.27.5-cu12", true), ("2.28.9-cu13", false)] {
        println!("{version}");
        let workload = "--nodes collectives --env NCCL_RAS_ENABLE=1 --survive --iters 1000000";
        let job = if is_stripped {
            let copy = |library: &Path, folder: &Path| stripped::copy(library, folder, &["--strip-all"]);
            World::going_on_copy(version, copy, RANKS, workload)
        } else {
            World::going(version, RANKS, workload)
        };
        let Some(job) = job.unwrap() else { return };
        let pids = job.bed.ready.pids.clone();
        let places = |dump: &Dump| -> Vec<(u64, String, Value)> {
            let place = |one: &Value| {
                let place = one["place"].as_str().unwrap().to_owned();
                (one["rank"].as_u64().unwrap(), place, one["peer"].clone())
            };
            absent(&dump.communicators[0]).map(place).collect()
        };
        let peer = |rank: usize, dead: bool| {
            // Two GPUs on each host.
            serde_json::json!({
                "host": "127.0.0.1", "pid": pids[rank], "gpus": [rank % 2], "isDead": dead
            })
        };
        // The service tells its list to all within a moment.
        let (dump, _) = dump_until(&job, &[0, 1], |communicator| {
            communicator.ranks.iter().any(|rank| rank["absent"][0]["peer"].is_object())
        });
        let expected: Vec<(u64, String, Value)> =
            [2, 3].map(|rank| (rank as u64, "here".to_owned(), peer(rank, false))).to_vec();
        assert_eq!(places(&dump), expected, "{}", dump.text);
        job.signal(2, Signal::KILL).unwrap();
        let (dump, _) = dump_until(&job, &[0, 1], |communicator| {
            absent(communicator).any(|one| one["place"] == "elsewhere")
        });
        let places = places(&dump);
        let (rank, _, found) = places.iter().find(|(_, place, _)| place == "elsewhere").unwrap();
        assert_eq!((*rank, &found["pid"], &found["gpus"]), (2, &pids[2].into(), &peer(2, false)["gpus"]));
        if is_stripped {
            let (dump, at) = dump_within(&job, &[0, 1], FOUND_DEAD, |communicator| {
                absent(communicator).any(|one| one["peer"]["isDead"] == true)
            });
            let dead: Vec<&Value> =
                absent(&dump.communicators[at]).filter(|one| one["peer"]["isDead"] == true).collect();
            assert!(dead.iter().all(|one| one["rank"] == 2 && one["peer"] == peer(2, true)), "{dead:#?}");
            says(&dump.communicators[at], "which NCCL's own reliability service has found to be dead");
        }
    }
}
