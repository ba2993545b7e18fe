//! What the threads of a recording tell each other: an enum for each thread that is told something. The
//! drain's is [`DrainMessage`](crate::kernel::stream::DrainMessage).

use std::sync::mpsc;

use anyhow::{Context as _, Result};
use rustix::thread::CapabilitySet;

use super::{accounts::Accounts, keeper::OpenRecording, limit, options::Notice, recorder::Recording};
use crate::{
    health::Health,
    kernel::stream::{MailSender, Mailbox},
    recording::FirstHit,
    sinks::{DiskBudget, SessionReport, WindowReport},
};

/// What the recording's own thread is told.
#[derive(Debug)]
pub(super) enum SessionEvent {
    WriteFailed(String),
    /// A first record came of the process with this number, from probes that several processes share.
    NewProcess(u32),
    /// The window with this number has as many ops as it may have.
    WindowFull(u32),
    /// Flag files came or went in containers.
    ContainerFlags,
    /// Why a container's flag file is not looked at.
    FlagNotSeen(String),
    /// A window's folder is complete.
    WindowDone(Box<(WindowReport, SessionReport)>),
    /// Files of a recording are as complete as they become.
    FilesEnded,
    /// A dump was written, as no probe was hit.
    Dumped(String),
    /// The disk's budget was used up, or windows were removed.
    DiskBudget,
    /// Records go on after some were dropped.
    RecordsResumed,
}

/// What the recording's keeper is told, besides the records.
#[derive(Debug)]
pub(super) enum KeeperMessage {
    /// The process that has this number was seen to have ended, at this moment of `CLOCK_MONOTONIC`.
    ProcessEnded { tgid: u32, at_ns: u64 },
    /// Take all records that are there, go on with another recording or with none, and send back the one
    /// before, with the accounts of what came for it. Accounts of the next one begin at `hits`.
    Swap {
        next: Option<Box<OpenRecording>>,
        hits: Vec<FirstHit>,
        reply: mpsc::Sender<(Option<OpenRecording>, Accounts)>,
    },
}

/// What the thread is told that decodes directly, besides the records.
#[derive(Debug)]
pub(super) enum WatcherMessage {
    /// As [`KeeperMessage::ProcessEnded`].
    ProcessEnded { tgid: u32, at_ns: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct EventSender {
    pub(super) events: MailSender<SessionEvent>,
    /// With `--max-size`.
    pub(super) budget: Option<DiskBudget>,
    pub(super) health: Health,
    /// What a thread that writes into the output folder needs.
    pub(super) writes: CapabilitySet,
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
    pub(super) full_window: Option<u32>,
    pub(super) has_resumed: bool,
}

impl Events {
    /// `writes`: what a thread that writes needs.
    pub(super) fn new(budget: Option<DiskBudget>, health: Health, writes: CapabilitySet) -> Result<Self> {
        let (events, mailbox) = Mailbox::new().context("making an eventfd")?;
        Ok(Self { mailbox, sender: EventSender { events, budget, health, writes } })
    }

    /// Passes on what went wrong, and gives back the rest.
    pub(super) fn receive(&self, recording: &mut Recording<'_>) -> Received {
        let mut received = Received::default();
        for event in self.mailbox.take() {
            match event {
                SessionEvent::WriteFailed(error) => recording.write_failed(error),
                SessionEvent::NewProcess(tgid) => received.new_processes.push(tgid),
                SessionEvent::WindowFull(number) => received.full_window = Some(number),
                SessionEvent::WindowDone(done) => {
                    let (window, report) = *done;
                    (recording.notice)(Notice::WindowClosed(&window, &report));
                    let known =
                        recording.report.windows.iter_mut().find(|known| known.number == window.number);
                    if let Some(known) = known {
                        *known = window;
                        recording.is_outdated = true;
                    }
                }
                SessionEvent::Dumped(what) => (recording.notice)(Notice::Hang(&what)),
                SessionEvent::RecordsResumed => received.has_resumed = true,
                SessionEvent::FlagNotSeen(why) => recording.flag_not_seen(why),
                SessionEvent::DiskBudget | SessionEvent::FilesEnded | SessionEvent::ContainerFlags => {}
            }
        }
        if let (Some(budget), Some(dir)) = (&self.sender.budget, &recording.dir) {
            recording.is_outdated |= limit::tell(budget, dir, &mut recording.report, recording.notice);
        }
        received
    }
}
