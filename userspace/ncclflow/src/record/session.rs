//! The time between arming and disarming: threads take records, and the recording's own thread watches for
//! the end.

use std::sync::mpsc;

use anyhow::{Context as _, Result};
use rustix::time::ClockId;

use super::{
    follow::{Follower, Scene},
    options::{Notice, RecordOptions, StopHandle},
    pipeline::Pipeline,
    recorder::ms_since,
    setup::Setup,
    threads::{ThreadChannels, Threads, Work},
    watch::{Subjects, Watch},
    windows::Windows,
};
use crate::{
    capture::CaptureWriter,
    clock::now_ns,
    kernel::{loader::Attachment, stream::ProbeCounts},
    layout_cache::LayoutCache,
    sinks::{ApiOutputOptions, LostLines, OutputDir, SessionReport},
};

/// What a recording works with while it goes on.
pub(super) struct Session<'a, 'f> {
    pub(super) options: &'a RecordOptions,
    pub(super) stop: &'a StopHandle,
    pub(super) setup: &'a Setup,
    /// Finds processes while the recording goes on, with `--all`.
    pub(super) follower: Option<&'a mut Follower<'f>>,
    /// The folder of `session.json`.
    pub(super) dir: Option<&'a OutputDir>,
    /// Where what was resolved is kept, once the session is open.
    pub(super) cache: Option<&'a LayoutCache>,
    pub(super) attachment: &'a mut Attachment,
    pub(super) report: &'a mut SessionReport,
    pub(super) notice: &'a mut dyn FnMut(Notice<'_>),
}

/// What windows lack. Their files are no longer the pipeline's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WindowsLost {
    pub(super) lines: LostLines,
    /// Aggregates that there was no room for.
    pub(super) aggregates: u64,
    /// Windows that were opened late, as there was no room for them.
    pub(super) late: u64,
}

/// What was taken in.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) pipeline: Pipeline,
    pub(super) capture: Option<CaptureWriter>,
    /// Records that the pipeline did not get, as it had not kept up.
    pub(super) dropped: ProbeCounts,
    pub(super) windows_lost: WindowsLost,
    /// Records that the capture lacks.
    pub(super) not_captured: u64,
    /// Most bytes that waited for the pipeline at a time.
    pub(super) queue_peak: usize,
}

impl Session<'_, '_> {
    /// Opens the session, takes records until it is to end, closes it, and takes what is left.
    pub(super) fn run(
        mut self,
        api: ApiOutputOptions,
        pipeline: Pipeline,
        capture: Option<CaptureWriter>,
    ) -> Result<Taken> {
        if let Some(follower) = self.follower.take() {
            follower.round(&mut self.scene())?;
            self.follower = Some(follower);
        }
        let (to_exporter, closed_windows) = mpsc::channel();
        let windows = self.options.windows.as_ref().zip(self.dir);
        let mut windows =
            windows.map(|(windows, dir)| Windows::new(windows, dir, api, to_exporter)).transpose()?;
        let (threads, channels) = Threads::start(Work {
            source: self.attachment.source()?,
            queue_bytes: self.options.queue_bytes,
            pipeline,
            capture,
            windows: windows.is_some().then_some(closed_windows),
            compress: self.options.compress,
            budget: self.dir.and_then(OutputDir::budget).cloned(),
        })?;
        let watched = self.watch(windows.as_mut(), &channels);
        let totals = windows.map(|windows| windows.finish(&mut self.scene(), &channels)).transpose();
        let closed = self.attachment.disarm();
        let ended = threads.end(self.attachment, &channels)?;
        channels.receive(self.report, self.notice);
        watched.and(closed).and(ended.settled)?;
        let totals = totals?;
        ended.drained.context("waiting for records")?;
        let (totals, windows_lost) = totals.unwrap_or_default();
        let (writers, others) = ended.drain.outlets().split_first().context("the drain has no writer")?;
        let not_kept: u64 = others.iter().map(|outlet| outlet.dropped().total()).sum();
        Ok(Taken {
            pipeline: totals.unwrap_or(ended.pipeline),
            dropped: writers.dropped(),
            windows_lost: WindowsLost { aggregates: ended.exported.aggregates_over_max_size, ..windows_lost },
            not_captured: not_kept + ended.capture.as_ref().map_or(0, CaptureWriter::lost),
            queue_peak: writers.peak(),
            capture: ended.capture,
        })
    }

    /// Opens the session, and sees to it until it is to end.
    fn watch(&mut self, windows: Option<&mut Windows<'_>>, channels: &ThreadChannels) -> Result<()> {
        if windows.is_none() {
            self.attachment.arm()?;
        }
        self.report.attach.armed_ms = ms_since(self.options.started);
        self.report.attach.armed_monotonic_ns = Some(now_ns(ClockId::Monotonic));
        let probes = self.attachment.probes().iter().filter(|probe| probe.part.is_none()).count();
        (self.notice)(Notice::Recording { probes });
        self.keep_layouts();
        let Self { options, stop, setup, dir, .. } = *self;
        let subjects = self.follower.take().map_or(Subjects::Named(setup), Subjects::All);
        Watch::new(options, stop, dir, subjects, windows).run(&mut self.scene(), channels)
    }

    /// Keeps what was resolved for the next time. If it cannot be kept, the recording goes on.
    fn keep_layouts(&mut self) {
        let Some(cache) = self.cache else { return };
        for error in self.setup.libraries.iter().filter_map(|library| library.keep(cache).err()) {
            (self.notice)(Notice::NotCached(&format!("{error:#}")));
        }
    }

    fn scene(&mut self) -> Scene<'_> {
        Scene { attachment: self.attachment, report: self.report, notice: self.notice }
    }
}
