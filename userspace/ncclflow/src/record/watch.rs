//! What is to be seen to while records come: the end, processes that come and go, windows that open and close.

use std::{
    os::fd::AsFd as _,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::{
    follow::{Follower, Scene},
    hang::HangWatch,
    limit::keep_room,
    recorder::{Notice, RecordOptions, StopHandle},
    setup::Setup,
    told::Told,
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
    pub(super) options: &'a RecordOptions,
    pub(super) stop: &'a StopHandle,
    /// Where `session.json` is.
    pub(super) dir: Option<&'a OutputDir>,
    pub(super) subjects: Subjects<'a, 'f>,
    pub(super) windows: Option<&'a mut Windows<'w>>,
    pub(super) hang: Option<HangWatch>,
}

impl Watch<'_, '_, '_> {
    pub(super) fn run(&mut self, scene: &mut Scene<'_>, told: &Told<'_>) -> Result<()> {
        let now = Instant::now();
        let deadline = self.options.duration.map(|duration| now + duration);
        let (mut next_round, mut next_report) = (now + ROUND, now);
        let mut running: Vec<usize> = match &self.subjects {
            Subjects::Named(setup) => (0..setup.targets.len()).collect(),
            Subjects::All(_) => Vec::new(),
        };
        let (mut is_full, mut is_outdated) = (false, false);
        while !self.stop.is_stopped() {
            if matches!(self.subjects, Subjects::Named(_)) && running.is_empty() {
                break;
            }
            let rotate = self.stop.take_rotation();
            match &mut self.windows {
                Some(windows) => windows.step(scene, told, std::mem::take(&mut is_full), rotate)?,
                None if rotate => (scene.notice)(Notice::NothingToRotate),
                None => {}
            }
            if let (Some(hang), Some(dir)) = (&mut self.hang, self.dir) {
                let pids = || match &self.subjects {
                    Subjects::Named(setup) => {
                        let targets = running.iter().filter_map(|&at| setup.targets.get(at));
                        targets.map(|target| target.process.pid()).collect()
                    }
                    Subjects::All(follower) => follower.traced_pids(),
                };
                hang.look(scene.attachment, pids, dir, told.complaints)?;
            }
            let now = Instant::now();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            if left == Some(Duration::ZERO) {
                break;
            }
            self.wait(told, &running, left, next_round.saturating_duration_since(now))?;
            if told.resumed.swap(false, Ordering::Acquire) {
                scene.attachment.forget_what_was_sent()?;
            }
            let heard = told.hear(scene.report, scene.notice);
            is_full |= heard.is_full;
            is_outdated |= heard.has_removed;
            match &mut self.subjects {
                Subjects::Named(setup) => running.retain(|at| !has_ended(setup, *at, scene)),
                Subjects::All(follower) => {
                    for tgid in follower.let_go(scene) {
                        told.ended(tgid);
                    }
                    for tgid in heard.processes {
                        if !follower.arrived(tgid, scene) {
                            told.ended(tgid);
                        }
                    }
                    if Instant::now() >= next_round {
                        follower.round(scene)?;
                        next_round = Instant::now() + ROUND;
                    }
                    is_outdated |= follower.take_changed();
                }
            }
            let now = Instant::now();
            if now >= next_report && std::mem::take(&mut is_outdated) {
                next_report = now + REPORT;
                if let Some(dir) = self.dir {
                    write_report(dir, self.windows.is_some(), scene);
                }
            }
        }
        Ok(())
    }

    fn wait(
        &self,
        told: &Told<'_>,
        running: &[usize],
        left: Option<Duration>,
        to_round: Duration,
    ) -> Result<()> {
        let mut fds = vec![self.stop.waker().as_fd(), told.bell.as_fd()];
        fds.extend(self.windows.as_ref().and_then(|windows| windows.fd()));
        let mut timeouts: Vec<Duration> = left.into_iter().collect();
        timeouts.extend(self.windows.as_ref().and_then(|windows| windows.timeout()));
        timeouts.extend(self.hang.as_ref().map(HangWatch::timeout));
        match &self.subjects {
            Subjects::Named(setup) => {
                let targets = running.iter().filter_map(|&at| setup.targets.get(at));
                fds.extend(targets.map(|target| target.process.exit_fd()));
            }
            Subjects::All(follower) => {
                fds.extend(follower.exit_fds());
                timeouts.push(to_round);
            }
        }
        wait_for(&fds, timeouts.into_iter().min()).context("waiting for the end")?;
        told.bell.clear();
        // Whether it was for a rotation or for the end is asked for next.
        self.stop.waker().clear();
        Ok(())
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

fn write_report(dir: &OutputDir, has_windows: bool, scene: &mut Scene<'_>) {
    keep_room(dir, scene.report, scene.attachment.probes().len(), has_windows);
    if let Err(error) = scene.report.write(dir) {
        let error = format!("writing `session.json`: {error}");
        (scene.notice)(Notice::WriteFailed(&error));
        scene.report.errors.push(error);
    }
}
