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
    fs::File,
    io, mem,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use flow::{
    identity::Whose,
    quota::in_turns,
    recording::{Event, FirstHit},
    session::{Budget, WhoseBudget, WindowContainer, WindowEnd, WindowIterations, WindowReport},
};
use rustix::time::ClockId;

use super::{
    accounts::{Accounts, Baseline},
    container_flags::{Member, MountNamespace},
    keeper::OpenRecording,
    limit::keep_room,
    mailbox::EventSender,
    options::{Notice, StopHandle, WindowOptions},
    recorder::Recording,
    report::complete_accounts,
    row_watch::{RowWatch, WindowLimits},
    threads::{Taken, Threads},
    window_export::{ClosedWindow, Exporter, WindowsExport},
    window_flags::{FlagsSeen, Scope, WindowFlags},
    window_pace::WindowPace,
};
use crate::kernel::{loader::Attachment, stream::ProbeCounts};
use inspect::{
    clock::now_ns,
    process::{Tenant, in_first_pid_namespace},
    shortage,
};
use recording::{
    format::RecordingWriter,
    sinks::{OutputDir, is_over_max_size, window_name},
};

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
    /// For a window of some containers: their processes until now, and those that are admitted.
    members: BTreeMap<MountNamespace, BTreeSet<u32>>,
    admitted: BTreeSet<u32>,
    dir: OutputDir,
    since: Instant,
    baseline: Baseline,
    dropped: ProbeCounts,
    watch: Option<RowWatch>,
    /// Messages of the recording's report that are older than the window.
    errors_before: u64,
}

#[derive(Debug)]
pub(super) struct Windows<'a> {
    options: &'a WindowOptions,
    flags: WindowFlags,
    pace: WindowPace,
    dir: OutputDir,
    events: EventSender,
    stop: StopHandle,
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
    pub(super) fn new(
        recording: &mut Recording<'a>,
        stop: &StopHandle,
        events: &EventSender,
    ) -> Result<Option<Self>> {
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
        Ok(Some(Self {
            options,
            flags: WindowFlags::watch(options.flag.as_deref(), in_containers, events)?,
            pace: WindowPace::default(),
            dir,
            events: events.clone(),
            stop: stop.clone(),
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

    /// Returns a descriptor that is readable when a window may have to be opened or closed.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.flags.fd()
    }

    /// Returns the longest time until the next look.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let ask = self.options.flag.as_ref().map(|_| ASK);
        let ask_for_room = self.is_late.then_some(ASK_FOR_ROOM);
        let ask_for_age = self.max_age.map(|_| ASK_FOR_AGE);
        let limit = match (&self.open, self.options.max_duration) {
            (Some(open), Some(limit)) => Some(limit.saturating_sub(open.since.elapsed())),
            _ => None,
        };
        ask.into_iter().chain(ask_for_room).chain(ask_for_age).chain(limit).min()
    }

    /// Opens and closes windows. `full`: the number of a window that has reached its limit of ops. `rotate`:
    /// a new window is wanted.
    pub(super) fn step(
        &mut self,
        recording: &mut Recording<'_>,
        threads: &Threads,
        full: Option<u32>,
        rotate: bool,
    ) -> Result<()> {
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
        let mut seen = self.flags.look(|| traced(recording));
        let over = self.pace.hold_back(&mut seen, Instant::now(), |pids| tenant_of(pids, recording));
        for tenant in over {
            recording.report.over_budget.add(Budget::Windows, WhoseBudget::Tenant(tenant), "", 1);
            recording.is_outdated = true;
        }
        seen
    }

    fn may_open(&self, scope: &Scope) -> bool {
        *scope == Scope::All || self.last_opened.is_none_or(|last| last.elapsed() >= CONTAINER_INTERVAL)
    }

    /// Closes the open window at the recording's end, and returns the accounts of all windows. Their folders
    /// may still be incomplete. An error is of the last one.
    pub(super) fn finish(
        mut self,
        recording: &mut Recording<'_>,
        threads: &Threads,
    ) -> (WindowsExport, Accounts, Result<()>) {
        let closed = self.close(WindowEnd::Recording, recording, threads);
        recording.report.loss.windows_late = self.late;
        let export = self.exporter.close();
        (export, self.accounts, closed)
    }

    fn open(
        &mut self,
        scope: Scope,
        seen: &FlagsSeen,
        recording: &mut Recording<'_>,
        threads: &Threads,
    ) -> Result<()> {
        // Without them a folder would be made, and could not even be removed.
        if let Err(error) = descriptors() {
            return self.put_off(error.into(), recording);
        }
        let opened_ms = now_ns(ClockId::Realtime) / 1_000_000;
        let containers = seen.members(&scope).map(|members| describe(&members, recording));
        let name = containers.as_deref().map(scope_name);
        let folder = window_name(self.number + 1, opened_ms, &recording.report.host, name.as_deref());
        let room = keep_room(&self.dir, &recording.report, recording.attachment.probes().len(), true);
        let tenants: BTreeSet<String> = seen
            .members(&scope)
            .into_iter()
            .flat_map(BTreeMap::into_values)
            .map(|pids| tenant_of(&pids, recording))
            .collect();
        let tenants = tenants.into_iter().collect::<Vec<_>>().join(", ");
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
            closed_monotonic_ns: None,
            closed_by: None,
            ops_left_out: 0,
            lines_removed: false,
            containers,
            iterations: self.options.iterations.map(WindowIterations::wanted),
        };
        let (writer, watch) = match self.begin(&report, &dir, &hits, recording) {
            Ok(begun) => begun,
            Err(error) => {
                self.dir.discard_window(&report.folder, &dir);
                return self.put_off(error, recording);
            }
        };
        self.number += 1;
        self.is_late = false;
        self.pace.opened(&scope, seen, Instant::now(), |pids| tenant_of(pids, recording));
        if recording.options.choice.stacks.is_some_and(|stacks| stacks.kind.has_native()) {
            // All stacks would be copied again, and few are at a time.
            recording.attachment.forget_what_walks_sent()?;
        } else {
            recording.attachment.forget_what_was_sent()?;
        }
        let kept = OpenRecording { writer, reader: watch.as_ref().map(RowWatch::feed) };
        threads.swap_recording(Some(kept), hits)?;
        let (members, admitted) = (BTreeMap::new(), BTreeSet::new());
        let (since, dropped) = (Instant::now(), threads.dropped());
        let errors_before = recording.report.errors.count();
        let mut open = Box::new(Open {
            report,
            scope,
            members,
            admitted,
            dir,
            since,
            baseline,
            dropped,
            watch,
            errors_before,
        });
        if open.scope == Scope::All {
            recording.attachment.arm()?;
        } else {
            open.admit(seen, &mut recording.attachment)?;
        }
        open.report.opened_monotonic_ns = now_ns(ClockId::Monotonic);
        (recording.notice)(Notice::WindowOpened(&open.report));
        self.open = Some(open);
        self.last_opened = Some(Instant::now());
        Ok(())
    }

    /// Begins a window's recording, and its reader.
    fn begin(
        &self,
        report: &WindowReport,
        dir: &OutputDir,
        hits: &[FirstHit],
        recording: &Recording<'_>,
    ) -> Result<(Box<RecordingWriter>, Option<RowWatch>)> {
        let mut writer = recording.begin_recording(dir, Some(report))?;
        let begun = writer.push_event(&Event::HitsBegin { hits: hits.to_vec() });
        begun.context("beginning a window's recording")?;
        let WindowOptions { max_ops, iterations, .. } = *self.options;
        let has_limit = max_ops.is_some() || iterations.is_some();
        let limits = has_limit.then_some(WindowLimits { number: report.number, max_ops, iterations });
        let watch = recording.watch_rows(dir, &self.stop, &self.events, limits)?;
        Ok((writer, watch))
    }

    /// Puts off a window for which there is no room, or no descriptor. It is tried again, and counted as
    /// late. Any other error ends the recording.
    fn put_off(&mut self, why: anyhow::Error, recording: &mut Recording<'_>) -> Result<()> {
        if !shortage::caused(&why) {
            return Err(why);
        }
        let is_first = !mem::replace(&mut self.is_late, true);
        self.late += u64::from(is_first);
        if why.chain().filter_map(|cause| cause.downcast_ref()).any(is_over_max_size) {
            // It is opened when an earlier window is complete, and can be removed.
            self.events.look_at_budget();
        } else if is_first {
            recording.write_failed(format!("window {} cannot be opened yet: {why:#}", self.number + 1));
        }
        Ok(())
    }

    fn close(&mut self, end: WindowEnd, recording: &mut Recording<'_>, threads: &Threads) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let Open { mut report, members, dir, baseline, dropped, watch, errors_before, .. } = *open;
        if report.containers.is_some() {
            report.containers = Some(describe(&members, recording));
        }
        // Taken before the word is changed, as `opened_monotonic_ns` is after it: hits between them are
        // certainly recorded.
        report.closed_monotonic_ns = Some(now_ns(ClockId::Monotonic));
        recording.attachment.disarm()?;
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
        let who = recording.who.report();
        let lines = recording.lines_request(&dir, self.options.max_ops, &self.stop)?;
        self.exporter.push(ClosedWindow { dir, taken, report: session, watch, lines, who })
    }
}

