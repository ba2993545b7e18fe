//! The commands of README and docs, run as they are written there, on jobs of the real NCCL.
//!
//! Blocks are marked with `run` (`test_support::documents`); what cannot run here (systemctl, helm, a browser) is not.
//! That all commands are ones that the program takes is a test of the crate `ncclflow`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ncclflow_e2e::harness::{dumper::Dump, prelude::*};
use test_support::documents::{Block, blocks, documents};

const VERSION: &str = "2.27.5-cu12";

/// Its ranks have come to where they hang within this.
const HANGS_WITHIN: Duration = Duration::from_mins(2);
/// How long the kernels of the slow job's rank stand still, and how long they go on.
const STALL: Duration = Duration::from_millis(60);

/// The jobs that blocks ask for with `job=`. In this order, one after the other: those that hang keep processors busy.
const JOBS: [&str; 3] = ["hang", "slow", "steady"];
const USUAL: &str = "steady";

/// The workload of a job.
fn workload(job: &str) -> String {
    let own = match job {
        // Rank 2 has not joined.
        "hang" => "--ranks 4 --iters 8 --absent 2@3",
        // The GPU of rank 2 stops every now and then.
        "slow" => "--ranks 4 --iters 1000000 --interval-ms 20 --stall 2={}/stall",
        "steady" => "--ranks 2 --iters 1000000 --interval-ms 20 --ops allreduce,allgather",
        _ => panic!("there is no job `{job}`"),
    };
    format!("--mode processes --bytes 65536 --channels 1 --sync --rank-variables --timeout 600 {own}")
}

/// A job that runs, and, if it is to be slow, who makes it so.
struct Job {
    world: World,
    is_over: Arc<AtomicBool>,
    staller: Option<thread::JoinHandle<()>>,
}

impl Job {
    /// One that is to hang does when this returns. `None` if the machine lacks something.
    fn start(name: &str) -> Option<Self> {
        let world = World::start(VERSION, &workload(name))?;
        world.bed.go().unwrap();
        if name == "hang" {
            wait_until("rank 2 alone is waited for", HANGS_WITHIN, || {
                let dump: Dump = world.dump(&[]).unwrap();
                let mut verdicts = dump.communicators.iter().map(|communicator| &communicator.verdict);
                dump.code == Some(3) && verdicts.all(|verdict| verdict.culprits == [2])
            });
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let staller = (name == "slow").then(|| {
            let (is_over, stall) = (Arc::clone(&is_over), world.path("stall"));
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    File::create(&stall).unwrap();
                    thread::sleep(STALL);
                    fs::remove_file(&stall).unwrap();
                    thread::sleep(STALL);
                }
            })
        });
        Some(Self { world, is_over, staller })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(staller) = self.staller.take() {
            let _ = staller.join();
        }
    }
}

/// A document with blocks that are run, and the folder that they are run in.
struct Document {
    path: PathBuf,
    blocks: Vec<Block>,
    folder: tempfile::TempDir,
}

impl Document {
    fn of(path: PathBuf) -> Option<Self> {
        let blocks: Vec<Block> =
            blocks(&fs::read_to_string(&path).unwrap()).into_iter().filter(|block| block.is_run).collect();
        (!blocks.is_empty()).then(|| Self { path, blocks, folder: tempfile::tempdir().unwrap() })
    }

    /// Runs those of its blocks that want this job; gives what went wrong.
    fn run(&self, job: &str, world: &World) -> Vec<String> {
        let ours = self.blocks.iter().filter(|block| block.job.as_deref().unwrap_or(USUAL) == job);
        ours.filter_map(|block| self.run_block(block, world)).collect()
    }

    fn run_block(&self, block: &Block, world: &World) -> Option<String> {
        let script = block.commands.join("\n");
        let (programs, pids) = (world.ncclflow.parent().unwrap(), world.bed.pid_list());
        let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
        let mut bash = Command::new("bash");
        bash.args(["-e", "-o", "pipefail", "-c", &script])
            .current_dir(self.folder.path())
            .env("PATH", path)
            .env("PID", pids.split(',').next().unwrap())
            .env("PIDS", &pids)
            // What earlier runs have left on this machine is no business of a test's.
            .env("NCCLFLOW_NO_CACHE", "true")
            .stdin(Stdio::null());
        let ran = run(&mut bash);
        if ran.code() == Some(block.exit_code) {
            return None;
        }
        Some(format!(
            "{}:{} ended with {} and not {}:\n{script}\n{}{}",
            self.path.display(),
            block.line,
            ran.status,
            block.exit_code,
            ran.stdout,
            ran.stderr
        ))
    }
}

#[test]
fn every_command_that_is_marked_runs_as_it_is_written() {
    // The Chinese README has the commands of the other one: another test compares them.
    let is_translated = |path: &PathBuf| path.to_string_lossy().ends_with(".zh-CN.md");
    let documents: Vec<Document> =
        documents().into_iter().filter(|path| !is_translated(path)).filter_map(Document::of).collect();
    let named =
        documents.iter().flat_map(|document| &document.blocks).filter_map(|block| block.job.as_deref());
    for job in named {
        assert!(JOBS.contains(&job), "there is no job `{job}`");
    }
    let mut complaints = Vec::new();
    for name in JOBS {
        let Some(job) = Job::start(name) else { return };
        complaints.extend(thread::scope(|scope| {
            let world = &job.world;
            let run = |document| scope.spawn(move || Document::run(document, name, world));
            let running: Vec<_> = documents.iter().map(run).collect();
            running.into_iter().flat_map(|run| run.join().unwrap()).collect::<Vec<_>>()
        }));
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    let count: usize = documents.iter().map(|document| document.blocks.len()).sum();
    assert!(count >= 20, "only {count} blocks are marked to be run");
}

/// The verdicts that the guide promises.
#[test]
fn the_guide_s_jobs_have_the_verdicts_that_it_shows() {
    let Some(job) = Job::start("hang") else { return };
    let verdict = ncclflow(&format!("dump -p {}", job.world.bed.pid_list())).stdout;
    let first = verdict.split("\n\n").next().unwrap().replace('\n', " ");
    assert!(first.contains("rank 2") && first.contains("has not joined"), "{verdict}");
    drop(job);

    let Some(job) = Job::start("slow") else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("slow");
    let record = format!("record -q --no-cache --level steps -d 3 -p {} -o", job.world.bed.pid_list());
    ncclflow_of(&record, &[&out]).ok();
    drop(job);
    let said = |words: &str| ncclflow_of(words, &[&out]).stdout;
    let checked = said("check");
    let first = checked.lines().next().unwrap();
    assert!(first.contains("wait for rank 2 (") && first.contains("its GPU"), "{checked}");
    let summary = said("summary");
    assert!(summary.lines().next().unwrap().contains("least bandwidth: rank "), "{summary}");
    let (plain, colored) = (said("check"), said("check --color always"));
    assert!(colored.starts_with("\u{1b}[") && !plain.contains('\u{1b}'), "{colored}");
    assert!(colored.contains(first), "{colored}");
}
