//! Windows: parts of a recording with folders of their own, opened and closed by a flag file, a signal, or
//! the time.
//!
//! Between windows the probes stay attached and the session's word in the map is 0: a hit costs its trap, and
//! nothing else happens. A window begins without memory of the one before: what walks send once for a
//! communicator is sent again. It ends when every hit that was counted while it was open has come to the
//! recording, or is accounted for as lost. Its files can be made later.
//!
//! inotify watches the folder of the flag file, which is also read four times a second. To close a window,
//! the word is cleared, and the drain is woken until it has taken as many records as the kernel side counted.
//! A thread of its own (`record::window_export`) makes the files, at most two windows at a time, so the next
//! window can open meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
    os::fd::BorrowedFd,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use flow::{
    identity::{Container, Whose},
    quota::in_turns,
    session::{
        Budget, SessionReport, WhoseBudget, WindowContainer, WindowEnd, WindowIterations, WindowReport,
    },
};
use rustix::time::ClockId;

use super::{
    accounts::{Accounts, Baseline},
    container_flags::{Member, MountNamespace},
    limit::keep_room,
    options::{Notice, WindowOptions},
    own_limits::spare_descriptors,
    recorder::Recording,
    report::complete_accounts,
    threads::{Taken, Threads},
    window_export::{ClosedWindow, Exporter},
    window_flags::{FlagsSeen, Scope, WindowFlags},
};
use crate::kernel::{
    loader::{Attachment, Gate},
    stream::ProbeCounts,
};
use inspect::{
    clock::now_ns,
    process::{Tenant, in_first_pid_namespace},
    resource_exhaustion,
};
use recording::sinks::{OutputDir, is_over_max_size, window_name};

/// Interval at which the flag file is looked for where its folder tells nothing.
const ASK: Duration = Duration::from_millis(250);

/// Interval of retries while there is no room for a window.
const ASK_FOR_ROOM: Duration = Duration::from_millis(100);

/// Interval at which windows are checked for their age.
const ASK_FOR_AGE: Duration = Duration::from_secs(1);
/// Descriptors of a window: folders, a segment, and first files of the thread that makes its files.
const DESCRIPTORS: usize = 8;

/// Most processes in a window of some containers.
const MAX_ADMITTED: usize = ncclflow_common::MAX_ADMITTED as usize;

/// Pause after a window was opened until a tenant's flag can open the next: a flood of windows is prevented.
const CONTAINER_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Open {
    report: WindowReport,
    scope: Scope,
    /// Processes that are admitted to a window of some containers.
    admitted: BTreeSet<u32>,
    dir: OutputDir,
    since: Instant,
    baseline: Baseline,
    dropped: ProbeCounts,
    /// Messages of the recording's report that are older than the window.
    errors_before: u64,
}

#[derive(Debug)]
pub(super) struct Windows<'a> {
    options: &'a WindowOptions,
    flags: WindowFlags,
    dir: OutputDir,
    exporter: Exporter,
    open: Option<Box<Open>>,
    number: u32,
    /// Greatest age of windows.
    max_age: Option<Duration>,
    /// Accounts of all windows.
    accounts: Accounts,
    /// Number of windows that were opened late.
    late: u64,
    /// There was no room for the next one.
    is_late: bool,
    last_opened: Option<Instant>,
}

impl<'a> Windows<'a> {
    /// Returns `None` without an output folder.
    pub(super) fn new(recording: &mut Recording<'a>) -> Result<Option<Self>> {
        let (Some(options), Some(dir)) = (&recording.options.windows, &recording.dir) else {
            return Ok(None);
        };
        let dir = dir.try_clone().context("keeping the output folder open")?;
        // Processes are admitted by the numbers that the kernel gives them.
        let in_containers = in_first_pid_namespace().unwrap_or(false);
        if options.flag.is_some() && !in_containers {
            let why = "flag files in containers are not looked at: that needs the host's PID namespace (docker run --pid=host)";
            recording.flag_not_seen(why.to_owned());
        }
        let events = &recording.events;
        Ok(Some(Self {
            options,
            flags: WindowFlags::watch(options.flag.as_deref(), in_containers, events)?,
            dir,
            exporter: Exporter::start(recording.options.compress, events)?,
            open: None,
            number: 0,
            max_age: recording.options.max_age,
            accounts: Accounts::default(),
            late: 0,
            is_late: false,
            last_opened: None,
        }))
    }

