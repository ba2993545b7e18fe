//! Questions to the opener, and the meaning of its answers.

use std::{fs::File, io, os::fd::OwnedFd, path::Path, time::Duration};

use cpython::locate::Runtime;
use nccl_library::{
    elf::FileOffset,
    symbols::{DebugFiles, Resolved},
};
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::de::DeserializeOwned;

use super::{
    error::ResolverError,
    nonblocking_read,
    protocol::{ProcFile, RawPath, ReaderRequest, Request, Status, Symbol, What},
    service::{ask_about, ask_of, from_json},
    validate::is_sound,
};
use crate::process::{
    Denied, Discovered, LibraryError, LibraryId, MappedFile, MappedLibrary, Process, ProcessError, Sighting,
    Unfinished,
    library::{FileSystem, is_driver},
    maps,
    maps::Mapping,
    pids,
    running::is_kernel_thread,
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
fn held(
    files: impl IntoIterator<Item = MappedFile>,
    fds: Vec<OwnedFd>,
) -> impl Iterator<Item = MappedLibrary> {
    files.into_iter().zip(fds).map(|(file, fd)| MappedLibrary::new(file, fd))
}

/// Reason for which nothing is known of a process.
#[derive(Debug)]
pub enum Unseen {
    /// The kernel does not let us look at it.
    Denied,
    Unanswered(ResolverError),
}

/// Result of a look in the opener.
type Seen = Result<Option<Sighting<(), MappedFile>>, Denied>;

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
    let answer = ask_about::<Seen>(pid, LOOK_WALL, Request::Look { pid });
    let (seen, frame) = answer.map_err(Unseen::Unanswered)?;
    let Some(seen) = seen.map_err(|Denied| Unseen::Denied)?.filter(|_| !process.has_exited()) else {
        return Ok(None);
    };
    let Sighting { process: (), libraries, unopened, not_asked, unfinished } = seen;
    let (files, evidence): (Vec<MappedFile>, Vec<_>) = libraries.into_iter().unzip();
    let libraries = held(files, frame.fds).zip(evidence).collect();
    let not_asked = not_asked.map(|why| crate::process::printable(&why));
    Ok(Some(Sighting { process, libraries, unopened, not_asked, unfinished }))
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

/// Looks through all processes that our PID namespace shows. NCCL that is linked statically into a program is
/// not looked for.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn nccl_processes() -> io::Result<Discovered> {
    let mut found = Discovered::default();
    for pid in pids()?.into_iter().filter(|pid| *pid != std::process::id()) {
        match ask_about(pid, LOOK_WALL, Request::HasNccl { pid }) {
            Ok((true, _)) => found.processes.extend(Process::open(pid)),
            Err(_) if may_not_be_read(pid) => {
                found.denied += 1;
                found.denied_pids.push(pid);
            }
            // Or the process exited meanwhile.
            Ok((false, _)) | Err(_) => {}
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
    let answer = ask_about::<Result<Vec<MappedFile>, _>>(pid, LOOK_WALL, Request::Libraries { pid, wanted });
    let (files, frame) = answer.map_err(|error| LibraryError::Maps(pid, error.into()))?;
    Ok(held(files?, frame.fds).collect())
}

/// Takes hold of CUDA's driver, if the process has it mapped.
pub fn driver(process: &Process) -> io::Result<Option<MappedLibrary>> {
    let all = maps(process.live_thread())?;
    let of_driver = all.iter().find(|mapping| mapping.is_file_code() && is_driver(&mapping.path));
    Ok(of_driver.map(|mapping| open_mapping(process, mapping)).transpose()?)
}

/// Takes hold of the file of a mapping.
pub fn open_mapping(process: &Process, mapping: &Mapping) -> Result<MappedLibrary, ResolverError> {
    let pid = process.pid();
    let request = Request::Open { pid, mapping: mapping.clone() };
    let (file, frame) = ask_about::<MappedFile>(pid, LOOK_WALL, request)?;
    held([file], frame.fds).next().map_or_else(unexpected, Ok)
}

/// Reads `version.py` of the Python package that a mapped library is part of.
pub fn package_version(process: &Process, mapping: &Mapping) -> io::Result<Vec<u8>> {
    let pid = process.pid();
    let request = Request::PackageVersion { pid, mapping: mapping.clone() };
    let ((), frame) = ask_about(pid, LOOK_WALL, request)?;
    Ok(frame.bytes)
}

/// Takes hold of a file by a path that the user of this program gave.
pub fn take_hold(path: &Path) -> io::Result<MappedLibrary> {
    let held = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let held = File::from(held);
    let file = MappedFile {
        id: LibraryId::from(&held.metadata()?),
        file_system: FileSystem::default(),
        path: path.to_path_buf(),
        deleted: false,
    };
    Ok(MappedLibrary::new(file, held.into()))
}

/// Resolves a library. The answer is of the content that [`MappedLibrary::id`] names.
pub fn resolve(
    library: &MappedLibrary,
    what: What,
    debug_files: &DebugFiles,
) -> Result<Resolved, ResolverError> {
    let request = ReaderRequest::Resolve { what, debug_files: debug_files.clone() };
    let resolved: Resolved = from_reader(library, request)?;
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
    from_reader(library, ReaderRequest::Symbols { of_nccl: of_nccl.cloned(), at })
}

/// Returns where `_PyRuntime` is in a file, or `None` if the file is no interpreter of Python.
pub fn interpreter(program: &MappedLibrary) -> Result<Option<Runtime>, ResolverError> {
    from_reader(program, ReaderRequest::Interpreter)
}

fn from_reader<T: DeserializeOwned>(
    library: &MappedLibrary,
    request: ReaderRequest,
) -> Result<T, ResolverError> {
    let (states, frame) = ask_of::<[LibraryId; 2]>(library.held(), RESOLVE_WALL, Request::Parse(request))?;
    if states != [library.id; 2] {
        return Err(ResolverError::refused("the file was changed while it was read"));
    }
    from_json::<Result<T, String>>(&frame.bytes)?.map_err(|why| ResolverError::refused(&why))
}

/// Returns the state of a library's file now, and its bytes at these places. The opener is asked, unless the
/// file answers at once.
pub fn check(
    library: &MappedLibrary,
    places: &[(FileOffset, u32)],
) -> Result<(Status, Vec<Vec<u8>>), ResolverError> {
    if library.file_system.is_local
        && let Ok(checked) = nonblocking_read::check(library, places)
    {
        return Ok(checked);
    }
    let request = Request::Check { places: places.to_vec() };
    let ((status, parts), _) = ask_of::<(Status, Vec<Vec<u8>>)>(library.held(), CHECK_WALL, request)?;
    let is_whole = parts.iter().map(Vec::len).eq(places.iter().map(|(_, length)| *length as usize));
    if is_whole { Ok((status, parts)) } else { unexpected() }
}

/// Reads a file of `/proc/PID` that can keep a reader waiting.
pub fn proc_bytes(pid: u32, file: ProcFile) -> io::Result<Vec<u8>> {
    let ((), frame) = ask_about(pid, CHECK_WALL, Request::Read { pid, file })?;
    Ok(frame.bytes)
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
