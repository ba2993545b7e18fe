//! A child that answers, as its parent sees it.

use std::{
    fs::File,
    io,
    os::{fd::BorrowedFd, unix::fs::FileExt as _},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, OnceLock, PoisonError,
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, memfd_create};

use super::{
    child::ARGUMENT,
    frame::{Channel, Frame, NoFrame},
    sandbox::Role,
};
use crate::{privileges, target::identify::Named};

/// How often a child that has closed its socket is looked at, until it has ended.
const LOOKS: usize = 100;
/// Children of all sorts that may be left behind; after that nobody is asked who could be lost, until some have ended.
pub(super) const MAX_LEFT: usize = 64;

#[derive(Debug)]
pub(super) struct Helper {
    /// `None` in tests.
    child: Option<Child>,
    channel: Channel,
    file: File,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    Lost(Duration),
    Died(String),
    Garbage(String),
}

impl Helper {
    /// Starts this program as a child. `file`: what the child writes into.
    pub(super) fn start(role: Role, file: File) -> io::Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        // The very program that runs, even if its file was replaced.
        let mut command = Command::new("/proc/self/exe");
        command
            .args([ARGUMENT, role.argument()])
            .env_clear()
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(file.try_clone()?)
            .stderr(Stdio::null());
        Ok(Self { child: Some(spawn(command)?), channel, file })
    }

    /// A file for the child to write into, that nobody else has.
    pub(super) fn own_file() -> io::Result<File> {
        Ok(memfd_create("ncclflow", MemfdFlags::CLOEXEC)?.into())
    }

    /// Asks, and waits for the answer, of at most `limit` bytes, not longer than `wall`.
    pub(super) fn ask(
        &self,
        json: &[u8],
        fds: &[BorrowedFd<'_>],
        limit: usize,
        wall: Duration,
    ) -> Result<Frame, NoFrame> {
        let deadline = Instant::now() + wall;
        match self.channel.send(json, &[], fds) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(NoFrame::TimeUp),
            Err(_) => return Err(NoFrame::End),
        }
        self.channel.receive(limit, Some(deadline))
    }

    /// What the child has written.
    pub(super) fn read_file(&self, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, 0)
    }

    /// Before it is asked: it is at no file.
    pub(super) fn clear_note(&self) {
        let _ = self.file.write_all_at(&[0; 16], 0);
    }

    /// The file that it has written to be at, if any.
    pub(super) fn note(&self) -> Option<Named> {
        let mut bytes = [0; 16];
        self.file.read_exact_at(&mut bytes, 0).ok()?;
        let ([major, minor, ..], _) = bytes.as_chunks::<4>() else { return None };
        let inode = bytes.last_chunk::<8>()?;
        let device = (u32::from_le_bytes(*major), u32::from_le_bytes(*minor));
        let named = (device, u64::from_le_bytes(*inode));
        (named != ((0, 0), 0)).then_some(named)
    }

    /// What became of a child that gave no answer. It is killed and not waited for; `true`: it is left behind.
    pub(super) fn give_up(mut self, why: NoFrame, wall: Duration) -> (NoAnswer, bool) {
        let ended = match why {
            NoFrame::End => self.child.as_mut().and_then(ended),
            NoFrame::TimeUp | NoFrame::Garbage(_) | NoFrame::NoDescriptors => None,
        };
        let Some(child) = self.child.take() else { return (no_answer(why, wall, ended), false) };
        let is_left = leave(child);
        (no_answer(why, wall, ended), is_left)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Its socket is closed with this, which ends it; one that is stuck is not waited for.
        if let Some(child) = self.child.take() {
            leave(child);
        }
    }
}

fn no_answer(why: NoFrame, wall: Duration, ended: Option<String>) -> NoAnswer {
    match why {
        NoFrame::TimeUp => NoAnswer::Lost(wall),
        NoFrame::Garbage(what) => NoAnswer::Garbage(what),
        NoFrame::NoDescriptors => NoAnswer::Garbage("descriptors for which there is no room".to_owned()),
        NoFrame::End => NoAnswer::Died(ended.unwrap_or_else(|| "it closed its socket".to_owned())),
    }
}

