//! Questions to the looker, and the meaning of its answers.

use std::{fs::File, io, os::fd::OwnedFd, path::Path, time::Duration};

use nccl_library::{
    elf::FileOffset,
    symbols::{DebugFiles, Resolved},
};
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::de::DeserializeOwned;

use super::{
    at_once,
    error::ResolverError,
    protocol::{
        Held, Interpreter, Looked, NoLibraries, ProcFile, RawPath, Reply, Request, Status, Symbol, What,
    },
    service::{ask_about, ask_of},
    soundness::is_sound,
};
use crate::process::{
    Discovered, LibraryError, LibraryId, MappedLibrary, Process, ProcessError, Sighting, Unfinished,
    library::FileSystem, maps, maps::Mapping, pids, running::is_kernel_thread,
};

/// Longest time of a look at a process. Cold files of frameworks have gigabytes.
const LOOK_WALL: Duration = Duration::from_secs(10);
/// Longest time of resolving a library.
const RESOLVE_WALL: Duration = Duration::from_secs(30);
/// Longest time of a check.
const CHECK_WALL: Duration = Duration::from_secs(2);

fn unexpected<T>() -> Result<T, ResolverError> {
    Err(ResolverError::Garbage("an answer to another question".to_owned()))
}

/// Makes libraries from their descriptions and the descriptors that hold them.
fn held(described: impl Iterator<Item = Held>, fds: Vec<OwnedFd>) -> Vec<MappedLibrary> {
    let of = |(held, fd): (Held, OwnedFd)| {
        MappedLibrary::new(held.id, held.file_system, held.path.0, held.deleted, fd)
    };
    described.zip(fds).map(of).collect()
}

/// Reason for which nothing is known of a process.
#[derive(Debug)]
pub enum Unseen {
    /// The kernel does not let us look at it.
    Denied,
    Unanswered(ResolverError),
}

/// Looks for NCCL in a process, see [`Sighting`]. Gives `None` if the process has none, or exited meanwhile.
///
/// A look is limited to a number of files; [`Sighting::unfinished`] says whether there were more.
pub fn look(pid: u32) -> Result<Option<Sighting>, Unseen> {
    let process = match Process::open(pid) {
        Ok(process) => process,
        Err(ProcessError::Denied(..)) if !is_kernel_thread(pid) => return Err(Unseen::Denied),
        Err(ProcessError::Missing(_) | ProcessError::Denied(..)) => return Ok(None),
        Err(ProcessError::Other(_, error)) => {
            return Err(Unseen::Unanswered(ResolverError::Unavailable(error.to_string())));
        }
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
        not_asked: not_asked.map(|why| crate::process::printable(&why)),
        unfinished,
    }))
}

/// Most looks in a row at a process, until all its files were looked at.
const LOOKS: u32 = 16;

/// Looks for NCCL as [`look`] does, for callers that do not come back to the process: goes on with the files
/// that are left, up to [`LOOKS`] times.
pub fn look_through(pid: u32) -> Result<Option<Sighting>, Unseen> {
    let mut sighting = look(pid)?;
    for _ in 1..LOOKS {
        if sighting.as_ref().is_none_or(|seen| seen.unfinished != Some(Unfinished::Files)) {
            break;
        }
        // The result for each file is remembered.
        sighting = look(pid)?;
    }
    Ok(sighting.filter(Sighting::shows_something))
}

