//! Groups of options that several commands have.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{
    fleet_args::RemoteWords,
    quantities::{Pids, each, seconds},
};
use analysis::export::{Choice, Moment, RankRange};
use inspect::{process::Filter, resolver};
use nccl_library::symbols::DebugFiles;

/// Processes that are looked at once.
#[derive(Clone, Debug, Args)]
pub struct LookedAtArgs {
    /// Processes to read; otherwise all
    #[arg(short, long = "pid", value_name = "PID", num_args = 1..)]
    pub pids: Vec<Pids>,

    /// Every process of this host that uses NCCL
    ///
    /// It has an NCCL library mapped, under any name. Also those in containers.
    #[arg(long, conflicts_with = "pids")]
    pub all: bool,
}

impl LookedAtArgs {
    /// Returns the processes; all where none is named.
    pub(super) fn choice(&self) -> dump::Choice {
        if self.pids.is_empty() { dump::Choice::All } else { dump::Choice::Pids(each(&self.pids)) }
    }

    pub(super) fn is_given(&self) -> bool {
        self.all || !self.pids.is_empty()
    }
}

/// Heading in `--help`. Not as `next_help_heading`, which would also apply to what follows in the commands.
const FILTERS: &str = "Filters";

/// Filters: one of each given kind must fit. Values can be given as a comma list, or by repeating the option.
#[derive(Clone, Debug, Default, Args)]
pub struct FilterArgs {
    /// Only processes of these users (name or number)
    #[arg(help_heading = FILTERS, hide_short_help = true, long, value_name = "USER", value_delimiter = ',')]
    pub user: Vec<String>,

    /// Only processes whose control group's path contains TEXT
    #[arg(help_heading = FILTERS, hide_long_help = true, hide_short_help = true, long, value_name = "TEXT")]
    pub cgroup: Vec<String>,

    /// Only processes of these containers
    ///
    /// The container's id, runtime:id or pod UID begins so.
    #[arg(help_heading = FILTERS, hide_long_help = true, hide_short_help = true, long, value_name = "ID", value_delimiter = ',')]
    pub container: Vec<String>,

    /// Only processes whose name is TEXT, or whose command line contains it
    #[arg(help_heading = FILTERS, hide_short_help = true, long, visible_alias = "command", value_name = "TEXT")]
    pub comm: Vec<String>,

    /// Only processes that use this NCCL: 2.27, or 2.27.5
    #[arg(help_heading = FILTERS, hide_long_help = true, hide_short_help = true, long, value_name = "VERSION", value_delimiter = ',', value_parser = version)]
    pub nccl_version: Vec<String>,
}

/// Parses a version, or the beginning of one.
fn version(text: &str) -> Result<String, String> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_version = text.split('.').count() <= 3 && text.split('.').all(is_number);
    is_version.then(|| text.to_owned()).ok_or_else(|| format!("`{text}` is no version: give 2.27, or 2.27.5"))
}

impl FilterArgs {
    /// Adds these options to those for other hosts.
    pub(super) fn add_to(&self, words: &mut RemoteWords) {
        let all = [
            ("user", &self.user),
            ("cgroup", &self.cgroup),
            ("container", &self.container),
            ("comm", &self.comm),
            ("nccl-version", &self.nccl_version),
        ];
        for (option, values) in all {
            words.add(option, values);
        }
    }

    pub fn filter(&self) -> Filter {
        Filter {
            users: self.user.clone(),
            cgroups: self.cgroup.clone(),
            containers: self.container.clone(),
            commands: self.comm.clone(),
            nccl_versions: self.nccl_version.clone(),
        }
    }
}

/// Heading of these options in `--help`.
const PART: &str = "Part";

#[derive(Debug, Args)]
pub struct PartArgs {
    /// Only what was seen at this time or later
    #[arg(help_heading = PART, hide_short_help = true, long, visible_alias = "since", value_name = "TIME", allow_hyphen_values = true)]
    pub from: Option<Moment>,

    /// Only what was seen before this time
    #[arg(help_heading = PART, hide_short_help = true, long, visible_alias = "until", value_name = "TIME", allow_hyphen_values = true)]
    pub to: Option<Moment>,

