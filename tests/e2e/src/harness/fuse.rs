//! A file system in user space with one file, that stops answering when it is told to.
//!
//! The protocol is include/uapi/linux/fuse.h, version 7.31: a header of 40 bytes, and what each operation adds.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read as _, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long it can be silent: then it ends by itself. What waits for it can be ended by nothing else, and who
/// reads `/proc` can wait for that.
const LONGEST_SILENCE: Duration = Duration::from_mins(2);

const ROOT: u64 = 1;
const FILE: u64 = 2;

/// Operations that are answered.
mod op {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// It ends when this is dropped, or two minutes after it has fallen silent; whoever waits for it gets an error then.
#[derive(Debug)]
pub struct Fuse {
    point: PathBuf,
    is_silent: Arc<AtomicBool>,
    is_read: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Fuse {
    /// Mounts it, with this file in its root.
    pub fn mount(point: &Path, name: &str, content: Vec<u8>) -> Result<Self> {
        // A request can be taken back between the look for one and the read of it: that must not wait for the next.
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let device = options.open("/dev/fuse").context("opening /dev/fuse")?;
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let (data, at) = (CString::new(data)?, CString::new(point.as_os_str().as_bytes())?);
        // SAFETY: strings that end with 0 and live until the call returns.
        let done =
            unsafe { libc::mount(c"test".as_ptr(), at.as_ptr(), c"fuse".as_ptr(), 0, data.as_ptr().cast()) };
        if done != 0 {
            return Err(io::Error::last_os_error()).context("mounting it");
        }
        let [is_silent, is_read, is_over] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let server = Server { device, name: name.to_owned(), content };
        let [silent, read, over] = [&is_silent, &is_read, &is_over].map(Arc::clone);
        let server = Some(thread::spawn(move || server.run(&silent, &read, &over)));
        Ok(Self { point: point.to_path_buf(), is_silent, is_read, is_over, server })
    }

    /// From now on nothing is answered.
    pub fn fall_silent(&self) {
        self.is_silent.store(true, Ordering::SeqCst);
    }

    /// Whether somebody has asked for the file's content since, and waits.
    #[must_use]
    pub fn is_read_in_vain(&self) -> bool {
        self.is_read.load(Ordering::SeqCst)
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // With its descriptor the connection ends.
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        let _ = Command::new("umount").arg("-l").arg(&self.point).output();
    }
}

/// Its number in the header.
fn operation(request: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(request.get(4..8)?.try_into().ok()?))
}

struct Server {
    device: File,
    name: String,
    content: Vec<u8>,
}

impl Server {
    fn run(self, is_silent: &AtomicBool, is_read: &AtomicBool, is_over: &AtomicBool) {
        let mut request = vec![0; 1 << 20];
        let mut silent_since = None;
        while !is_over.load(Ordering::SeqCst) {
            if is_silent.load(Ordering::SeqCst)
                && silent_since.get_or_insert_with(Instant::now).elapsed() > LONGEST_SILENCE
            {
                return;
            }
            let mut fds = [PollFd::new(&self.device, PollFlags::IN)];
            let timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            if !poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
                continue;
            }
            let read = match (&self.device).read(&mut request) {
                Ok(read) => read,
                // Nothing, nothing any more, or a request that was taken back while it was copied.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::NotFound
                    ) =>
                {
                    continue;
                }
                Err(_) => return,
            };
            let request = request.get(..read).unwrap_or_default();
            if is_silent.load(Ordering::SeqCst) {
                if operation(request) == Some(op::READ) {
                    is_read.store(true, Ordering::SeqCst);
                }
                continue;
            }
            let Ok(answer) = self.answer(request) else { return };
            let Some((unique, error, body)) = answer else { continue };
            let length = u32::try_from(16 + body.len()).unwrap_or(16);
            let reply =
                [&length.to_le_bytes()[..], &error.to_le_bytes(), &unique.to_le_bytes(), &body].concat();
            let _ = (&self.device).write_all(&reply);
        }
    }

    /// The number of the request, an error, and what the operation adds.
    fn answer(&self, request: &[u8]) -> Result<Option<(u64, i32, Vec<u8>)>> {
        let u32_at = |at: usize| -> Result<u32> {
            Ok(u32::from_le_bytes(request.get(at..at + 4).context("short")?.try_into()?))
        };
        let u64_at = |at: usize| -> Result<u64> {
            Ok(u64::from_le_bytes(request.get(at..at + 8).context("short")?.try_into()?))
        };
        let operation = operation(request).context("short")?;
        let (unique, node) = (u64_at(8)?, u64_at(16)?);
        let done = |body: Vec<u8>| Ok(Some((unique, 0, body)));
        match operation {
            op::INIT => {
                if u32_at(40)? != 7 {
                    bail!("another protocol");
                }
                // major, minor, max_readahead, flags; max_background and its threshold; max_write, time_gran.
                let mut body = [7u32, 31, 0, 0, 0, 4096, 1].map(u32::to_le_bytes).concat();
                body.resize(64, 0);
                done(body)
            }
            op::LOOKUP => {
                let name = request.get(40..).unwrap_or_default().split(|byte| *byte == 0).next();
                if name != Some(self.name.as_bytes()) {
                    return Ok(Some((unique, -libc::ENOENT, Vec::new())));
                }
                // Valid for no time, so that each look asks again.
                let entry = [FILE, 0, 0, 0, 0].map(u64::to_le_bytes).concat();
                done([entry, self.attributes(FILE)].concat())
            }
            op::GETATTR => done([vec![0; 16], self.attributes(node)].concat()),
            op::OPEN => done(vec![0; 16]),
            op::READ => {
                let (from, size) = (usize::try_from(u64_at(48)?)?, u32_at(56)? as usize);
                let rest = self.content.get(from..).unwrap_or_default();
                done(rest.get(..rest.len().min(size)).unwrap_or_default().to_vec())
            }
            op::RELEASE | op::FLUSH => done(Vec::new()),
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT => Ok(None),
            _ => Ok(Some((unique, -libc::ENOSYS, Vec::new()))),
        }
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        let (mode, size) = match node {
            ROOT => (0o040_755u32, 0),
            _ => (0o100_755, self.content.len() as u64),
        };
        // ino, size, blocks, three times; their nanoseconds; mode, nlink, uid, gid, rdev, blksize, flags.
        let longs = [node, size, 1, 0, 0, 0].map(u64::to_le_bytes).concat();
        let words = [0u32, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_le_bytes).concat();
        [longs, words].concat()
    }
}
