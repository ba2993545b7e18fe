//! The thread that writes the recording. It takes records first, and only it has to keep up with them.

use crate::{call_stacks::StackFeed, kernel::stream::Popped};
use flow::recording::{Batch, Event};
use inspect::{clock::now_ns, failpoint};
use recording::{
    format::{BLOCK_TIME, RecordingWriter},
    rows::SharedBindings,
    sinks::is_over_max_size,
};
use std::{io, mem, sync::Arc, time::Duration};

use rustix::time::ClockId;

use super::{
    accounts::Accounts,
    consumers::{Inbox, Step},
    intake::Intake,
    mailbox::{EventSender, KeeperMessage, SessionEvent},
    row_watch::WatchFeed,
};

/// A recording that is being written.
#[derive(Debug)]
pub(super) struct OpenRecording {
    pub(super) writer: Box<RecordingWriter>,
    /// Feed to a thread that reads it meanwhile.
    pub(super) reader: Option<WatchFeed>,
}

/// State that the keeper works on, and leaves behind.
#[derive(Debug)]
pub(super) struct Keeping {
    /// Current recording. Before the first window there is none.
    kept: Option<OpenRecording>,
    bindings: SharedBindings,
    intake: Intake,
    /// The last block could not be written. Reported once, until a write succeeds.
    has_failed: bool,
}

impl Keeping {
    /// `announces`: announce processes at their first record. `stacks`: feed to the thread naming call
    /// stacks.
    pub(super) fn new(
        kept: Option<OpenRecording>,
        bindings: SharedBindings,
        announces: bool,
        stacks: Option<StackFeed>,
    ) -> Self {
        Self { kept, bindings, intake: Intake::new(announces, stacks), has_failed: false }
    }

    pub(super) fn into_parts(self) -> (Option<OpenRecording>, Accounts) {
        (self.kept, self.intake.into_accounts())
    }
}

/// Writes records into the recording until the inbox is closed. Without one, between windows, they are
/// skipped.
pub(super) fn keep_recording(inbox: &Inbox<KeeperMessage>, keeping: &mut Keeping, events: &EventSender) {
    let mut keeper = Keeper { inbox, keeping, events };
    inbox.consume(BLOCK_TIME, |step| {
        keeper.step(step);
        keeper.keeping.kept.as_ref().is_some_and(|kept| kept.writer.has_idle_work())
    });
}

struct Keeper<'a> {
    inbox: &'a Inbox<KeeperMessage>,
    keeping: &'a mut Keeping,
    events: &'a EventSender,
}

impl Keeper<'_> {
    fn step(&mut self, step: Step<KeeperMessage>) {
        match step {
            Step::Records(batch) => self.push(&batch),
            Step::Message(KeeperMessage::ProcessEnded { tgid, at_ns }) => {
                self.keeping.intake.process_ended(tgid, at_ns);
                self.write(|writer| writer.push_event(&Event::ProcessEnded { tgid, at_ns }));
            }
            Step::Message(KeeperMessage::Swap { next, hits, reply }) => {
                while let Popped::Batch(batch) = self.inbox.pop(Some(Duration::ZERO)) {
                    self.push(&batch);
                }
                self.write(RecordingWriter::close_block);
                self.keeping.has_failed = false;
                let before = mem::replace(&mut self.keeping.kept, next.map(|kept| *kept));
                // The sender waits for the answer, unless the recording has failed.
                let _ = reply.send((before, self.keeping.intake.begin_anew(&hits)));
            }
            Step::Idle => self.write(|writer| writer.idle(now_ns(ClockId::Monotonic))),
            Step::Flush => self.write(|writer| {
                writer.close_block()?;
                writer.idle(now_ns(ClockId::Monotonic))
            }),
            Step::End => self.write(RecordingWriter::close_block),
        }
    }

    fn push(&mut self, batch: &Arc<Batch>) {
        let Keeping { kept: Some(kept), bindings, intake, .. } = &mut *self.keeping else { return };
        intake.note(batch, self.events);
        // A cookie's binding is there before its probe is.
        kept.writer.bind(|known| bindings.update(known));
        self.write(|writer| failpoint::here("keep").and_then(|()| writer.push(batch)));
    }

    fn write(&mut self, write: impl FnOnce(&mut RecordingWriter) -> io::Result<()>) {
        let Keeping { kept: Some(OpenRecording { writer, reader }), has_failed, .. } = &mut *self.keeping
        else {
            return;
        };
        let blocks = writer.totals().blocks;
        let written = write(writer);
        self.events.look_at_budget();
        if let Some(reader) = reader
            && writer.totals().blocks != blocks
        {
            reader.written(writer.totals().records);
        }
        match written {
            Err(error) => {
                if !mem::replace(has_failed, true) && !is_over_max_size(&error) {
                    let error = format!(
                        "writing the recording failed: {error}; it goes on when it can be written again"
                    );
                    self.events.send(SessionEvent::WriteFailed(error));
                }
            }
            // Records that only wait for their block say nothing about the disk.
            Ok(()) => *has_failed &= writer.totals().blocks == blocks,
        }
    }
}
