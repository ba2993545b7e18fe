//! How a recording ends: it is said to be whole, probes are taken away, and files are completed.

use std::{os::fd::AsFd as _, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    accounts::{Baseline, add_hits_while_detaching},
    files::FilesThread,
    follow::Follower,
    limit,
    mailbox::Events,
    options::{Notice, StopHandle},
    recorder::Recording,
    report::{complete_accounts, complete_files, end_recording, write_results},
    threads::Taken,
    window_export::WindowsExport,
};
use crate::{
    kernel::stream::wait_for,
    resolver::{self, Lost},
    sinks::{Aggregated, FilesReport, FilesWhen},
};

/// How often it is said how far the files are, when everything else is done.
const FINISHING: Duration = Duration::from_millis(200);

/// A recording to which no more records come.
pub(super) struct Closed {
    pub(super) taken: Taken,
    pub(super) files: ClosedFiles,
}

/// Who makes its files.
pub(super) enum ClosedFiles {
    /// There are none.
    None,
    Thread(FilesThread),
    /// Windows have files of their own.
    Windows(WindowsExport),
}

impl ClosedFiles {
    pub(super) fn begin_to_finish(&self) {
        if let Self::Thread(files) = self {
            files.begin_to_finish();
        }
    }
}

impl Recording<'_> {
    /// Says in the recording, and in `session.json`, that the recording is whole.
    pub(super) fn end(&mut self, closed: &mut Closed, stop: &StopHandle) -> Result<()> {
        let Self { attachment, report, dir, notice, .. } = self;
        attachment.print_log();
        let lost = resolver::lost();
        report.lost_readers = (lost != Lost::default()).then_some(lost);
        complete_accounts(report, attachment, &mut closed.taken, &Baseline::default())?;
        end_recording(&mut closed.taken, report, notice)?;
        // From here on, and before anybody can read so, a second signal ends the files, and not the program.
        stop.finishes_files();
        if let Some(dir) = dir
            && let Err(error) = report.write(dir)
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

    /// Waits for the files, and writes what is written at the end.
    pub(super) fn complete(&mut self, closed: Closed, events: &Events) -> Result<Option<Aggregated>> {
        let Closed { mut taken, files } = closed;
        let of = taken.kept.as_ref().map_or(0, |kept| kept.writer.totals().records);
        let has_ended = || match &files {
            ClosedFiles::None => true,
            ClosedFiles::Thread(files) => files.has_ended(),
            ClosedFiles::Windows(export) => export.has_ended(),
        };
        while !has_ended() {
            wait_for(&[events.mailbox.as_fd()], Some(FINISHING)).context("waiting for the files")?;
            events.receive(self);
            if let ClosedFiles::Thread(files) = &files {
                (self.notice)(Notice::Finishing { done: files.records(), of });
            }
        }
        let mut pipeline = taken.watched.take();
        match files {
            ClosedFiles::None => {
                let none = (self.options.files.when == FilesWhen::None && taken.kept.is_some())
                    .then(FilesReport::none);
                match &pipeline {
                    Some(pipeline) => complete_files(&mut self.report, pipeline, none),
                    None => self.report.files = none,
                }
            }
            ClosedFiles::Thread(files) => match files.join() {
                Ok(made) => {
                    complete_files(&mut self.report, &made.pipeline, Some(made.report));
                    pipeline = Some(made.pipeline);
                }
                // It has said so when it happened.
                Err(_) => self.report.files = Some(FilesReport::failed(self.options.files.when)),
            },
            ClosedFiles::Windows(export) => match export.join() {
                Ok(totals) => totals.add_to(&mut self.report),
                Err(error) => self.fail(&format!("completing windows: {error:#}")),
            },
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
        let aggregated = write_results(taken, &mut files, dir.as_ref(), report, options.compress, notice)?;
        if let Some((budget, dir)) = limited
            && limit::tell(budget, dir, report, notice)
        {
            // Even the last file can have needed the room of a window, which is named in it.
            report.write(dir).context("writing `session.json`")?;
        }
        Ok(aggregated)
    }
}
