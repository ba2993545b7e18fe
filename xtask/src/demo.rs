//! `cargo xtask demo`: real NCCL on this machine, without a GPU, traced while it runs.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::{job::Job, nccl, programs};

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
    println!("1/4 the NCCL library of NVIDIA's wheel");
    let library = nccl::library_path(&args.nccl)?;
    println!("2/4 the programs");
    let folder = programs::build(&["ncclflow", "ncclflow-bed", "ncclflow-nvml-double"])?;
    println!(
        "3/4 a job of {} ranks on the real NCCL, without a GPU; nothing in it is prepared for tracing",
        args.ranks
    );
    let scratch = env::temp_dir().join(format!("ncclflow-demo-{}", std::process::id()));
    fs::create_dir(&scratch).with_context(|| format!("making `{}`", scratch.display()))?;
    let output = args.output.clone().unwrap_or_else(|| scratch.join("recording"));
    let go = scratch.join("go");
    let (ranks, wait_file) = (args.ranks.to_string(), go.display().to_string());
    let mut arguments = vec!["--mode", "processes", "--ranks", &ranks, "--channels", "1", "--iters", "3"];
    arguments.extend([
        "--ops",
        "allreduce,allgather,sendrecv",
        "--bytes",
        "65536",
        "--wait-file",
        &wait_file,
    ]);
    let mut job = Job::start(&folder, &library, &arguments, Stdio::inherit())?;
    println!("    {}", job.first_line.trim());
    let pids = job.pid_list();

    println!("4/4 ncclflow record -p {pids} -o {}", output.display());
    let mut record = Command::new(folder.join("ncclflow"));
    record.args(["record", "-d", "20", "-p", &pids, "-o"]).arg(&output);
    record.stderr(Stdio::piped());
    let mut record = record.spawn().context("starting ncclflow")?;
    let stderr = record.stderr.take().context("ncclflow has no standard error")?;
    for line in BufReader::new(stderr).lines() {
        let line = line?;
        println!("    {line}");
        if line.starts_with("recording to") {
            fs::File::create(&go).context("telling the job to begin")?;
        }
    }
    let status = record.wait()?;
    if !status.success() {
        bail!("ncclflow ended with {status}; it needs root: try `sudo -E cargo xtask demo`");
    }
    let rest = job.rest()?;
    println!("the job, which checks every element of every result, ends with:\n    {}", rest.trim());
    show(&output)
}

/// Lists the files, and shows the first lines of two kinds.
fn show(output: &Path) -> Result<()> {
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
