//! Programs that run side by side, some at a time, each with a time limit and all with one. One thread reads
//! what they say.

use std::{
    collections::VecDeque,
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
    process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

use super::output::{Messages, Sink};
use inspect::unresponsive::leave;

/// Most bytes of all answers that are held.
const MAX_HELD: usize = 1 << 30;
/// Time in which a program ends that was asked to: srun ends its step.
const TO_END: Duration = Duration::from_secs(2);
/// Most bytes that are read from one program before the others get their turn.
const A_TURN: usize = 1 << 20;
/// Most bytes that are read from a program that has ended: more than a pipe holds.
const THE_REST: usize = 4 << 20;

/// A program to run, and what it stands for.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) host: String,
    pub(super) command: Command,
    pub(super) sink: Sink,
}

/// How a program ended.
#[derive(Debug)]
pub(super) enum End {
    Exited(ExitStatus),
    NotStarted(io::Error),
    /// It had not ended after this time.
    TimedOut(Duration),
    /// The time for all was over before it was started.
    NoTimeLeft,
    TooLong,
}

/// What a program said.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) host: String,
    pub(super) end: End,
    pub(super) said: Sink,
    pub(super) messages: Messages,
}

/// Limits of all calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) at_once: usize,
    /// Time for each, and for all.
    pub(super) each: Duration,
    pub(super) all: Duration,
}

struct Running {
    host: String,
    child: Child,
    /// Readable once the child has ended.
    ended: OwnedFd,
    out: Option<ChildStdout>,
    err: Option<ChildStderr>,
    said: Sink,
    messages: Messages,
    started: Instant,
    /// Why it was asked to end, and until when it has time.
    stopped: Option<(End, Instant)>,
}

/// Runs all programs. `take` gets each outcome, in the order in which they end, with the number of programs
/// that run.
///
/// # Errors
/// The kernel gives no news of the programs, or `take` failed.
pub(super) fn run(
    calls: impl IntoIterator<Item = Call>,
    limits: Limits,
    mut take: impl FnMut(Outcome) -> Result<()>,
    mut tick: impl FnMut(usize),
) -> Result<()> {
    let begun = Instant::now();
    let mut waiting: VecDeque<Call> = calls.into_iter().collect();
    let mut running: Vec<Running> = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        while running.len() < limits.at_once.max(1)
            && let Some(call) = waiting.pop_front()
        {
            let unstarted = |end, call: Call| {
                let messages = Messages::of(&call.sink);
                Outcome { host: call.host, end, said: call.sink, messages }
            };
            if begun.elapsed() >= limits.all {
                take(unstarted(End::NoTimeLeft, call))?;
                continue;
            }
            match start(call) {
                Ok(child) => running.push(child),
                Err(failed) => {
                    let (call, error) = *failed;
                    take(unstarted(End::NotStarted(error), call))?;
                }
            }
        }
        if running.is_empty() {
            return Ok(());
        }
        tick(running.len());
        wait(&running)?;
        let mut held: usize = running.iter().map(|child| child.said.len()).sum();
        let (now, mut at) = (Instant::now(), 0);
        while let Some(child) = running.get_mut(at) {
            let before = child.said.len();
            let is_over = child.go_on(now, begun, limits, &mut buffer, MAX_HELD.saturating_sub(held));
            held = held.saturating_sub(before).saturating_add(child.said.len());
            if is_over {
                take(running.swap_remove(at).outcome())?;
            } else {
                at += 1;
            }
        }
    }
}

