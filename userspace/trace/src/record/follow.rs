//! `--all`: finds processes, and lets go of them, while the recording goes on.
//!
//! A library is resolved once, and its probes have one cookie for all processes: records name their process.
//! Without a filter a probe is attached to the library's inode, so that a process that starts later is traced
//! from its first instruction, before anybody has looked at it. With a filter it is attached process by
//! process: the kernel then places no breakpoint in processes that are not wanted.
//!
//! Twice a second (every 0.7 s while files have probes, because one timer serves both) young processes are
//! asked for their size, and others once. Mappings are read of those that are new or have grown. The first
//! record of a process that was not looked at yet makes it known, too. Records carry the process ID of the
//! initial PID namespace, so `--all` needs to run there.

use crate::kernel::loader::Link;
use inspect::{
    clock::now_ns,
    process::{
        Census, Description, Filter, Process, ProcessError, Sighting, Tenant, Tenants, Unfinished, Users,
        in_first_pid_namespace,
    },
    resolver::{self, ProcFile, ResolverError, Unseen},
    unresponsive::Backoff,
};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    mem,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use flow::{
    quota::Limits,
    session::{Budget, ChangedLibrary, TargetReport, WhoseBudget},
};
use rustix::time::ClockId;

use self::driver::is_without_nccl;
use super::{
    libraries::Libraries,
    options::{Notice, RecordOptions},
    pidfd::{HeldProcess, held_limits},
    recorder::Recording,
    report::target_report,
    stillness::Member,
};

mod driver;
mod shares;
mod sight;

/// Rounds between two searches for libraries that are no longer used.
const RETIRE_ROUNDS: u32 = 10;
/// Most entries of `passed_over`; further ones are only counted.
const MAX_PASSED_OVER: usize = 1000;
/// Most bytes of an entry: paths have up to 4,096.
const MAX_PASSED_OVER_BYTES: usize = 1024;
/// Time spent on the node's processes in one round; the rest wait for the next.
const ROUND_TIME: Duration = Duration::from_millis(500);
/// Time spent in the first round, before the session opens.
const FIRST_ROUND_TIME: Duration = Duration::from_secs(3);

/// A process that is traced, or has NCCL and cannot be.
struct Followed {
    process: HeldProcess,
    /// Index in the report's targets.
    target: usize,
    libraries: Vec<usize>,
    /// Links to this process alone, each with the index of its library.
    links: Vec<(usize, Link)>,
    /// Number of the process's tenant, where known.
    tenant: Option<u32>,
}

/// Things that could not be seen the last time, for want of descriptors for instance. Each is reported once.
#[derive(Debug, Default)]
struct Unseeable {
    /// The node's processes cannot be listed.
    processes: bool,
    /// A process cannot be looked at.
    details: bool,
}

pub(super) struct Follower<'a> {
    filter: &'a Filter,
    pub(super) libraries: Libraries<'a>,
    users: Users,
    census: Census,
    processes: HashMap<u32, Followed>,
    limits: Limits,
    /// Number of `processes` that are held.
    held: usize,
    /// Processes that are not held are to be checked for their end.
    asks_for_ends: bool,
    tenants: Tenants,
    /// Processes still to be looked at.
    waiting: VecDeque<u32>,
    /// Processes that could not be looked at, or only in part.
    later: Backoff<u32>,
    rounds: u32,
    passed_over: usize,
    unseen: Unseeable,
    sight: sight::Sight,
    /// Tenants have come or gone.
    is_to_be_shared: bool,
}

impl<'a> Follower<'a> {
    pub(super) fn new(options: &RecordOptions, filter: &'a Filter) -> Result<Self> {
        if !in_first_pid_namespace().context("reading our PID namespace")? {
            bail!(
                "--all needs the host's PID namespace (docker run --pid=host, Kubernetes hostPID: true): the kernel numbers \
                 processes by it"
            );
        }
        Ok(Self {
            filter,
            libraries: Libraries::new(options, filter)?,
            users: Users::read(),
            census: Census::default(),
            processes: HashMap::new(),
            limits: held_limits(),
            held: 0,
            asks_for_ends: false,
            tenants: Tenants::default(),
            waiting: VecDeque::new(),
            later: Backoff::default(),
            rounds: 0,
            passed_over: 0,
            unseen: Unseeable::default(),
            sight: sight::Sight::default(),
            is_to_be_shared: false,
        })
    }