/// Tells whether a process has NCCL mapped, by its name or by what it exports.
///
/// # Errors
/// When the process may not be looked at, or does not answer.
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
pub fn nccl_processes() -> io::Result<Discovered> {
    let mut found = Discovered::default();
    for pid in pids()?.into_iter().filter(|pid| *pid != std::process::id()) {
        match has_nccl(pid) {
            Ok(true) => found.processes.extend(Process::open(pid)),
            Ok(false) => {}
            // The process exited meanwhile, or may not be looked at.
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

/// Returns the libraries of `process` that are NCCL: by name; by content, if no name says so; or because
/// `wanted` names their file. Never empty.
pub fn libraries(process: &Process, wanted: Option<&Path>) -> Result<Vec<MappedLibrary>, LibraryError> {
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
pub fn open_mapping(process: &Process, mapping: &Mapping) -> Result<MappedLibrary, ResolverError> {
    let pid = process.pid();
    let request = |limits| Request::Open { pid, mapping: mapping.clone(), limits };
    match ask_about(pid, LOOK_WALL, request)? {
        (Reply::Held(described), frame) => {
            held(std::iter::once(described), frame.fds).pop().map_or_else(unexpected, Ok)
        }
        _ => unexpected(),
    }
}

/// Reads `version.py` of the Python package that a mapped library is part of.
pub fn package_version(process: &Process, mapping: &Mapping) -> io::Result<Vec<u8>> {
    let pid = process.pid();
    let request = |limits| Request::PackageVersion { pid, mapping: mapping.clone(), limits };
    match ask_about(pid, LOOK_WALL, request) {
        Ok((Reply::Read, frame)) => Ok(frame.bytes),
        Ok(_) => Err(io::Error::other("an answer to another question")),
        Err(error) => Err(error.into()),
    }
}

/// Takes hold of a file by a path that the user of this program gave.
pub fn take_hold(path: &Path) -> io::Result<MappedLibrary> {
    let held = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let held = File::from(held);
    let id = LibraryId::from(&held.metadata()?);
    Ok(MappedLibrary::new(id, FileSystem::default(), path.to_path_buf(), false, held.into()))
}

/// Resolves a library. The answer is of the content that [`MappedLibrary::id`] names.
pub fn resolve(
    library: &MappedLibrary,
    what: What,
    debug_files: &DebugFiles,
) -> Result<Resolved, ResolverError> {
    let request = Request::Resolve { what, debug_files: debug_files.clone() };
    let resolved: Resolved = from_reader(library, &request)?;
    is_sound(&resolved, library.id.size)?;
    Ok(resolved)
}

/// Returns the functions of a file; of NCCL also those that stand in no table, with the help of these debug
/// files. With `at`, returns only those that begin nearest at or below one of these addresses.
pub fn symbols(
    library: &MappedLibrary,
    of_nccl: Option<&DebugFiles>,
    at: Option<Vec<u64>>,
) -> Result<Vec<Symbol>, ResolverError> {
    from_reader(library, &Request::Symbols { of_nccl: of_nccl.cloned(), at })
}

/// Returns where `_PyRuntime` is in a file, or `None` if the file is no interpreter of Python.
pub fn interpreter(program: &MappedLibrary) -> Result<Option<Interpreter>, ResolverError> {
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

/// Returns the state of a library's file now, and its bytes at these places. The looker is asked, unless the
/// file answers at once.
pub fn check(
    library: &MappedLibrary,
    places: &[(FileOffset, u32)],
) -> Result<(Status, Vec<Vec<u8>>), ResolverError> {
    if library.file_system.is_local
        && let Ok(checked) = at_once::check(library, places)
    {
        return Ok(checked);
    }
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

/// Reads a file of `/proc/PID` that can keep a reader waiting.
pub fn proc_bytes(pid: u32, file: ProcFile) -> io::Result<Vec<u8>> {
    match ask_about(pid, CHECK_WALL, |_| Request::Read { pid, file }) {
        Ok((Reply::Read, frame)) => Ok(frame.bytes),
        Ok(_) => Err(io::Error::other("an answer to another question")),
        Err(error) => Err(error.into()),
    }
}

/// Reads and parses `/proc/PID/maps`.
///
/// # Errors
/// Also where there is more text than is read, because what is looked for could be in the rest.
pub fn maps(pid: u32) -> io::Result<Vec<Mapping>> {
    let text = proc_bytes(pid, ProcFile::Maps)?;
    if text.len() as u64 >= ProcFile::Maps.limit() {
        let limit = ProcFile::Maps.limit() >> 20;
        return Err(io::Error::other(format!("its mappings have more than {limit} MiB of text")));
    }
    Ok(maps::parse(&text))
}
