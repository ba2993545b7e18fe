//! What the recording's own thread watches while records come: the end, processes that start and exit,
//! windows that open and close.

use std::{
    mem,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::{
    follow::{Follower, Scene},
    hang::HangWatch,
    limit::keep_room,
    options::{Notice, RecordOptions, StopHandle},
    setup::Setup,
    threads::ThreadChannels,
    windows::Windows,
};
use crate::{kernel::stream::wait_for, sinks::OutputDir};

/// How often the node is looked through for new processes.
const ROUND: Duration = Duration::from_millis(500);

/// How often `session.json` is brought up to date while processes come and go, at most.
const REPORT: Duration = Duration::from_secs(2);

/// Whose records come.
pub(super) enum Subjects<'a, 'f> {
    /// Processes that were there at the beginning; when the last one has ended, so has the recording.
    Named(&'a Setup),
    /// All of the node that are wanted.
    All(&'a mut Follower<'f>),
}

/// Watches until the time is up, the targets are gone, or someone says stop.
pub(super) struct Watch<'a, 'f, 'w> {
    options: &'a RecordOptions,
    stop: &'a StopHandle,
    /// The folder of `session.json`.
    dir: Option<&'a OutputDir>,
    subjects: Subjects<'a, 'f>,
    windows: Option<&'a mut Windows<'w>>,
    hang: Option<HangWatch>,
    /// Targets that have not exited.
    running: Vec<usize>,
    /// The window has as many ops as it may have.
    is_window_full: bool,
    /// `session.json` differs from the report.
    is_outdated: bool,
    next_round: Instant,
    next_report: Instant,
}

impl<'a, 'f, 'w> Watch<'a, 'f, 'w> {
    pub(super) fn new(
        options: &'a RecordOptions,
        stop: &'a StopHandle,
        dir: Option<&'a OutputDir>,
        subjects: Subjects<'a, 'f>,
        windows: Option<&'a mut Windows<'w>>,
    ) -> Self {
        let running = match &subjects {
            Subjects::Named(setup) => (0..setup.targets.len()).collect(),
            Subjects::All(_) => Vec::new(),
        };
        let now = Instant::now();
        Self {
            options,
            stop,
            dir,
            subjects,
            windows,
            hang: options.on_hang.map(|limit| HangWatch::new(limit, options.debug_files.clone())),
            running,
            is_window_full: false,
            is_outdated: false,
            next_round: now + ROUND,
            next_report: now,
        }
    }

    pub(super) fn run(&mut self, scene: &mut Scene<'_>, channels: &ThreadChannels) -> Result<()> {
        let deadline = self.options.duration.map(|duration| Instant::now() + duration);
        while !self.stop.is_stopped() {
            if matches!(self.subjects, Subjects::Named(_)) && self.running.is_empty() {
                break;
            }
            self.step_windows(scene, channels)?;
            self.look_for_hang(scene, channels)?;
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            self.wait(channels, left)?;
            self.receive(scene, channels)?;
            self.write_report(scene);
        }
        Ok(())
    }

    fn step_windows(&mut self, scene: &mut Scene<'_>, channels: &ThreadChannels) -> Result<()> {
        let rotate = self.stop.take_rotation();
        match &mut self.windows {
            Some(windows) => windows.step(scene, channels, mem::take(&mut self.is_window_full), rotate)?,
            None if rotate => (scene.notice)(Notice::NothingToRotate),
            None => {}
        }
        Ok(())
    }

    fn look_for_hang(&mut self, scene: &Scene<'_>, channels: &ThreadChannels) -> Result<()> {
        let (Some(hang), Some(dir)) = (&mut self.hang, self.dir) else { return Ok(()) };
        let pids = || match &self.subjects {
            Subjects::Named(setup) => {
                let targets = self.running.iter().filter_map(|&at| setup.targets.get(at));
                targets.map(|target| target.process.pid()).collect()
            }
            Subjects::All(follower) => follower.traced_pids(),
        };
        hang.look(scene.attachment, pids, dir, channels.event_sender())
    }

    /// Waits until something has happened, or may have.
    fn wait(&self, channels: &ThreadChannels, left: Option<Duration>) -> Result<()> {
        let mut fds = vec![self.stop.waker().as_fd(), channels.events().as_fd()];
        fds.extend(self.windows.as_ref().and_then(|windows| windows.fd()));
        let mut timeouts: Vec<Duration> = left.into_iter().collect();
        timeouts.extend(self.windows.as_ref().and_then(|windows| windows.timeout()));
        timeouts.extend(self.hang.as_ref().map(HangWatch::timeout));
        match &self.subjects {
            Subjects::Named(setup) => {
                let targets = self.running.iter().filter_map(|&at| setup.targets.get(at));
                fds.extend(targets.map(|target| target.process.exit_fd()));
            }
            Subjects::All(follower) => {
                fds.extend(follower.exit_fds());
                timeouts.push(self.next_round.saturating_duration_since(Instant::now()));
            }
        }
        wait_for(&fds, timeouts.into_iter().min()).context("waiting for the end")?;
        // Whether it was for a rotation or for the end is asked for next.
        self.stop.waker().clear();
        Ok(())
    }

    /// Takes the other threads' events, and sees which processes have come and gone.
    fn receive(&mut self, scene: &mut Scene<'_>, channels: &ThreadChannels) -> Result<()> {
        let received = channels.receive(scene.report, scene.notice);
        if received.has_resumed {
            scene.attachment.forget_what_was_sent()?;
        }
        self.is_window_full |= received.is_window_full;
        self.is_outdated |= received.has_removed_windows;
        match &mut self.subjects {
            Subjects::Named(setup) => self.running.retain(|at| !has_ended(setup, *at, scene)),
            Subjects::All(follower) => {
                for tgid in follower.let_go(scene) {
                    channels.process_ended(tgid);
                }
                for tgid in received.new_processes {
                    if !follower.arrived(tgid, scene) {
                        channels.process_ended(tgid);
                    }
                }
                if Instant::now() >= self.next_round {
                    follower.round(scene)?;
                    self.next_round = Instant::now() + ROUND;
                }
                self.is_outdated |= follower.take_changed();
            }
        }
        Ok(())
    }

    /// Brings `session.json` up to date, if it is time.
    fn write_report(&mut self, scene: &mut Scene<'_>) {
        let now = Instant::now();
        if now < self.next_report || !mem::take(&mut self.is_outdated) {
            return;
        }
        self.next_report = now + REPORT;
        let Some(dir) = self.dir else { return };
        keep_room(dir, scene.report, scene.attachment.probes().len(), self.windows.is_some());
        if let Err(error) = scene.report.write(dir) {
            let error = format!("writing `session.json`: {error}");
            (scene.notice)(Notice::WriteFailed(&error));
            scene.report.errors.push(error);
        }
    }
}

fn has_ended(setup: &Setup, at: usize, scene: &mut Scene<'_>) -> bool {
    let Some(target) = setup.targets.get(at) else { return true };
    let exited = target.process.has_exited();
    if exited {
        let pid = target.process.pid();
        (scene.notice)(Notice::TargetExited { pid });
        let reports = scene.report.targets.iter_mut().filter(|target| target.pid == pid);
        reports.for_each(|target| target.exited = true);
    }
    exited
}
