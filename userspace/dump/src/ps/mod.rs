//! Every process of this node that uses NCCL: its user, its container, its libraries and its communicators.
//!
//! Nothing is prepared in the processes, and nothing is stopped. If something about a process cannot be read
//! (it exited, it may not be read), the list says why.

mod entries;
mod launches;
mod table;

use std::{collections::HashMap, time::Instant};

use anyhow::{Context as _, Result};
use rustix::time::ClockId;

pub use entries::{CommunicatorEntry, LibraryEntry, PS_SCHEMA, ProcessEntry, PsReport};
pub use launches::{LaunchCounter, Launches, Movement};
pub use table::render;

use self::launches::Looks;
use crate::{OnProgress, RankReport, survey};
use flow::identity::{JobMember, JobVariable, job_names};
use inspect::{
    clock::now_ns,
    host::host_name,
    identity::read_variables,
    layout_cache::{CacheKey, LayoutCache},
    memory::ScanLimits,
    process::{
        Description, Evidence, Filter, LibraryId, MappedLibrary, Process, Sighting, Users, is_hidden, pids,
    },
    resolver::{self, ProcFile, ResolverError, Unseen, What},
};
use nccl_library::symbols::{DebugFiles, Resolution};

/// Merges the lists of several hosts into one.
pub fn merge(reports: Vec<PsReport>) -> PsReport {
    let mut all = PsReport { schema: PS_SCHEMA, host: host_name(), ..PsReport::default() };
    for report in reports {
        let host = report.host;
        let of_host = |entry| ProcessEntry { host: Some(host.clone()), ..entry };
        all.processes.extend(report.processes.into_iter().map(of_host));
        all.unix_time = all.unix_time.max(report.unix_time);
        all.denied += report.denied;
        all.hidden |= report.hidden;
        all.hosts.push(host);
    }
    all
}

/// Names the job of each process, and puts the processes of a job together, in the order of their first ones.
fn name_jobs(processes: &mut [ProcessEntry]) {
    let member = |process: &ProcessEntry| JobMember {
        process: process.pid,
        program: process.name.clone(),
        pid: process.pid,
        named: process.job.clone(),
        pod: process.description.container.as_ref().and_then(|container| container.pod.clone()),
        communicators: process.communicators.iter().flatten().map(|one| one.comm_hash.clone()).collect(),
    };
    let names = job_names(&processes.iter().map(member).collect::<Vec<_>>());
    for process in processes.iter_mut() {
        process.job = names.get(&process.pid).cloned();
    }
    let mut first = HashMap::new();
    for process in processes.iter() {
        let of_job = first.entry(process.job.clone()).or_insert(process.pid);
        *of_job = process.pid.min(*of_job);
    }
    processes.sort_by_key(|process| (first.get(&process.job).copied(), process.pid));
}

#[derive(Clone, Debug, Default)]
pub struct PsOptions {
    pub filter: Filter,
    /// The processes' memory is searched for communicators.
    pub communicators: bool,
    pub limits: ScanLimits,
    pub debug_files: DebugFiles,
}

/// Lists processes, once or repeatedly, and remembers what it found out about a library file.
#[derive(Debug)]
pub struct Lister {
    options: PsOptions,
    cache: Option<LayoutCache>,
    users: Users,
    /// Library files that were resolved before. Each is kept open, so that its inode is not used again.
    libraries: HashMap<LibraryId, (MappedLibrary, LibraryEntry)>,
    looks: Looks,
}

impl Lister {
    /// Makes a lister. `cache` keeps resolved layouts from one run to the next.
    pub fn new(options: PsOptions, cache: Option<LayoutCache>) -> Self {
        let users = Users::read();
        Self { options, cache, users, libraries: HashMap::new(), looks: Looks::default() }
    }

