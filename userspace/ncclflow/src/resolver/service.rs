//! Asks the looker, and remembers what must not be asked again.

use std::{
    fs::File,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nccl_library::{
    elf::FileOffset,
    symbols::{DebugFiles, Resolved},
};
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::de::DeserializeOwned;

use super::{
    error::ResolverError,
    frame::Frame,
    helper::{Helper, NoAnswer},
    looker::{Looker, MAX_ANSWER},
    protocol::{
        Held, Interpreter, Limits, Looked, NoLibraries, ProcFile, RawPath, Reply, Request, Status, Symbol,
        What,
    },
    sandbox::Role,
};
use crate::target::{
    Discovered, LibraryError, LibraryId, MappedLibrary, Process, Sighting, Unfinished, identify::Named, maps,
    maps::Mapping, pids, process::is_kernel_thread,
};

/// How long a look at a process may take. Cold files of frameworks have gigabytes.
const LOOK_WALL: Duration = Duration::from_secs(10);
/// How long resolving a library may take.
const RESOLVE_WALL: Duration = Duration::from_secs(30);
/// How long a check may take.
const CHECK_WALL: Duration = Duration::from_secs(2);
/// Files of one device that may stay without an answer; after that none of the device is asked for.
const DEVICE_STRIKES: usize = 2;
/// Children that may be lost; after that nothing foreign is asked for.
const MAX_LOST: u32 = 64;
/// Processes whose `/proc` did not answer.
const MAX_SILENT: usize = 256;
/// Functions, structs and problems that one resolution can sensibly have.
const MAX_ITEMS: usize = 1 << 17;

/// What was lost with looking at foreign files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Lost {
    /// Children that did not answer in time.
    pub unanswered: u32,
    /// Of these, such as were still there after they were killed: they sleep in the kernel.
    pub left_behind: u32,
    /// Children that ended over what they read.
    pub died: u32,
}

#[derive(Debug, Default)]
struct Service {
    helper: Option<Helper>,
    /// Without children.
    in_process: Option<Looker>,
    given_up: Vec<Named>,
    /// Processes, by number and start, that do not answer.
    silent: Vec<(u32, Option<u64>)>,
    lost: Lost,
}

static HAS_CHILDREN: AtomicBool = AtomicBool::new(false);
static ALLOWS_FUSE: AtomicBool = AtomicBool::new(false);
static SERVICE: Mutex<Option<Service>> = Mutex::new(None);

/// This program can be its own child.
pub(super) fn use_children() {
    HAS_CHILDREN.store(true, Ordering::Relaxed);
}

pub(super) fn has_children() -> bool {
    HAS_CHILDREN.load(Ordering::Relaxed)
}

/// Has file systems asked that may block or lie.
pub fn allow_fuse(allows: bool) {
    ALLOWS_FUSE.store(allows, Ordering::Relaxed);
}

/// Starts a child ahead of the first question.
pub fn prepare() {
    if has_children() {
        let _ = with_service(|service| service.start().map(|_| ()));
    }
}

