//! The looker: asks file systems and `/proc`, and has what it opens read by the reader.

use std::{
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::fs::FileExt as _,
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nccl_library::symbols::DebugFiles;

use super::{
    child::text_of,
    frame::{Channel, Frame, MAX_FDS, NoFrame},
    protocol::{
        Held, Limits, Looked, MAX_PLACE, NoLibraries, OsError, ProcFile, RawPath, ReaderRequest, Reply,
        Request, Status,
    },
    reader, sandbox,
};
use crate::process::{
    Denied, LibraryError, LibraryId, MappedLibrary, Process, Sighting, Unfinished, discover,
    identify::{Depth, Identifier, Judged, Named},
    library,
    maps::Mapping,
};

/// Most bytes of one request.
const MAX_REQUEST: usize = 1 << 20;
/// Most bytes of one answer of the reader. A resolution has some hundred kilobytes.
pub(super) const MAX_ANSWER: usize = 128 << 20;
/// Time after which a looker that its parent has forgotten ends. The parent gives it up before.
const WALL: Duration = Duration::from_secs(90);
/// Most places of one check.
const MAX_PLACES: usize = 4096;

/// Serves until the other end is closed. The looker writes into `note` which file it is at.
pub(super) fn serve(channel: &Channel, note: File) -> Result<()> {
    let reader = Arc::new(Mutex::new(ReaderLink::Child(None)));
    let mut looker = Looker::new(reader, Some(note));
    // The reader comes up while nobody waits.
    looker.reader().start(&DebugFiles::default())?;
    loop {
        let frame = match channel.receive(MAX_REQUEST, None) {
            Ok(frame) => frame,
            Err(NoFrame::End) => return Ok(()),
            Err(_) => anyhow::bail!("no request"),
        };
        sandbox::alarm(WALL);
        let answer = looker.answer(serde_json::from_slice(&frame.json)?, frame.fds);
        let fds: Vec<_> = answer.fds.iter().map(OwnedFd::as_fd).collect();
        channel.send(&answer.json, &answer.bytes, &fds)?;
        drop(answer);
        sandbox::alarm(Duration::ZERO);
        looker.reader().refill();
    }
}

/// State of the looker. Without children, it lives in the process that asks.
#[derive(Debug)]
pub(super) struct Looker {
    identifier: Identifier,
    reader: Arc<Mutex<ReaderLink>>,
}

impl Looker {
    pub(super) fn in_process() -> Self {
        Self::new(Arc::new(Mutex::new(ReaderLink::InProcess)), None)
    }

    fn new(reader: Arc<Mutex<ReaderLink>>, note: Option<File>) -> Self {
        let for_judge = Arc::clone(&reader);
        let judge = move |file: File, depth: Depth| -> Option<Judged> {
            let answer = lock(&for_judge).ask(&ReaderRequest::Judge(depth), file.into()).ok()?;
            serde_json::from_slice::<Result<Judged, String>>(&answer).ok()?.ok()
        };
        let before = move |((major, minor), inode): Named| {
            let Some(note) = &note else { return };
            let mut bytes = [0; 16];
            let numbers = [&major.to_le_bytes()[..], &minor.to_le_bytes(), &inode.to_le_bytes()].concat();
            bytes.copy_from_slice(&numbers);
            let _ = note.write_all_at(&bytes, 0);
        };
        Self { identifier: Identifier::new(Box::new(before), Box::new(judge)), reader }
    }

    fn reader(&self) -> std::sync::MutexGuard<'_, ReaderLink> {
        lock(&self.reader)
    }

    /// Answers a request with a [`Reply`], bytes, and descriptors.
    pub(super) fn answer(&mut self, request: Request, fds: Vec<OwnedFd>) -> Frame {
        let mut frame = Frame::default();
        let reply = self.reply(request, fds, &mut frame).unwrap_or_else(|error| {
            Reply::Failed(OsError { text: text_of(&error), ..OsError::from(&error) })
        });
        frame.json = serde_json::to_vec(&reply).unwrap_or_default();
        frame
    }

    fn reply(&mut self, request: Request, fds: Vec<OwnedFd>, frame: &mut Frame) -> io::Result<Reply> {
        let mut fds = fds.into_iter();
        let mut held = || fds.next().ok_or_else(|| io::Error::other("no file came"));
        Ok(match request {
            Request::Look { pid, limits } => {
                self.limit(limits);
                match discover::look_for_nccl(pid, &mut self.identifier) {
                    Err(Denied) => Reply::Denied,
                    Ok(None) => Reply::Looked(None),
                    Ok(Some(sighting)) => {
                        let Sighting { not_asked, unfinished, .. } = &sighting;
                        let mut looked = Looked {
                            not_asked: not_asked.clone(),
                            unfinished: *unfinished,
                            ..Looked::default()
                        };
                        if sighting.libraries.len() > MAX_FDS {
                            looked.unfinished = Some(Unfinished::Mappings);
                        }
                        for (library, evidence) in sighting.libraries.into_iter().take(MAX_FDS) {
                            looked.libraries.push((describe(&library), evidence));
                            frame.fds.push(library.into_held());
                        }
                        let failed = sighting.unopened.iter().filter_map(|error| match error {
                            LibraryError::Open { path, error, .. } => {
                                Some((RawPath(path.clone()), error.into()))
                            }
                            _ => None,
                        });
                        looked.unopened = failed.collect();
                        Reply::Looked(Some(looked))
                    }
                }
            }
            Request::HasNccl { pid, limits } => {
                self.limit(limits);
                Reply::HasNccl(discover::has_nccl(pid, &mut self.identifier)?)
            }
            Request::Libraries { pid, wanted, limits } => {
                self.limit(limits);
                let process = Process::open(pid).map_err(io::Error::other)?;
                let wanted = wanted.map(|RawPath(path)| path);
                let found = library::nccl_libraries(&process, wanted.as_deref(), &mut self.identifier);
                Reply::Libraries(found.map(|found| keep(found, frame)).map_err(no_libraries))
            }
            Request::Open { pid, mapping, limits } => {
                self.limit(limits);
                Reply::Held(self.open(pid, &mapping, frame)?)
            }
            Request::PackageVersion { pid, mapping, limits } => {
                self.limit(limits);
                frame.bytes = self.package_version(pid, &mapping)?;
                Reply::Read
            }
            Request::Resolve { what, debug_files } => {
                let mut reader = self.reader();
                reader.start(&debug_files)?;
                let reply =
                    parse(&mut reader, &ReaderRequest::Resolve { what, debug_files }, &held()?, frame);
                reader.stop();
                reply?
            }
            Request::Symbols { of_nccl, at } => {
                let mut reader = self.reader();
                reader.start(of_nccl.as_ref().unwrap_or(&DebugFiles::default()))?;
                parse(&mut reader, &ReaderRequest::Symbols { of_nccl, at }, &held()?, frame)?
            }
            Request::Interpreter => {
                let mut reader = self.reader();
                reader.start(&DebugFiles::default())?;
                parse(&mut reader, &ReaderRequest::Interpreter, &held()?, frame)?
            }
            Request::Check { places } => {
                let file = library::open_held(held()?.as_fd())?;
                for (at, length) in places.into_iter().take(MAX_PLACES) {
                    let from = frame.bytes.len();
                    frame.bytes.resize(from + length.min(MAX_PLACE) as usize, 0);
                    file.read_exact_at(frame.bytes.get_mut(from..).unwrap_or_default(), at)?;
                }
                Reply::Checked(Status::of(&file.metadata()?))
            }
            Request::Read { pid, file } => {
                frame.bytes = read_proc(pid, file)?;
                Reply::Read
            }
        })
    }

    fn limit(&mut self, limits: Limits) {
        self.identifier.set_limits(limits.allow_fuse, limits.silent);
    }

    fn package_version(&mut self, pid: u32, mapping: &Mapping) -> io::Result<Vec<u8>> {
        /// Most bytes of `version.py`; torch's has 300.
        const LIMIT: u64 = 64 << 10;
        let path = version_file(&mapping.path);
        let path = path.ok_or_else(|| io::Error::other("it is in no folder of a Python package"))?;
        let process = Process::open(pid).map_err(io::Error::other)?;
        self.identifier.begin(&process);
        self.identifier.read_beside(&process, mapping, &path, LIMIT)
    }

    fn open(&mut self, pid: u32, mapping: &Mapping, frame: &mut Frame) -> io::Result<Held> {
        let process = Process::open(pid).map_err(io::Error::other)?;
        self.identifier.begin(&process);
        let library = self.identifier.open(&process, mapping)?;
        let held = describe(&library);
        frame.fds.push(library.into_held());
        Ok(held)
    }
}

