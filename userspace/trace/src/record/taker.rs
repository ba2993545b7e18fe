//! The thread that takes records first. It writes them into the recording, and only it has to keep up with
//! them. In a session that is only watched, and writes nothing, it decodes them.

use crate::{
    call_stacks::{StackBook, StackFeed},
    kernel::stream::Popped,
};
use flow::{
    decode::RecordView,
    recording::{Batch, Event},
};
use inspect::{clock::now_ns, failpoint};
use recording::{
    format::{BLOCK_TIME, Facts as _, RecordingWriter},
    rows::{Pipeline, STRAGGLE_NS, SharedBindings},
    sinks::is_over_max_size,
};
use std::{io, mem, sync::Arc, time::Duration};

use ncclflow_common::LOSS_MARK;
use rustix::time::ClockId;

use super::{
    accounts::Accounts,
    arrivals::Arrivals,
    consumers::{Inbox, Step},
    mailbox::{EventSender, SessionEvent, TakerMessage},
    row_watch::RowWatch,
};

/// Interval at which ended processes are looked for in a session that is only watched.
const LOOK: Duration = Duration::from_millis(500);

/// A recording that is being written.
#[derive(Debug)]
pub(super) struct OpenRecording {
    pub(super) writer: Box<RecordingWriter>,
    /// Thread that reads it meanwhile.
    pub(super) reader: Option<RowWatch>,
}

/// State that the thread works on, and leaves behind.
#[derive(Debug, Default)]
pub(super) struct Taking {
    pub(super) accounts: Accounts,
    /// Known processes, where each is announced at its first record.
    pub(super) arrivals: Option<Arrivals>,
    /// Feed to the thread that names call stacks.
    pub(super) feed: Option<StackFeed>,
    /// Current recording. Between windows, and where nothing is written, there is none.
    pub(super) kept: Option<OpenRecording>,
    pub(super) bindings: SharedBindings,
    /// The last block could not be written. Reported once, until a write succeeds.
    pub(super) has_failed: bool,
    /// Pipeline of a session that is only watched.
    pub(super) watched: Option<Pipeline>,
    /// Stacks that are named, for the pipeline.
    pub(super) stacks: Option<StackBook>,
}

impl Taking {
    /// Takes records until the inbox is closed. Where nobody wants them, between windows, they are skipped.
    pub(super) fn run(&mut self, inbox: &Inbox<TakerMessage>, events: &EventSender) {
        let interval = if self.watched.is_some() { LOOK } else { BLOCK_TIME };
        inbox.consume(interval, |step| {
            self.step(step, inbox, events);
            self.kept.as_ref().is_some_and(|kept| kept.writer.has_idle_work())
                || self.watched.as_ref().is_some_and(|pipeline| !pipeline.ended_ns.is_empty())
        });
    }

    fn step(&mut self, step: Step<TakerMessage>, inbox: &Inbox<TakerMessage>, events: &EventSender) {
        match step {
            Step::Records(batch) => self.push(&batch, events),
            Step::Message(TakerMessage::ProcessEnded { tgid, at_ns }) => {
                if let Some(arrivals) = &mut self.arrivals {
                    arrivals.ended(tgid, at_ns);
                }
                self.write(events, |writer| writer.push_event(&Event::ProcessEnded { tgid, at_ns }));
                if let Some(pipeline) = &mut self.watched {
                    pipeline.process_ended(tgid, at_ns);
                }
            }
            Step::Message(TakerMessage::Swap { next, hits, reply }) => {
                while let Popped::Batch(batch) = inbox.records.pop(Some(Duration::ZERO)) {
                    self.push(&batch, events);
                }
                self.write(events, RecordingWriter::close_block);
                self.has_failed = false;
                let before = mem::replace(&mut self.kept, next.map(|kept| *kept));
                // The sender waits for the answer, unless the recording has failed.
                let _ = reply.send((before, mem::replace(&mut self.accounts, Accounts::beginning_at(&hits))));
                // All processes are announced again.
                self.arrivals = self.arrivals.take().map(|_| Arrivals::default());
            }
            Step::Idle => {
                let now = now_ns(ClockId::Monotonic);
                self.write(events, |writer| writer.idle(now));
                if let Some(pipeline) = &mut self.watched {
                    pipeline.close_ended_before(now.saturating_sub(STRAGGLE_NS));
                }
            }
            Step::Flush => self.write(events, |writer| {
                writer.close_block()?;
                writer.idle(now_ns(ClockId::Monotonic))
            }),
            Step::End => {
                self.write(events, RecordingWriter::close_block);
                let Some(pipeline) = &mut self.watched else { return };
                pipeline.finish();
                if let Some(book) = &self.stacks {
                    book.settle();
                    book.since(0).0.iter().for_each(|row| pipeline.output.push_stack(row));
                }
            }
        }
    }

    fn push(&mut self, batch: &Arc<Batch>, events: &EventSender) {
        if self.kept.is_none() && self.watched.is_none() {
            return;
        }
        self.note(batch, events);
        let Self { kept, bindings, watched, .. } = self;
        if let Some(pipeline) = watched {
            batch.records().for_each(|record| pipeline.record(record));
            pipeline.close_ended();
        }
        if let Some(kept) = kept {
            // A cookie's binding is there before its probe is.
            kept.writer.bind(|known| bindings.update(known));
        }
        self.write(events, |writer| failpoint::here("keep").and_then(|()| writer.push(batch)));
    }

    /// Counts records, and announces their processes.
    fn note(&mut self, batch: &Batch, events: &EventSender) {
        for record in batch.records() {
            // Foreign items are reported by the thread that decodes them.
            let Ok(view) = RecordView::new(record) else { continue };
            let header = view.header;
            if header.probe == LOSS_MARK {
                continue;
            }
            self.accounts.note(&header);
            if let Some(feed) = &self.feed {
                feed.note(&view);
            }
            if self.arrivals.as_mut().is_some_and(|arrivals| arrivals.is_new(&header)) {
                events.send(SessionEvent::NewProcess(header.tgid));
            }
        }
    }

    /// Writes into the recording, if there is one.
    fn write(&mut self, events: &EventSender, write: impl FnOnce(&mut RecordingWriter) -> io::Result<()>) {
        let Some(OpenRecording { writer, reader }) = &mut self.kept else { return };
        let blocks = writer.totals().blocks;
        let written = write(writer);
        events.look_at_budget();
        if let Some(reader) = reader
            && writer.totals().blocks != blocks
        {
            reader.written(writer.totals().records);
        }
        match written {
            Err(error) => {
                if !mem::replace(&mut self.has_failed, true) && !is_over_max_size(&error) {
                    let error = format!(
                        "writing the recording failed: {error}; it goes on when it can be written again"
                    );
                    events.send(SessionEvent::WriteFailed(error));
                }
            }
            // Records that only wait for their block say nothing about the disk.
            Ok(()) => self.has_failed &= writer.totals().blocks == blocks,
        }
    }
}
