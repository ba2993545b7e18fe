//! The thread that keeps the recording: the first that takes records, and the only one that has to keep up
//! with them.

use std::{io, mem, sync::Arc, time::Duration};

use rustix::time::ClockId;

use super::{
    accounts::Accounts,
    consumers::{Inbox, Step},
    files::FilesFeed,
    intake::Intake,
    mailbox::{EventSender, KeeperMessage, SessionEvent},
    setup::Bindings,
};
use crate::{
    clock::now_ns,
    kernel::stream::{Batch, Popped},
    python::StackFeed,
    recording::{BLOCK_TIME, Event, RecordingWriter},
    sinks::is_over_max_size,
};

/// A recording that is being written.
#[derive(Debug)]
pub(super) struct OpenRecording {
    pub(super) writer: Box<RecordingWriter>,
    /// Who reads it meanwhile.
    pub(super) reader: Option<FilesFeed>,
}

/// What the keeper begins with.
#[derive(Debug)]
pub(super) struct Keeping {
    /// With windows there is none before the first.
    pub(super) kept: Option<OpenRecording>,
    pub(super) bindings: Bindings,
    /// Processes are announced at their first record.
    pub(super) announces: bool,
    /// Who finds out what call stacks are.
    pub(super) stacks: Option<StackFeed>,
}

/// Keeps the records in the recording until the inbox is closed. Without a recording, between windows, they
/// are passed over.
pub(super) fn keep_recording(
    inbox: &Inbox<KeeperMessage>,
    Keeping { kept, bindings, announces, stacks }: Keeping,
    events: &EventSender,
) -> (Option<OpenRecording>, Accounts) {
    let intake = Intake::new(announces, stacks);
    let mut keeper = Keeper { inbox, kept, bindings, events, intake, has_failed: false };
    inbox.consume(BLOCK_TIME, |step| {
        keeper.step(step);
        keeper.kept.as_ref().is_some_and(|kept| kept.writer.grows_old())
    });
    (keeper.kept, keeper.intake.into_accounts())
}

struct Keeper<'a> {
    inbox: &'a Inbox<KeeperMessage>,
    kept: Option<OpenRecording>,
    bindings: Bindings,
    events: &'a EventSender,
    intake: Intake,
    /// The last block could not be written. It is said once, until one can be again.
    has_failed: bool,
}

impl Keeper<'_> {
    fn step(&mut self, step: Step<KeeperMessage>) {
        match step {
            Step::Records(batch) => self.push(&batch),
            Step::Message(KeeperMessage::ProcessEnded { tgid, at_ns }) => {
                self.intake.process_ended(tgid, at_ns);
                self.write(|writer| writer.push_event(&Event::ProcessEnded { tgid, at_ns }));
            }
            Step::Message(KeeperMessage::Swap { next, hits, reply }) => {
                while let Popped::Batch(batch) = self.inbox.pop(Some(Duration::ZERO)) {
                    self.push(&batch);
                }
                self.write(RecordingWriter::close_block);
                self.has_failed = false;
                let before = mem::replace(&mut self.kept, next.map(|kept| *kept));
                // Whoever asked for it waits for it, unless the recording has failed.
                let _ = reply.send((before, self.intake.begin_anew(&hits)));
            }
            Step::Idle => self.write(|writer| writer.remove_old(now_ns(ClockId::Monotonic))),
            Step::Flush => self.write(|writer| {
                writer.close_block()?;
                writer.remove_old(now_ns(ClockId::Monotonic))
            }),
            Step::End => self.write(RecordingWriter::close_block),
        }
    }

    fn push(&mut self, batch: &Arc<Batch>) {
        let Self { kept: Some(kept), bindings, .. } = self else { return };
        self.intake.note(batch, self.events);
        // The binding of a cookie is there before its probe is.
        kept.writer.bind(|known| bindings.update(known));
        self.write(|writer| writer.push(batch));
    }

    fn write(&mut self, write: impl FnOnce(&mut RecordingWriter) -> io::Result<()>) {
        let Some(OpenRecording { writer, reader }) = &mut self.kept else { return };
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
                if !mem::replace(&mut self.has_failed, true) && !is_over_max_size(&error) {
                    let error = format!(
                        "writing the recording failed: {error}; it goes on when it can be written again"
                    );
                    self.events.send(SessionEvent::WriteFailed(error));
                }
            }
            // Records that only wait for their block say nothing of the disk.
            Ok(()) => self.has_failed &= writer.totals().blocks == blocks,
        }
    }
}