/// Returns the path of `PACKAGE/version.py` for `PACKAGE/lib/libtorch_cuda.so`, as the process names it.
fn version_file(library: &Path) -> Option<PathBuf> {
    let lib = library.parent().filter(|folder| folder.ends_with("lib"))?;
    Some(lib.parent()?.join("version.py"))
}

/// Reads a file of `/proc/PID`, up to its limit.
pub(super) fn read_proc(pid: u32, file: ProcFile) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let path = format!("/proc/{pid}/{}", file.name());
    File::open(path)?.take(file.limit()).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn lock(reader: &Mutex<ReaderLink>) -> std::sync::MutexGuard<'_, ReaderLink> {
    reader.lock().unwrap_or_else(PoisonError::into_inner)
}

fn describe(library: &MappedLibrary) -> Held {
    Held {
        id: library.id,
        file_system: library.file_system,
        path: RawPath(library.path.clone()),
        deleted: library.deleted,
    }
}

fn keep(libraries: Vec<MappedLibrary>, frame: &mut Frame) -> Vec<Held> {
    let mut all = Vec::new();
    for library in libraries.into_iter().take(MAX_FDS) {
        all.push(describe(&library));
        frame.fds.push(library.into_held());
    }
    all
}

fn no_libraries(error: LibraryError) -> NoLibraries {
    match error {
        LibraryError::Maps(_, error) => NoLibraries::Maps((&error).into()),
        LibraryError::NoNccl { .. } => NoLibraries::NoNccl,
        LibraryError::Open { path, error, .. } => NoLibraries::Open(RawPath(path), (&error).into()),
    }
}

