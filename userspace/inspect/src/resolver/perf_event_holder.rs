//! The host's first performance event that follows a thread, opened by a child.
//!
//! The thread that opens it waits for a grace period of RCU, out of the reach of SIGKILL (`account_event`,
//! kernel/events/core.c, seen in Linux 6.18). Where RCU's thread gets no processor, that takes minutes, and a
//! process cannot end before its thread has what it waits for. While one such event is open, others are
//! opened at once. So a child opens one that follows the child itself, and this program opens its own only
//! when the child has.

use std::{io, time::Duration};

use anyhow::Result;

use super::{
    frame::{Channel, NoFrame},
    helper::Helper,
    perf_event::event_of_own_thread,
    sandbox::Role,
    service::has_children,
};
use crate::unresponsive::{MAX_LEFT, left_behind};

/// Longest time that opening the event may take. On two processors with 20 running threads it was seen to
/// take 7 s.
const WALL: Duration = Duration::from_secs(10);

/// Child that holds the event open and ends when this is dropped. Meanwhile opening events that follow
/// threads waits for no grace period.
#[derive(Debug)]
pub(crate) struct FirstEvent {
    /// `None`: this program cannot be its own child, or the child has opened none.
    _child: Option<Helper>,
}

impl FirstEvent {
    /// Has a child open the event, and waits for the child, at most 10 s.
    ///
    /// # Errors
    /// If the kernel has not opened it in that time, or no child can be started.
    pub(crate) fn open() -> io::Result<Self> {
        if !has_children() {
            return Ok(Self { _child: None });
        }
        if left_behind() >= MAX_LEFT {
            return Err(io::Error::other(format!("{MAX_LEFT} children of this program sleep in the kernel")));
        }
        Self::opened_by(Helper::start(Role::EventHolder, Helper::own_file()?)?, WALL)
    }

    fn opened_by(helper: Helper, wall: Duration) -> io::Result<Self> {
        match helper.ask(b"open", &[], 64, wall) {
            Ok(frame) if frame.json == b"open" => Ok(Self { _child: Some(helper) }),
            Err(why @ NoFrame::TimeUp) => {
                helper.give_up(why, wall);
                let seconds = wall.as_secs();
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!(
                        "it has not opened a performance event within {seconds} s: it waits for RCU, as where all processors \
                         are busy"
                    ),
                ))
            }
            // The child did not wait. This program can have more capabilities, so the kernel says when it
            // tries whether it may open events.
            _ => Ok(Self { _child: None }),
        }
    }
}

/// Serves as the child: opens the event, says so, and holds it until the other end is closed.
pub(super) fn serve(channel: &Channel) -> Result<()> {
    if channel.request(64)?.is_none() {
        return Ok(());
    }
    let event = event_of_own_thread();
    channel.send(if event.is_ok() { b"open" } else { b"none" }, &[], &[])?;
    while channel.request(64)?.is_some() {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Instant};

    use test_support::need;

    use super::*;

    #[test]
    fn the_event_is_held_until_it_is_not_needed_any_more() {
        // This event is held until the end: while it is open, the child waits for no grace period.
        let own = event_of_own_thread();
        if !need("perf", own.is_ok(), "run where perf_event_open(2) is allowed") {
            return;
        }
        let (helper, theirs) = Helper::of_test();
        let child = thread::spawn(move || serve(&theirs));
        let event = FirstEvent::opened_by(helper, Duration::from_mins(1)).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(!child.is_finished());
        drop(event);
        child.join().unwrap().unwrap();
    }

    #[test]
    fn a_kernel_that_does_not_open_it_is_not_waited_for_long() {
        let (helper, _silent) = Helper::of_test();
        let begun = Instant::now();
        let error = FirstEvent::opened_by(helper, Duration::from_millis(100)).unwrap_err();
        assert!(
            error.kind() == io::ErrorKind::TimedOut && begun.elapsed() < Duration::from_secs(30),
            "{error}"
        );
        // A child that has ended has not waited for the kernel.
        let (helper, ended) = Helper::of_test();
        drop(ended);
        FirstEvent::opened_by(helper, Duration::from_secs(10)).unwrap();
    }
}
