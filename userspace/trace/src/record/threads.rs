//! Starts, informs and ends the threads of a recording.
//!
//! The drain moves records out of the kernel and waits for nobody. The first taker consumes them.
//! The recording's own thread sends both messages. Files are made by others, which read the recording
//! ([`super::make_lines`]).

use crate::{
    call_stacks::native::NativeFeed,
    health::Health,
    kernel::{
        loader::Attachment,
        stream::{Drain, DrainMessage, MailSender, Mailbox, Moved, ProbeCounts, Room, Source},
    },
};
use inspect::clock::now_ns;
use recording::rows::Pipeline;
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use rustix::{thread::CapabilitySet, time::ClockId};

use super::{
    accounts::Accounts,
    consumers::{Consumer, Ended, join},
    mailbox::{EventSender, TakerMessage},
    row_watch::Watched,
    taker::{OpenRecording, Taking},
};
use flow::recording::FirstHit;

/// Time that the end of a recording or a window waits for records that a CPU is still putting together.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Threads {
    drain: JoinHandle<Ended<Drain>>,
    to_drain: DrainSender,
    /// Records that the drain has passed on, or dropped.
    taken_total: Arc<AtomicU64>,
    /// Records of these that the first taker did not get.
    dropped: Arc<Mutex<ProbeCounts>>,
    /// When each process moved last.
    pub(super) moved: Moved,
    taker: Consumer<TakerMessage, Taking>,
}

/// Sender that stops the drain when dropped.
#[derive(Debug)]
struct DrainSender(MailSender<DrainMessage>);

impl Drop for DrainSender {
    fn drop(&mut self) {
        self.0.send(DrainMessage::Stop);
    }
}

/// Results of taking records.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) accounts: Accounts,
    pub(super) kept: Option<OpenRecording>,
    /// Pipeline that decoded the records, if nobody kept them.
    pub(super) watched: Option<Pipeline>,
    /// Records that the first taker did not get, as it had not kept up.
    pub(super) dropped: ProbeCounts,
    /// Records that were over the share of their process, by process.
    pub(super) over_share: BTreeMap<u32, u64>,
    /// Most bytes that waited for the first taker at a time.
    pub(super) queue_peak: usize,
    /// The first taker has panicked: its recording is good for counting, and nothing more is written to it.
    pub(super) is_cut_short: bool,
}

impl Taken {
    /// Has the recording's reader finish, if it has one.
    pub(super) fn finish_reader(&mut self) -> Option<Watched> {
        self.kept.as_mut()?.reader.take()?.finish().ok()
    }
}

impl Threads {
    /// Starts the threads. If one cannot be started, the others end. At most `queue_bytes` of records wait
    /// for the consumer. `native`: feed for pieces of native stacks.
    pub(super) fn start(
        source: Box<dyn Source>,
        queue_bytes: usize,
        first: Taking,
        native: Option<NativeFeed>,
        events: &EventSender,
    ) -> Result<Self> {
        let (to_drain, told) = Mailbox::new().context("making an eventfd")?;
        let name = if first.watched.is_some() { "ncclflow-watch" } else { "ncclflow-keep" };
        let take = |inbox: &_, taking: &mut Taking, events: &_| taking.run(inbox, events);
        let (taker, outlet) = Consumer::start(name, queue_bytes, events, first, take)?;
        let dropped = outlet.shared_dropped();
        let health = events.health.clone();
        let mut drain = Drain::new(source, outlet).each_pass(move || health.pass());
        if let Some(native) = native {
            drain = drain.giving_pieces(move |piece| native.add_piece(piece));
        }
        let (taken_total, moved) = (drain.taken_total(), drain.moved());
        // Last: it ends only when it is told to.
        let health = events.health.clone();
        let work = move || drain_until_told(drain, &told, &health);
        let drain = events.health.spawn("ncclflow-drain", CapabilitySet::empty(), work)?;
        Ok(Self { drain, to_drain: DrainSender(to_drain), taken_total, dropped, moved, taker })
    }