/// Has a file read by the reader.
fn parse(
    reader: &mut ReaderLink,
    request: &ReaderRequest,
    held: &OwnedFd,
    frame: &mut Frame,
) -> io::Result<Reply> {
    let file = library::open_held(held.as_fd())?;
    let before = LibraryId::from(&file.metadata()?);
    Ok(match reader.ask(request, file.try_clone()?.into()) {
        Ok(answer) => {
            frame.bytes = answer;
            Reply::FromReader { before, after: LibraryId::from(&file.metadata()?) }
        }
        Err(how) => Reply::ReaderDied(how),
    })
}

/// The way to the reader.
#[derive(Debug)]
enum ReaderLink {
    /// There is no child: files are parsed in this process.
    InProcess,
    Child(Option<Reader>),
}

#[derive(Debug)]
struct Reader {
    channel: Channel,
    pid: libc::pid_t,
    debug_files: DebugFiles,
}

impl Reader {
    fn end(self) {
        // SAFETY: a child of this process that was not waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }
}

impl ReaderLink {
    /// Asks the reader. Returns its answer or, if it ended, how it did.
    fn ask(&mut self, request: &ReaderRequest, file: OwnedFd) -> Result<Vec<u8>, String> {
        if matches!(self, Self::InProcess) {
            return Ok(reader::answer(request.clone(), file));
        }
        if matches!(self, Self::Child(None)) {
            self.start(&DebugFiles::default()).map_err(|error| error.to_string())?;
        }
        let Self::Child(Some(reader)) = self else { return Err("there is none".to_owned()) };
        let json = serde_json::to_vec(request).map_err(|error| error.to_string())?;
        let sent = reader.channel.send(&json, &[], &[file.as_fd()]);
        drop(file);
        let received = sent.map_err(|_| NoFrame::End).and_then(|()| reader.channel.receive(MAX_ANSWER, None));
        match received {
            Ok(frame) => Ok(frame.json),
            Err(NoFrame::End | NoFrame::TimeUp) => {
                let how = end_of(reader.pid);
                self.stop();
                Err(how)
            }
            // The reader never sends descriptors.
            Err(NoFrame::NoDescriptors) => {
                self.stop();
                Err("its answer came with descriptors".to_owned())
            }
            Err(NoFrame::Garbage(what)) => {
                self.stop();
                Err(what)
            }
        }
    }

