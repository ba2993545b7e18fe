//! Latest collectives of each process before anybody looked, by torch's flight recorder
//! ([`torch_history`]), with the ranks of each process group side by side.
//!
//! [`history`] reads the processes and compares their ranks; [`render`] shows it. The notes are torch's word,
//! of the time at which torch wrote them.

mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Result, bail};
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};

use crate::{
    Choice, Chosen, HostNotRead, OfHost, RankReport, chosen, comm_ranks, of_host::only, survey, torch_notes,
};
use flow::text::joined;
use inspect::{clock::now_ns, host::host_name, memory::ScanLimits, process::Process, python::Runtimes};
use nccl_library::symbols::DebugFiles;
use torch_history::{GroupHistory, HistoryVerdict, ProcessHistory, RingReport, names};

pub use text::render;

/// Version of the schema of `--json` (docs/HISTORY.md). Fields may be added within one version; none changes
/// its meaning.
pub const HISTORY_SCHEMA: u32 = 1;

/// The history of processes as data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryReport {
    pub schema: u32,
    pub host: String,
    /// All hosts that were read, where they are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    pub unix_time_ns: i64,
    /// Judged anew wherever a report is read.
    #[serde(skip_deserializing)]
    pub verdict: HistoryVerdict,
    pub groups: Vec<GroupHistory>,
    pub processes: Vec<ProcessHistory>,
    /// Other hosts that were asked and gave no history.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts_not_read: Vec<HostNotRead>,
}

impl OfHost for HistoryReport {
    const COMMAND: &'static str = "history";
    const SCHEMA: u32 = HISTORY_SCHEMA;

    fn host(&self) -> Option<&str> {
        only(&self.host, self.processes.iter().map(|process| &process.host))
    }
}

/// Merges the histories of several hosts into one, compared again over all their ranks.
pub fn merge(reports: Vec<HistoryReport>) -> HistoryReport {
    let mut all = HistoryReport { schema: HISTORY_SCHEMA, host: host_name(), ..HistoryReport::default() };
    let mut hashes: BTreeMap<(String, String, Vec<u64>), BTreeSet<String>> = BTreeMap::new();
    for report in reports {
        all.hosts.push(report.host);
        all.unix_time_ns = all.unix_time_ns.max(report.unix_time_ns);
        all.processes.extend(report.processes);
        for group in report.groups {
            hashes.entry((group.name, group.description, group.ranks)).or_default().extend(group.comm_hashes);
        }
    }
    all.groups = torch_history::compare(&mut all.processes, &[]);
    for group in &mut all.groups {
        let known = hashes.get(&(group.name.clone(), group.description.clone(), group.ranks.clone()));
        group.comm_hashes = known.into_iter().flatten().cloned().collect();
    }
    all.verdict = torch_history::over(&all.groups);
    all
}

/// Processes, groups and entries that are looked at.
#[derive(Clone, Debug)]
pub struct HistoryOptions {
    pub choice: Choice,
    /// Only process groups of this name or description, or of the communicator with this hash.
    pub comm: Option<String>,
    /// Only this many of the latest entries of each process group and process.
    pub last: Option<usize>,
    pub debug_files: DebugFiles,
}

/// Reads torch's notes of these processes, and compares the ranks of each process group.
///
/// # Errors
/// None of the processes is there, or `comm` names no process group.
pub fn history(options: &HistoryOptions) -> Result<HistoryReport> {
    let Chosen { processes, refused, .. } = chosen(&options.choice)?;
    let mut found = torch_notes::histories(processes.iter(), &Runtimes::default());
    let by_hash = options.comm.as_deref().is_some_and(|comm| comm.starts_with("0x"));
    let needs_nccl = |history: &ProcessHistory| history.has_entries() && history.rank.is_none();
    let communicators =
        if by_hash || found.iter().any(needs_nccl) { communicators(processes, options) } else { Vec::new() };
    let mut groups = torch_history::compare(&mut found, &comm_ranks(&communicators));
    found.extend(refused.into_iter().map(|(pid, error)| ProcessHistory {
        host: host_name(),
        pid,
        error: Some(error.to_string()),
        ..ProcessHistory::default()
    }));
    if let Some(comm) = &options.comm {
        let known = joined(groups.iter().map(|group| names::group(&group.name, &group.description)), ", ");
        groups.retain(|group| group.is_called(comm));
        if groups.is_empty() {
            let known =
                if known.is_empty() { "none was recorded".to_owned() } else { format!("noted are {known}") };
            bail!("no process group is called `{comm}`: {known}");
        }
        for history in &mut found {
            history.keep(|entry| groups.iter().any(|group| group.has(entry)));
        }
    }
    if let Some(last) = options.last {
        for history in &mut found {
            history.keep_last(last);
        }
    }
    Ok(HistoryReport {
        schema: HISTORY_SCHEMA,
        host: host_name(),
        unix_time_ns: i64::try_from(now_ns(ClockId::Realtime)).unwrap_or(i64::MAX),
        verdict: torch_history::over(&groups),
        groups,
        processes: found,
        ..HistoryReport::default()
    })
}

/// Reads NCCL's communicators in these processes, as far as their libraries are known.
fn communicators(processes: Vec<Process>, options: &HistoryOptions) -> Vec<RankReport> {
    let targets = processes.into_iter().map(|process| (process, None));
    let limits = ScanLimits { time: Duration::from_secs(10), ..ScanLimits::default() };
    survey(targets, limits, &options.debug_files, &mut |_| {}).1
}

/// Returns the ring that torch of each process would dump into a file, by the process's rank in the job.
///
/// # Errors
/// No process has notes; one that has notes has no rank; two have the same rank.
pub fn rings_by_rank(report: &HistoryReport) -> Result<BTreeMap<u64, &RingReport>> {
    let mut chosen = BTreeMap::new();
    for process in &report.processes {
        let Some(ring) = ring(process) else { continue };
        let Some(rank) = process.rank else {
            bail!(
                "the rank of process {} in its job is not known, and torch's files are named by it: set \
                 RANK where the job is started",
                process.pid
            );
        };
        if chosen.insert(rank, ring).is_some() {
            bail!("two processes are rank {rank}: they are of two jobs; choose those of one with -p");
        }
    }
    if chosen.is_empty() {
        bail!("no process has a flight recorder of torch's to write");
    }
    Ok(chosen)
}

/// Returns the ring of NCCL's collectives: torch writes no other into these files.
fn ring(process: &ProcessHistory) -> Option<&RingReport> {
    let is_of_nccl = |ring: &&RingReport| ring.enabled && ring.backend.as_deref() != Some("gloo");
    process.rings().filter(is_of_nccl).max_by_key(|ring| ring.entries.len())
}
