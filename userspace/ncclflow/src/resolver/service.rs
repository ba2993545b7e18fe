//! Asks the looker, and remembers what must not be asked again. The questions are in `questions`.

use flow::session::LostReaders;
use std::{
    io,
    os::fd::BorrowedFd,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    error::ResolverError,
    frame::{Frame, NoFrame},
    helper::{Helper, MAX_LEFT, NoAnswer, still_left},
    looker::{Looker, MAX_ANSWER},
    peeker,
    protocol::{Limits, Reply, Request},
    sandbox::Role,
    silent::Silent,
};
use crate::target::identify::Named;

/// Files of one device that may stay without an answer; then no file of the device is asked for.
const DEVICE_STRIKES: usize = 2;

#[derive(Debug, Default)]
struct Service {
    helper: Option<Helper>,
    /// The looker, where there are no children.
    in_process: Option<Looker>,
    given_up: Vec<Named>,
    /// Processes whose `/proc` does not answer.
    silent: Silent,
    lost: LostReaders,
}

static HAS_CHILDREN: AtomicBool = AtomicBool::new(false);
static ALLOWS_FUSE: AtomicBool = AtomicBool::new(false);
static SERVICE: Mutex<Option<Service>> = Mutex::new(None);

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
    lost += peeker::lost();
    lost
}

fn with_service<T>(act: impl FnOnce(&mut Service) -> T) -> T {
    let mut service: MutexGuard<'_, Option<Service>> = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
    act(service.get_or_insert_default())
}

impl Service {
    fn start(&mut self) -> io::Result<&Helper> {
        if self.helper.is_none() {
            self.helper = Some(Helper::start(Role::Looker, Helper::own_file()?)?);
        }
        self.helper.as_ref().ok_or_else(|| io::Error::other("there is none"))
    }

    /// Asks the looker. `about` is the process that is asked about, where `/proc` itself may not answer.
    fn ask(
        &mut self,
        request: &Request,
        about: Option<u32>,
        fds: &[BorrowedFd<'_>],
        wall: Duration,
    ) -> Result<(Reply, Frame), ResolverError> {
        if !has_children() {
            let fds = fds.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>();
            let looker = self.in_process.get_or_insert_with(Looker::in_process);
            let fds = fds.map_err(|error| ResolverError::Unavailable(error.to_string()))?;
            return understand(looker.answer(request.clone(), fds));
        }
        let json = serde_json::to_vec(request).map_err(|error| ResolverError::Refused(error.into()))?;
        // A child that was killed from outside has done nothing wrong.
        let mut again = true;
        loop {
            if still_left() >= MAX_LEFT {
                let why = format!("{MAX_LEFT} children that looked at files or memory sleep in the kernel");
                return Err(ResolverError::Unavailable(why));
            }
            let helper = self.start().map_err(|error| ResolverError::Unavailable(error.to_string()))?;
            helper.clear_note();
            let why = match helper.ask(&json, fds, MAX_ANSWER, wall) {
                Ok(frame) => match understand(frame) {
                    Err(ResolverError::Garbage(what)) => NoFrame::Garbage(what),
                    Ok((Reply::ReaderDied(how), _)) => {
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
            let (no_answer, is_left) = helper.give_up(why, wall);
            self.lost.left_behind += u32::from(is_left);
            return Err(match no_answer {
                NoAnswer::Died(_) if again => {
                    again = false;
                    continue;
                }
                NoAnswer::Died(how) => {
                    self.lost.died += 1;
                    self.give_up(at, about);
                    ResolverError::Died(how)
                }
                NoAnswer::Garbage(what) => {
                    self.lost.died += 1;
                    self.give_up(at, about);
                    ResolverError::Garbage(what)
                }
                // The child was stopped, and nothing says that it was at a file. A file system that does not
                // answer will not do so the second time either.
                NoAnswer::Lost(_) if again && at.is_none() => {
                    self.lost.unanswered += 1;
                    again = false;
                    continue;
                }
                NoAnswer::Lost(after) => {
                    self.lost.unanswered += 1;
                    self.give_up(at, about);
                    ResolverError::Lost(after)
                }
            });
        }
    }

    /// Notes that the file, or the process, is not asked again; nor is any file of a device with several
    /// such.
    fn give_up(&mut self, at: Option<Named>, about: Option<u32>) {
        if let Some((device, inode)) = at {
            self.given_up.push((device, inode));
            let strikes = self.given_up.iter().filter(|(of, inode)| *of == device && *inode != 0).count();
            if strikes >= DEVICE_STRIKES {
                self.given_up.retain(|(of, _)| *of != device);
                self.given_up.push((device, 0));
            }
        } else if let Some(pid) = about {
            self.silent.add(pid);
        }
    }

    fn limits(&self) -> Limits {
        Limits { allow_fuse: ALLOWS_FUSE.load(Ordering::Relaxed), given_up: self.given_up.clone() }
    }
}

fn understand(frame: Frame) -> Result<(Reply, Frame), ResolverError> {
    let reply = serde_json::from_slice(&frame.json)
        .map_err(|error| ResolverError::Garbage(format!("no answer that is known: {error}")))?;
    match reply {
        Reply::Failed(error) => Err(ResolverError::Refused(error.into())),
        reply => Ok((reply, frame)),
    }
}

/// Asks about a process.
pub(super) fn ask_about(
    pid: u32,
    wall: Duration,
    request: impl FnOnce(Limits) -> Request,
) -> Result<(Reply, Frame), ResolverError> {
    with_service(|service| {
        if service.silent.has(pid) {
            return Err(ResolverError::GivenUp);
        }
        let request = request(service.limits());
        service.ask(&request, Some(pid), &[], wall)
    })
}

/// Asks about a file.
pub(super) fn ask_of(
    library: BorrowedFd<'_>,
    wall: Duration,
    request: &Request,
) -> Result<(Reply, Frame), ResolverError> {
    with_service(|service| service.ask(request, None, &[library], wall))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_answer_is_not_taken_for_one() {
        for json in [&b""[..], b"{}", b"\"Read", b"{\"Looked\":7}", b"[[[[[[[[", b"{\"HasNccl\":\"yes\"}"] {
            let frame = Frame { json: json.to_vec(), ..Frame::default() };
            assert!(matches!(understand(frame), Err(ResolverError::Garbage(_))), "{json:?}");
        }
    }

    #[test]
    fn a_file_that_did_not_answer_is_not_asked_again_and_two_of_a_device_stand_for_all() {
        let mut service = Service::default();
        service.give_up(Some(((8, 1), 10)), Some(1));
        service.give_up(Some(((8, 2), 10)), None);
        assert_eq!(service.limits().given_up, [((8, 1), 10), ((8, 2), 10)]);
        service.give_up(Some(((8, 1), 11)), None);
        assert_eq!(service.limits().given_up, [((8, 2), 10), ((8, 1), 0)]);
        assert!(!service.silent.has(1), "it was the file, and not the process");
        service.give_up(None, Some(std::process::id()));
        assert!(service.silent.has(std::process::id()));
    }
}
