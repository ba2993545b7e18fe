//! The NCCL libraries that a process has mapped, each once: a file, and the content that it has now.

use std::{
    fs::{File, Metadata},
    io::{self, Read as _},
    ops::{Deref, DerefMut},
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    discover::denied_remedy,
    identify::{Identifier, Judge},
    maps::{self, Mapping},
    mounts::{MountTable, NotAsked, of_number},
    running::Process,
};

/// Identity of a file and its content. On the file systems of a kernel each write sets the ctime, and nobody
/// can set it back. Probes are attached to an inode; their places are known for this content only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LibraryId {
    pub device: u64,
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// mtime: seconds and nanoseconds since 1970.
    pub modified: (i64, i64),
    /// ctime, as the mtime.
    pub changed: (i64, i64),
}

impl From<&Metadata> for LibraryId {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl LibraryId {
    /// Tells whether both are one file, whatever its content was.
    pub fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Returns the parts of the identity that an overlay does not change. Above the lower 32 bits of the
    /// inode an overlay over several file systems puts which of them the file is on (`xino`).
    fn below_overlay(&self) -> (u64, u64, (i64, i64), (i64, i64)) {
        (self.inode & u64::from(u32::MAX), self.size, self.modified, self.changed)
    }
}

/// Properties of a file's file system, from mount tables and without a question to the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileSystem {
    /// The file system is an overlay, as containers see the files of their images.
    pub(crate) is_overlay: bool,
    /// Whoever runs this host has mounted the file system, and its files are on a disk of the host or in
    /// memory: no process and no server answers for it, so it always answers.
    pub is_local: bool,
}

/// A library file that a process has mapped.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MappedFile {
    pub id: LibraryId,
    pub(crate) file_system: FileSystem,
    /// Path as the process names it.
    #[serde(with = "super::raw_path")]
    pub path: PathBuf,
    /// The file was unlinked or replaced after the process mapped it; this is still the mapped one.
    pub deleted: bool,
}

impl MappedFile {
    /// Tells whether the file is CUDA's driver, by its name.
    pub fn is_driver(&self) -> bool {
        is_driver(&self.path)
    }
}

/// Tells whether a file is named like CUDA's driver.
pub(crate) fn is_driver(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"libcuda.so"))
}

/// A mapped file that is held by a descriptor that cannot be read from (`O_PATH`): holding and closing it
/// asks nothing of its file system.
#[derive(Debug)]
pub struct MappedLibrary {
    file: MappedFile,
    held: OwnedFd,
}

impl Deref for MappedLibrary {
    type Target = MappedFile;

    fn deref(&self) -> &MappedFile {
        &self.file
    }
}

impl DerefMut for MappedLibrary {
    fn deref_mut(&mut self) -> &mut MappedFile {
        &mut self.file
    }
}

impl MappedLibrary {
    pub(crate) fn new(file: MappedFile, held: OwnedFd) -> Self {
        Self { file, held }
    }

    /// Takes hold of the very file that is mapped: through `map_files` it is the mapped inode even if the
    /// path now names another (needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE); otherwise by path, and only if
    /// the inode is the mapped one. The file is not opened, because opening a device would have an effect.
    ///
    /// This asks the file system, which can keep the caller waiting: see `resolver`.
    pub(crate) fn open(process: &Process, mapping: &Mapping, mounts: &MountTable) -> io::Result<Self> {
        let by_range = process.proc_path().join("map_files").join(mapping.range_name());
        let held = match openat(CWD, &by_range, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(held) => held,
            Err(first) => {
                let held = below_root(process, &mapping.path).map_err(|_| first)?;
                if rustix::fs::fstat(&held)?.st_ino != mapping.inode {
                    return Err(io::Error::new(
                        io::ErrorKind::NotFound,
                        "the file was replaced after the process mapped it, and the mapped one cannot be reached \
                         without CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE",
                    ));
                }
                held
            }
        };
        let held = File::from(held);
        let metadata = held.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = MappedFile {
            id: LibraryId::from(&metadata),
            file_system: mounts.file_system(metadata.dev()),
            path: mapping.path.clone(),
            deleted: mapping.deleted,
        };
        Ok(Self::new(file, held.into()))
    }

    /// Holds the same file once more.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { file: self.file.clone(), held: self.held.try_clone()? })
    }

    pub(crate) fn into_parts(self) -> (MappedFile, OwnedFd) {
        (self.file, self.held)
    }

    /// Returns the descriptor that holds the file.
    pub fn held(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }

    /// Tells whether a uprobe on one is a uprobe on the other. Each overlay gives a file a device number of
    /// its own. But the kernel attaches to the inode below it (`d_real_inode` in
    /// kernel/trace/trace_uprobe.c), which two containers of one image share. No system call tells which
    /// inode that is. So files on overlays count as one if everything that overlays do not change is equal.
    pub fn shares_probes_with(&self, other: &Self) -> bool {
        self.id == other.id
            || ((self.file_system.is_overlay || other.file_system.is_overlay)
                && self.id.below_overlay() == other.id.below_overlay())
    }

    /// Tells whether this can be the same inode as `other`, with changed content, rights or names.
    pub fn may_be_former_of(&self, other: &Self) -> bool {
        let below = |of: &Self| of.id.inode & u64::from(u32::MAX);
        self.id.is_same_file(&other.id)
            || ((self.file_system.is_overlay || other.file_system.is_overlay) && below(self) == below(other))
    }

    /// Returns the process's name of the file, for people.
    pub fn shown(&self) -> String {
        super::printable(&self.path.to_string_lossy())
    }
}