    /// Tells whether a window of all processes is open, so that records come of each.
    pub(super) fn records_all(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.scope == Scope::All)
    }

    /// Returns a descriptor that is readable when a window may have to be opened or closed.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.flags.fd()
    }

    /// Returns the longest time until the next look.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let ask = self.options.flag.as_ref().map(|_| ASK);
        let ask_for_room = self.is_late.then_some(ASK_FOR_ROOM);
        let ask_for_age = self.max_age.map(|_| ASK_FOR_AGE);
        let limit = self.open.as_ref().zip(self.options.max_duration);
        let limit = limit.map(|(open, limit)| limit.saturating_sub(open.since.elapsed()));
        ask.into_iter().chain(ask_for_room).chain(ask_for_age).chain(limit).min()
    }

    /// Opens and closes windows. `rotate`: a new window is wanted.
    pub(super) fn step(
        &mut self,
        recording: &mut Recording<'_>,
        threads: &Threads,
        rotate: bool,
    ) -> Result<()> {
        let full = recording.full_window.take();
        if let (Some(max_age), Some(budget)) = (self.max_age, self.dir.budget()) {
            budget.remove_older_than(max_age);
        }
        let mut seen = self.look(recording);
        if let Some(open) = &self.open {
            let is_late = self.options.max_duration.is_some_and(|limit| open.since.elapsed() >= limit);
            let counts_ops = self.options.iterations.is_none();
            let ends = [
                (seen.has_gone(&open.scope), WindowEnd::Flag),
                (full == Some(open.report.number) && counts_ops, WindowEnd::MaxOps),
                (full == Some(open.report.number), WindowEnd::Iterations),
                (is_late, WindowEnd::MaxSecs),
                (rotate, WindowEnd::Signal),
                (
                    seen.wanted.as_ref().is_some_and(|wanted| *wanted != open.scope && self.may_open(wanted)),
                    WindowEnd::OtherFlag,
                ),
            ];
            if let Some((_, end)) = ends.into_iter().find(|(is_reached, _)| *is_reached) {
                if matches!(end, WindowEnd::MaxOps | WindowEnd::MaxSecs | WindowEnd::Iterations)
                    && self.options.flag.is_some()
                {
                    self.flags.spend(&open.scope);
                    seen = self.look(recording);
                }
                self.close(end, recording, threads)?;
            }
        }
        if let Some(open) = &mut self.open {
            return open.admit(&seen, &mut recording.attachment);
        }
        match &seen.wanted {
            Some(scope) if self.may_open(scope) => self.open(scope.clone(), &seen, recording, threads),
            _ => {
                self.is_late = false;
                Ok(())
            }
        }
    }

    /// Returns the flags' state, without those of tenants who open too many windows.
    fn look(&mut self, recording: &mut Recording<'_>) -> FlagsSeen {
        let (seen, over) = self.flags.look(|| traced(recording), |pids| tenant_of(pids, recording));
        for tenant in over {
            recording.report.over_budget.add(Budget::Windows, WhoseBudget::Tenant(tenant), "", 1);
            recording.is_outdated = true;
        }
        seen
    }

    fn may_open(&self, scope: &Scope) -> bool {
        *scope == Scope::All || self.last_opened.is_none_or(|last| last.elapsed() >= CONTAINER_INTERVAL)
    }

    /// Adds the accounts of all windows to those of what was taken without a window, or in one that could not
    /// be closed. Returns the thread that completes their folders.
    pub(super) fn finish(
        mut self,
        report: &mut SessionReport,
        taken: &mut Taken,
    ) -> JoinHandle<SessionReport> {
        report.loss.windows_late = self.late;
        self.accounts.append(&taken.accounts);
        taken.accounts = self.accounts;
        self.exporter.thread
    }

    fn open(
        &mut self,
        scope: Scope,
        seen: &FlagsSeen,
        recording: &mut Recording<'_>,
        threads: &Threads,
    ) -> Result<()> {
        // Without them a folder would be made, and could not even be removed.
        if let Err(error) = spare_descriptors(DESCRIPTORS).collect::<io::Result<Vec<_>>>() {
            return self.put_off(error.into(), recording);
        }
        let opened_ms = now_ns(ClockId::Realtime) / 1_000_000;
        let members = seen.members(&scope);
        let tenants: BTreeSet<String> =
            members.iter().flatten().map(|(_, pids)| tenant_of(pids, recording)).collect();
        let tenants = tenants.into_iter().collect::<Vec<_>>().join(", ");
        let of = |(mount_namespace, pids)| WindowContainer {
            mount_namespace,
            container: container_of(&pids, recording),
            pids,
        };
        let containers = members.map(|members| members.into_iter().map(of).collect::<Vec<_>>());
        let name = containers.as_deref().map(scope_name);
        let folder = window_name(self.number + 1, opened_ms, &recording.report.host, name.as_deref());
        let room = keep_room(&self.dir, &recording.report, recording.attachment.probes().len(), true);
        let dir = match self.dir.window(&folder, room, &tenants) {
            Ok(dir) => dir,
            Err(error) => {
                let error = anyhow::Error::from(error).context(format!("making the folder `{folder}`"));
                return self.put_off(error, recording);
            }
        };
        let baseline = Baseline::of(&recording.attachment)?;
        let hits = baseline.next_hits();
        let report = WindowReport {
            number: self.number + 1,
            folder,
            opened_unix_ms: opened_ms,
            opened_monotonic_ns: now_ns(ClockId::Monotonic),
            containers,
            iterations: self.options.iterations.map(WindowIterations::wanted),
            ..WindowReport::default()
        };
        let kept = match recording.begin_recording(&dir, Some((&report, &hits))) {
            Ok(kept) => kept,
            Err(error) => {
                self.dir.discard_window(&report.folder, &dir);
                return self.put_off(error, recording);
            }
        };
        self.number += 1;
        self.is_late = false;
        self.flags.opened(&scope, seen, Instant::now(), |pids| tenant_of(pids, recording));
        if recording.options.choice.stacks.is_some_and(|stacks| stacks.kind.has_native()) {
            // All stacks would be copied again, and few are at a time.
            recording.attachment.object.forget_seen()?;
        } else {
            recording.attachment.object.forget_what_was_sent()?;
        }
        threads.swap_recording(Some(kept), hits)?;
        let mut open = Box::new(Open {
            report,
            scope,
            admitted: BTreeSet::new(),
            dir,
            since: Instant::now(),
            baseline,
            dropped: threads.dropped(),
            errors_before: recording.report.errors.count(),
        });
        if open.scope == Scope::All {
            recording.attachment.object.set_gate(Gate::Open)?;
        } else {
            open.admit(seen, &mut recording.attachment)?;
        }
        open.report.opened_monotonic_ns = now_ns(ClockId::Monotonic);
        (recording.notice)(Notice::WindowOpened(&open.report));
        self.open = Some(open);
        self.last_opened = Some(Instant::now());
        Ok(())
    }

    /// Puts off a window for which there is no room, or no descriptor. It is tried again, and counted as
    /// late. Any other error ends the recording.
    fn put_off(&mut self, why: anyhow::Error, recording: &mut Recording<'_>) -> Result<()> {
        if !resource_exhaustion::caused(&why) {
            return Err(why);
        }
        let is_first = !mem::replace(&mut self.is_late, true);
        self.late += u64::from(is_first);
        if why.chain().filter_map(|cause| cause.downcast_ref()).any(is_over_max_size) {
            // It is opened when an earlier window is complete, and can be removed.
            recording.events.look_at_budget();
        } else if is_first {
            recording.write_failed(format!("window {} cannot be opened yet: {why:#}", self.number + 1));
        }
        Ok(())
    }

    /// Closes the window, if one is open. Its folder is completed by another thread.
    pub(super) fn close(
        &mut self,
        end: WindowEnd,
        recording: &mut Recording<'_>,
        threads: &Threads,
    ) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let Open { mut report, dir, baseline, dropped, errors_before, .. } = *open;
        for container in report.containers.iter_mut().flatten() {
            container.container = container_of(&container.pids, recording);
        }
        // Taken before the word is changed, as `opened_monotonic_ns` is after it: hits between them are
        // certainly recorded.
        report.closed_monotonic_ns = Some(now_ns(ClockId::Monotonic));
        recording.attachment.object.set_gate(Gate::Closed)?;
        report.closed_by = Some(end);
        threads.settle(&recording.attachment)?;
        let (kept, accounts) = threads.swap_recording(None, Vec::new())?;
        let dropped = threads.dropped().since(&dropped);
        self.accounts.append(&accounts);
        let mut taken = Taken { accounts, kept, dropped, ..Taken::default() };
        let mut session = recording.report.of_window(&report);
        // Errors from before it was opened are not this window's.
        session.errors = session.errors.without_first(errors_before);
        complete_accounts(&mut session, &recording.attachment, &mut taken, &baseline)?;
        recording.report.push_window(report);
        let who = recording.who.registry.clone();
        let lines = recording.lines_request(&dir, self.options.max_ops)?;
        self.exporter.push(ClosedWindow { dir, taken, report: session, lines, who })
    }
}