    /// Looks at new processes of the node.
    pub(super) fn round(&mut self, recording: &mut Recording<'_>) {
        let begun = Instant::now();
        let time = if self.rounds == 0 { FIRST_ROUND_TIME } else { ROUND_TIME };
        match self.census.round() {
            Ok(pids) => {
                self.unseen.processes = false;
                let known: HashSet<u32> = self.waiting.iter().copied().collect();
                self.waiting.extend(pids.into_iter().filter(|pid| !known.contains(pid)));
            }
            // Without descriptors or memory, for instance. What is attached is recorded all the same.
            Err(error) => {
                if !mem::replace(&mut self.unseen.processes, true) {
                    recording.note_error(format!("new processes cannot be found: listing /proc: {error}"));
                }
            }
        }
        // Processes that were put off come after new ones.
        self.waiting.extend(self.later.due(begun));
        while let Some(pid) = self.waiting.pop_front() {
            self.look(pid, recording);
            if begun.elapsed() >= time {
                break;
            }
        }
        self.share_out(recording);
        self.say_what_is_not_seen(recording);
        self.asks_for_ends = true;
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(RETIRE_ROUNDS) {
            let processes = &self.processes;
            self.libraries
                .retire(|index| processes.values().any(|followed| followed.libraries.contains(&index)));
        }
    }

