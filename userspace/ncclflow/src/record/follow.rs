//! `--all`: processes are found, and let go of, while the recording goes on.
//!
//! A library is resolved once, and its probes have one cookie for all processes: records say whose they are.
//! Without a filter a probe is attached to the library's inode, so that a process that starts later is traced
//! from its first instruction, before anybody has looked at it. With a filter it is attached process by
//! process: in those that are not wanted the kernel then places no breakpoint.

use std::{collections::HashMap, os::fd::BorrowedFd, time::Duration};

use anyhow::{Context as _, Result, bail};
use rustix::time::ClockId;

use super::{
    libraries::{Gone, Libraries},
    options::Notice,
    recorder::Recording,
    report::target_report,
    setup::{Bindings, Wanted},
};
use crate::{
    clock::now_ns,
    kernel::loader::Link,
    resolver::{self, ResolverError, Unseen},
    sinks::{ChangedLibrary, TargetReport},
    target::{Census, Description, Filter, Process, Sighting, Users, in_first_pid_namespace},
};

/// Rounds between two looks for libraries that nobody uses any more.
const RETIRE_ROUNDS: u32 = 10;
/// Entries of `passed_over`; what goes wrong more often than that is counted.
const MAX_PASSED_OVER: usize = 1000;

/// A process that is traced, or has NCCL and cannot be.
struct Followed {
    process: Process,
    /// Index in the report's targets.
    target: usize,
    libraries: Vec<usize>,
    /// To this process alone, by the index of the library.
    links: Vec<(usize, Link)>,
}

pub(super) struct Follower<'a> {
    filter: &'a Filter,
    libraries: Libraries<'a>,
    users: Users,
    census: Census,
    processes: HashMap<u32, Followed>,
    rounds: u32,
    passed_over: usize,
}

impl<'a> Follower<'a> {
    pub(super) fn new(wanted: Wanted<'a>, filter: &'a Filter, bindings: Bindings) -> Result<Self> {
        if !in_first_pid_namespace().context("reading our PID namespace")? {
            bail!(
                "--all needs the host's PID namespace (docker run --pid=host, Kubernetes hostPID: true): the kernel numbers \
                 processes by it"
            );
        }
        Ok(Self {
            filter,
            libraries: Libraries::new(wanted, filter, bindings)?,
            users: Users::read(),
            census: Census::default(),
            processes: HashMap::new(),
            rounds: 0,
            passed_over: 0,
        })
    }

    /// Looks at what is new among the processes of the node.
    pub(super) fn round(&mut self, recording: &mut Recording<'_>) -> Result<()> {
        for pid in self.census.round().context("listing /proc")? {
            self.look(pid, recording);
        }
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(RETIRE_ROUNDS) {
            let processes = &self.processes;
            self.libraries
                .retire(|index| processes.values().any(|followed| followed.libraries.contains(&index)));
        }
        Ok(())
    }

