//! Options that choose a part of recordings.

use std::time::Duration;

use clap::Args;

use analysis::export::{Choice, Moment, RankRange, duration};

/// Heading of these options in `--help`.
const HEADING: &str = "Part";

#[derive(Debug, Args)]
pub struct PartArgs {
    /// Only what was seen at this time or later
    #[arg(help_heading = HEADING, long, visible_alias = "since", value_name = "TIME", allow_hyphen_values = true)]
    pub from: Option<Moment>,

    /// Only what was seen before this time
    #[arg(help_heading = HEADING, long, visible_alias = "until", value_name = "TIME", allow_hyphen_values = true)]
    pub to: Option<Moment>,

    /// Only the end of the recordings, for so long: 30s, 5m
    #[arg(help_heading = HEADING, long, value_name = "DURATION", conflicts_with_all = ["from", "to"], value_parser = duration)]
    pub last: Option<Duration>,

    /// Only communicators whose commHash begins so
    #[arg(help_heading = HEADING, long, value_name = "HASH", value_delimiter = ',')]
    pub comm: Vec<String>,

    /// Only these ranks of their communicators: 0,4-7
    #[arg(help_heading = HEADING, long, value_name = "LIST", value_delimiter = ',')]
    pub rank: Vec<RankRange>,

    /// Only these processes, by the number that lines have
    #[arg(help_heading = HEADING, long, value_name = "LIST", value_delimiter = ',')]
    pub pid: Vec<u32>,

    /// Only processes of these users, where the recording says whose they are
    #[arg(help_heading = HEADING, long, value_name = "USER", value_delimiter = ',')]
    pub user: Vec<String>,

    /// Only processes of these jobs, where the recording says it
    #[arg(help_heading = HEADING, long, value_name = "JOB", value_delimiter = ',')]
    pub job: Vec<String>,

    /// Also read everything before the part, so that all numbers are those of the whole recording
    #[arg(help_heading = HEADING, long)]
    pub exact: bool,
}

impl PartArgs {
    pub(super) fn choice(&self) -> Choice {
        Choice {
            from: self.last.map(Moment::BeforeEnd).or(self.from),
            to: self.to,
            comms: self.comm.clone(),
            ranks: self.rank.clone(),
            pids: self.pid.clone(),
            users: self.user.clone(),
            jobs: self.job.clone(),
            exact: self.exact,
        }
    }
}
