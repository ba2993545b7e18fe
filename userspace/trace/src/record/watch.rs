//! Watches, in the recording's own thread, for the end, starting and exiting processes, and windows to open
//! and close.

use crate::kernel::stream::wait_for;
use inspect::{failpoint, process::Process};
use recording::sinks::write_session;
use std::{
    mem,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::{
    follow::Follower,
    hang::{HangWatch, Watched},
    limit::{keep_room, report_room},
    named_files::NamedFiles,
    options::Notice,
    recorder::Recording,
    threads::Threads,
    windows::Windows,
};

/// Shortest interval of searches for new processes. While files have probes on them, every second look at
/// these includes one.
const ROUND: Duration = Duration::from_millis(500);

/// Interval while processes wait to be looked at: everything else is seen to in between.
const CATCHING_UP: Duration = Duration::from_millis(20);

/// Shortest interval of updates of `session.json` while processes come and go.
const REPORT: Duration = Duration::from_secs(2);

/// Watches until the time is up, the targets are gone, or someone says stop.
pub(super) struct Watch<'a, 'r> {
    recording: &'a mut Recording<'r>,
    threads: &'a Threads,
    /// Finds processes, with `--all`. Without it, the recording ends with the last target.
    follower: Option<&'a mut Follower<'r>>,
    windows: Option<&'a mut Windows<'r>>,
    hang: Option<HangWatch>,
    /// Set while it cannot be seen whether anything moves: reported once.
    failed_to_look: bool,
    /// Named targets that have not exited.
    running: Vec<&'r Process>,
    /// The files of named targets; with `--all` the follower has its own.
    files: NamedFiles,
    next_round: Instant,
    next_report: Instant,
}

impl<'a, 'r> Watch<'a, 'r> {
    pub(super) fn new(
        recording: &'a mut Recording<'r>,
        threads: &'a Threads,
        follower: Option<&'a mut Follower<'r>>,
        windows: Option<&'a mut Windows<'r>>,
    ) -> Self {
        let (options, now) = (recording.options, Instant::now());
        Self {
            hang: options.on_hang.map(|limit| HangWatch::new(limit, options.debug_files.clone())),
            failed_to_look: false,
            running: recording.setup.targets.iter().map(|target| &target.process).collect(),
            files: NamedFiles::new(recording.setup),
            recording,
            threads,
            follower,
            windows,
            next_round: now + ROUND,
            next_report: now,
        }
    }

    pub(super) fn run(mut self) -> Result<()> {
        let deadline = self.recording.options.duration.map(|duration| Instant::now() + duration);
        while !self.recording.stop.is_stopped() && !self.recording.options.health.has_failed() {
            failpoint::here("session")?;
            if self.follower.is_none() && self.running.is_empty() {
                break;
            }
            self.step_windows()?;
            let looked = self.look_for_hang();
            if let Err(error) = &looked
                && !self.failed_to_look
            {
                self.recording.note_error(format!("--on-hang: {error:#}"));
            }
            self.failed_to_look = looked.is_err();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            self.wait(left)?;
            self.receive()?;
            self.write_report();
        }
        if let Some(hang) = &mut self.hang
            && !hang.finish()
        {
            let why = "a dump was still being made at the end: memory of a process does not answer";
            self.recording.report.errors.push(why.to_owned());
        }
        Ok(())
    }

    fn step_windows(&mut self) -> Result<()> {
        let rotate = self.recording.stop.take_rotation();
        match &mut self.windows {
            Some(windows) => return windows.step(self.recording, self.threads, rotate),
            None if rotate => (self.recording.notice)(Notice::NothingToRotate),
            None => {}
        }
        Ok(())
    }

    fn look_for_hang(&mut self) -> Result<()> {
        let Recording { attachment, dir: Some(dir), events, .. } = &*self.recording else { return Ok(()) };
        let Some(hang) = &mut self.hang else { return Ok(()) };
        let pids = || match &self.follower {
            None => self.running.iter().map(|process| process.pid()).collect(),
            Some(follower) => follower.traced_pids(),
        };
        let records_all = self.windows.as_ref().is_none_or(|windows| windows.records_all());
        let watched = match self.follower.as_ref().filter(|_| records_all) {
            Some(follower) => Watched::Each(follower.traced_members(), &self.threads.moved),
            None => Watched::Together(&pids),
        };
        hang.look(attachment, watched, dir, events)
    }

    /// Waits until something has happened, or may have.
    fn wait(&self, left: Option<Duration>) -> Result<()> {
        let Recording { stop, mailbox, .. } = &*self.recording;
        let mut fds = vec![stop.waker.as_fd(), mailbox.as_fd()];
        fds.extend(self.running.iter().map(|process| process.exit_fd()));
        let mut timeouts: Vec<Duration> = left.into_iter().collect();
        let follower = self.follower.as_ref();
        fds.extend(follower.map_or(&self.files.watch, |follower| &follower.libraries.watch).fd());
        match follower.map(|follower| follower.libraries.watch_timeout()) {
            None => timeouts.push(self.files.watch.timeout()),
            // Files are looked at more often than the node. A round is made with the next look after it is
            // due, so that one timer wakes for both.
            Some(Some(files)) => timeouts.push(files),
            Some(None) => timeouts.push(self.next_round.saturating_duration_since(Instant::now())),
        }
        timeouts.extend(self.hang.as_ref().map(HangWatch::timeout));
        if let Some(windows) = &self.windows {
            fds.extend(windows.fd());
            timeouts.extend(windows.timeout());
        }
        if let Some(follower) = &self.follower {
            fds.extend(follower.exit_fds());
        }
        wait_for(&fds, timeouts.into_iter().min()).context("waiting for the end")?;
        // Whether the wakeup is for a rotation or for the end is looked up next.
        stop.waker.clear();
        Ok(())
    }

    /// Takes the other threads' events, and processes arrivals and exits.
    fn receive(&mut self) -> Result<()> {
        let Self { recording, threads, running, .. } = self;
        recording.receive();
        if mem::take(&mut recording.has_resumed) {
            recording.attachment.object.forget_what_was_sent()?;
        }
        for process in running.extract_if(.., |process| process.has_exited()) {
            let pid = process.pid();
            (recording.notice)(Notice::TargetExited { pid });
            let reports = recording.report.targets.iter_mut().filter(|target| target.pid == pid);
            reports.for_each(|target| target.exited = true);
            recording.leave_stacks(pid);
        }
        let Some(follower) = &mut self.follower else {
            self.files.look(recording);
            return Ok(());
        };
        follower.watch_files(recording);
        for tgid in follower.let_go(recording) {
            threads.process_ended(tgid, &recording.attachment);
            recording.who.ended(tgid);
        }
        for tgid in mem::take(&mut recording.new_processes) {
            if !follower.arrived(tgid, recording) {
                threads.process_ended(tgid, &recording.attachment);
                recording.who.ended(tgid);
            }
        }
        if Instant::now() >= self.next_round {
            follower.round(recording);
            recording.refresh_ranks();
            let pause = if follower.is_behind() { CATCHING_UP } else { ROUND };
            self.next_round = Instant::now() + pause;
        }
        Ok(())
    }

    /// Brings `session.json` up to date, if it is time.
    fn write_report(&mut self) {
        let now = Instant::now();
        if now < self.next_report || !mem::take(&mut self.recording.is_outdated) {
            return;
        }
        self.next_report = now + REPORT;
        let Recording { dir: Some(dir), report, attachment, last_word, .. } = &*self.recording else {
            return;
        };
        // On a full disk it keeps what it has.
        let _ = last_word.as_ref().map(|room| room.grow(report_room(report, attachment.probes().len())));
        keep_room(dir, report, attachment.probes().len(), self.windows.is_some());
        if let Err(error) = write_session(dir, report) {
            self.recording.write_failed(format!("writing `session.json`: {error}"));
        }
    }
}
