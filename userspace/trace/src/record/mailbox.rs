//! Messages between the threads of a recording: one enum for each receiving thread. The drain's is
//! [`DrainMessage`](crate::kernel::stream::DrainMessage).

use std::sync::mpsc;

use anyhow::{Context as _, Result};
use rustix::thread::CapabilitySet;

use super::{accounts::Accounts, keeper::OpenRecording, limit, options::Notice, recorder::Recording};
use crate::{
    health::Health,
    kernel::stream::{MailSender, Mailbox},
};
use flow::{
    recording::FirstHit,
    session::{SessionReport, WindowReport},
};
use recording::sinks::DiskBudget;

/// Messages to the recording's own thread.
#[derive(Debug)]
pub(super) enum SessionEvent {
    WriteFailed(String),
    /// The first record of this process came, from probes that several processes share.
    NewProcess(u32),
    /// The window with this number has reached its limit of ops.
    WindowFull(u32),
    /// Flag files came or went in containers.
    ContainerFlags,
    /// Why a container's flag file is not looked at.
    FlagNotSeen(String),
    /// A window's folder is complete.
    WindowDone(Box<(WindowReport, SessionReport)>),
    /// Files of a recording are as complete as they will become.
    FilesEnded,
    /// A dump was written, as no probe was hit.
    Dumped(String),
    /// The disk's budget was used up, or windows were removed.
    DiskBudget,
    /// Records go on after some were dropped.
    RecordsResumed,
}

/// Messages to the recording's keeper, besides the records.
#[derive(Debug)]
pub(super) enum KeeperMessage {
    /// The process with this number was seen to have ended, at this time of `CLOCK_MONOTONIC`.
    ProcessEnded { tgid: u32, at_ns: u64 },
    /// Take all records that are there, go on with another recording or none, and send back the former one
    /// with its accounts. The next accounts begin at `hits`.
    Swap {
        next: Option<Box<OpenRecording>>,
        hits: Vec<FirstHit>,
        reply: mpsc::Sender<(Option<OpenRecording>, Accounts)>,
    },
}

/// Messages to the thread that decodes directly, besides the records.
#[derive(Debug)]
pub(super) enum WatcherMessage {
    /// See [`KeeperMessage::ProcessEnded`].
    ProcessEnded { tgid: u32, at_ns: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct EventSender {
    pub(super) events: MailSender<SessionEvent>,
    /// The disk's budget, with `--max-size`.
    pub(super) budget: Option<DiskBudget>,
    pub(super) health: Health,
    /// Capabilities that a thread needs to write into the output folder.
    pub(super) writes: CapabilitySet,
}

impl EventSender {
    pub(super) fn send(&self, event: SessionEvent) {
        self.events.send(event);
    }

    /// Reports changes of the disk's budget; called after using it.
    pub(super) fn look_at_budget(&self) {
        if self.budget.as_ref().is_some_and(DiskBudget::has_news) {
            self.send(SessionEvent::DiskBudget);
        }
    }
}

/// Mailbox of the recording's own thread.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) mailbox: Mailbox<SessionEvent>,
    pub(super) sender: EventSender,
}

/// Messages of the other threads, except failures.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) new_processes: Vec<u32>,
    pub(super) full_window: Option<u32>,
    pub(super) has_resumed: bool,
}

impl Events {
    /// `writes`: capabilities of threads that write.
    pub(super) fn new(budget: Option<DiskBudget>, health: Health, writes: CapabilitySet) -> Result<Self> {
        let (events, mailbox) = Mailbox::new().context("making an eventfd")?;
        Ok(Self { mailbox, sender: EventSender { events, budget, health, writes } })
    }

    /// Reports failures, and returns the other messages.
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
