//! The opener: asks file systems and `/proc`, and has what it opens read by the reader.

use std::{
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::{fs::FileExt as _, net::UnixStream},
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nccl_library::symbols::DebugFiles;
use serde::Serialize;
use serde_json::Value;

use super::{
    frame::{Channel, Frame, MAX_FDS, NoFrame},
    nonblocking_read, parser,
    protocol::{Failed, Limits, ProcFile, RawPath, ReaderRequest, Request},
    sandbox,
};
use crate::process::{
    LibraryId, MappedLibrary, Process, Sighting, discover,
    identify::{Depth, Identifier, Judged},
    library,
};

/// Most bytes of one request.
const MAX_REQUEST: usize = 1 << 20;
/// Most bytes of one answer of the reader. A resolution has some hundred kilobytes.
pub(super) const MAX_ANSWER: usize = 128 << 20;
/// Time after which a opener that its parent has forgotten ends. The parent gives it up before.
const WALL: Duration = Duration::from_secs(90);
/// Most bytes of `version.py`; torch's has 300.
const MAX_VERSION_FILE: u64 = 64 << 10;

/// Serves until the other end is closed. The opener writes into `note` which file it is at.
pub(super) fn serve(channel: &Channel, note: File) -> anyhow::Result<()> {
    let mut opener = Opener::new(true, Some(note));
    // The reader comes up while nobody waits.
    opener.reader.start(&DebugFiles::default())?;
    while let Some(frame) = channel.request(MAX_REQUEST)? {
        sandbox::alarm(WALL);
        let (limits, request) = serde_json::from_slice(&frame.json)?;
        let answer = opener.answer(limits, request, frame.fds);
        let fds: Vec<_> = answer.fds.iter().map(OwnedFd::as_fd).collect();
        channel.send(&answer.json, &answer.bytes, &fds)?;
        drop(answer);
        sandbox::alarm(Duration::ZERO);
        if opener.reader.reader.is_none() {
            let _ = opener.reader.start(&DebugFiles::default());
        }
    }
    Ok(())
}

/// State of the opener. Without children, it lives in the process that asks.
#[derive(Debug)]
pub(super) struct Opener {
    identifier: Identifier,
    reader: ReaderLink,
}

impl Opener {
    pub(super) fn in_process() -> Self {
        Self::new(false, None)
    }

    fn new(has_children: bool, note: Option<File>) -> Self {
        Self { identifier: Identifier::new(note), reader: ReaderLink { has_children, reader: None } }
    }

    /// Answers a request with a `Result` of what it asks for or [`Failed`], bytes, and descriptors.
    pub(super) fn answer(&mut self, limits: Limits, request: Request, fds: Vec<OwnedFd>) -> Frame {
        self.identifier.set_limits(limits.allow_fuse, limits.silent);
        let mut frame = Frame::default();
        let answer = self.reply(request, fds, &mut frame);
        frame.json = serde_json::to_vec(&answer).unwrap_or_default();
        frame
    }

    fn reply(&mut self, request: Request, fds: Vec<OwnedFd>, frame: &mut Frame) -> Result<Value, Failed> {
        let mut fds = fds.into_iter();
        let mut held = || fds.next().ok_or_else(|| io::Error::other("no file came"));
        let open = |pid| Process::open(pid).map_err(io::Error::other);
        let Self { identifier, reader } = self;
        match request {
            Request::Look { pid } => {
                let judge = &mut |file, depth| reader.judge(file, depth);
                let found = discover::look_for_nccl(pid, MAX_FDS, identifier, judge);
                let described = |seen: Sighting<(), MappedLibrary>| {
                    let Sighting { process, libraries, unopened, not_asked, unfinished } = seen;
                    let described = |(library, evidence)| (frame.hold(library), evidence);
                    let libraries: Vec<_> = libraries.into_iter().map(described).collect();
                    Sighting { process, libraries, unopened, not_asked, unfinished }
                };
                value(found.map(|seen| seen.map(described)))
            }
            Request::HasNccl { pid } => {
                value(discover::has_nccl(pid, identifier, &mut |file, depth| reader.judge(file, depth))?)
            }
            Request::Libraries { pid, wanted } => {
                let wanted = wanted.map(|RawPath(path)| path);
                let judge = &mut |file, depth| reader.judge(file, depth);
                let found = library::nccl_libraries(&open(pid)?, wanted.as_deref(), identifier, judge);
                let described = |library| frame.hold(library);
                value(found.map(|all| all.into_iter().take(MAX_FDS).map(described).collect::<Vec<_>>()))
            }
            Request::Open { pid, mapping } => {
                let process = open(pid)?;
                identifier.begin(&process);
                value(frame.hold(identifier.open(&process, &mapping)?))
            }
            Request::PackageVersion { pid, mapping } => {
                let path = version_file(&mapping.path);
                let path = path.ok_or_else(|| io::Error::other("it is in no folder of a Python package"))?;
                let process = open(pid)?;
                identifier.begin(&process);
                frame.bytes = identifier.read_beside(&process, &mapping, &path, MAX_VERSION_FILE)?;
                value(())
            }
            Request::Parse(request) => {
                reader.start(&request.debug_files())?;
                let states = parse(reader, &request, &held()?, frame);
                if matches!(request, ReaderRequest::Resolve { .. }) {
                    // So it brings nothing from one library to the next.
                    reader.reader = None;
                }
                value(states?)
            }
            Request::Check { places } => {
                let read = |file: &File, into: &mut [u8], at| file.read_exact_at(into, at);
                value(nonblocking_read::look_at(held()?.as_fd(), &places, read)?)
            }
            Request::Read { pid, file } => {
                frame.bytes = read_proc(pid, file)?;
                value(())
            }
        }
    }
}

fn value(answer: impl Serialize) -> Result<Value, Failed> {
    serde_json::to_value(answer).map_err(|error| Failed::Error(error.into()))
}

/// Returns the path of `PACKAGE/version.py` for `PACKAGE/lib/libtorch_cuda.so`, as the process names it.
fn version_file(library: &Path) -> Option<PathBuf> {
    let lib = library.parent().filter(|folder| folder.ends_with("lib"))?;
    Some(lib.parent()?.join("version.py"))
}

/// Reads a file of `/proc/PID`, up to its limit.
fn read_proc(pid: u32, file: ProcFile) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let path = format!("/proc/{pid}/{}", file.name());
    File::open(path)?.take(file.limit()).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Has a file read by the reader. Returns the state of the file before and after it was read.
fn parse(
    reader: &mut ReaderLink,
    request: &ReaderRequest,
    held: &OwnedFd,
    frame: &mut Frame,
) -> Result<[LibraryId; 2], Failed> {
    let file = library::open_held(held.as_fd())?;
    let before = LibraryId::from(&file.metadata()?);
    frame.bytes = reader.ask(request, file.try_clone()?.into()).map_err(Failed::ReaderDied)?;
    Ok([before, LibraryId::from(&file.metadata()?)])
}

/// The way to the reader.
#[derive(Debug)]
struct ReaderLink {
    /// Unset: files are parsed in this process.
    has_children: bool,
    reader: Option<Reader>,
}

#[derive(Debug)]
struct Reader {
    channel: Channel,
    pid: libc::pid_t,
    debug_files: DebugFiles,
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: a child of this process that was not waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        reap();
    }
}

