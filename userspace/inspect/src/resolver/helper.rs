//! A child that answers, as its parent sees it.

use std::{
    fs::File,
    io,
    os::{fd::BorrowedFd, unix::fs::FileExt as _},
    process::{Child, Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use rustix::fs::{MemfdFlags, memfd_create};

use super::{
    child::ARGUMENT,
    error::ResolverError,
    frame::{Channel, Frame, NoFrame},
    sandbox::Role,
};
use crate::{
    privileges,
    process::identify::{Named, noted},
    unresponsive::{Answerer, Deadline, Whom, end_within, leave},
};

/// Time in which a child that has closed its socket ends.
const MOMENT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Helper {
    /// `None` in tests.
    child: Option<Child>,
    channel: Channel,
    file: File,
}

impl Helper {
    /// Starts this program as a child, which writes into `file`.
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

    /// Makes a file for the child to write into, that nobody else has.
    pub(super) fn own_file() -> io::Result<File> {
        Ok(memfd_create("ncclflow", MemfdFlags::CLOEXEC)?.into())
    }

    /// Sends a question and waits for the answer, of at most `limit` bytes, until the child has slept for
    /// `wall` without giving one. A child that has no processor is waited for.
    pub(super) fn ask(
        &self,
        json: &[u8],
        fds: &[BorrowedFd<'_>],
        limit: usize,
        wall: Duration,
    ) -> Result<Frame, NoFrame> {
        self.ask_until(json, fds, limit, &self.deadline(wall))
    }

    /// Returns the deadline of a question: the child may sleep for `wall`.
    pub(super) fn deadline(&self, wall: Duration) -> Deadline {
        let whom = self.child.as_ref().map(|child| Whom::Child(child.id()));
        whom.map_or_else(|| Deadline::within(wall), |whom| Deadline::asleep(wall, whom))
    }

    /// The same, until a deadline.
    pub(super) fn ask_until(
        &self,
        json: &[u8],
        fds: &[BorrowedFd<'_>],
        limit: usize,
        deadline: &Deadline,
    ) -> Result<Frame, NoFrame> {
        match self.channel.send(json, &[], fds) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(NoFrame::TimeUp),
            Err(_) => return Err(NoFrame::End),
        }
        self.channel.receive(limit, Some(deadline))
    }

    /// Reads what the child has written.
    pub(super) fn read_file(&self, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, 0)
    }

    /// Clears the note before a question, so that it names no file.
    pub(super) fn clear_note(&self) {
        let _ = self.file.write_all_at(&[0; 16], 0);
    }

    /// Returns the file that the child noted to be at, if any.
    pub(super) fn note(&self) -> Option<Named> {
        noted(&self.file)
    }

    /// Gives up a child that sent no answer: it is killed and not waited for. Returns what became of it, and
    /// its number if it is left behind.
    pub(super) fn give_up(mut self, why: NoFrame, wall: Duration) -> (ResolverError, Option<u32>) {
        let mut child = self.child.take();
        let error = match why {
            NoFrame::TimeUp => ResolverError::Lost(wall),
            NoFrame::Garbage(what) => ResolverError::Garbage(what),
            NoFrame::NoDescriptors => {
                ResolverError::Garbage("descriptors for which there is no room".to_owned())
            }
            NoFrame::End => {
                let ended = child.as_mut().and_then(|child| end_within(child, MOMENT));
                ResolverError::Died(
                    ended.map_or_else(|| "it closed its socket".to_owned(), |status| status.to_string()),
                )
            }
        };
        let left = child.and_then(|child| {
            let pid = child.id();
            leave(child).then_some(pid)
        });
        (error, left)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // This closes the child's socket, which ends it; one that is stuck is not waited for.
        if let Some(child) = self.child.take() {
            leave(child);
        }
    }
}

/// Starts a child from a thread that lives as long as the program: the child ends with the thread that
/// started it (`PR_SET_PDEATHSIG`).
fn spawn(command: Command) -> io::Result<Child> {
    type Spawner = Answerer<Command, io::Result<Child>>;
    static SPAWNER: OnceLock<Option<Mutex<Spawner>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let begin = || {
            // Children inherit those that they may be handed on.
            privileges::keep(privileges::DUMPS, privileges::DUMPS);
            |mut command: Command| command.spawn()
        };
        let thread = thread::Builder::new().name("ncclflow-spawn".to_owned());
        Spawner::start(thread, begin).ok().map(Mutex::new)
    });
    let Some(spawner) = spawner else {
        return Err(io::Error::other("the thread that starts children cannot be started"));
    };
    let spawner = spawner.lock().unwrap_or_else(PoisonError::into_inner);
    spawner.ask(command);
    spawner.answer(Duration::MAX).unwrap_or_else(|| Err(io::Error::other("nobody starts it")))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    impl Helper {
        /// Makes a helper whose child is the test.
        pub(in crate::resolver) fn of_test() -> (Self, Channel) {
            let (channel, theirs) = Channel::pair().unwrap();
            let file = Self::own_file().unwrap();
            (Self { child: None, channel, file }, Channel::new(theirs).unwrap())
        }
    }

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
        assert!(matches!(helper.give_up(why, WALL).0, ResolverError::Lost(_)));
        drop(child);
    }

    #[test]
    fn one_that_ends_or_talks_nonsense_is_told_apart() {
        let (helper, child) = Helper::of_test();
        drop(child);
        let why = helper.ask(b"question", &[], 100, WALL).unwrap_err();
        assert!(matches!(helper.give_up(why, WALL).0, ResolverError::Died(_)));
        let (helper, child) = Helper::of_test();
        child.send(&[b'x'; 200], &[], &[]).unwrap();
        let why = helper.ask(b"question", &[], 100, WALL).unwrap_err();
        assert!(matches!(helper.give_up(why, WALL).0, ResolverError::Garbage(_)), "more than was allowed");
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