    /// Looks through all processes once. `progress` is called some times a second while one is scanned.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn list(&mut self, progress: &mut OnProgress<'_>) -> Result<PsReport> {
        let mut report = PsReport {
            schema: PS_SCHEMA,
            host: host_name(),
            unix_time: now_ns(ClockId::Realtime) / 1_000_000_000,
            hidden: is_hidden(),
            ..PsReport::default()
        };
        let (mut to_scan, mut in_use) = (Vec::new(), Vec::new());
        for pid in pids().context("listing /proc")?.into_iter().filter(|pid| *pid != std::process::id()) {
            let sighting = match resolver::look_through(pid) {
                Ok(Some(sighting)) => sighting,
                Ok(None) => continue,
                Err(Unseen::Denied) => {
                    report.denied += 1;
                    continue;
                }
                Err(Unseen::Unanswered(error)) => {
                    report.processes.extend(self.silent(pid, &error));
                    continue;
                }
            };
            let Some(entry) = self.entry(&sighting, &mut in_use) else { continue };
            let Sighting { process, libraries, .. } = sighting;
            if self.options.communicators && !libraries.is_empty() {
                let files = libraries.into_iter().map(|(file, _)| file).collect();
                to_scan.push((report.processes.len(), process, files));
            }
            report.processes.push(entry);
        }
        self.libraries.retain(|id, _| in_use.contains(id));
        self.add_communicators(&mut report, to_scan, progress);
        name_jobs(&mut report.processes);
        Ok(report)
    }

    fn entry(&mut self, sighting: &Sighting, in_use: &mut Vec<LibraryId>) -> Option<ProcessEntry> {
        let process = &sighting.process;
        // The command line is read from the process's memory.
        let command = resolver::proc_bytes(process.pid(), ProcFile::CommandLine).unwrap_or_default();
        let description = Description::read(process, &self.users, &command);
        if !self.options.filter.admits(process.name(), &description) {
            return None;
        }
        let (mut libraries, mut admitted) = (Vec::new(), self.options.filter.nccl_versions.is_empty());
        for (file, evidence) in &sighting.libraries {
            in_use.push(file.id);
            let entry = self.library(file, *evidence);
            let version = entry.version.as_deref().and_then(|version| version.parse().ok());
            admitted |= self.options.filter.admits_version(version);
            libraries.push(entry);
        }
        let errors = sighting.unopened.iter().map(ToString::to_string).chain(sighting.not_asked.clone());
        let exited = process.has_exited().then(|| "it exited while it was looked at".to_owned());
        admitted.then(|| ProcessEntry {
            pid: process.pid(),
            own_pid: process.own_pid(),
            name: process.name().to_owned(),
            job: read_variables(process).and_then(|of| Some(of.text(JobVariable::SlurmJobId)?.to_owned())),
            description,
            libraries,
            errors: errors.chain(exited).collect(),
            ..ProcessEntry::default()
        })
    }

    /// Makes the entry of a process that could not be looked at, because something does not answer.
    fn silent(&self, pid: u32, error: &ResolverError) -> Option<ProcessEntry> {
        let process = Process::open(pid).ok()?;
        let description = Description { uid: u32::MAX, user: "?".to_owned(), ..Description::default() };
        self.options.filter.is_empty().then(|| ProcessEntry {
            pid,
            own_pid: process.own_pid(),
            name: process.name().to_owned(),
            description,
            errors: vec![error.to_string()],
            ..ProcessEntry::default()
        })
    }

    fn library(&mut self, file: &MappedLibrary, found_by: Evidence) -> LibraryEntry {
        let known = self.libraries.get(&file.id).map(|(_, entry)| entry.clone());
        let entry = known.unwrap_or_else(|| {
            let entry = LibraryEntry::new(file, &self.resolve(file));
            if let Ok(copy) = file.try_clone() {
                self.libraries.insert(file.id, (copy, entry.clone()));
            }
            entry
        });
        // The path and its state belong to the process, not to the inode.
        LibraryEntry { path: file.shown(), deleted: file.deleted, found_by: Some(found_by), ..entry }
    }

    fn resolve(&self, file: &MappedLibrary) -> Result<Resolution> {
        let key = self.cache.as_ref().and_then(|cache| Some((cache, CacheKey::new(file.id, What::Ops)?)));
        if let Some(known) = key.and_then(|(cache, key)| cache.load(&key)) {
            return Ok(known.resolution);
        }
        Ok(resolver::resolve(file, What::Ops, &self.options.debug_files)?.resolution)
    }

    fn add_communicators(
        &mut self,
        report: &mut PsReport,
        to_scan: Vec<(usize, Process, Vec<MappedLibrary>)>,
        progress: &mut OnProgress<'_>,
    ) {
        let (whose, targets): (Vec<_>, Vec<_>) = to_scan
            .into_iter()
            .map(|(index, process, files)| ((index, process.started()), (process, Some(files))))
            .unzip();
        let (scanned, ranks) =
            survey(targets.into_iter(), self.options.limits, &self.options.debug_files, progress);
        let at = Instant::now();
        self.looks.begin();
        for ((index, started), scanned) in whose.into_iter().zip(scanned) {
            let Some(entry) = report.processes.get_mut(index) else { continue };
            let of_process = |rank: &&RankReport| rank.pid == entry.pid;
            let mut communicators: Vec<_> = ranks
                .iter()
                .filter(of_process)
                .map(|rank| CommunicatorEntry::new(rank, self.looks.look(rank, started, at)))
                .collect();
            communicators.sort_by(|a, b| (&a.comm_hash, a.rank).cmp(&(&b.comm_hash, b.rank)));
            entry.communicators = Some(communicators);
            entry.forked_from = scanned.forked_from;
            entry.left_over_of = scanned.left_over_of;
            entry.scan_is_complete = scanned.scan.as_ref().map(|scan| scan.complete);
            entry.errors.extend(scanned.error);
            for (library, scanned) in entry.libraries.iter_mut().zip(scanned.libraries) {
                library.unusable = library.unusable.take().or(scanned.unusable);
            }
        }
    }
}
