//! Who is who in `session.json`, against NCCL's own log lines and the environment that the test gives its
//! processes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::{prelude::*, program_files, recording_events::events};

/// What NCCL's log says of one rank: the words `NAME VALUE` of its lines.
type Logged = BTreeMap<String, String>;

/// The log of each communicator of each process, by process and address.
fn log(folder: &Path) -> BTreeMap<(u32, String), Logged> {
    let mut all: BTreeMap<(u32, String), Logged> = BTreeMap::new();
    for file in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let pid = file.file_name().to_string_lossy().parse().unwrap();
        for line in fs::read_to_string(file.path()).unwrap().lines() {
            let is_init = line.contains("Init COMPLETE") || line.contains(" nNodes ");
            let Some((_, line)) = line.split_once("comm 0x").filter(|_| is_init) else { continue };
            let mut words = line.split_whitespace();
            let logged = all.entry((pid, words.next().unwrap().to_owned())).or_default();
            let words: Vec<&str> = words.collect();
            for pair in words.windows(2) {
                logged.entry(pair[0].to_owned()).or_insert_with(|| pair[1].to_owned());
            }
        }
    }
    all
}

struct Run {
    folder: tempfile::TempDir,
    session: Value,
    pids: Vec<u32>,
    is_old: bool,
}

/// Records a job from before its first op. `variables`: of the environment of what starts it.
fn run(version: &str, tracing: &[&str], workload: &[&str], variables: &[(&str, &str)]) -> Option<Run> {
    let (ncclflow, bed, library) = programs::needed(version)?;
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("log")).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    // Whatever started this test is no part of the job.
    let exports = variables.iter().map(|(name, value)| format!("export {name}='{value}'\n"));
    let script = format!(
        "unset RANK WORLD_SIZE LOCAL_RANK SLURM_PROCID SLURM_NTASKS SLURM_JOB_ID\n{}exec {} \"$@\"",
        exports.collect::<String>(),
        bed.display()
    );
    program_files::script(Path::new(&path("bed")), &script).unwrap();
    // The ranks stay until the recording has been told to end: what a communicator says of itself is read in
    // its memory, some tenths of a second after its first op.
    let (log, hold) = (path("log/%p"), path("hold"));
    let all = ["--debug-file", &log, "--hold-file", &hold, "--bytes", "4096", "--timeout", "120"];
    let mut bed =
        Bed::start(Path::new(&path("bed")), &library, folder.path(), &[&all[..], workload].concat()).unwrap();
    let out = folder.path().join("out");
    let tracing: Vec<String> = tracing.iter().map(|option| option.replace("{}", &path(""))).collect();
    let tracing: Vec<&str> = tracing.iter().map(String::as_str).collect();
    let pids = bed.ready.pids.clone();
    if tracing.contains(&"--rank-map") {
        let lines = pids.iter().zip(1..).map(|(pid, number)| format!("{pid} {}\n", 10 * number));
        fs::write(path("map"), lines.collect::<String>()).unwrap();
    }
    let options = [&["--strict"][..], &tracing].concat();
    let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &out, &options).unwrap();
    bed.go().unwrap();
    assert!(bed.wait_for_operations().unwrap().ok);
    // What was read is written before the records that come with it; what was read too late for that only at the
    // end, and then this waits longer than a look takes.
    let _is_written = eventually(Duration::from_secs(10), || {
        let events = events(&out.join("recording"));
        let communicators = events.iter().filter(|event| event["event"] == "communicator");
        communicators.count() == bed.ready.nranks as usize
    });
    recorder.interrupt().unwrap();
    fs::write(hold, "").unwrap();
    progress::wait_for_exits(&pids);
    exported::check(&out);
    Some(Run { folder, session: session(&out), pids, is_old: version < "2.2" })
}

impl Run {
    fn communicators(&self) -> &[Value] {
        list(&self.session["communicators"])
    }

    /// The process of a rank.
    fn target(&self, row: &Value) -> &Value {
        target(&self.session, u32::try_from(number(&row["pid"])).unwrap()).unwrap()
    }

    /// What the row says is in the recording, too: an export on another machine has nothing else.
    fn check_events(&self, row: &Value) {
        let events = events(&self.folder.path().join("out/recording"));
        let of = |kind: &str| {
            let of_row = events.iter().filter(|event| event["event"] == kind && event["pid"] == row["pid"]);
            of_row.collect::<Vec<_>>()
        };
        let [process] = of("process")[..] else { panic!("{events:#?}") };
        let target = self.target(row);
        for key in ["started_ticks", "name", "uid", "user", "cgroup", "container", "environment"] {
            assert_eq!(process.get(key), target.get(key), "{key}");
        }
        let communicators = of("communicator");
        let is_it = |event: &&&Value| event["comm_hash"] == row["commHash"] && event["rank"] == row["rank"];
        let of_rank = communicators.iter().filter(is_it);
        let [communicator] = of_rank.collect::<Vec<_>>()[..] else { panic!("{events:#?}") };
        for (key, of_row) in [
            ("comm_name", "commName"),
            ("local_rank", "localRank"),
            ("node", "node"),
            ("cuda_dev", "cudaDev"),
            ("bus_id", "busId"),
        ] {
            assert_eq!(communicator[key], row[of_row], "{key}");
        }
    }