/// How it ended, as soon as it has.
fn ended(child: &mut Child) -> Option<String> {
    for _ in 0..LOOKS {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status.to_string());
        }
        thread::sleep(Duration::from_millis(1));
    }
    None
}

/// Children that were killed and have not ended yet.
static LEFT: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Kills a child and does not wait for it. Whether it is still there a moment later.
fn leave(mut child: Child) -> bool {
    let _ = child.kill();
    let has_ended = ended(&mut child).is_some();
    if !has_ended {
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    }
    !has_ended
}

/// Children that were left behind and are still there: they sleep in the kernel.
pub(super) fn still_left() -> usize {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
    left.len()
}

/// Starts a child from a thread that lives as long as the program: the child ends with the thread that
/// started it (`PR_SET_PDEATHSIG`).
fn spawn(command: Command) -> io::Result<Child> {
    type Asked = (Box<Command>, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Option<Sender<Asked>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, asked) = channel::<Asked>();
        let run = move || {
            privileges::keep_for_children(privileges::DUMPS);
            for (mut command, answer) in asked {
                let _ = answer.send(command.spawn());
            }
        };
        thread::Builder::new().name("ncclflow-spawn".to_owned()).spawn(run).is_ok().then_some(sender)
    });
    let (answer, child) = channel();
    let sent = spawner.as_ref().map(|spawner| spawner.send((Box::new(command), answer)).is_ok());
    match sent {
        Some(true) => child.recv().unwrap_or_else(|_| Err(io::Error::other("nobody starts it"))),
        _ => Err(io::Error::other("the thread that starts children cannot be started")),
    }
}

#[cfg(test)]
impl Helper {
    /// One whose child is the test.
    pub(super) fn of_test() -> (Self, Channel) {
        let (channel, theirs) = Channel::pair().unwrap();
        let file = Self::own_file().unwrap();
        (Self { child: None, channel, file }, Channel::new(theirs).unwrap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: Duration = Duration::from_millis(100);

    #[test]
    fn an_answer_is_given_and_silence_is_not_waited_for() {
        let (helper, child) = Helper::of_test();
        let answering = thread::spawn(move || {
            let asked = child.receive(100, None).unwrap();
            child.send(&asked.json, b"bytes", &[]).unwrap();
            child
        });
        let answer = helper.ask(b"question", &[], 100, Duration::from_mins(1)).unwrap();
        assert_eq!((&*answer.json, &*answer.bytes), (&b"question"[..], &b"bytes"[..]));
        let child = answering.join().unwrap();
        let begun = Instant::now();
        let why = helper.ask(b"question", &[], 100, WALL).unwrap_err();
        assert!(matches!(why, NoFrame::TimeUp) && begun.elapsed() < Duration::from_secs(30));
        assert!(matches!(helper.give_up(why, WALL).0, NoAnswer::Lost(_)));
        drop(child);
    }

    #[test]
    fn one_that_ends_or_talks_nonsense_is_told_apart() {
        let (helper, child) = Helper::of_test();
        drop(child);
        let why = helper.ask(b"question", &[], 100, WALL).unwrap_err();
        assert!(matches!(helper.give_up(why, WALL).0, NoAnswer::Died(_)));
        let (helper, child) = Helper::of_test();
        child.send(&[b'x'; 200], &[], &[]).unwrap();
        let why = helper.ask(b"question", &[], 100, WALL).unwrap_err();
        assert!(matches!(helper.give_up(why, WALL).0, NoAnswer::Garbage(_)), "more than was allowed");
    }

    #[test]
    fn the_note_says_at_which_file_it_was() {
        let (helper, _child) = Helper::of_test();
        helper.clear_note();
        assert_eq!(helper.note(), None);
        let bytes = [&253u32.to_le_bytes()[..], &7u32.to_le_bytes(), &4711u64.to_le_bytes()].concat();
        helper.file.write_all_at(&bytes, 0).unwrap();
        assert_eq!(helper.note(), Some(((253, 7), 4711)));
    }
}
