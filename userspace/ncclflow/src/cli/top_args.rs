//! The arguments of `ncclflow top`.

use crate::views::top::{Sort, View};
use inspect::layout_cache::default_folder;
use recording::sinks::LiveStatistics;
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};
use trace::{
    kernel::loader::{best_buffer, best_links, prepared},
    record::{RecordOptions, Targets},
};

use clap::Args;

use super::{
    args::{DebugArgs, seconds},
    filter_args::FilterArgs,
};
use flow::session::Level;

#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("whom").required(true).args(["pids", "all", "recording"]))]
#[command(after_help = "\
Examples:
  ncclflow top -p 4242,4243                    ? shows the keys
  ncclflow top --all                           every process of this node that uses NCCL
  ncclflow top -p $(pgrep -d, -f train.py) --level steps
                                               with messages, and who waits for whom
  ncclflow top -p 4242 --once                  one second, as a table
  ncclflow top --recording /var/tmp/flows      of a recording: all of it, or, while it is written, its latest moments
  ncclflow top -p 4242 --once --json -i 10 | jq '.ranks[] | [.rank, .ops_per_s, .lag]'

Nothing is written, and the processes are not stopped. Needs what `record` needs; with --recording, to read that.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct TopArgs {
    /// Processes to watch; other processes on the same library are left alone
    #[arg(short, long = "pid", value_name = "PID", value_delimiter = ',', num_args = 1..)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub pids: Vec<u32>,

    /// Every process of this node that uses NCCL, also those that start later, also in containers
    #[arg(long, conflicts_with_all = ["pids", "library"])]
    pub all: bool,

    /// The recording in this folder, or of one of its windows: no process, no probe, no root
    #[arg(long, value_name = "DIR")]
    #[arg(conflicts_with_all = ["pids", "all", "level", "duration", "library", "debug_file", "debug_dir"])]
    pub recording: Option<PathBuf>,

    #[command(flatten)]
    pub filter: FilterArgs,

    /// How much to see: calls, operations, or operations and their messages over the network
    #[arg(long, value_enum, default_value_t = Level::Flow)]
    pub level: Level,

    /// Seconds between two refreshes; with --once, how long to look
    #[arg(short, long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,

    /// Seconds until the end [default: until q, or until the processes exit]
    #[arg(short, long, value_name = "SECS", value_parser = seconds, conflicts_with = "once")]
    pub duration: Option<Duration>,

    /// Print one table and end
    #[arg(long)]
    pub once: bool,

    /// With --once: everything, as JSON (docs/OUTPUT.md)
    #[arg(long, requires = "once")]
    pub json: bool,

    /// What a row is at first
    #[arg(long, value_enum, default_value_t = View::Ranks)]
    pub view: View,

    /// What rows are sorted by at first
    #[arg(long, value_enum, default_value_t = Sort::Ops)]
    pub sort: Sort,

    /// Rows that contain this text in one of their columns
    #[arg(long, value_name = "TEXT")]
    pub rows: Option<String>,

    /// Do not ask the GPUs' driver once a second what they do
    #[arg(long)]
    pub no_gpus: bool,

    /// Path of the NCCL library as the process maps it, if its name does not contain libnccl
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,

    #[command(flatten)]
    pub debug: DebugArgs,
}

impl TopArgs {
    /// Returns the library's options: nothing is written, `statistics` are kept.
    pub(super) fn options(&self, started: Instant, statistics: LiveStatistics) -> RecordOptions {
        let targets = Targets::new(self.all, &self.pids, &self.filter.filter());
        let mut options = RecordOptions {
            statistics: Some(statistics),
            duration: self.duration,
            library: self.library.clone(),
            debug_files: self.debug.files(),
            cache: default_folder(),
            ..RecordOptions::new(started, targets, best_buffer(), prepared(best_links()))
        };
        options.choice.level = self.level;
        options
    }
}