impl Open {
    /// Opens a window of some containers to their processes as they are now.
    fn admit(&mut self, seen: &FlagsSeen, attachment: &mut Attachment) -> Result<()> {
        let Some(members) = seen.members(&self.scope) else { return Ok(()) };
        let admitted = admitted_of(&members, MAX_ADMITTED);
        for container in self.report.containers.iter_mut().flatten() {
            container.pids.extend(members.get(&container.mount_namespace).into_iter().flatten());
        }
        if self.admitted != admitted {
            attachment.object.admit(&admitted)?;
            self.admitted = admitted;
        }
        Ok(())
    }
}

/// Returns the first process of each container, then the second of each, and so on, up to `most`.
fn admitted_of(members: &BTreeMap<MountNamespace, BTreeSet<u32>>, most: usize) -> BTreeSet<u32> {
    let pids = members.iter().flat_map(|(namespace, pids)| pids.iter().map(|pid| (*namespace, *pid)));
    in_turns(pids, most).0.into_iter().collect()
}

fn traced(recording: &Recording<'_>) -> Vec<Member> {
    let targets = recording.report.targets.iter();
    let traced = targets.filter(|target| !target.exited && !target.libraries.is_empty());
    traced.map(|target| (target.pid, target.whose.as_ref().map(tenant))).collect()
}