impl Open {
    /// Opens a window of some containers to their processes as they are now.
    fn admit(&mut self, seen: &FlagsSeen, attachment: &mut Attachment) -> Result<()> {
        let Some(members) = seen.members(&self.scope) else { return Ok(()) };
        let admitted = admitted_of(&members, MAX_ADMITTED);
        for (namespace, pids) in members {
            self.members.entry(namespace).or_default().extend(pids);
        }
        if self.admitted != admitted {
            attachment.arm_for(&admitted)?;
            self.admitted = admitted;
        }
        Ok(())
    }
}

/// Checks that there are as many descriptors as a window takes.
fn descriptors() -> io::Result<()> {
    let spare: io::Result<Vec<_>> = (0..DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    spare.map(|_| ())
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
    let mut whose = recording.report.targets.iter().filter(|target| pids.contains(&target.pid));
    let whose = whose.find_map(|target| target.whose.as_ref());
    whose.map_or_else(|| "one that is not known".to_owned(), |whose| tenant(whose).to_string())
}

fn tenant(whose: &Whose) -> Tenant {
    Tenant::new(whose.container.as_ref(), whose.uid, &whose.user)
}

fn describe(
    members: &BTreeMap<MountNamespace, BTreeSet<u32>>,
    recording: &Recording<'_>,
) -> Vec<WindowContainer> {
    let targets = &recording.report.targets;
    let container = |pids: &BTreeSet<u32>| {
        let mut whose = targets.iter().filter(|target| pids.contains(&target.pid));
        whose.find_map(|target| target.whose.as_ref()?.container.clone())
    };
    let of = |(namespace, pids): (&MountNamespace, &BTreeSet<u32>)| WindowContainer {
        mount_namespace: *namespace,
        container: container(pids),
        pids: pids.clone(),
    };
    members.iter().map(of).collect()
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