fn start(mut call: Call) -> Result<Running, Box<(Call, io::Error)>> {
    let started = Instant::now();
    call.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let spawned = call.command.spawn().and_then(|mut child| {
        let out = child.stdout.take().map(|out| never_wait(&out).map(|()| out)).transpose();
        let err = child.stderr.take().map(|err| never_wait(&err).map(|()| err)).transpose();
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let ended = pid.ok_or(rustix::io::Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        match (out, err, ended) {
            (Ok(out), Ok(err), Ok(ended)) => Ok((child, out, err, ended)),
            (out, err, ended) => {
                leave(child);
                Err(out
                    .err()
                    .or(err.err())
                    .or(ended.err().map(Into::into))
                    .unwrap_or_else(io::Error::last_os_error))
            }
        }
    });
    match spawned {
        Ok((child, out, err, ended)) => {
            let messages = Messages::of(&call.sink);
            let Call { host, sink: said, .. } = call;
            Ok(Running { host, child, ended, out, err, said, messages, started, stopped: None })
        }
        Err(error) => Err(Box::new((call, error))),
    }
}

fn never_wait(pipe: &impl AsFd) -> io::Result<()> {
    Ok(fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?)
}

/// Waits until one of the programs says something or ends, for a tenth of a second.
fn wait(running: &[Running]) -> Result<()> {
    let mut all: Vec<PollFd<'_>> = Vec::with_capacity(running.len() * 3);
    for child in running {
        all.push(PollFd::new(&child.ended, PollFlags::IN));
        all.extend(child.out.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        all.extend(child.err.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
    }
    match poll(&mut all, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("waiting for the programs that ask other hosts"),
    }
}

impl Running {
    /// Takes what it has said, and ends it when its time is over. Returns whether it has ended.
    fn go_on(
        &mut self,
        now: Instant,
        begun: Instant,
        limits: Limits,
        buffer: &mut [u8],
        most: usize,
    ) -> bool {
        // Before it is read for the last time, so that nothing of it is lost. Whoever has its pipes open
        // beyond its end (ssh with ControlPersist) is not waited for.
        let has_ended = matches!(self.child.try_wait(), Ok(Some(_)));
        let said = &mut self.said;
        let wants_more = read(&mut self.out, buffer, has_ended, |bytes| said.push(bytes, most));
        let messages = &mut self.messages;
        read(&mut self.err, buffer, has_ended, |bytes| {
            messages.push(bytes);
            true
        });
        if !wants_more && self.stopped.is_none() {
            self.out = None;
            self.stop(End::TooLong, now);
        }
        if has_ended {
            return true;
        }
        let (each, all) = (now.duration_since(self.started), now.duration_since(begun));
        match &self.stopped {
            Some((_, until)) => return now >= *until,
            None if each >= limits.each => self.stop(End::TimedOut(limits.each), now),
            None if all >= limits.all => self.stop(End::TimedOut(each), now),
            None => {}
        }
        false
    }

    fn stop(&mut self, why: End, now: Instant) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended meanwhile; it is not waited for yet, so the number is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
        self.stopped = Some((why, now + TO_END));
    }

    fn outcome(mut self) -> Outcome {
        let exited = match self.child.try_wait() {
            Ok(Some(status)) => End::Exited(status),
            Ok(None) => {
                leave(self.child);
                End::TimedOut(self.started.elapsed())
            }
            Err(error) => End::NotStarted(error),
        };
        let end = self.stopped.map_or(exited, |(why, _)| why);
        Outcome { host: self.host, end, said: self.said, messages: self.messages }
    }
}

/// Reads what is there; of what has ended, the rest. Returns `false` once `take` does not want more.
fn read(
    pipe: &mut Option<impl Read>,
    buffer: &mut [u8],
    has_ended: bool,
    mut take: impl FnMut(&[u8]) -> bool,
) -> bool {
    let mut left = if has_ended { THE_REST } else { A_TURN };
    while let Some(open) = pipe
        && left > 0
    {
        match open.read(buffer) {
            Ok(0) => *pipe = None,
            Ok(length) => {
                left = left.saturating_sub(length);
                if !take(buffer.get(..length).unwrap_or_default()) {
                    return false;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(_) => *pipe = None,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::output::Answer;

    fn call(script: &str) -> Call {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Call { host: script.to_owned(), command, sink: Sink::Host(Answer::default()) }
    }

    fn run_all(scripts: &[&str], limits: Limits) -> Vec<(String, String, Vec<u8>)> {
        let (mut all, mut most) = (Vec::new(), 0);
        let take = |outcome: Outcome| {
            let Sink::Host(answer) = outcome.said else { panic!() };
            let end = match outcome.end {
                End::Exited(status) => status.code().unwrap().to_string(),
                End::TimedOut(_) => "late".to_owned(),
                end => format!("{end:?}"),
            };
            all.push((outcome.host, end + &outcome.messages.reason().unwrap_or_default(), answer.bytes));
            Ok(())
        };
        run(scripts.iter().map(|script| call(script)), limits, take, |running| most = most.max(running))
            .unwrap();
        assert!(most <= limits.at_once, "{most} ran at once");
        all
    }

    const LIMITS: Limits =
        Limits { at_once: 8, each: Duration::from_secs(60), all: Duration::from_secs(120) };

    #[test]
    fn all_that_was_said_is_there_and_who_holds_the_pipe_open_is_not_waited_for() {
        let begun = Instant::now();
        let scripts = [
            "echo one; echo why >&2; exit 3",
            "head -c 3000000 /dev/zero",
            "exec 2>&1; sleep 60 & echo $!; exit 0",
        ];
        let mut all = run_all(&scripts, LIMITS);
        all.sort();
        assert_eq!(all[0], (scripts[0].into(), "3why".into(), b"one\n".to_vec()));
        let sleeper: i32 = String::from_utf8_lossy(&all[1].2).trim().parse().unwrap();
        kill_process(Pid::from_raw(sleeper).unwrap(), Signal::KILL).unwrap();
        assert_eq!((&*all[1].1, &*all[2].1, all[2].2.len()), ("0", "0", 3_000_000));
        assert!(begun.elapsed() < LIMITS.each);
    }

    #[test]
    fn who_hangs_or_does_not_obey_is_ended_and_the_rest_waits_its_turn() {
        let limits = Limits { at_once: 3, each: Duration::from_secs(3), all: Duration::from_secs(120) };
        let scripts = ["exec sleep 600", "trap '' TERM; while :; do sleep 0.1; done"];
        let scripts: Vec<&str> = scripts.into_iter().chain(["echo x"; 9]).collect();
        let begun = Instant::now();
        let all = run_all(&scripts, limits);
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        let of = |name: &str| &all.iter().find(|(host, ..)| host.contains(name)).unwrap().1;
        assert_eq!((&**of("600"), &**of("trap")), ("late", "late"));
        assert_eq!(all.iter().filter(|(_, end, said)| end == "0" && said == b"x\n").count(), 9);
    }

    #[test]
    fn who_floods_is_ended_and_nothing_of_it_is_kept() {
        let all = run_all(&["exec cat /dev/zero"], LIMITS);
        assert_eq!((&*all[0].1, all[0].2.len()), ("TooLong", 0));
    }

    #[test]
    fn the_time_for_all_ends_those_that_run_and_those_that_do_not_yet() {
        let limits = Limits { at_once: 1, each: Duration::from_secs(60), all: Duration::from_millis(300) };
        let all = run_all(&["exec sleep 600", "echo x"], limits);
        let ends: Vec<&str> = all.iter().map(|(_, end, _)| &**end).collect();
        assert_eq!(ends, ["late", "NoTimeLeft"]);
        let mut command = Command::new("/nowhere/ssh");
        command.arg("x");
        let call = Call { host: "h".into(), command, sink: Sink::Host(Answer::default()) };
        let mut ends = Vec::new();
        run(
            [call],
            LIMITS,
            |outcome| {
                ends.push(outcome.end);
                Ok(())
            },
            |_| {},
        )
        .unwrap();
        assert!(matches!(&ends[..], [End::NotStarted(error)] if error.kind() == io::ErrorKind::NotFound));
    }
}