/// What was lost until now.
pub fn lost() -> Lost {
    with_service(|service| service.lost)
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

    /// `about`: the process that is asked about, where `/proc` itself can be what does not answer.
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
        // One that was killed from outside has done nothing wrong.
        let mut again = true;
        loop {
            if self.lost.unanswered >= MAX_LOST {
                let why = format!("{MAX_LOST} children that looked at files did not answer");
                return Err(ResolverError::Unavailable(why));
            }
            let helper = self.start().map_err(|error| ResolverError::Unavailable(error.to_string()))?;
            helper.clear_note();
            let why = match helper.ask(&json, fds, MAX_ANSWER, wall) {
                Ok(frame) => match understand(frame) {
                    Err(ResolverError::Garbage(what)) => super::frame::NoFrame::Garbage(what),
                    Ok((Reply::ReaderDied(how), _)) => {
                        self.lost.died += 1;
                        return Err(ResolverError::Died(how));
                    }
                    answer => return answer,
                },
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
                // Whoever was asked was stopped: nothing says that it was at a file. What does not answer does not do so twice.
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

    /// Has the file, or the process, not asked again; of a device that has several such, none.
    fn give_up(&mut self, at: Option<Named>, about: Option<u32>) {
        if let Some((device, inode)) = at {
            self.given_up.push((device, inode));
            let strikes = self.given_up.iter().filter(|(of, inode)| *of == device && *inode != 0).count();
            if strikes >= DEVICE_STRIKES {
                self.given_up.retain(|(of, _)| *of != device);
                self.given_up.push((device, 0));
            }
        } else if let Some(pid) = about {
            if self.silent.len() >= MAX_SILENT {
                self.silent.remove(0);
            }
            self.silent.push((pid, started(pid)));
        }
    }

    fn is_silent(&self, pid: u32) -> bool {
        !self.silent.is_empty() && self.silent.contains(&(pid, started(pid)))
    }

    fn limits(&self) -> Limits {
        Limits { allow_fuse: ALLOWS_FUSE.load(Ordering::Relaxed), given_up: self.given_up.clone() }
    }
}

fn started(pid: u32) -> Option<u64> {
    crate::target::process::started(pid)
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
fn ask_about(
    pid: u32,
    wall: Duration,
    request: impl FnOnce(Limits) -> Request,
) -> Result<(Reply, Frame), ResolverError> {
    with_service(|service| {
        if service.is_silent(pid) {
            return Err(ResolverError::GivenUp);
        }
        let request = request(service.limits());
        service.ask(&request, Some(pid), &[], wall)
    })
}

fn ask_of(
    library: BorrowedFd<'_>,
    wall: Duration,
    request: &Request,
) -> Result<(Reply, Frame), ResolverError> {
    with_service(|service| service.ask(request, None, &[library], wall))
}

fn unexpected<T>() -> Result<T, ResolverError> {
    Err(ResolverError::Garbage("an answer to another question".to_owned()))
}

/// Libraries, with the descriptors that hold them.
fn held(described: impl Iterator<Item = Held>, fds: Vec<OwnedFd>) -> Vec<MappedLibrary> {
    let of = |(held, fd): (Held, OwnedFd)| {
        MappedLibrary::new(held.id, held.is_overlaid, held.path.0, held.deleted, fd)
    };
    described.zip(fds).map(of).collect()
}

/// Why nothing is known of a process.
#[derive(Debug)]
pub(crate) enum Unseen {
    /// The kernel does not let us look at it.
    Denied,
    Unanswered(ResolverError),
}

/// Looks for NCCL in a process, see [`Sighting`]. `None`: it has none, or exited meanwhile.
///
/// It looks at as many files as one look may; [`Sighting::unfinished`] says whether there were more.
pub(crate) fn look(pid: u32) -> Result<Option<Sighting>, Unseen> {
    let Ok(process) = Process::open(pid) else {
        return if is_denied(pid) { Err(Unseen::Denied) } else { Ok(None) };
    };
    let answer = ask_about(pid, LOOK_WALL, |limits| Request::Look { pid, limits });
    let (looked, frame) = match answer {
        Ok((Reply::Looked(Some(looked)), frame)) => (looked, frame),
        Ok((Reply::Looked(None), _)) => return Ok(None),
        Ok((Reply::Denied, _)) => return Err(Unseen::Denied),
        Ok(_) => return unexpected().map_err(Unseen::Unanswered),
        Err(error) => return Err(Unseen::Unanswered(error)),
    };
    if process.has_exited() {
        return Ok(None);
    }
    let Looked { libraries, unopened, not_asked, unfinished } = looked;
    let (described, evidence): (Vec<Held>, Vec<_>) = libraries.into_iter().unzip();
    let libraries = held(described.into_iter(), frame.fds).into_iter().zip(evidence).collect();
    let failed = |(RawPath(path), error): (RawPath, super::protocol::OsError)| LibraryError::Open {
        pid,
        path,
        error: error.into(),
    };
    Ok(Some(Sighting {
        process,
        libraries,
        unopened: unopened.into_iter().map(failed).collect(),
        not_asked: not_asked.map(|why| crate::target::printable(&why)),
        unfinished,
    }))
}

/// How often a process is looked at in a row until all its files were.
const LOOKS: u32 = 16;

/// The same for who does not come back to it: goes on with the files that are left, as far as that may go.
pub(crate) fn look_through(pid: u32) -> Result<Option<Sighting>, Unseen> {
    let mut sighting = look(pid)?;
    for _ in 1..LOOKS {
        if sighting.as_ref().is_none_or(|seen| seen.unfinished != Some(Unfinished::Files)) {
            break;
        }
        // What was found out of each file is remembered.
        sighting = look(pid)?;
    }
    Ok(sighting.filter(Sighting::shows_something))
}

fn is_denied(pid: u32) -> bool {
    matches!(Process::open(pid), Err(crate::target::ProcessError::Denied(..))) && !is_kernel_thread(pid)
}

/// Whether a process has NCCL mapped, by its name or by what it exports.
///
/// # Errors
/// When it may not be looked at, or does not answer.
fn has_nccl(pid: u32) -> io::Result<bool> {
    match ask_about(pid, LOOK_WALL, |limits| Request::HasNccl { pid, limits }) {
        Ok((Reply::HasNccl(has), _)) => Ok(has),
        Ok(_) => Err(io::Error::other("an answer to another question")),
        Err(error) => Err(error.into()),
    }
}

/// Looks through all processes that our PID namespace shows. NCCL that is linked statically into a program is
/// not looked for.
///
/// # Errors
/// When `/proc` cannot be listed.
pub(crate) fn nccl_processes() -> io::Result<Discovered> {
    let mut found = Discovered::default();
    for pid in pids()?.into_iter().filter(|pid| *pid != std::process::id()) {
        match has_nccl(pid) {
            Ok(true) => found.processes.extend(Process::open(pid)),
            Ok(false) => {}
            // It exited while we looked, or may not be looked at.
            Err(_) => found.denied += usize::from(may_not_be_read(pid)),
        }
    }
    Ok(found)
}

fn may_not_be_read(pid: u32) -> bool {
    // Opening it asks for the permission, and reads nothing.
    let denied = File::open(format!("/proc/{pid}/maps"));
    denied.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) && !is_kernel_thread(pid)
}

/// The libraries of `process` that are NCCL: by name; by content, if no name says so; or because `wanted`
/// names their file. Never empty.
pub(crate) fn libraries(
    process: &Process,
    wanted: Option<&Path>,
) -> Result<Vec<MappedLibrary>, LibraryError> {
    let pid = process.pid();
    let wanted = wanted.map(|path| RawPath(path.to_path_buf()));
    let failed = |error: ResolverError| LibraryError::Maps(pid, error.into());
    match ask_about(pid, LOOK_WALL, |limits| Request::Libraries { pid, wanted, limits }) {
        Ok((Reply::Libraries(Ok(found)), frame)) => Ok(held(found.into_iter(), frame.fds)),
        Ok((Reply::Libraries(Err(why)), _)) => Err(match why {
            NoLibraries::Maps(error) => LibraryError::Maps(pid, error.into()),
            NoLibraries::NoNccl => LibraryError::NoNccl { pid, name: process.name().to_owned() },
            NoLibraries::Open(RawPath(path), error) => LibraryError::Open { pid, path, error: error.into() },
        }),
        Ok(_) => unexpected().map_err(failed),
        Err(error) => Err(failed(error)),
    }
}

/// Takes hold of the file of a mapping.
pub(crate) fn open_mapping(process: &Process, mapping: &Mapping) -> Result<MappedLibrary, ResolverError> {
    let pid = process.pid();
    let request = |limits| Request::Open { pid, mapping: mapping.clone(), limits };
    match ask_about(pid, LOOK_WALL, request)? {
        (Reply::Held(described), frame) => {
            held(std::iter::once(described), frame.fds).pop().map_or_else(unexpected, Ok)
        }
        _ => unexpected(),
    }
}

/// Takes hold of a file by a path that the user of this program gave.
pub(crate) fn take_hold(path: &Path) -> io::Result<MappedLibrary> {
    let held = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let held = File::from(held);
    let id = LibraryId::from(&held.metadata()?);
    Ok(MappedLibrary::new(id, false, path.to_path_buf(), false, held.into()))
}

/// Resolves a library: the answer is of the content that [`MappedLibrary::id`] names.
pub(crate) fn resolve(
    library: &MappedLibrary,
    what: What,
    debug_files: &DebugFiles,
) -> Result<Resolved, ResolverError> {
    let request = Request::Resolve { what, debug_files: debug_files.clone() };
    let resolved: Resolved = from_reader(library, &request)?;
    is_sound(&resolved, library.id.size)?;
    Ok(resolved)
}

/// The functions of a file; of NCCL also those that stand in no table, with the help of these debug files.
pub(crate) fn symbols(
    library: &MappedLibrary,
    of_nccl: Option<&DebugFiles>,
) -> Result<Vec<Symbol>, ResolverError> {
    from_reader(library, &Request::Symbols { of_nccl: of_nccl.cloned() })
}

/// Where `_PyRuntime` is in a file; `None`: it is no interpreter of Python.
pub(crate) fn interpreter(program: &MappedLibrary) -> Result<Option<Interpreter>, ResolverError> {
    from_reader(program, &Request::Interpreter)
}

fn from_reader<T: DeserializeOwned>(library: &MappedLibrary, request: &Request) -> Result<T, ResolverError> {
    let (Reply::FromReader { before, after }, frame) = ask_of(library.held(), RESOLVE_WALL, request)? else {
        return unexpected();
    };
    if before != library.id || after != library.id {
        return Err(ResolverError::refused("the file was changed while it was read"));
    }
    let answer: Result<T, String> = serde_json::from_slice(&frame.bytes)
        .map_err(|error| ResolverError::Garbage(format!("no answer that is known: {error}")))?;
    answer.map_err(|why| ResolverError::refused(&why))
}

/// What a parser of a hostile file says is not believed: places must lie in the file.
fn is_sound(resolved: &Resolved, size: u64) -> Result<(), ResolverError> {
    let inside = |at: u64, length: u64| at.checked_add(length).is_some_and(|end| end <= size);
    let Resolved { resolution, code } = resolved;
    let functions = || resolution.functions.values().flatten();
    let is_inside = functions().all(|function| inside(function.uprobe_place().0, 1))
        && code.parts().all(|(at, length)| inside(at.0, length));
    let items = functions().count() + resolution.layouts.structs.len() + resolution.problems.len();
    if !is_inside {
        return Err(ResolverError::Garbage("a function that is not in the file".to_owned()));
    }
    if items > MAX_ITEMS {
        return Err(ResolverError::Garbage(format!("{items} functions, structs and problems")));
    }
    Ok(())
}

/// The state of a library's file now, and its bytes at these places.
pub(crate) fn check(
    library: &MappedLibrary,
    places: &[(FileOffset, u32)],
) -> Result<(Status, Vec<Vec<u8>>), ResolverError> {
    let request = Request::Check { places: places.iter().map(|(at, length)| (at.0, *length)).collect() };
    let (Reply::Checked(status), frame) = ask_of(library.held(), CHECK_WALL, &request)? else {
        return unexpected();
    };
    let mut rest = &*frame.bytes;
    let mut parts = Vec::new();
    for (_, length) in places {
        let Some((part, tail)) = rest.split_at_checked(*length as usize) else { return unexpected() };
        parts.push(part.to_vec());
        rest = tail;
    }
    Ok((status, parts))
}

/// A file of `/proc/PID` that can keep a reader waiting.
pub(crate) fn proc_bytes(pid: u32, file: ProcFile) -> io::Result<Vec<u8>> {
    match ask_about(pid, CHECK_WALL, |_| Request::Read { pid, file }) {
        Ok((Reply::Read, frame)) => Ok(frame.bytes),
        Ok(_) => Err(io::Error::other("an answer to another question")),
        Err(error) => Err(error.into()),
    }
}

/// Reads and parses `/proc/PID/maps`.
///
/// # Errors
/// Also where it has more text than is read: what would be left out could be what is looked for.
pub(crate) fn maps(pid: u32) -> io::Result<Vec<Mapping>> {
    let text = proc_bytes(pid, ProcFile::Maps)?;
    if text.len() as u64 >= ProcFile::Maps.limit() {
        let limit = ProcFile::Maps.limit() >> 20;
        return Err(io::Error::other(format!("its mappings have more than {limit} MiB of text")));
    }
    Ok(maps::parse(&text))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nccl_library::{
        elf::{ElfVaddr, Machine},
        layouts::Layouts,
        symbols::{Code, FoundBy, Function, LayoutSource, ParamSource, Resolution, SymbolSource},
    };

    use super::*;

    fn resolved(file_offset: u64, uprobe_offset: u64) -> Resolved {
        let function = Function {
            name: "f".to_owned(),
            symbol: "f".to_owned(),
            found_by: FoundBy::Symbol,
            vaddr: ElfVaddr(0),
            file_offset: FileOffset(file_offset),
            uprobe_offset,
            size: 1,
            params: Vec::new(),
            params_from: ParamSource::Unknown,
        };
        let resolution = Resolution {
            build_id: None,
            nccl_version: None,
            cuda_version: None,
            machine: Machine::X86_64,
            symbol_source: SymbolSource::OwnDwarf,
            debug_file: None,
            layouts_from: LayoutSource::Dwarf,
            functions: BTreeMap::from([("f".to_owned(), vec![function])]),
            layouts: Layouts::default(),
            variables: std::collections::BTreeMap::new(),
            problems: Vec::new(),
        };
        Resolved { resolution, code: Code::default() }
    }

    #[test]
    fn a_place_that_is_not_in_the_file_is_not_believed() {
        assert!(is_sound(&resolved(99, 0), 100).is_ok());
        for (at, further) in [(100, 0), (99, 1), (u64::MAX, 1), (0, u64::MAX)] {
            assert!(
                matches!(is_sound(&resolved(at, further), 100), Err(ResolverError::Garbage(_))),
                "{at} {further}"
            );
        }
    }

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
        assert!(!service.is_silent(1), "it was the file, and not the process");
        service.give_up(None, Some(std::process::id()));
        assert!(service.is_silent(std::process::id()));
    }
}
