//! The thread of a session that is only watched and writes nothing: it decodes records from the drain.

use crate::call_stacks::{StackBook, StackFeed};
use inspect::clock::now_ns;
use recording::{
    format::Facts as _,
    rows::{Pipeline, STRAGGLE_NS},
};
use std::time::Duration;

use super::{
    accounts::Accounts,
    consumers::{Inbox, Step},
    intake::Intake,
    mailbox::{EventSender, WatcherMessage},
};
use rustix::time::ClockId;

/// Interval at which ended processes are looked for.
const LOOK: Duration = Duration::from_millis(500);

/// State that the thread works on, and leaves behind.
#[derive(Debug)]
pub(super) struct Watching {
    pipeline: Pipeline,
    intake: Intake,
    /// Stacks that are named.
    stacks: Option<StackBook>,
}

impl Watching {
    pub(super) fn new(pipeline: Pipeline, stacks: Option<(StackFeed, StackBook)>) -> Self {
        let (feed, stacks) = stacks.unzip();
        let intake = Intake::new(pipeline.following.is_some(), feed);
        Self { pipeline, intake, stacks }
    }

    pub(super) fn into_parts(self) -> (Pipeline, Accounts) {
        (self.pipeline, self.intake.into_accounts())
    }
}

/// Decodes and models until the inbox is closed.
pub(super) fn decode_directly(
    inbox: &Inbox<WatcherMessage>,
    Watching { pipeline, intake, stacks }: &mut Watching,
    events: &EventSender,
) {
    inbox.consume(LOOK, |step| {
        match step {
            Step::Records(batch) => {
                intake.note(&batch, events);
                batch.records().for_each(|record| pipeline.record(record));
                pipeline.close_ended();
            }
            Step::Message(WatcherMessage::ProcessEnded { tgid, at_ns }) => {
                intake.process_ended(tgid, at_ns);
                pipeline.process_ended(tgid, at_ns);
            }
            Step::Idle => {
                pipeline.close_ended_before(now_ns(ClockId::Monotonic).saturating_sub(STRAGGLE_NS));
            }
            Step::Flush => {}
            Step::End => {
                pipeline.finish();
                for book in stacks.iter() {
                    book.settle();
                    book.since(0).0.iter().for_each(|row| pipeline.output.push_stack(row));
                }
            }
        }
        !pipeline.ended_ns.is_empty()
    });
}