impl ReaderLink {
    /// Has a file judged by its content; `None`: the reader was lost over it.
    fn judge(&mut self, file: File, depth: Depth) -> Option<Judged> {
        let answer = self.ask(&ReaderRequest::Judge(depth), file.into()).ok()?;
        serde_json::from_slice::<Result<Judged, String>>(&answer).ok()?.ok()
    }

    /// Asks the reader. Returns its answer or, if it ended, how it did.
    fn ask(&mut self, request: &ReaderRequest, file: OwnedFd) -> Result<Vec<u8>, String> {
        if !self.has_children {
            return Ok(parser::answer(request.clone(), file));
        }
        if self.reader.is_none() {
            self.start(&DebugFiles::default()).map_err(|error| error.to_string())?;
        }
        let Some(reader) = &self.reader else { return Err("there is none".to_owned()) };
        let json = serde_json::to_vec(request).map_err(|error| error.to_string())?;
        let sent = reader.channel.send(&json, &[], &[file.as_fd()]);
        drop(file);
        let received = sent.map_err(|_| NoFrame::End).and_then(|()| reader.channel.receive(MAX_ANSWER, None));
        let how = match received {
            Ok(frame) => return Ok(frame.json),
            Err(NoFrame::End | NoFrame::TimeUp) => end_of(reader.pid),
            // The reader never sends descriptors.
            Err(NoFrame::NoDescriptors) => "its answer came with descriptors".to_owned(),
            Err(NoFrame::Garbage(what)) => what,
        };
        self.reader = None;
        Err(how)
    }

    /// Starts a reader that may read these debug files, unless there is one.
    fn start(&mut self, debug_files: &DebugFiles) -> io::Result<()> {
        let is_it = |reader: &Reader| reader.debug_files == *debug_files;
        if !self.has_children || self.reader.as_ref().is_some_and(is_it) {
            return Ok(());
        }
        self.reader = None;
        reap();
        let (channel, theirs) = Channel::pair()?;
        // SAFETY: this process has one thread, so its copy can do whatever it could.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: replaces the parent's socket by its own, which nothing else owns, and closes all
                // else: nothing of the parent's is used from here on, and `_exit` runs no destructor of it.
                let socket = unsafe {
                    libc::dup2(theirs.as_raw_fd(), 0);
                    libc::syscall(libc::SYS_close_range, 1u32, u32::MAX, 0u32);
                    UnixStream::from_raw_fd(0)
                };
                let channel = Channel::new(socket).map_err(anyhow::Error::from);
                let status = channel.and_then(|channel| parser::serve(&channel, debug_files));
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(status.is_err())) }
            }
            pid => {
                self.reader = Some(Reader { channel, pid, debug_files: debug_files.clone() });
                Ok(())
            }
        }
    }
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