    /// Compares every rank of every communicator with NCCL's log. Before 2.26 the log names communicators
    /// otherwise, and one process has one of each rank here.
    fn check_against_log(&self) {
        let logged = log(&self.folder.path().join("log"));
        let mut compared = 0;
        for row in self.communicators() {
            let (pid, rank) = (number(&row["pid"]), row["rank"].to_string());
            let (_, line) = logged
                .iter()
                .find(|((of, _), line)| u64::from(*of) == pid && line["rank"] == rank)
                .unwrap_or_else(|| panic!("{row:#} in {logged:#?}"));
            let told = |key: &str| row[key].as_u64().map(|number| number.to_string());
            assert_eq!(told("cudaDev").as_ref(), line.get("cudaDev"), "{row:#}");
            for key in ["localRank", "nNodes"] {
                // 2.19 does not log them.
                let logged = line.get(key);
                assert!(logged.is_none_or(|logged| told(key).as_ref() == Some(logged)), "{key}: {row:#}");
                assert!(logged.is_some() || self.is_old, "{line:?}");
            }
            assert_eq!(told("nvmlDev").as_ref(), line.get("nvmlDev"), "{row:#}");
            // `busId 1000` is domain 0, bus 1, device 0, function 0.
            let bus = u64::from_str_radix(&line["busId"], 16).unwrap();
            let digits: String = text(&row["busId"]).chars().filter(char::is_ascii_hexdigit).collect();
            assert_eq!(u64::from_str_radix(&digits, 16).unwrap(), bus, "{row:#}");
            assert!(number(&row["node"]) < number(&row["nNodes"]));
            self.check_events(row);
            compared += 1;
        }
        assert!(compared >= 2, "{}", self.session);
    }
}

const PROCESSES: [&str; 4] = ["--mode", "processes", "--ranks", "2"];

/// Communicators at every level, in every way of tracing, and processes whose launcher says their rank.
#[test]
fn ranks_and_gpus_are_those_of_nccl_s_log() {
    for (version, level, name) in [
        ("2.19.3-cu12", "flow", None),
        ("2.21.5-cu12", "api", None),
        ("2.27.5-cu12", "steps", Some("tensor parallel")),
        ("2.28.9-cu13", "flow", Some("dp")),
        ("2.32.3-cu12", "api", None),
    ] {
        let mut workload = [&PROCESSES[..], &["--rank-variables"]].concat();
        workload.extend(name.iter().flat_map(|name| ["--comm-name", name]));
        let Some(run) = run(version, &["--level", level], &workload, &[("SLURM_JOB_ID", "4711")]) else {
            return;
        };
        run.check_against_log();
        for row in run.communicators() {
            assert_eq!(row["commName"], json!(name), "{version}");
            assert_eq!(row["jobRank"], row["rank"]);
            assert_eq!((&row["jobRankSource"], &row["jobName"]), (&json!("RANK"), &json!("4711")));
            let target = run.target(row);
            let job = &target["job"];
            assert_eq!((&job["rank"], &job["rank_source"]), (&row["rank"], &json!("RANK")), "{target:#}");
            assert_eq!((&job["size"], &job["size_source"]), (&json!(2), &json!("WORLD_SIZE")));
            assert_eq!(job["local_rank"], row["rank"]);
            let rank = row["rank"].to_string();
            let environment =
                json!({"RANK": rank, "LOCAL_RANK": rank, "SLURM_JOB_ID": "4711", "WORLD_SIZE": "2"});
            assert_eq!(target["environment"], environment);
            assert_eq!((&target["uid"], &target["user"]), (&json!(0), &json!("root")));
            let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap();
            let is_root_group = target["cgroup"].is_null() || target["cgroup"] == "/";
            assert!(is_root_group || cgroup.contains(target["cgroup"].as_str().unwrap()), "{target:#}");
        }
    }
}

/// Ranks that no launcher names: those of its one task, as `mp.spawn` leaves it, cannot be the job's.
#[test]
fn what_was_inherited_is_refused_and_the_rank_is_derived() {
    let inherited = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("RANK", "x")];
    let Some(run) = run("2.27.5-cu12", &["--job", "llm 7b"], &PROCESSES, &inherited) else { return };
    run.check_against_log();
    for row in run.communicators() {
        assert_eq!((&row["jobRank"], &row["jobRankSource"]), (&row["rank"], &json!("derived")));
        assert_eq!(row["jobName"], "llm 7b");
        let target = run.target(row);
        let job = &target["job"];
        assert_eq!((&job["refused"], &job["size"]), (&json!(["SLURM_PROCID"]), &json!(2)), "{target:#}");
        assert_eq!(job["size_source"], "derived");
        assert_eq!(target["environment"], json!({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}));
    }
}

/// Threads of one process; and a map, which comes before the environment.
#[test]
fn ranks_of_one_process_and_ranks_by_a_map() {
    let threads = ["--mode", "threads", "--ranks", "2"];
    let Some(of_threads) = run("2.28.9-cu13", &[], &threads, &[]) else { return };
    of_threads.check_against_log();
    for row in of_threads.communicators() {
        assert_eq!((&row["jobRank"], &row["jobRankSource"]), (&row["rank"], &json!("derived")));
    }
    let target = target(&of_threads.session, of_threads.pids[0]).unwrap();
    assert_eq!((&target["job"]["rank"], &target["job"]["size"]), (&Value::Null, &json!(2)));

    let variables = [&PROCESSES[..], &["--rank-variables"]].concat();
    let mapped = run("2.27.5-cu12", &["--rank-map", "{}map"], &variables, &[]).unwrap();
    for row in mapped.communicators() {
        let number = mapped.pids.iter().position(|pid| row["pid"] == *pid).unwrap() + 1;
        assert_eq!((&row["jobRank"], &row["jobRankSource"]), (&json!(10 * number), &json!("rank-map")));
    }
}
