//! Messages between the threads of a recording: one enum for each receiving thread. The drain's is
//! [`DrainMessage`](crate::kernel::stream::DrainMessage).

use std::sync::mpsc;

use anyhow::{Context as _, Result};
use rustix::thread::CapabilitySet;

use super::{accounts::Accounts, limit, options::Notice, recorder::Recording, taker::OpenRecording};
use crate::{
    health::Health,
    kernel::stream::{MailSender, Mailbox},
};
use flow::{
    recording::FirstHit,
    session::{SessionReport, WindowReport},
};
use inspect::privileges;
use recording::sinks::{DiskBudget, OutputDir};

/// Messages to the recording's own thread.
#[derive(Debug)]
pub(super) enum SessionEvent {
    WriteFailed(String),
    /// The first record of this process came, from probes that several processes share.
    NewProcess(u32),
    /// The window with this number has reached its limit of ops.
    WindowFull(u32),
    /// Why a container's flag file is not looked at.
    FlagNotSeen(String),
    /// A window's folder is complete.
    WindowDone(Box<(WindowReport, SessionReport)>),
    /// A dump was written, as no probe was hit.
    Dumped(String),
    /// Something is to be looked at: flag files in containers, the files of a recording, which are as
    /// complete as they will become, or the disk's budget.
    LookAgain,
    /// Records go on after some were dropped.
    RecordsResumed,
}

/// Messages to the thread that takes records first, besides the records.
#[derive(Debug)]
pub(super) enum TakerMessage {
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
    /// Makes the sender, and the mailbox of the recording's own thread. `dir`: the output folder.
    pub(super) fn new(dir: Option<&OutputDir>, health: Health) -> Result<(Self, Mailbox<SessionEvent>)> {
        let is_ours = dir.is_none_or(|dir| dir.is_private().unwrap_or(false));
        let writes = if is_ours { CapabilitySet::empty() } else { privileges::WRITES_ELSEWHERE };
        let budget = dir.and_then(OutputDir::budget).cloned();
        let (events, mailbox) = Mailbox::new().context("making an eventfd")?;
        Ok((Self { events, budget, health, writes }, mailbox))
    }

    pub(super) fn send(&self, event: SessionEvent) {
        self.events.send(event);
    }

    /// Reports changes of the disk's budget; called after using it.
    pub(super) fn look_at_budget(&self) {
        if self.budget.as_ref().is_some_and(DiskBudget::has_news) {
            self.send(SessionEvent::LookAgain);
        }
    }
}

impl Recording<'_> {
    /// Takes the messages of the other threads. Failures are reported.
    pub(super) fn receive(&mut self) {
        let events: Vec<SessionEvent> = self.mailbox.take().collect();
        for event in events {
            match event {
                SessionEvent::WriteFailed(error) => self.write_failed(error),
                SessionEvent::NewProcess(tgid) => self.new_processes.push(tgid),
                SessionEvent::WindowFull(number) => self.full_window = Some(number),
                SessionEvent::WindowDone(done) => {
                    let (window, report) = *done;
                    (self.notice)(Notice::WindowClosed(&window, &report));
                    let known = self.report.windows.iter_mut().find(|known| known.number == window.number);
                    if let Some(known) = known {
                        *known = window;
                        self.is_outdated = true;
                    }
                }
                SessionEvent::Dumped(what) => (self.notice)(Notice::Hang(&what)),
                SessionEvent::RecordsResumed => self.has_resumed = true,
                SessionEvent::FlagNotSeen(why) => self.flag_not_seen(why),
                SessionEvent::LookAgain => {}
            }
        }
        self.is_outdated |= self.tell_budget();
    }

    /// Reports what became of the disk's budget. See [`limit::tell`].
    pub(super) fn tell_budget(&mut self) -> bool {
        let Self { dir, report, notice, .. } = self;
        dir.as_ref().is_some_and(|dir| limit::tell(dir, report, *notice))
    }
}