    /// Readable as processes end.
    pub(super) fn exit_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.processes.values().map(|followed| followed.process.exit_fd())
    }

    pub(super) fn traced_pids(&self) -> Vec<u32> {
        let traced = self.processes.iter().filter(|(_, followed)| !followed.libraries.is_empty());
        traced.map(|(pid, _)| *pid).collect()
    }

    /// Lets go of processes that have ended: their numbers.
    pub(super) fn let_go(&mut self, recording: &mut Recording<'_>) -> Vec<u32> {
        let mut ended = Vec::new();
        for (pid, followed) in self.processes.extract_if(|_, followed| followed.process.has_exited()) {
            self.census.forget(pid);
            self.libraries.detach(followed.links.into_iter().map(|(_, link)| link).collect());
            if let Some(target) = recording.report.targets.get_mut(followed.target) {
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

    /// A first record of a process came. Says whether it is there; if not, it has ended already.
    pub(super) fn arrived(&mut self, pid: u32, recording: &mut Recording<'_>) -> bool {
        if !self.processes.contains_key(&pid) {
            self.look(pid, recording);
        }
        if self.processes.contains_key(&pid) {
            return true;
        }
        let process = Process::open(pid).ok();
        let target = recording.add_target(target_report(pid, process.as_ref(), Vec::new()));
        let Some(process) = process else { return false };
        // It is between two programs, or has unloaded NCCL: its end is waited for.
        self.processes.insert(pid, Followed { process, target, libraries: Vec::new(), links: Vec::new() });
        true
    }

    fn look(&mut self, pid: u32, recording: &mut Recording<'_>) {
        if self.processes.get(&pid).is_some_and(|followed| followed.process.has_exited()) {
            // The number means another process already: once the first is let go of.
            self.census.forget(pid);
            return;
        }
        // What may not be looked at cannot be told from what has no NCCL.
        match resolver::look(pid) {
            Ok(Some(sighting)) => self.consider(sighting, recording),
            Ok(None) | Err(Unseen::Denied | Unseen::Unanswered(ResolverError::GivenUp)) => {}
            Err(Unseen::Unanswered(error)) => {
                self.pass_over(recording, &format!("process {pid}: {error}"));
                recording.report.lost_readers = Some(resolver::lost());
            }
        }
    }

    fn consider(&mut self, sighting: Sighting, recording: &mut Recording<'_>) {
        let Sighting { process, libraries, unopened, not_asked } = sighting;
        let pid = process.pid();
        let known = self.processes.get(&pid).map(|followed| followed.libraries.clone());
        if known.is_none() {
            let description = Description::read(&process, &self.users);
            if !self.filter.admits(process.name(), &description) {
                return;
            }
        }
        let is_new = known.is_none();
        let (mut traced, mut links) = (known.unwrap_or_default(), Vec::new());
        if let Some(why) = not_asked {
            if is_new {
                self.pass_over(recording, &format!("process {pid} ({}): {why}", process.name()));
            }
            return;
        }
        let mut reasons: Vec<String> = unopened.iter().map(ToString::to_string).collect();
        let mut is_wanted = !reasons.is_empty() && self.filter.nccl_versions.is_empty();
        for (file, _) in libraries {
            let index = match self.libraries.index_of(file, recording) {
                Ok(index) => index,
                Err(error) => {
                    is_wanted |= self.filter.nccl_versions.is_empty();
                    reasons.push(format!("{error:#}"));
                    continue;
                }
            };
            if traced.contains(&index) || !self.libraries.is_wanted(index) {
                continue;
            }
            is_wanted = true;
            match self.libraries.attach(index, pid, process.started(), &mut recording.attachment) {
                Ok((library, new)) => {
                    links.extend(new.into_iter().map(|link| (index, link)));
                    traced.push(index);
                    (recording.notice)(Notice::Joined { process: &process, library });
                }
                // The end of a process is no failure.
                Err(_) if process.has_exited() => {
                    reasons.push("it ended before it could be traced".to_owned());
                }
                Err(error) => reasons.push(format!("{error:#}")),
            }
        }
        if let Some(followed) = self.processes.get_mut(&pid) {
            if followed.libraries != traced {
                if let Some(target) = recording.report.targets.get_mut(followed.target) {
                    target.libraries.clone_from(&traced);
                    target.untraced = None;
                }
                followed.libraries = traced;
                followed.links.append(&mut links);
                recording.is_outdated = true;
            }
            return;
        }
        if !is_wanted {
            return;
        }
        let untraced = traced.is_empty().then(|| reasons.join("; "));
        if let Some(why) = &untraced {
            self.pass_over(recording, &format!("process {pid} ({}): {why}", process.name()));
        }
        let report = TargetReport {
            followed_since_ns: untraced.is_none().then(|| now_ns(ClockId::Monotonic)),
            untraced,
            ..target_report(pid, Some(&process), traced.clone())
        };
        let is_traced = report.untraced.is_none();
        let target = recording.add_target(report);
        if is_traced {
            recording.follow_stacks(pid);
        }
        self.processes.insert(pid, Followed { process, target, libraries: traced, links });
    }

    /// Files with probes on them are looked at now and then, and when the kernel says that one was changed.
    pub(super) fn watch_files(&mut self, recording: &mut Recording<'_>) {
        if self.libraries.watch().is_due() {
            self.libraries.look_for_changes();
        }
        for Gone { index, path, why, unchanged_ns } in self.libraries.take_gone() {
            let mut pids = Vec::new();
            for (pid, followed) in &mut self.processes {
                if !followed.libraries.contains(&index) {
                    continue;
                }
                pids.push(*pid);
                followed.libraries.retain(|library| *library != index);
                let links = followed.links.extract_if(.., |(library, _)| *library == index);
                self.libraries.detach(links.map(|(_, link)| link).collect());
                if let Some(target) = recording.report.targets.get_mut(followed.target)
                    && followed.libraries.is_empty()
                {
                    target.untraced = Some(format!("`{path}`, which it had mapped: {why}"));
                }
            }
            pids.sort_unstable();
            recording.library_changed(ChangedLibrary {
                library: index,
                path,
                seen_ns: now_ns(ClockId::Monotonic),
                what: why,
                pids,
                unchanged_until_ns: unchanged_ns,
            });
        }
    }

    pub(super) fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        self.libraries.watch_fd()
    }

    pub(super) fn watch_timeout(&self) -> Option<Duration> {
        self.libraries.watch_timeout()
    }

    fn pass_over(&mut self, recording: &mut Recording<'_>, why: &str) {
        (recording.notice)(Notice::PassedOver(why));
        self.passed_over += 1;
        if self.passed_over <= MAX_PASSED_OVER {
            recording.report.passed_over.push(why.to_owned());
        } else {
            recording.report.passed_over.truncate(MAX_PASSED_OVER);
            recording.report.passed_over.push(format!("and {} more", self.passed_over - MAX_PASSED_OVER));
        }
        recording.is_outdated = true;
    }

    /// All links: the recording is over.
    pub(super) fn into_links(self) -> Vec<Link> {
        let of_processes = self.processes.into_values().flat_map(|followed| followed.links);
        let of_processes = of_processes.map(|(_, link)| link);
        self.libraries.into_links().chain(of_processes).collect()
    }
}
