//! `cargo xtask demo`: real NCCL on this machine, without a GPU, traced while it runs.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{job::Job, nccl, programs, root};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// NCCL version to run, like 2.27.5 or 2.28.9-cu13
    #[arg(long, value_name = "VERSION", default_value = "2.27.5")]
    nccl: String,

    /// Ranks, each a process
    #[arg(long, default_value_t = 2)]
    ranks: u32,

    /// Where the recording goes; must not exist
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    root::ask("tracing")?;
    println!("1/6 the NCCL library of NVIDIA's wheel");
    let library = nccl::library_path(&args.nccl)?;
    println!("2/6 the programs");
    let folder = programs::build(&["ncclflow", "ncclflow-bed", "ncclflow-nvml-double"])?;
    let scratch = env::temp_dir().join(format!("ncclflow-demo-{}", std::process::id()));
    fs::create_dir(&scratch).with_context(|| format!("making `{}`", scratch.display()))?;
    let output = args.output.clone().unwrap_or_else(|| scratch.join("recording"));
    let ncclflow = folder.join("ncclflow");

    println!(
        "3/6 a job of {} ranks on the real NCCL, without a GPU; nothing in it is prepared for tracing",
        args.ranks
    );
    let go = scratch.join("go");
    let ops = ["--iters", "3", "--ops", "allreduce,allgather,sendrecv"];
    let job = start(&folder, &library, args.ranks, go, &ops)?;
    let pids = job.pid_list();
    println!("    {}", job.first_line.trim());
    println!("4/6 # ncclflow record -p {pids} --level steps -o {}", output.display());
    record(&ncclflow, &job, &output)?;
    println!("    the job, which checks every element of every result, ends with: {}", job.summary()?);
    show_files(&output)?;

    println!("\n5/6 what the recording says");
    let recording = output.display().to_string();
    show(Command::new(&ncclflow), &["check", &recording])?;
    show(Command::new(&ncclflow), &["summary", &recording])?;
    let page = scratch.join("report.html").display().to_string();
    show(Command::new(&ncclflow), &["report", &recording, "-o", &page])?;
    println!("    all of it as one page: {page}");

    println!("\n6/6 a job that hangs, as its last rank does not come to the fourth operation; and why");
    let go = scratch.join("go-and-hang");
    let absent = format!("{}@3", args.ranks.saturating_sub(1));
    let job = start(&folder, &library, args.ranks, go, &["--iters", "8", "--absent", &absent])?;
    job.go()?;
    thread::sleep(UNTIL_IT_HANGS);
    show(root::command(&ncclflow), &["dump", "-p", &job.pid_list()])?;
    println!("\nthe recording is in {}, the report in {page}", output.display());
    println!("docs/GUIDE.md says what else can be asked of the recording");
    Ok(())
}

/// Time after which the job hangs: operations take some milliseconds each.
const UNTIL_IT_HANGS: Duration = Duration::from_secs(2);

fn start(folder: &Path, library: &Path, ranks: u32, go: PathBuf, more: &[&str]) -> Result<Job> {
    let ranks = ranks.to_string();
    let usual = ["--mode", "processes", "--ranks", &ranks, "--channels", "1", "--bytes", "65536", "--sync"];
    Job::start(folder, library, go, &[&usual, more].concat())
}

/// Records until the job is over.
fn record(ncclflow: &Path, job: &Job, output: &Path) -> Result<()> {
    let mut record = root::command(ncclflow);
    record.args(["record", "-d", "20", "--level", "steps", "-p", &job.pid_list(), "-o"]).arg(output);
    record.stderr(Stdio::piped());
    let mut record = record.spawn().context("starting ncclflow")?;
    let stderr = record.stderr.take().context("ncclflow has no standard error")?;
    for line in BufReader::new(stderr).lines() {
        let line = line?;
        println!("    {line}");
        if line.starts_with("recording to") {
            job.go()?;
        }
    }
    let status = record.wait()?;
    if !status.success() {
        bail!("`ncclflow record` ended with {status}");
    }
    root::give_to_user(output.as_os_str())
}

/// Runs a command, and shows what it prints. Its exit code tells what it found, which is no failure here.
fn show(mut ncclflow: Command, arguments: &[&str]) -> Result<()> {
    println!("\n# ncclflow {}", arguments.join(" "));
    let output = ncclflow.args(arguments).output().context("starting ncclflow")?;
    for text in [&output.stdout, &output.stderr] {
        for line in String::from_utf8_lossy(text).lines() {
            println!("    {line}");
        }
    }
    match output.status.code() {
        Some(1 | 2) | None => bail!("`ncclflow {}` ended with {}", arguments.join(" "), output.status),
        Some(_) => Ok(()),
    }
}

/// Lists the files, and shows the first lines of two kinds.
fn show_files(output: &Path) -> Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(output)? {
        let path = entry?.path();
        if path.is_dir() {
            for entry in fs::read_dir(&path)? {
                files.push(entry?.path());
            }
        } else {
            files.push(path);
        }
    }
    files.sort();
    println!("\nwritten:");
    for file in &files {
        println!("  {:>8} bytes  {}", fs::metadata(file)?.len(), file.display());
    }
    for kind in ["proxy_flow_rank0.jsonl", "flow_steps_rank0.jsonl"] {
        if let Some(file) = files.iter().find(|file| file.ends_with(kind)) {
            println!("\nthe first lines of {kind}:");
            for line in BufReader::new(fs::File::open(file)?).lines().take(2) {
                println!("{}", line?);
            }
        }
    }
    Ok(())
}