    /// Starts a reader that may read these debug files, unless there is one.
    fn start(&mut self, debug_files: &DebugFiles) -> io::Result<()> {
        let Self::Child(reader) = self else { return Ok(()) };
        match reader.take() {
            Some(known) if known.debug_files == *debug_files => {
                *reader = Some(known);
                return Ok(());
            }
            Some(other) => other.end(),
            None => {}
        }
        reap();
        let (channel, theirs) = Channel::pair()?;
        // SAFETY: this process has one thread, so its copy can do whatever it could.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: replaces the parent's socket by its own, and closes all else: nothing of the
                // parent's is used from here on, and `_exit` runs no destructor of it.
                let status = unsafe {
                    libc::dup2(theirs.as_raw_fd(), 0);
                    libc::syscall(libc::SYS_close_range, 1u32, u32::MAX, 0u32);
                    serve_reader(debug_files)
                };
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(status.is_err())) }
            }
            pid => {
                *reader = Some(Reader { channel, pid, debug_files: debug_files.clone() });
                Ok(())
            }
        }
    }

    /// Ends the reader, so that it brings nothing from one file to the next.
    fn stop(&mut self) {
        if let Self::Child(reader) = self
            && let Some(reader) = reader.take()
        {
            reader.end();
            reap();
        }
    }

    /// Starts a reader for the next request, if there is none.
    fn refill(&mut self) {
        if matches!(self, Self::Child(None)) {
            let _ = self.start(&DebugFiles::default());
        }
    }
}

/// # Safety
/// Descriptor 0 must be a socket that nothing else owns.
unsafe fn serve_reader(debug_files: &DebugFiles) -> Result<()> {
    use std::os::{fd::FromRawFd as _, unix::net::UnixStream};
    // SAFETY: as the caller promises.
    let socket = unsafe { UnixStream::from_raw_fd(0) };
    reader::serve(&Channel::new(socket).context("its socket")?, debug_files)
}

/// Reaps readers that have ended. One that is stuck is not waited for.
fn reap() {
    // SAFETY: only asks for the state of children.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// Says how a reader ended that has closed its socket.
fn end_of(pid: libc::pid_t) -> String {
    let deadline = Instant::now() + Duration::from_secs(1);
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for writes.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid {
            break;
        }
        if Instant::now() > deadline {
            return "it does not end".to_owned();
        }
        thread::sleep(Duration::from_millis(1));
    }
    if libc::WIFSIGNALED(status) {
        match libc::WTERMSIG(status) {
            libc::SIGABRT => "SIGABRT: it had no more memory, or a fault".to_owned(),
            libc::SIGXCPU | libc::SIGKILL => "its processor time was used up, or it was killed".to_owned(),
            libc::SIGALRM => "its time was up".to_owned(),
            signal => format!("signal {signal}"),
        }
    } else {
        format!("exit code {}", libc::WEXITSTATUS(status))
    }
}
