//! The end of a recording: it is marked as whole, probes are detached, and files are completed.

use crate::kernel::stream::wait_for;
use inspect::resolver::{self};
use recording::sinks::{FlowRanks, write_session};
use std::{os::fd::AsFd as _, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    accounts::{Baseline, add_hits_while_detaching},
    follow::Follower,
    limit,
    mailbox::{EventSender, Events},
    make_lines::{LinesThread, Made},
    options::{Notice, StopHandle},
    recorder::Recording,
    report::{complete_accounts, complete_files, end_recording, write_results},
    row_watch::RowWatch,
    threads::Taken,
    window_export::WindowsExport,
};
use flow::session::{FilesReport, LostReaders as Lost};

/// Interval of progress notices while only files are left to be made.
const FINISHING: Duration = Duration::from_millis(200);

/// A recording to which no more records come.
pub(super) struct Closed {
    pub(super) taken: Taken,
    /// Reader of the recording for statistics.
    pub(super) watch: Option<RowWatch>,
    /// Windows, which have files of their own.
    pub(super) windows: Option<WindowsExport>,
}

impl Recording<'_> {
    /// Writes into the recording, and into `session.json`, that the recording is whole.
    pub(super) fn end(&mut self, closed: &mut Closed, stop: &StopHandle) -> Result<()> {
        let Self { attachment, report, dir, notice, .. } = self;
        attachment.print_log();
        let lost = resolver::lost();
        report.lost_readers = (lost != Lost::default()).then_some(lost);
        complete_accounts(report, attachment, &mut closed.taken, &Baseline::default())?;
        end_recording(&mut closed.taken, report, notice)?;
        // From here on a second signal ends the making of files, not the program. Set before `session.json`
        // says so.
        stop.finishes_files();
        if let Some(dir) = dir
            && let Err(error) = write_session(dir, report)
        {
            self.write_failed(format!("writing `session.json`: {error}"));
        }
        Ok(())
    }

    pub(super) fn detach(&mut self, follower: Option<Follower<'_>>) {
        let Self { attachment, notice, report, .. } = self;
        if let Some(follower) = follower {
            attachment.keep(follower.into_links());
        }
        attachment.detach(|left| notice(Notice::Detaching { left }));
        notice(Notice::Detached);
        if let Err(error) = add_hits_while_detaching(report, attachment) {
            report.errors.push(format!("counting the hits while probes were taken away: {error:#}"));
        }
    }

    /// Begins to make the files of a recording without windows.
    pub(super) fn start_files(
        &self,
        closed: &Closed,
        stop: &StopHandle,
        events: &EventSender,
    ) -> Result<Option<LinesThread>> {
        let (Some(dir), Some(_), None) = (&self.dir, &closed.taken.kept, &closed.windows) else {
            return Ok(None);
        };
        let request = self.lines_request(dir, None, stop)?;
        request.map(|request| LinesThread::start(request, events)).transpose()
    }

    /// Waits for the files, and writes the final reports.
    pub(super) fn complete(
        &mut self,
        closed: Closed,
        files: Option<LinesThread>,
        events: &Events,
    ) -> Result<FlowRanks> {
        let Closed { mut taken, watch, windows } = closed;
        let of = taken.kept.as_ref().map_or(0, |kept| kept.writer.totals().bytes);
        let watched = watch.and_then(|watch| watch.finish().ok());
        let has_ended = || {
            files.as_ref().is_none_or(LinesThread::has_ended)
                && windows.as_ref().is_none_or(WindowsExport::has_ended)
        };
        while !has_ended() {
            wait_for(&[events.mailbox.as_fd()], Some(FINISHING)).context("waiting for the files")?;
            events.receive(self);
            if let Some(files) = &files {
                (self.notice)(Notice::Finishing { done: files.read(), of });
            }
        }
        // If several pipelines decoded the records, the one that made files is reported.
        let mut pipeline = taken.watched.take().or(watched.map(|watched| watched.pipeline));
        let mut made = taken.kept.is_some().then(FilesReport::none);
        match files.map(LinesThread::join) {
            Some(Ok(Made { pipeline: of_files, report })) => {
                (pipeline, made) = (Some(of_files), Some(report));
            }
            // The thread reported its error when it happened.
            Some(Err(_)) => made = Some(FilesReport::failed()),
            None => {}
        }
        self.report.files = made;
        if let Some(pipeline) = &pipeline {
            complete_files(&mut self.report, pipeline);
        }
        match windows.map(WindowsExport::join) {
            Some(Ok(totals)) => totals.add_to(&mut self.report),
            Some(Err(error)) => self.fail(&format!("completing windows: {error:#}")),
            None => {}
        }
        events.receive(self);
        self.note_failures();
        let Self { options, report, dir, who, notice, .. } = self;
        who.report().complete(report);
        let limited = dir.as_ref().and_then(|dir| Some((dir.budget()?, dir)));
        if let Some((budget, dir)) = limited {
            limit::tell(budget, dir, report, notice);
        }
        let mut files = pipeline.map(|pipeline| pipeline.output.files).unwrap_or_default();
        let flow_ranks = write_results(taken, &mut files, dir.as_ref(), report, options.compress, notice)?;
        if let Some((budget, dir)) = limited
            && limit::tell(budget, dir, report, notice)
        {
            // Even the last file can have needed the room of a window, which is named in the report.
            write_session(dir, report).context("writing `session.json`")?;
        }
        Ok(flow_ranks)
    }
}
