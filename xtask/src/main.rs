//! `cargo xtask`: the project's own chores.

mod bed;
mod bench;
mod btf_names;
mod build_ebpf;
mod ci;
mod conformance;
mod debug_sections;
mod demo;
mod deny;
mod dist;
#[path = "../../ebpf/digest.rs"]
mod ebpf_digest;
mod fuzz;
mod hangs;
mod job;
mod kernels;
mod layouts;
mod nccl;
mod output_docs;
mod parquet;
mod picture;
mod prerequisites;
mod programs;
mod promises;
mod python_offsets;
mod pythons;
mod repository;
mod retried;
mod root;
mod soak;
mod test;
mod tool;
mod torch_offsets;
mod vm;
mod watch;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "The chores of the ncclflow repository")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Trace the real NCCL on this machine, without a GPU (root): the two-minute tour
    Demo(demo::Args),
    /// Fetch what the tests need, build, and run all tests
    Test(test::Args),
    /// What CI runs, in stages: lint, unit, bed, dist, soak
    Ci(ci::Args),
    /// Make what users install, for x86-64 and arm64: wheel, Debian and RPM packages, tarball, a static
    /// program
    Dist(dist::Args),
    /// Try what `dist` has made, as root: a step of `dist --try`
    #[command(hide = true)]
    DistTrial(dist::TrialArgs),
    /// Measure what tracing costs: ratios with their spread; `bench --help` has the benches
    Bench(bench::Args),
    /// Run the real NCCL without a GPU: ranks, collectives, stalls on demand
    Bed(bed::Args),
    /// Fetch official NCCL libraries into the cache, and show what is there
    Nccl(nccl::Args),
    /// Run a command under another kernel, in a virtual machine
    Vm(vm::Args),
    /// Make a committed file again that is made of something else
    #[command(subcommand)]
    Make(Make),
    /// Run what takes too long for the tests
    #[command(subcommand)]
    Verify(Verify),
}

#[derive(Debug, Subcommand)]
enum Make {
    /// The eBPF objects (or compare them with --check)
    Ebpf(build_ebpf::Args),
    /// The table of struct layouts for libraries without debugging information
    Layouts(layouts::Args),
    /// The table of CPython's struct layouts, of 3.8 to 3.12 (or compare it with --check)
    PythonOffsets(python_offsets::Args),
    /// The table of the layouts of torch's flight recorder, of 2.4 to 2.15 (or compare it with --check)
    TorchOffsets(torch_offsets::Args),
    /// The tables of docs/OUTPUT.md and docs/PARQUET.md, of the rows that are written (or compare them with
    /// --check)
    OutputDocs(output_docs::Args),
    /// A picture (SVG) of what a terminal shows, for the documentation
    Picture(picture::Args),
}

#[derive(Debug, Subcommand)]
enum Verify {
    /// Every official library, own and stripped, against the truth: a table
    Conformance(conformance::Args),
    /// Make every kind of hang, and of wait that is none, and count what `ncclflow dump` says of them (root)
    Hangs(hangs::Args),
    /// Watch every kind of hang, and of wait that is none, and count what `ncclflow watch` says of them (root)
    Watch(watch::Args),
    /// What works under which kernel, in virtual machines: a table (root)
    Kernels(kernels::Args),
    /// Trace a node for a long time while its tenants do all that tenants do (root)
    Soak(soak::Args),
    /// Feed changed files and memory to what reads them, to see that none does harm (cargo-fuzz)
    Fuzz(fuzz::Args),
    /// Compare the Parquet tables of recordings with their lines, in DuckDB and Spark
    Parquet(parquet::Args),
    /// Check licences, banned crates, sources and known faults of what the program is made of (cargo-deny)
    Deny(deny::Args),
    /// Check that each promise of SECURITY.md names tests that are there
    Promises(promises::Args),
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Dist(args) => dist::run(&args),
        Command::DistTrial(args) => dist::run_trial(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Bed(args) => bed::run(&args),
        Command::Nccl(args) => nccl::run(&args),
        Command::Vm(args) => vm::run(&args),
        Command::Make(Make::Ebpf(args)) => build_ebpf::run(&args),
        Command::Make(Make::Layouts(args)) => layouts::run(&args),
        Command::Make(Make::PythonOffsets(args)) => python_offsets::run(&args),
        Command::Make(Make::TorchOffsets(args)) => torch_offsets::run(&args),
        Command::Make(Make::OutputDocs(args)) => output_docs::run(&args),
        Command::Make(Make::Picture(args)) => picture::run(&args),
        Command::Verify(Verify::Conformance(args)) => conformance::run(&args),
        Command::Verify(Verify::Hangs(args)) => hangs::run(&args),
        Command::Verify(Verify::Watch(args)) => watch::run(&args),
        Command::Verify(Verify::Kernels(args)) => kernels::run(&args),
        Command::Verify(Verify::Soak(args)) => soak::run(&args),
        Command::Verify(Verify::Fuzz(args)) => fuzz::run(&args),
        Command::Verify(Verify::Parquet(args)) => parquet::run(&args),
        Command::Verify(Verify::Deny(args)) => deny::run(&args),
        Command::Verify(Verify::Promises(args)) => promises::run(&args),
    }
}
