//! What the threads of a recording tell each other: an enum for each thread that is told something. The
//! drain's is [`DrainMessage`](crate::kernel::stream::DrainMessage); the capture's keeper is told nothing.

use std::sync::mpsc;

use anyhow::{Context as _, Result};

use super::{limit, options::Notice, pipeline::Pipeline, recorder::Recording};
use crate::{
    kernel::stream::{MailSender, Mailbox},
    recording::RecordingWriter,
    sinks::DiskBudget,
};

/// What the recording's own thread is told.
#[derive(Debug)]
pub(super) enum SessionEvent {
    WriteFailed(String),
    /// A first record came of the process with this number, from probes that several processes share.
    NewProcess(u32),
    /// The window has as many ops as it may have.
    WindowFull,
    /// A dump was written, as no probe was hit.
    Dumped(String),
    /// The disk's budget was used up, or windows were removed.
    DiskBudget,
    /// Records go on after some were dropped.
    RecordsResumed,
}

/// What the writer is told, besides the records.
#[derive(Debug)]
pub(super) enum WriterMessage {
    /// The process that has this number was seen to have ended, at this moment of `CLOCK_MONOTONIC`.
    ProcessEnded { tgid: u32, at_ns: u64 },
    /// Take all records that are there, go on with another pipeline, and send back the one before, finished.
    Swap { next: Box<Pipeline>, reply: mpsc::Sender<Pipeline> },
}

/// What the recording's keeper is told, besides the records.
#[derive(Debug)]
pub(super) enum KeeperMessage {
    /// As [`WriterMessage::ProcessEnded`].
    ProcessEnded { tgid: u32, at_ns: u64 },
    /// Take all records that are there, go on with another recording or with none, and send back the one before.
    Swap { next: Option<Box<RecordingWriter>>, reply: mpsc::Sender<Option<Box<RecordingWriter>>> },
}

#[derive(Clone, Debug)]
pub(super) struct EventSender {
    pub(super) events: MailSender<SessionEvent>,
    /// With `--max-size`.
    pub(super) budget: Option<DiskBudget>,
}

impl EventSender {
    pub(super) fn send(&self, event: SessionEvent) {
        self.events.send(event);
    }

    /// After anything that takes of the disk's budget.
    pub(super) fn look_at_budget(&self) {
        if self.budget.as_ref().is_some_and(DiskBudget::has_news) {
            self.send(SessionEvent::DiskBudget);
        }
    }
}

/// The mailbox of the recording's own thread.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) mailbox: Mailbox<SessionEvent>,
    pub(super) sender: EventSender,
}

/// What the other threads have said, besides what went wrong.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) new_processes: Vec<u32>,
    pub(super) is_window_full: bool,
    pub(super) has_resumed: bool,
}

impl Events {
    pub(super) fn new(budget: Option<DiskBudget>) -> Result<Self> {
        let (events, mailbox) = Mailbox::new().context("making an eventfd")?;
        Ok(Self { mailbox, sender: EventSender { events, budget } })
    }

    /// Passes on what went wrong, and gives back the rest.
    pub(super) fn receive(&self, recording: &mut Recording<'_>) -> Received {
        let mut received = Received::default();
        for event in self.mailbox.take() {
            match event {
                SessionEvent::WriteFailed(error) => recording.write_failed(error),
                SessionEvent::NewProcess(tgid) => received.new_processes.push(tgid),
                SessionEvent::WindowFull => received.is_window_full = true,
                SessionEvent::Dumped(what) => (recording.notice)(Notice::Hang(&what)),
                SessionEvent::RecordsResumed => received.has_resumed = true,
                SessionEvent::DiskBudget => {}
            }
        }
        if let Some(budget) = &self.sender.budget {
            recording.is_outdated |= limit::tell(budget, &mut recording.report, recording.notice);
        }
        received
    }
}
