//! Two jobs on one host, recorded by one `ncclflow record`: commands tell them apart.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::{prelude::*, program_files};

const JOBS: [&str; 2] = ["4711", "4712"];

/// Starts a job of this number: its ranks have it in their initial environment, as Slurm puts it there.
fn start(job: &str, bed: &Path, library: &Path, folder: &Path) -> Bed {
    let program = folder.join("bed");
    let others = "RANK WORLD_SIZE LOCAL_RANK SLURM_PROCID SLURM_NTASKS";
    let script = format!("unset {others}\nexport SLURM_JOB_ID={job}\nexec {} \"$@\"", bed.display());
    program_files::script(&program, &script).unwrap();
    let workload =
        "--ranks 2 --mode processes --ops allreduce --bytes 4096 --iters 400 --interval-ms 20 --timeout 300";
    Bed::of_words(&program, library, folder, workload).unwrap()
}

#[test]
fn jobs_of_one_host_are_told_apart() {
    let Some((program, bed, library)) = programs::needed("2.27.5-cu12") else { return };
    let folder = tempfile::tempdir().unwrap();
    let beds = JOBS.map(|job| {
        let own = folder.path().join(job);
        fs::create_dir(&own).unwrap();
        start(job, &bed, &library, &own)
    });
    let [first, second] = &beds;
    let pids = format!("{},{}", first.pid_list(), second.pid_list());
    let out = folder.path().join("out");
    let recorder = Recorder::start(&program, &pids, &out, &["--level", "flow", "--api"]).unwrap();
    for bed in &beds {
        bed.go().unwrap();
    }
    // Whose a process is has to be known of all before the recording ends.
    thread::sleep(Duration::from_secs(3));
    let ps: Value = serde_json::from_str(&run(Command::new(&program).args(["ps", "--json"])).stdout).unwrap();
    recorder.interrupt().unwrap();
    let hash = |bed: &Bed| json!(format!("0x{}", bed.ready.comm_hash));
    for (job, bed) in JOBS.iter().zip(&beds) {
        for pid in &bed.ready.pids {
            let process = list(&ps["processes"]).iter().find(|process| process["pid"] == *pid).unwrap();
            assert_eq!(process["job"], *job, "{process}");
        }
    }

    let check = |arguments: &[&str]| -> Value {
        let ran = run(Command::new(&program).arg("check").arg(&out).arg("--json").args(arguments));
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let both = check(&[]);
    let names: Vec<&Value> = list(&both["jobs"]).iter().map(|job| &job["job"]).collect();
    assert_eq!(names, JOBS, "{both}");
    for (job, bed) in JOBS.iter().zip(&beds) {
        let of_job = check(&["--job", job]);
        let hashes: Vec<&Value> =
            list(&of_job["communicators"]).iter().map(|one| &one["communicator"]).collect();
        assert_eq!(hashes, [&hash(bed)], "{of_job}");
    }

    for (format, of_rank) in
        [("megatrace", "rank_0.log"), ("chakra", "ncclflow.0.et"), ("flight-recorder", "nccl_trace_rank_0")]
    {
        let files = folder.path().join(format);
        let mut export = Command::new(&program);
        run(export.args(["export", "-f", format, "-o"]).arg(&files).arg(&out));
        for job in JOBS {
            assert!(files.join(job).join(of_rank).is_file(), "{:?}", exported::names_below(&files));
        }
    }
    drop(beds);
}
