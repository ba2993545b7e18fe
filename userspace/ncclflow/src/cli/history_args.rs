//! The arguments of `ncclflow history`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::args::DebugArgs;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("source").required(true).args(["pids", "all"]))]
#[command(after_help = "\
Examples:
  ncclflow history -p $(pgrep -d, -f train.py)     all ranks of this host, by process group
  ncclflow history --all --last 50                 the latest 50 collectives of each group
  ncclflow history --all --comm tensor_parallel    one process group, by name, description or commHash
  ncclflow history --all --json | jq '.groups[] | {description, verdict}'
  ncclflow history --all -f flight-recorder -o traces/nccl_trace_rank_   for torchfrtrace

torch keeps notes of the latest 2,000 collectives of each process (its flight recorder; by default from torch 2.11 on, before with
TORCH_NCCL_TRACE_BUFFER_SIZE=2000). They are read from memory: nothing is stopped, and nothing asks torch or Python. What completed is what
torch's watchdog had noticed. docs/HISTORY.md has the JSON's schema and the versions that are known. Needs root, or CAP_SYS_PTRACE.
Exit codes: 0 the ranks called the same; 3 they called different collectives; 5 a rank has not called what others have, or a collective
is not completed, for a second or more; 4 cannot tell; 1 error; 2 wrong usage.")]
pub struct HistoryArgs {
    /// Processes to read
    #[arg(short, long = "pid", value_name = "PID", value_delimiter = ',', num_args = 1..)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub pids: Vec<u32>,

    /// Every process of this node that has an NCCL library mapped, under any name, also in containers
    #[arg(long)]
    pub all: bool,

    /// Only the process group of this name or description, or of the communicator with this hash (0x…)
    #[arg(long, value_name = "NAME|HASH")]
    pub comm: Option<String>,

    /// Only so many of the latest collectives of each process group; the text shows 10, the JSON has all
    #[arg(long, value_name = "N", value_parser = count)]
    pub last: Option<usize>,

    #[command(flatten)]
    pub debug: DebugArgs,

    /// All that was read, as JSON
    #[arg(long)]
    pub json: bool,

    /// Also write it in another form: as each process's torch would have dumped it, for torchfrtrace
    #[arg(short, long, value_name = "FORMAT", requires = "output")]
    pub format: Option<HistoryFormat>,

    /// Beginning of the names of these files: PREFIX<rank of the job>, or nccl_trace_rank_<rank> where PREFIX is a folder
    #[arg(short, long, value_name = "PREFIX", requires = "format")]
    pub output: Option<PathBuf>,
}

/// Further forms of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HistoryFormat {
    /// torch's own
    FlightRecorder,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("must be a number from 1 on".to_owned()),
        Ok(count) => Ok(count),
    }
}