/// Opens a file that is held by an `O_PATH` descriptor. A pipe must not block.
pub(crate) fn open_held(held: BorrowedFd<'_>) -> io::Result<File> {
    if !rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(held)?.st_mode).is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let path = Path::new("/proc/self/fd").join(held.as_raw_fd().to_string());
    File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

/// Reads a small file of a process by its path there, at most `limit` bytes of it, if its file system may be
/// asked.
///
/// This asks the file system, which can keep the caller waiting: see `resolver`.
pub(crate) fn read_small(
    process: &Process,
    path: &Path,
    limit: u64,
    mounts: &MountTable,
) -> io::Result<Vec<u8>> {
    let held = below_root(process, path)?;
    mounts.check(of_number(rustix::fs::fstat(&held)?.st_dev))?;
    let mut bytes = Vec::new();
    open_held(held.as_fd())?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Takes hold of a path of a process, resolved within its root: an absolute link there leads to no file of
/// ours.
fn below_root(process: &Process, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = openat(CWD, process.proc_path().join("root"), flags | OFlags::DIRECTORY, Mode::empty())?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(&root, path, flags, Mode::empty(), within)
}

/// Reason for which a process has no library to trace.
#[derive(Debug, Serialize, Deserialize, Error)]
pub enum LibraryError {
    #[error("the mappings of process {0} cannot be read{why}", why = why_unread(.1))]
    Maps(u32, #[serde(with = "super::os_error")] io::Error),
    /// The process exists and maps no NCCL.
    #[error(
        "process {pid} (`{name}`) has no NCCL library mapped, under any name: it has not loaded NCCL yet, or it is \
         not the process that does"
    )]
    NoNccl { pid: u32, name: String },
    #[error("`{}`, mapped by process {pid}, cannot be opened: {error}", super::printable(&path.to_string_lossy()))]
    Open {
        pid: u32,
        #[serde(with = "super::raw_path")]
        path: PathBuf,
        #[serde(with = "super::os_error")]
        error: io::Error,
    },
}

/// Says why something of a process cannot be read, behind the words that say so.
pub fn why_unread(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!(" ({error}): {}", denied_remedy()),
        _ => format!(": {error}"),
    }
}

/// Returns the libraries of `process` that are NCCL: by name; by content, if no name says so; or because
/// `wanted` names their file. Never empty.
///
/// This asks the file systems of the process, see `resolver`.
pub(crate) fn nccl_libraries(
    process: &Process,
    wanted: Option<&Path>,
    identifier: &mut Identifier,
    judge: &mut Judge<'_>,
) -> Result<Vec<MappedLibrary>, LibraryError> {
    let pid = process.pid();
    let code = maps::read_file_code(process.live_thread()).map_err(|error| LibraryError::Maps(pid, error))?;
    if code.is_empty {
        let why = io::Error::new(
            io::ErrorKind::NotFound,
            "there are none: it is exiting, or a thread of the kernel",
        );
        return Err(LibraryError::Maps(pid, why));
    }
    identifier.begin(process);
    let files = || code.mappings.iter();
    let mut chosen: Vec<&Mapping> = files()
        .filter(|mapping| wanted.map_or_else(|| mapping.is_nccl(), |path| mapping.path == path))
        .collect();
    let mut unread = None;
    if chosen.is_empty() && wanted.is_none() {
        for mapping in files() {
            let mut evidence = identifier.evidence(process, mapping, judge);
            if matches!(evidence, Err(NotAsked::NotNow)) {
                // The process was asked for by its number, so it is looked through; the caller has a limit of
                // its own.
                identifier.begin(process);
                evidence = identifier.evidence(process, mapping, judge);
            }
            match evidence {
                Ok(Some(_)) => chosen.push(mapping),
                Ok(None) => {}
                Err(why) => unread = unread.or(Some((mapping.path.clone(), why))),
            }
        }
    }
    let mut libraries: Vec<MappedLibrary> = Vec::new();
    for mapping in chosen {
        let library = identifier.open(process, mapping).map_err(|error| LibraryError::Open {
            pid,
            path: mapping.path.clone(),
            error,
        })?;
        if !libraries.iter().any(|known| known.id == library.id) {
            libraries.push(library);
        }
    }
    match (libraries.is_empty(), unread) {
        (false, _) => Ok(libraries),
        // The file that was not looked at may be NCCL.
        (true, Some((path, why))) => Err(LibraryError::Open { pid, path, error: why.into() }),
        (true, None) => Err(LibraryError::NoNccl { pid, name: process.name().to_owned() }),
    }
}