    /// Tells whether processes still wait to be looked at.
    pub(super) fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns descriptors that become readable as processes end.
    pub(super) fn exit_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.processes.values().filter_map(|followed| followed.process.exit_fd())
    }

    pub(super) fn traced_pids(&self) -> Vec<u32> {
        self.traced_members().into_iter().map(|(pid, _)| pid).collect()
    }

    /// Returns the processes that are traced, each with the number of its tenant where that is known.
    pub(super) fn traced_members(&self) -> Vec<Member> {
        let traced = self.processes.iter().filter(|(_, followed)| !followed.libraries.is_empty());
        traced.map(|(pid, followed)| (*pid, followed.tenant)).collect()
    }

    /// Lets go of processes that have ended, and returns their numbers.
    pub(super) fn let_go(&mut self, recording: &mut Recording<'_>) -> Vec<u32> {
        let (mut ended, asks) = (Vec::new(), mem::take(&mut self.asks_for_ends));
        for (pid, followed) in self.processes.extract_if(|_, followed| followed.process.has_exited(asks)) {
            self.held -= usize::from(followed.process.is_held());
            self.census.forget(pid);
            self.later.forget(&pid);
            if let Some(tenant) = followed.tenant {
                self.tenants.leave(tenant);
                self.is_to_be_shared = true;
                // The map evicts old entries in any case.
                let _ = recording.attachment.object.remove_tenant(pid);
            }
            self.libraries.reaper.take(followed.links.into_iter().map(|(_, link)| link).collect());
            if let Some(target) = recording.report.targets.numbered(followed.target) {
                target.exited = true;
                if target.untraced.is_none() {
                    (recording.notice)(Notice::TargetExited { pid });
                }
            }
            recording.is_outdated = true;
            recording.leave_stacks(pid);
            ended.push(pid);
        }
        ended
    }

    /// Takes note of a process's first record. Tells whether the process is still there.
    pub(super) fn arrived(&mut self, pid: u32, recording: &mut Recording<'_>) -> bool {
        if !self.processes.contains_key(&pid) {
            self.look(pid, recording);
        }
        if self.processes.contains_key(&pid) {
            return true;
        }
        let opened = Process::open(pid);
        let exited = matches!(opened, Err(ProcessError::Missing(_)));
        let report = target_report(pid, opened.as_ref().ok(), Vec::new());
        let target = recording.add_target(TargetReport { exited, ..report });
        let (process, tenant) = match opened {
            // It is between two programs, or has unloaded NCCL: its end is waited for.
            Ok(process) => {
                let description = Description::read(&process, &self.users, &[]);
                let tenant = self.tenants.join(Tenant::of(&description));
                self.say_tenant(pid, tenant, recording);
                (self.hold(process, Some(tenant), recording), Some(tenant))
            }
            Err(_) if exited => return false,
            // The process exists, and will be looked at again.
            Err(_) => {
                self.later.put_off_shortly(pid, Instant::now());
                (HeldProcess::Known { pid, started: None }, None)
            }
        };
        let followed = Followed { process, target, libraries: Vec::new(), links: Vec::new(), tenant };
        self.processes.insert(pid, followed);
        true
    }

    fn look(&mut self, pid: u32, recording: &mut Recording<'_>) {
        if self.processes.get(&pid).is_some_and(|followed| followed.process.has_exited(true)) {
            // The number belongs to another process already, which is looked at once the first is let go of.
            self.census.forget(pid);
            return;
        }
        let now = Instant::now();
        let seen = resolver::look(pid);
        self.census.note(pid, !matches!(seen, Err(Unseen::Denied)));
        match seen {
            Ok(Some(sighting)) => {
                self.unseen.details = false;
                let budget = sighting.unfinished.map(|unfinished| match unfinished {
                    Unfinished::Files => Budget::Files,
                    Unfinished::Mappings => Budget::Mappings,
                });
                if let Some(budget) = budget {
                    let process = &sighting.process;
                    let whose = WhoseBudget::Process(pid);
                    recording.report.over_budget.add(budget, whose, process.name(), 1);
                    recording.is_outdated = true;
                }
                let mut is_whole = budget != Some(Budget::Files);
                if sighting.shows_something() {
                    is_whole &= self.consider(sighting, recording);
                }
                if is_whole {
                    self.later.forget(&pid);
                } else {
                    self.later.put_off(pid, now);
                }
            }
            Ok(None) | Err(Unseen::Denied | Unseen::Unanswered(ResolverError::GivenUp)) => {
                self.later.forget(&pid);
            }
            Err(Unseen::Unanswered(error @ ResolverError::Unavailable(_))) => {
                self.later.put_off_shortly(pid, now);
                if !mem::replace(&mut self.unseen.details, true) {
                    self.pass_over(recording, &format!("process {pid}: {error}"));
                }
            }
            Err(Unseen::Unanswered(error)) => {
                self.later.put_off(pid, now);
                self.pass_over(recording, &format!("process {pid}: {error}"));
                recording.report.lost_readers = Some(resolver::lost());
            }
        }
    }

    /// Takes up a process and its libraries. `false`: a failure that may not recur.
    fn consider(&mut self, sighting: Sighting, recording: &mut Recording<'_>) -> bool {
        let Sighting { process, libraries, unopened, not_asked, .. } = sighting;
        let pid = process.pid();
        let known = self.processes.get(&pid);
        let is_new = known.is_none();
        let is_held = known.is_some_and(|followed| followed.process.is_held());
        let mut tenant = known.and_then(|followed| followed.tenant);
        let mut traced = known.map_or_else(Vec::new, |followed| followed.libraries.clone());
        if is_new {
            let command = resolver::proc_bytes(pid, ProcFile::CommandLine).unwrap_or_default();
            let description = Description::read(&process, &self.users, &command);
            if !self.filter.admits(process.name(), &description) {
                return true;
            }
            if let Some(why) = &not_asked {
                self.pass_over(recording, &format!("process {pid} ({}): {why}", process.name()));
            } else {
                tenant = Some(self.tenants.join(Tenant::of(&description)));
            }
        }
        if not_asked.is_some() {
            return true;
        }
        let (mut is_whole, mut links) = (true, Vec::new());
        let mut reasons: Vec<String> = unopened.iter().map(ToString::to_string).collect();
        let mut is_wanted = !reasons.is_empty() && self.filter.nccl_versions.is_empty();
        let has_room = is_held || self.has_room(tenant);
        for (file, _) in libraries {
            let index = match self.libraries.index_of(file, (pid, tenant), recording) {
                Ok(index) => index,
                Err(error) => {
                    is_whole = false;
                    is_wanted |= self.filter.nccl_versions.is_empty();
                    reasons.push(format!("{error:#}"));
                    continue;
                }
            };
            if traced.contains(&index) || !self.libraries.is_wanted(index) {
                continue;
            }
            is_wanted = true;
            if !has_room && self.libraries.takes_links(index) {
                reasons.push(
                    "it needs links of its own, and its user or container has too many processes".to_owned(),
                );
                continue;
            }
            match self.libraries.attach(index, pid, process.started(), recording) {
                Ok((library, new)) => {
                    links.extend(new.into_iter().map(|link| (index, link)));
                    traced.push(index);
                    (recording.notice)(Notice::Joined { process: &process, library });
                }
                // The end of a process is no failure.
                Err(_) if process.has_exited() => {
                    reasons.push("it ended before it could be traced".to_owned());
                }
                Err(error) => {
                    is_whole = false;
                    reasons.push(format!("{error:#}"));
                }
            }
        }
        let joined = if traced.is_empty() {
            Ok(None)
        } else {
            self.join_driver(&process, tenant, has_room, (&mut traced, &mut links), recording)
        };
        is_whole &= joined.is_ok();
        let no_graph_launches =
            joined.map_or_else(|error| Some(format!("{error:#}")), |why| why.map(str::to_owned));
        if let Some(followed) = self.processes.get_mut(&pid) {
            if let Some(target) = recording.report.targets.numbered(followed.target) {
                target.no_graph_launches.clone_from(&no_graph_launches);
            }
            if followed.libraries != traced {
                if let Some(target) = recording.report.targets.numbered(followed.target) {
                    target.libraries.clone_from(&traced);
                    target.untraced = None;
                }
                followed.libraries = traced;
                followed.links.append(&mut links);
                recording.is_outdated = true;
            }
            return is_whole;
        }
        if !is_wanted {
            if let Some(tenant) = tenant {
                self.tenants.leave(tenant);
            }
            return is_whole;
        }
        let untraced = traced.is_empty().then(|| reasons.join("; "));
        if let Some(why) = &untraced {
            self.pass_over(recording, &format!("process {pid} ({}): {why}", process.name()));
        }
        let report = TargetReport {
            followed_since_ns: untraced.is_none().then(|| now_ns(ClockId::Monotonic)),
            untraced,
            no_graph_launches,
            ..target_report(pid, Some(&process), traced.clone())
        };
        let is_traced = report.untraced.is_none();
        let target = recording.add_target(report);
        if is_traced {
            recording.follow_stacks(pid);
        }
        if let Some(tenant) = tenant {
            self.say_tenant(pid, tenant, recording);
        }
        let process = self.hold(process, tenant, recording);
        self.processes.insert(pid, Followed { process, target, libraries: traced, links, tenant });
        is_whole
    }

    /// Checks files with probes on them at intervals, and when the kernel reports a change.
    pub(super) fn watch_files(&mut self, recording: &mut Recording<'_>) {
        if self.libraries.watch.is_due() {
            self.libraries.look_for_changes();
            recording.note_unseen_files(self.libraries.unseen.as_deref());
        }
        for mut changed in mem::take(&mut self.libraries.gone) {
            for (pid, followed) in &mut self.processes {
                if !followed.libraries.contains(&changed.library) {
                    continue;
                }
                changed.pids.push(*pid);
                followed.libraries.retain(|library| *library != changed.library);
                if is_without_nccl(&followed.libraries, |index| self.libraries.is_driver(index)) {
                    followed.libraries.clear();
                }
                let Followed { libraries, links, .. } = followed;
                let links = links.extract_if(.., |(library, _)| !libraries.contains(library));
                self.libraries.reaper.take(links.map(|(_, link)| link).collect());
                let Some(target) = recording.report.targets.numbered(followed.target) else { continue };
                let ChangedLibrary { path, what, .. } = &changed;
                if followed.libraries.is_empty() {
                    target.untraced = Some(format!("`{path}`, which it had mapped: {what}"));
                } else if self.libraries.is_driver(changed.library) {
                    target.no_graph_launches = Some(format!("`{path}`: {what}"));
                }
            }
            changed.pids.sort_unstable();
            recording.library_changed(changed);
        }
    }

    fn pass_over(&mut self, recording: &mut Recording<'_>, why: &str) {
        (recording.notice)(Notice::PassedOver(why));
        self.passed_over += 1;
        if self.passed_over <= MAX_PASSED_OVER {
            let mut why = why.to_owned();
            if why.len() > MAX_PASSED_OVER_BYTES {
                why.truncate(why.floor_char_boundary(MAX_PASSED_OVER_BYTES));
                why.push('…');
            }
            recording.report.passed_over.push(why);
        } else {
            recording.report.passed_over.truncate(MAX_PASSED_OVER);
            recording.report.passed_over.push(format!("and {} more", self.passed_over - MAX_PASSED_OVER));
        }
        recording.is_outdated = true;
    }

    /// Returns all links, when the recording is over.
    pub(super) fn into_links(self) -> Vec<Link> {
        let of_processes = self.processes.into_values().flat_map(|followed| followed.links);
        let of_processes = of_processes.map(|(_, link)| link);
        self.libraries.into_links().chain(of_processes).collect()
    }
}
