//! The end of a recording: it is marked as whole, probes are detached, and files are completed.

use crate::kernel::stream::wait_for;
use inspect::resolver;
use recording::sinks::{FlowRanks, write_session};
use std::{os::fd::AsFd as _, sync::atomic::Ordering, thread::JoinHandle, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    accounts::{Baseline, add_hits_while_detaching},
    consumers::join,
    follow::Follower,
    make_lines::LinesThread,
    options::Notice,
    recorder::Recording,
    report::{complete_accounts, complete_files, end_recording, write_results},
    threads::Taken,
    window_export::add_results,
};
use flow::session::{FilesReport, FilesState, LostReaders as Lost, SessionReport};

/// Interval of progress notices while only files are left to be made.
const FINISHING: Duration = Duration::from_millis(200);

/// A recording to which no more records come.
pub(super) struct Closed {
    pub(super) taken: Taken,
    /// Thread that completes windows, which have files of their own, and sums up.
    pub(super) windows: Option<JoinHandle<SessionReport>>,
}

impl Recording<'_> {
    /// Writes into the recording, and into `session.json`, that the recording is whole.
    pub(super) fn end(&mut self, closed: &mut Closed) -> Result<()> {
        let Self { stop, attachment, report, dir, notice, .. } = self;
        attachment.object.print_log();
        let lost = resolver::lost();
        report.lost_readers = (lost != Lost::default()).then_some(lost);
        complete_accounts(report, attachment, &mut closed.taken, &Baseline::default())?;
        end_recording(&mut closed.taken, report, notice);
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
            attachment.keep(None, follower.into_links());
        }
        attachment.detach(|left| notice(Notice::Detaching { left }));
        notice(Notice::Detached);
        if let Err(error) = add_hits_while_detaching(report, attachment) {
            report.errors.push(format!("counting the hits while probes were taken away: {error:#}"));
        }
    }

    /// Begins to make the files of a recording without windows.
    pub(super) fn start_files(&self, closed: &Closed) -> Result<Option<LinesThread>> {
        let (Some(dir), Some(_), None) = (&self.dir, &closed.taken.kept, &closed.windows) else {
            return Ok(None);
        };
        let request = self.lines_request(dir, None)?;
        request.map(|request| LinesThread::start(request, &self.events)).transpose()
    }

    /// Waits for the files, and writes the final reports.
    pub(super) fn complete(&mut self, closed: Closed, files: Option<LinesThread>) -> Result<FlowRanks> {
        let Closed { mut taken, windows } = closed;
        let of = taken.kept.as_ref().map_or(0, |kept| kept.writer.totals().bytes);
        // What was read of a window that could not be closed is not the recording's.
        let read = taken.finish_reader().filter(|_| windows.is_none());
        let has_ended = || {
            files.as_ref().is_none_or(|files| files.thread.is_finished())
                && windows.as_ref().is_none_or(JoinHandle::is_finished)
        };
        while !has_ended() {
            wait_for(&[self.mailbox.as_fd()], Some(FINISHING)).context("waiting for the files")?;
            self.receive();
            if let Some(files) = &files {
                (self.notice)(Notice::Finishing { done: files.read.load(Ordering::Relaxed), of });
            }
        }
        // If several pipelines decoded the records, the one that made files is reported. Its thread told its
        // error when it happened.
        let decoded = taken.watched.take().or(read.map(|read| read.pipeline));
        let made = files.map(|files| join(files.thread).flatten());
        self.report.files = taken.kept.is_some().then(|| FilesReport::of(FilesState::None));
        let mut files = complete_files(&mut self.report, decoded, made);
        match windows.map(join) {
            Some(Ok(totals)) => add_results(&mut self.report, &totals),
            Some(Err(error)) => self.fail(&format!("completing windows: {error:#}")),
            None => {}
        }
        self.receive();
        self.note_failures();
        self.who.registry.complete(&mut self.report);
        self.tell_budget();
        let Self { options, report, dir, last_word, notice, .. } = self;
        let folder = dir.as_ref().map(|dir| (dir, last_word.as_ref()));
        let flow_ranks = write_results(taken, &mut files, folder, report, options.compress, notice);
        if self.tell_budget()
            && let Some(dir) = &self.dir
        {
            // Even the last file can have needed the room of a window, which is named in the report.
            write_session(dir, &self.report).context("writing `session.json`")?;
        }
        Ok(flow_ranks)
    }
}