    /// Tells the first taker and the drain that a process has ended, or is not there any more.
    pub(super) fn process_ended(&self, tgid: u32, attachment: &Attachment) {
        let at_ns = now_ns(ClockId::Monotonic);
        let lost = attachment.object.lost_by_process(tgid).unwrap_or(0);
        self.to_drain.0.send(DrainMessage::ProcessEnded { tgid, lost });
        // A thread that has failed is an error at the end.
        let _ = self.taker.inbox.send(TakerMessage::ProcessEnded { tgid, at_ns });
    }

    /// Gives the first taker another recording, or none, once it has taken all that has come. Returns the
    /// former one with its accounts. The accounts of the next begin at `hits`.
    pub(super) fn swap_recording(
        &self,
        next: Option<OpenRecording>,
        hits: Vec<FirstHit>,
    ) -> Result<(Option<OpenRecording>, Accounts)> {
        let (reply, answer) = mpsc::channel();
        self.taker.inbox.send(TakerMessage::Swap { next: next.map(Box::new), hits, reply })?;
        answer.recv().map_err(|_| anyhow!("a thread that takes records has failed"))
    }

    /// Returns the records that the first taker did not get until now.
    pub(super) fn dropped(&self) -> ProbeCounts {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the drain has passed on or dropped all records of a session that is closed.
    pub(super) fn settle(&self, attachment: &Attachment) -> Result<()> {
        settle(attachment, || {
            self.to_drain.0.send(DrainMessage::LookNow);
            self.taken_total.load(Ordering::Acquire)
        })
    }

    /// Takes the remaining records of a closed session, and ends all threads. Also returns whether all came.
    /// A thread that has panicked is included; the session's health reports it.
    pub(super) fn end(self, attachment: &Attachment) -> Result<(Taken, Result<()>)> {
        drop(self.to_drain);
        let drain = join(self.drain).map(|Ended { state: mut drain, has_failed }| {
            // The cause of its failure would make it fail again.
            let settled = if has_failed {
                Ok(())
            } else {
                settle(attachment, || {
                    while drain.take(Room::Awaited) > 0 {}
                    drain.taken.total()
                })
            };
            drain.close(|tgid| attachment.object.lost_by_process(tgid).unwrap_or(0));
            (drain, settled)
        });
        // All threads end before any error is returned.
        let taken = self.taker.end();
        let ((mut drain, settled), Ended { state, has_failed: is_cut_short }) = (drain?, taken?);
        if is_cut_short {
            drain.outlet.drop_what_is_left();
        }
        let outlet = &drain.outlet;
        let taken = Taken {
            accounts: state.accounts,
            kept: state.kept,
            watched: state.watched,
            dropped: outlet.dropped(),
            over_share: outlet.over_share().clone(),
            queue_peak: outlet.peak(),
            is_cut_short,
        };
        Ok((taken, settled))
    }
}

/// Runs the drain until it is told to stop. If it ends earlier, the session has failed.
fn drain_until_told(mut drain: Drain, told: &Mailbox<DrainMessage>, health: &Health) -> Ended<Drain> {
    // What was taken until then is to be counted.
    let why = match catch_unwind(AssertUnwindSafe(|| drain.run(told))) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("ended: {error}")),
        Err(_) => Some("panicked".to_owned()),
    };
    let has_failed = why.is_some();
    if let Some(why) = why {
        health.fail(format!("the thread `ncclflow-drain`, which takes records out of the kernel, {why}"));
    }
    Ended { state: drain, has_failed }
}

/// Waits until every counted hit was taken or lost in the kernel, or it is clear that this will not come
/// true. The session is closed: no more hits come. `taken` looks for records, and returns the number taken in
/// all.
fn settle(attachment: &Attachment, mut taken: impl FnMut() -> u64) -> Result<()> {
    let deadline = Instant::now() + SETTLE_LIMIT;
    loop {
        let (taken, mut sent) = (taken(), 0);
        for probe in attachment.probes() {
            for cpu in attachment.counters(probe)? {
                sent += cpu.hits.saturating_sub(cpu.lost_full);
            }
        }
        if taken >= sent || Instant::now() >= deadline {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
}
