//! Options of the commands that ask other hosts, too.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use super::{progress::ProgressLine, quantities::seconds};
use crate::fleet::{self, Fleet, Gathered, Selector, Whom, slurm_job};
use dump::OfHost;

/// Heading of these options in `--help`.
const HOSTS: &str = "Other hosts";
/// Most bytes of a file with hosts.
const MAX_FILE: u64 = 4 << 20;

/// Other hosts that are asked in place of this one.
#[derive(Clone, Debug, Args)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("fleet").args(["hosts", "hostfile", "slurm", "k8s"]))]
pub struct FleetArgs {
    /// Ask these hosts, by ssh: h1,h2 or node[01-16,20]
    #[arg(help_heading = HOSTS, hide_short_help = true, long, value_name = "LIST")]
    pub hosts: Option<HostList>,

    /// Ask the hosts in FILE, one a line, by ssh; - is standard input
    #[arg(help_heading = HOSTS, hide_short_help = true, long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,

    /// Ask the nodes of a job of Slurm, by srun
    #[arg(help_heading = HOSTS, hide_short_help = true, long, value_name = "JOB", value_parser = slurm_job)]
    pub slurm: Option<String>,

    /// Ask ncclflow's pods with these labels, by kubectl
    #[arg(help_heading = HOSTS, hide_short_help = true, long, value_name = "[NAMESPACE/]LABELS", value_parser = Selector::parse)]
    #[arg(num_args = 0..=1, default_missing_value = "ncclflow/app.kubernetes.io/name=ncclflow")]
    pub k8s: Option<Selector>,

    /// Program in place of ssh, srun or kubectl: 'ssh -J bastion'
    #[arg(help_heading = HOSTS, hide_long_help = true, long, value_name = "COMMAND", requires = "fleet")]
    pub via: Option<Words>,

    /// ncclflow on the other hosts: 'sudo -n /usr/local/sbin/ncclflow'
    #[arg(help_heading = HOSTS, hide_long_help = true, long, value_name = "COMMAND", default_value = "ncclflow", requires = "fleet")]
    pub remote: Words,

    /// Most hosts to ask at once; otherwise 256 by ssh, 32 by kubectl
    #[arg(help_heading = HOSTS, hide_long_help = true)]
    #[arg(long, value_name = "N", requires = "fleet", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub at_once: Option<u32>,

    /// Longest time for each host
    #[arg(help_heading = HOSTS, hide_long_help = true)]
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "fleet", value_parser = seconds)]
    pub host_timeout: Duration,

    /// Longest time for all hosts
    #[arg(help_heading = HOSTS, hide_long_help = true)]
    #[arg(long, value_name = "TIME", default_value = "3m", requires = "fleet", value_parser = seconds)]
    pub timeout: Duration,
}

/// Hosts of a command line.
#[derive(Clone, Debug)]
pub struct HostList(Vec<String>);

impl std::str::FromStr for HostList {
    type Err = fleet::NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        fleet::hosts(text).map(Self)
    }
}

/// A program and its first words. No shell reads them.
#[derive(Clone, Debug)]
pub struct Words(Vec<String>);

impl std::str::FromStr for Words {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() { Err("is empty".to_owned()) } else { Ok(Self(words)) }
    }
}

impl FleetArgs {
    pub(super) fn is_given(&self) -> bool {
        self.hosts.is_some() || self.hostfile.is_some() || self.slurm.is_some() || self.k8s.is_some()
    }

    /// Returns the hosts to ask; `None`: this one.
    pub(super) fn fleet(&self) -> Result<Option<Fleet>> {
        let whom = if let Some(HostList(hosts)) = &self.hosts {
            Whom::Hosts(hosts.clone())
        } else if let Some(path) = &self.hostfile {
            Whom::Hosts(of_file(path).with_context(|| format!("reading the hosts in `{}`", path.display()))?)
        } else if let Some(job) = &self.slurm {
            Whom::Slurm(job.clone())
        } else if let Some(selector) = &self.k8s {
            Whom::Pods(selector.clone())
        } else {
            return Ok(None);
        };
        Ok(Some(Fleet {
            whom,
            via: self.via.clone().map(|words| words.0),
            remote: self.remote.0.clone(),
            at_once: self.at_once.and_then(|count| usize::try_from(count).ok()),
            each: self.host_timeout,
            all: self.timeout,
        }))
    }
}

fn of_file(path: &Path) -> Result<Vec<String>> {
    let mut text = String::new();
    if path.as_os_str() == "-" {
        io::stdin().lock().take(MAX_FILE + 1).read_to_string(&mut text)?;
    } else {
        File::open(path)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
    }
    if text.len() as u64 > MAX_FILE {
        bail!("it has more than {MAX_FILE} bytes");
    }
    Ok(fleet::hosts_of_file(&text)?)
}

/// Words for ncclflow on other hosts.
#[derive(Debug)]
pub(super) struct RemoteWords(Vec<String>);

impl RemoteWords {
    /// Begins with the command, its `--json` and others.
    pub(super) fn of(words: &[&str]) -> Self {
        Self(words.iter().map(|word| (*word).to_owned()).collect())
    }

    /// Adds an option once for each value.
    pub(super) fn add(&mut self, option: &str, values: impl IntoIterator<Item = impl ToString>) {
        self.0.extend(values.into_iter().map(|value| format!("--{option}={}", value.to_string())));
    }

    /// Adds an option without a value.
    pub(super) fn add_flag(&mut self, option: &str, is_given: bool) {
        self.0.extend(is_given.then(|| format!("--{option}")));
    }
}

/// Asks all hosts, and shows the progress.
pub(super) fn ask<T: OfHost>(fleet: &Fleet, words: &RemoteWords) -> Result<Gathered<T>> {
    let mut line = ProgressLine::new("");
    fleet.ask(&words.0, &mut |asking| line.hosts(asking))
}