    /// Only the end of the recordings, for so long: 30s, 5m
    #[arg(help_heading = PART, hide_short_help = true)]
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["from", "to"], value_parser = seconds)]
    pub last: Option<Duration>,

    /// Only communicators whose commHash begins so
    #[arg(help_heading = PART, hide_short_help = true, long, value_name = "HASH", value_delimiter = ',')]
    pub comm: Vec<String>,

    /// Only these ranks of their communicators: 0,4-7
    #[arg(help_heading = PART, hide_short_help = true, long, value_name = "LIST", value_delimiter = ',')]
    pub rank: Vec<RankRange>,

    /// Only these processes, by the number that lines have
    #[arg(help_heading = PART, hide_short_help = true, long, value_name = "LIST")]
    pub pid: Vec<Pids>,

    /// Only processes of these users, where the recording has them
    #[arg(help_heading = PART, hide_short_help = true, long, value_name = "USER", value_delimiter = ',')]
    pub user: Vec<String>,

    /// Only processes of these jobs, where the recording has them
    #[arg(help_heading = PART, hide_short_help = true, long, value_name = "JOB", value_delimiter = ',')]
    pub job: Vec<String>,

    /// Also read everything before the part, for its numbers
    ///
    /// All numbers are those of the whole recording.
    #[arg(help_heading = PART, hide_short_help = true, long)]
    pub exact: bool,
}

impl PartArgs {
    /// Tells whether a part was chosen.
    pub(super) fn is_given(&self) -> bool {
        let Self { from, to, last, comm, rank, pid, user, job, exact: _ } = self;
        let is_in_time = from.is_some() || to.is_some() || last.is_some();
        let is_whole =
            comm.is_empty() && rank.is_empty() && pid.is_empty() && user.is_empty() && job.is_empty();
        is_in_time || !is_whole
    }

    pub(super) fn choice(&self) -> Choice {
        Choice {
            from: self.last.map(Moment::BeforeEnd).or(self.from),
            to: self.to,
            comms: self.comm.clone(),
            ranks: self.rank.clone(),
            pids: each(&self.pid),
            users: self.user.clone(),
            jobs: self.job.clone(),
            exact: self.exact,
        }
    }
}

/// Heading of these options in `--help`.
pub(super) const LIBRARY: &str = "Library";

/// Places of debugging information that the library itself does not have.
#[derive(Clone, Debug, Args)]
pub struct DebugArgs {
    /// Debugging information of a stripped library
    ///
    /// The library before it was stripped, or its .debug file.
    #[arg(help_heading = LIBRARY, hide_long_help = true, long, value_name = "FILE")]
    pub debug_file: Vec<PathBuf>,

    /// Folder with debugging information
    ///
    /// By build-id or debug link; /usr/lib/debug is always searched, too.
    #[arg(help_heading = LIBRARY, hide_long_help = true, long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,

    /// Also read libraries on file systems in user space (FUSE)
    ///
    /// Whoever runs such a file system can leave a read without an answer: ncclflow then abandons the helper
    /// process that reads, and does not read the library again.
    #[arg(help_heading = LIBRARY, hide_long_help = true, long)]
    pub allow_fuse: bool,
}

impl DebugArgs {
    /// Adds these options to those for other hosts: the files are theirs.
    pub(super) fn add_to(&self, words: &mut RemoteWords) {
        words.add("debug-file", self.debug_file.iter().map(|path| path.display()));
        words.add("debug-dir", self.debug_dir.iter().map(|path| path.display()));
        words.add_flag("allow-fuse", self.allow_fuse);
    }

    /// Says which file systems are asked, and returns where debugging information is.
    pub(super) fn apply(&self) -> DebugFiles {
        resolver::allow_fuse(self.allow_fuse);
        DebugFiles::new(self.debug_file.clone(), self.debug_dir.clone())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::cli::args::Cli;

    /// A heading given to a whole group of options would also apply to those that follow in the command.
    #[test]
    fn options_are_listed_under_the_heading_of_their_own_group() {
        let cli = Cli::command();
        let below = |command: &str, heading: &str| -> Vec<String> {
            let arguments = cli.find_subcommand(command).unwrap().get_arguments();
            let arguments = arguments.filter(|argument| argument.get_help_heading() == Some(heading));
            arguments.map(|argument| argument.get_id().to_string()).collect()
        };
        for command in ["ps", "record", "top"] {
            let filters = ["user", "cgroup", "container", "comm", "nccl_version"];
            assert_eq!(below(command, super::FILTERS), filters, "{command}");
        }
        let windows = ["window_flag", "window_max_ops", "window_max_secs", "window_iterations", "rotate"];
        assert_eq!(below("record", "Windows"), windows);
        assert_eq!(below("record", "Disk"), ["files", "files_limit", "max_size", "max_age", "compress"]);
    }
}
