//! Asks the opener, and remembers what must not be asked again. The questions are in `questions`.

use flow::session::LostReaders;
use std::{
    io, mem,
    os::fd::BorrowedFd,
    sync::{
        LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde::de::DeserializeOwned;

use super::{
    error::ResolverError,
    frame::{Frame, NoFrame},
    helper::Helper,
    memory_copier,
    opener::{MAX_ANSWER, Opener},
    protocol::{Failed, Limits, Request},
    sandbox::Role,
    silent_processes::SilentProcesses,
};
use crate::{
    process::identify::{Named, SilentFiles},
    unresponsive::{MAX_LEFT, Returns, left_behind},
};

/// Counts a child that gave no answer.
pub(super) fn count(lost: &mut LostReaders, error: &ResolverError) {
    match error {
        ResolverError::Lost(_) => lost.unanswered += 1,
        ResolverError::Died(_) | ResolverError::Garbage(_) => lost.died += 1,
        ResolverError::Refused(_) | ResolverError::GivenUp | ResolverError::Unavailable(_) => {}
    }
}

#[derive(Debug, Default)]
struct Service {
    helper: Option<Helper>,
    /// The opener, where there are no children.
    in_process: Option<Opener>,
    silent_files: SilentFiles,
    returns: Returns<Named>,
    /// Processes whose `/proc` does not answer.
    silent: SilentProcesses,
    lost: LostReaders,
}

static HAS_CHILDREN: AtomicBool = AtomicBool::new(false);
static ALLOWS_FUSE: AtomicBool = AtomicBool::new(false);
static SERVICE: LazyLock<Mutex<Service>> = LazyLock::new(Mutex::default);

/// Notes that this program can be its own child.
pub(super) fn use_children() {
    HAS_CHILDREN.store(true, Ordering::Relaxed);
}

pub(super) fn has_children() -> bool {
    HAS_CHILDREN.load(Ordering::Relaxed)
}

/// Sets whether file systems that may block or lie are asked.
pub fn allow_fuse(allows: bool) {
    ALLOWS_FUSE.store(allows, Ordering::Relaxed);
}

/// Starts a child ahead of the first question.
pub fn prepare() {
    if has_children() {
        let _ = with_service(|service| service.start().map(|_| ()));
    }
}

/// Returns what was lost until now, with looking at files and with copying memory.
pub fn lost() -> LostReaders {
    let mut lost = with_service(|service| service.lost);
    lost += &memory_copier::lost();
    lost
}

fn with_service<T>(act: impl FnOnce(&mut Service) -> T) -> T {
    act(&mut SERVICE.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Service {
    fn start(&mut self) -> io::Result<&Helper> {
        if self.helper.is_none() {
            self.helper = Some(Helper::start(Role::Opener, Helper::own_file()?)?);
        }
        self.helper.as_ref().ok_or_else(|| io::Error::other("there is none"))
    }

    /// Asks the opener. `about` is the process that is asked about, where `/proc` itself may not answer.
    fn ask<T: DeserializeOwned>(
        &mut self,
        request: (Limits, Request),
        about: Option<u32>,
        fds: &[BorrowedFd<'_>],
        wall: Duration,
    ) -> Answer<T> {
        if !has_children() {
            let fds = fds.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>();
            let opener = self.in_process.get_or_insert_with(Opener::in_process);
            let fds = fds.map_err(|error| ResolverError::Unavailable(error.to_string()))?;
            return understand(opener.answer(request.0, request.1, fds));
        }
        let json = serde_json::to_vec(&request).map_err(|error| ResolverError::Refused(error.into()))?;
        let mut again = true;
        loop {
            if left_behind() >= MAX_LEFT {
                let why = format!("{MAX_LEFT} children that looked at files or memory sleep in the kernel");
                return Err(ResolverError::Unavailable(why));
            }
            let helper = self.start().map_err(|error| ResolverError::Unavailable(error.to_string()))?;
            helper.clear_note();
            let why = match helper.ask(&json, fds, MAX_ANSWER, wall) {
                Ok(frame) => match understand(frame) {
                    Err(ResolverError::Garbage(what)) => NoFrame::Garbage(what),
                    Err(ResolverError::Died(how)) => {
                        self.lost.died += 1;
                        return Err(ResolverError::Died(how));
                    }
                    answer => return answer,
                },
                Err(NoFrame::NoDescriptors) => {
                    return Err(ResolverError::Unavailable("no descriptors are left".to_owned()));
                }
                Err(why) => why,
            };
            let at = helper.note();
            let Some(helper) = self.helper.take() else { continue };
            let (error, left) = helper.give_up(why, wall);
            self.lost.left_behind += u32::from(left.is_some());
            let is_lost = matches!(error, ResolverError::Lost(_));
            // A child that was killed from outside has done nothing wrong; nor has one that was stopped,
            // where nothing says that it was at a file. A file system that does not answer will not do so the
            // second time either.
            let is_innocent = is_lost && at.is_none() || matches!(error, ResolverError::Died(_));
            let is_tried_again = is_innocent && mem::take(&mut again);
            if is_lost || !is_tried_again {
                count(&mut self.lost, &error);
            }
            if !is_tried_again {
                self.give_up(at, about, left, Instant::now());
                return Err(error);
            }
        }
    }

    /// Notes that the file, or the process, is not asked for now. `left`: the child that still waits for it.
    fn give_up(&mut self, at: Option<Named>, about: Option<u32>, left: Option<u32>, now: Instant) {
        if let Some((device, inode)) = at {
            self.silent_files.add(inode, device);
            self.returns.left((device, inode), left, now);
        } else if let Some(pid) = about {
            self.silent.add(pid, left, now);
        }
    }

    fn limits(&mut self, now: Instant) -> Limits {
        let Self { silent_files, returns, .. } = self;
        silent_files.keep_only(|(inode, device)| returns.are_awaited(&(*device, *inode), now));
        Limits { allow_fuse: ALLOWS_FUSE.load(Ordering::Relaxed), silent: silent_files.clone() }
    }
}

/// An answer of the type that the question has, and what came with it.
type Answer<T> = Result<(T, Frame), ResolverError>;

fn understand<T: DeserializeOwned>(frame: Frame) -> Answer<T> {
    match from_json::<Result<T, Failed>>(&frame.json)? {
        Ok(answer) => Ok((answer, frame)),
        Err(Failed::Error(error)) => Err(ResolverError::Refused(error)),
        Err(Failed::ReaderDied(how)) => Err(ResolverError::Died(how)),
    }
}

pub(super) fn from_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, ResolverError> {
    let no_answer = |error| ResolverError::Garbage(format!("no answer that is known: {error}"));
    serde_json::from_slice(json).map_err(no_answer)
}

/// Asks about a process.
pub(super) fn ask_about<T: DeserializeOwned>(pid: u32, wall: Duration, request: Request) -> Answer<T> {
    with_service(|service| {
        let now = Instant::now();
        if service.silent.has(pid, now) {
            return Err(ResolverError::GivenUp);
        }
        let limits = service.limits(now);
        service.ask((limits, request), Some(pid), &[], wall)
    })
}

/// Asks about a file.
pub(super) fn ask_of<T: DeserializeOwned>(
    library: BorrowedFd<'_>,
    wall: Duration,
    request: Request,
) -> Answer<T> {
    with_service(|service| service.ask((Limits::default(), request), None, &[library], wall))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_answer_is_not_taken_for_one() {
        for json in [&b""[..], b"{}", b"\"Read", b"{\"Ok\":7}", b"[[[[[[[[", b"{\"Ok\":\"yes\"}"] {
            let frame = Frame { json: json.to_vec(), ..Frame::default() };
            assert!(matches!(understand::<bool>(frame), Err(ResolverError::Garbage(_))), "{json:?}");
        }
    }

    #[test]
    fn a_file_that_did_not_answer_is_not_asked_for_now_and_two_of_a_device_stand_for_all() {
        let (mut service, now) = (Service::default(), Instant::now());
        service.give_up(Some(((8, 1), 10)), Some(1), None, now);
        service.give_up(Some(((8, 2), 10)), None, None, now);
        let has = |service: &mut Service, device, inode, now| {
            service.limits(now).silent.has(|known| *known == inode, &(8, device))
        };
        assert!(
            has(&mut service, 1, 10, now) && !has(&mut service, 1, 12, now) && has(&mut service, 2, 10, now)
        );
        service.give_up(Some(((8, 1), 11)), None, None, now);
        assert!(has(&mut service, 1, 12, now) && !has(&mut service, 2, 11, now));
        assert!(!service.silent.has(1, now), "it was the file, and not the process");
        service.give_up(None, Some(std::process::id()), None, now);
        assert!(service.silent.has(std::process::id(), now));
        // Nobody waits for them any more: they are asked again, after ever longer pauses.
        let after = now + Duration::from_mins(1);
        assert!(!has(&mut service, 1, 12, after) && !has(&mut service, 1, 10, after));
        assert!(!service.silent.has(std::process::id(), after));
        service.give_up(Some(((8, 1), 10)), None, None, after);
        assert!(has(&mut service, 1, 10, after + Duration::from_mins(1)));
        assert!(!has(&mut service, 1, 10, after + Duration::from_mins(2)));
    }
}
