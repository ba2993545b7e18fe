//! `cargo xtask verify fuzz`: makes seeds with this machine's compiler, and runs the fuzz targets of
//! `tests/fuzz` on them.
//!
//! Needs `cargo install cargo-fuzz --locked`, and takes long, which is why it is not part of the tests. The
//! compiler is the workspace's own: `RUSTC_BOOTSTRAP` lets a stable one take the options that cargo-fuzz
//! gives.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{programs, repository, tool};

const FOLDER: &str = "tests/fuzz";
const TARGETS: [&str; 10] = [
    "library",
    "sections",
    "recording",
    "trace",
    "python",
    "torch",
    "merge",
    "proc-files",
    "kernel-records",
    "dump",
];

const DEFAULT_LONGEST: u32 = 40_000;

/// A trace in Chrome's JSON, with the fields that are read.
const TRACE: &str = r#"{"traceEvents":[
{"ph":"X","cat":"python_function","name":"a.py(1): main","pid":1,"tid":1,"ts":1.5,"dur":90,"args":{"Python id":1}},
{"ph":"B","cat":"cpu_op","name":"x1","pid":1,"tid":1,"ts":2},{"ph":"E","pid":1,"tid":1,"ts":40},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":3,"dur":1,"bind_id":"0x1","args":{"correlation":5}},
{"ph":"s","cat":"ac2g","name":"ac2g","id":5,"pid":1,"tid":1,"ts":3},{"ph":"f","bp":"e","cat":"ac2g","name":"ac2g","id":5,"pid":0,"tid":7,"ts":9},
{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":9,"dur":4},
{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":14,"dur":4,"args":{"correlation":5}}]}"#;

const RECORDINGS: [&str; 2] = ["tests/traces/nvlink_flow", "tests/traces/net_steps"];

/// Ways to compile the seeds: each gives other debugging information, or none.
const FORMS: [(&str, &[&str]); 7] = [
    ("dwarf4", &["-O2", "-gdwarf-4"]),
    ("dwarf5", &["-O2", "-gdwarf-5"]),
    ("unoptimised", &["-O0", "-gdwarf-4"]),
    ("sections", &["-O2", "-gdwarf-5", "-ffunction-sections"]),
    ("symbols", &["-O2"]),
    ("stripped", &["-O2", "-s"]),
    ("stripped-plain", &["-O2", "-fno-ipa-sra", "-fno-ipa-cp", "-s"]),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// `library` changes whole files, `sections` what is in the sections of a file whose headers are right,
    /// `recording` segments of recordings and what is in their blocks, `trace` traces of profilers, `python`
    /// the memory of interpreters, `torch` torch's notes in a process's memory, `merge` dumps of other hosts,
    /// `proc-files` mappings and mounts, `kernel-records` what comes out of the kernel's buffers, `dump` the
    /// memory of processes
    #[arg(long, value_name = "TARGET", value_parser = TARGETS, num_args = 1.., default_values = TARGETS)]
    target: Vec<String>,
    /// Recordings that seeds are made of
    #[arg(long, value_name = "DIR", num_args = 1.., default_values = RECORDINGS)]
    recordings: Vec<PathBuf>,
    /// Interpreters that seeds of `python` are made of
    #[arg(long, value_name = "PROGRAM", num_args = 1.., default_value = "python3")]
    pythons: Vec<PathBuf>,
    /// How long each runs
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    seconds: u64,
    /// Inputs are at most so long. Longer ones find what takes memory, in fewer runs
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_LONGEST)]
    longest: u32,
    /// Memory of a target, above which it is a finding
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory: u32,
    /// `none` is faster; the resolver has no unsafe code of its own
    #[arg(long, default_value = "none")]
    sanitizer: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = repository::root().join(FOLDER);
    make_seeds(&folder, &args.recordings, &args.pythons)?;
    for target in &args.target {
        let mut cargo = Command::new("cargo");
        cargo
            .args(["fuzz", "run", "--fuzz-dir", FOLDER, "--sanitizer", &args.sanitizer, target])
            // New inputs go into the first; the second has those that the repository keeps.
            .args(["corpus", "kept"].map(|folder| format!("{FOLDER}/{folder}/{target}")))
            .args(["--", "-timeout=60"])
            .arg(format!("-max_len={}", args.longest))
            // Otherwise inputs grow so slowly that half an hour ends at 50 KB.
            .args((args.longest > DEFAULT_LONGEST).then_some("-len_control=0"))
            .arg(format!("-rss_limit_mb={}", args.memory))
            .arg(format!("-max_total_time={}", args.seconds))
            .current_dir(repository::root())
            .env("RUSTC_BOOTSTRAP", "1");
        let purpose = format!(
            "the fuzz target {target}: a finding is in {FOLDER}/artifacts/{target}; \
             it needs `cargo install cargo-fuzz --locked`"
        );
        tool::run(&mut cargo, &purpose)?;
    }
    Ok(())
}

fn make_seeds(folder: &Path, recordings: &[PathBuf], pythons: &[PathBuf]) -> Result<()> {
    for target in TARGETS {
        let corpus = folder.join("corpus").join(target);
        fs::create_dir_all(&corpus).with_context(|| format!("making `{}`", corpus.display()))?;
    }
    let mut libraries: Vec<PathBuf> = Vec::new();
    for (form, options) in FORMS {
        let library = folder.join("corpus/library").join(form);
        let fixed =
            ["-shared", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fasynchronous-unwind-tables"];
        let linked = ["-nostdlib", "-Wl,--build-id=sha1", "-Wl,-T,link.ld", "nccl.cc", "-o"];
        let mut compiler = Command::new("g++");
        compiler.args(fixed).args(options).args(linked).arg(&library).current_dir(folder.join("seeds"));
        tool::run(&mut compiler, &format!("the seed {form}"))?;
        libraries.push(library);
    }
    let example = |name: &str| {
        let mut program = Command::new(programs::cargo());
        program.args(["run", "--quiet", "--release", "--example", name, "--"]).current_dir(folder);
        program
    };
    for (library, (form, _)) in libraries.iter().zip(FORMS) {
        let mut program = example("sections-of");
        program.arg(library).arg(folder.join("corpus/sections").join(form));
        tool::run(&mut program, &format!("the seed of the sections of `{}`", library.display()))?;
    }
    for form in ["plain", "interned", "compressed"] {
        let mut program = Command::new("python3");
        program
            .args(["../stacks/to_perfetto.py", form, "../traces/kineto_ddp_rank0.json.gz"])
            .arg(folder.join("corpus/trace").join(form))
            .current_dir(folder);
        tool::run(&mut program, "the seeds of traces")?;
    }
    fs::write(folder.join("corpus/trace/json"), TRACE).context("writing the seed of traces in JSON")?;
    let mut program = example("python-seeds");
    tool::run(program.arg(folder.join("corpus/python")).args(pythons), "the seeds of interpreters")?;
    let mut program = example("torch-seeds");
    tool::run(program.arg(folder.join("corpus/torch")).args(pythons.first()), "the seeds of torch's notes")?;
    let recordings = recordings.iter().map(|recording| repository::root().join(recording));
    let mut program = example("recording-seeds");
    tool::run(program.arg(folder.join("corpus/recording")).args(recordings), "the seeds of recordings")
}
