//! The commands of README and docs, run as they are written there, on jobs of the real NCCL.
//!
//! Blocks are marked with `run` (`test_support::documents`); what cannot run here (systemctl, helm, a browser) is not.
//! That all commands are ones that the program takes is a test of the crate `ncclflow`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    env, fs,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use ncclflow_e2e::harness::{bed::Bed, dumper::Dump, programs};
use test_support::{
    documents::{Block, blocks, documents},
    root, wait_until,
};

const VERSION: &str = "2.27.5-cu12";

/// Its ranks have come to where they hang within this.
const HANGS_WITHIN: Duration = Duration::from_mins(2);
/// How long the kernels of the slow job's rank stand still, and how long they go on.
const STALL: Duration = Duration::from_millis(60);

/// The jobs that blocks ask for with `job=`. In this order, one after the other: those that hang keep processors busy.
const JOBS: [&str; 3] = ["hang", "slow", "steady"];
const USUAL: &str = "steady";

const COMMON: [&str; 10] = [
    "--mode",
    "processes",
    "--bytes",
    "65536",
    "--channels",
    "1",
    "--sync",
    "--rank-variables",
    "--timeout",
    "600",
];

/// The arguments of a job besides.
fn arguments(job: &str, stall: &str) -> Vec<String> {
    let text = match job {
        // Rank 2 has not joined.
        "hang" => "--ranks 4 --iters 8 --absent 2@3".to_owned(),
        // The GPU of rank 2 stops every now and then.
        "slow" => format!("--ranks 4 --iters 1000000 --interval-ms 20 --stall 2={stall}"),
        "steady" => "--ranks 2 --iters 1000000 --interval-ms 20 --ops allreduce,allgather".to_owned(),
        _ => panic!("there is no job `{job}`"),
    };
    text.split(' ').map(str::to_owned).collect()
}

/// A job that runs, and, if it is to be slow, who makes it so.
struct Job {
    bed: Bed,
    is_over: Arc<AtomicBool>,
    staller: Option<thread::JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Job {
    /// One that is to hang does when this returns.
    fn start(ncclflow: &Path, program: &Path, library: &Path, name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stall = folder.path().join("stall");
        let own = arguments(name, &stall.display().to_string());
        let all: Vec<&str> = COMMON.into_iter().chain(own.iter().map(String::as_str)).collect();
        let bed = Bed::start(program, library, folder.path(), &all).unwrap();
        bed.go().unwrap();
        if name == "hang" {
            wait_until("rank 2 alone is waited for", HANGS_WITHIN, || {
                let dump = Dump::take_answered(ncclflow, &bed.pid_list(), &[], &[]).unwrap();
                let mut verdicts = dump.communicators.iter().map(|communicator| &communicator.verdict);
                dump.code == Some(3) && verdicts.all(|verdict| verdict.culprits == [2])
            });
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let staller = (name == "slow").then(|| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    File::create(&stall).unwrap();
                    thread::sleep(STALL);
                    fs::remove_file(&stall).unwrap();
                    thread::sleep(STALL);
                }
            })
        });
        Self { bed, is_over, staller, _folder: folder }
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
    fn run(&self, ncclflow: &Path, job: &str, pids: &str) -> Vec<String> {
        let ours = self.blocks.iter().filter(|block| block.job.as_deref().unwrap_or(USUAL) == job);
        ours.filter_map(|block| self.run_block(ncclflow, block, pids)).collect()
    }

    fn run_block(&self, ncclflow: &Path, block: &Block, pids: &str) -> Option<String> {
        let script = block.commands.join("\n");
        let path =
            format!("{}:{}", ncclflow.parent().unwrap().display(), env::var("PATH").unwrap_or_default());
        let output = Command::new("bash")
            .args(["-e", "-o", "pipefail", "-c", &script])
            .current_dir(self.folder.path())
            .env("PATH", path)
            .env("PIDS", pids)
            .env("PID", pids.split(',').next().unwrap())
            // What earlier runs have left on this machine is no business of a test's.
            .env("NCCLFLOW_NO_CACHE", "true")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        if output.status.code() == Some(block.exit_code) {
            return None;
        }
        Some(format!(
            "{}:{} ended with {} and not {}:\n{script}\n{}{}",
            self.path.display(),
            block.line,
            output.status,
            block.exit_code,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ))
    }
}

#[test]
fn every_command_that_is_marked_runs_as_it_is_written() {
    let (Some(ncclflow), Some(bed), Some(library)) =
        (programs::ncclflow(), programs::bed(), programs::nccl(VERSION))
    else {
        return;
    };
    if !root() {
        return;
    }
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
        let job = Job::start(&ncclflow, &bed, &library, name);
        let pids = job.bed.pid_list();
        complaints.extend(thread::scope(|scope| {
            let running: Vec<_> = documents
                .iter()
                .map(|document| scope.spawn(|| document.run(&ncclflow, name, &pids)))
                .collect();
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
    let (Some(ncclflow), Some(bed), Some(library)) =
        (programs::ncclflow(), programs::bed(), programs::nccl(VERSION))
    else {
        return;
    };
    if !root() {
        return;
    }
    let said = |arguments: &[&str]| {
        let output = Command::new(&ncclflow).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let job = Job::start(&ncclflow, &bed, &library, "hang");
    let verdict = said(&["dump", "-p", &job.bed.pid_list()]);
    let first = verdict.split("\n\n").next().unwrap().replace('\n', " ");
    assert!(first.contains("rank 2") && first.contains("has not joined"), "{verdict}");
    drop(job);

    let job = Job::start(&ncclflow, &bed, &library, "slow");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("slow").display().to_string();
    said(&[
        "record",
        "-q",
        "--no-cache",
        "--level",
        "steps",
        "-d",
        "3",
        "-p",
        &job.bed.pid_list(),
        "-o",
        &out,
    ]);
    drop(job);
    let checked = said(&["check", &out]);
    let first = checked.lines().next().unwrap();
    assert!(first.contains("wait for rank 2 (") && first.contains("its GPU"), "{checked}");
    let summary = said(&["summary", &out]);
    assert!(summary.lines().next().unwrap().contains("least bandwidth: rank "), "{summary}");
    let (plain, colored) = (said(&["check", &out]), said(&["check", &out, "--color", "always"]));
    assert!(colored.starts_with("\u{1b}[") && !plain.contains('\u{1b}'), "{colored}");
    assert!(colored.contains(first), "{colored}");
}