/// Returns the tenant of a container's processes, by the first of which it is known.
fn tenant_of(pids: &BTreeSet<u32>, recording: &Recording<'_>) -> String {
    let whose = whose_of(pids, recording).next();
    whose.map_or_else(|| "one that is not known".to_owned(), |whose| tenant(whose).to_string())
}

fn tenant(whose: &Whose) -> Tenant {
    Tenant::new(whose.container.as_ref(), whose.session_user.as_ref(), (whose.uid, &whose.user))
}

/// Returns the container of these processes, where one is known.
fn container_of(pids: &BTreeSet<u32>, recording: &Recording<'_>) -> Option<Container> {
    whose_of(pids, recording).find_map(|whose| whose.container.clone())
}

/// Returns whose these processes are, as far as it is known.
fn whose_of<'r>(pids: &BTreeSet<u32>, recording: &'r Recording<'_>) -> impl Iterator<Item = &'r Whose> {
    let targets = recording.report.targets.iter().filter(|target| pids.contains(&target.pid));
    targets.filter_map(|target| target.whose.as_ref())
}

/// Returns what stands for the containers in the folder's name.
fn scope_name(containers: &[WindowContainer]) -> String {
    match containers {
        [WindowContainer { container: Some(container), .. }] => container.short().replace(':', "-"),
        [WindowContainer { mount_namespace, .. }] => format!("mnt-{mount_namespace}"),
        _ => format!("{}-containers", containers.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_with_very_many_processes_leaves_others_theirs() {
        let members =
            BTreeMap::from([(1, (0..5000).collect()), (2, (5000..5003).collect()), (3, BTreeSet::new())]);
        let chosen = admitted_of(&members, 1024);
        assert_eq!((chosen.len(), chosen.iter().filter(|pid| **pid >= 5000).count()), (1024, 3));
        assert_eq!(admitted_of(&members, 10_000).len(), 5003);
        assert!(admitted_of(&BTreeMap::new(), 10).is_empty());
    }
}
