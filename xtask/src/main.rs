//! `cargo xtask`: the project's own chores.

mod bed;
mod build_ebpf;
#[path = "../../ebpf/digest.rs"]
mod ebpf_digest;
mod nccl;
mod repository;

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
    /// Rebuild the committed eBPF objects (or compare them with --check)
    BuildEbpf(build_ebpf::Args),
    /// Fetch official NCCL libraries into the cache, and show what is there
    Nccl(nccl::Args),
    /// Run the real NCCL without a GPU: ranks, collectives, stalls on demand
    Bed(bed::Args),
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::BuildEbpf(args) => build_ebpf::run(&args),
        Command::Nccl(args) => nccl::run(&args),
        Command::Bed(args) => bed::run(&args),
    }
}
