//! Latest collectives of each process before anybody looked, by torch's flight recorder
//! ([`crate::torch_notes`]), with the ranks of each process group side by side.
//!
//! [`history`] reads the processes; [`groups`] joins their notes on each process group; [`judge`] compares
//! its ranks, which is pure; and [`render`] shows it. The notes are torch's word, of the time at which torch
//! wrote them.

mod flight_recorder;
mod forged;
mod groups;
mod judge;
mod names;
mod ranks;
mod report;
mod text;

use std::time::Duration;

use anyhow::{Result, bail};
use rustix::time::ClockId;

use crate::{
    clock::now_ns,
    dump::{Choice, DumpOptions, RankReport, chosen, survey},
    host::host_name,
    memory::ScanLimits,
    python::Runtimes,
    resolver,
    target::Process,
    torch_notes::{Builds, look},
};
use nccl_library::symbols::DebugFiles;

pub use flight_recorder::write_flight_recorder;
#[doc(hidden)]
pub use forged::history_of_forged_rings;
pub use judge::{Call, Difference, GroupVerdict, HistoryState, Late, judge};
pub(crate) use judge::{NotedCollective, Rank};
pub(crate) use names::group as group_name;
pub use report::{GroupHistory, HISTORY_SCHEMA, HistoryReport, HistoryVerdict, Member, ProcessHistory};
pub use text::render;

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
    let (processes, refused) = chosen(&options.choice)?;
    let (mut builds, runtimes) = (Builds::default(), Runtimes::default());
    let mut found: Vec<ProcessHistory> =
        processes.iter().map(|process| noted(process, &mut builds, &runtimes)).collect();
    let by_hash = options.comm.as_deref().is_some_and(|comm| comm.starts_with("0x"));
    let needs_nccl = |history: &ProcessHistory| history.has_entries() && history.rank.is_none();
    let communicators =
        if by_hash || found.iter().any(needs_nccl) { communicators(processes, options) } else { Vec::new() };
    let mut groups = compared(&mut found, &communicators);
    found.extend(refused.into_iter().map(|(pid, error)| ProcessHistory {
        host: host_name(),
        pid,
        error: Some(error.to_string()),
        ..ProcessHistory::default()
    }));
    if let Some(comm) = &options.comm {
        let known: Vec<String> =
            groups.iter().map(|group| names::group(&group.name, &group.description)).collect();
        groups.retain(|group| group.is_called(comm));
        if groups.is_empty() {
            let known = if known.is_empty() {
                "none was recorded".to_owned()
            } else {
                format!("noted are {}", known.join(", "))
            };
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
        verdict: judge::over(&groups),
        groups,
        processes: found,
    })
}

/// Reads what torch of a process has noted, and finds the rank of the process.
pub(crate) fn noted(process: &Process, builds: &mut Builds, runtimes: &Runtimes) -> ProcessHistory {
    let mut history = ProcessHistory {
        host: host_name(),
        pid: process.pid(),
        name: process.name().to_owned(),
        notes: look(process, builds, runtimes),
        ..ProcessHistory::default()
    };
    if process.has_exited() {
        history.error = Some(format!("process {} exited while it was read", process.pid()));
        history.notes = None;
    }
    ranks::by_itself(process, &mut history);
    history
}

/// Judges the process groups of all processes. `communicators` of NCCL tell ranks that nothing else tells.
pub(crate) fn compared(found: &mut [ProcessHistory], communicators: &[RankReport]) -> Vec<GroupHistory> {
    for history in found.iter_mut().filter(|history| history.rank.is_none()) {
        ranks::by_communicator(history, communicators);
    }
    let mut groups = groups::of(found);
    groups::add_hashes(&mut groups, found, communicators);
    groups
}

/// Reads NCCL's communicators in these processes, as far as their libraries are known.
fn communicators(processes: Vec<Process>, options: &HistoryOptions) -> Vec<RankReport> {
    let with_libraries = processes.into_iter().filter_map(|process| {
        let libraries = resolver::libraries(&process, None).ok()?;
        Some((process, libraries))
    });
    let options = DumpOptions {
        interval: Duration::ZERO,
        first_only: false,
        limits: ScanLimits { time: Duration::from_secs(10), ..ScanLimits::default() },
        debug_files: options.debug_files.clone(),
        stacks: false,
    };
    survey(with_libraries.collect(), &options, &mut |_| {}).1
}
