//! The NCCL libraries that a process has mapped, each opened once by its inode.

use std::{
    fmt,
    fs::File,
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use super::{
    identify::Identifier,
    maps::{self, Mapping},
    process::Process,
};

/// What makes two mappings the same library: probes are attached to an inode, not to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LibraryId {
    pub device: u64,
    pub inode: u64,
}

/// Identifies a file below an overlay: its inode's number, size, and times to the nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lower {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A library file that a process has mapped, open for reading.
#[derive(Debug)]
pub struct MappedLibrary {
    pub id: LibraryId,
    /// It is seen through an overlay, as containers see the files of their images.
    is_overlaid: bool,
    lower: Lower,
    /// As the process names it.
    pub path: PathBuf,
    /// The file was unlinked or replaced after the process mapped it; this is still the mapped one.
    pub deleted: bool,
    file: File,
}

impl MappedLibrary {
    /// Opens the very file that is mapped: through `map_files` it is the mapped inode even if the path now names
    /// another (needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE); otherwise by path, and only if the inode is the
    /// mapped one.
    pub fn open(process: &Process, mapping: &Mapping) -> io::Result<Self> {
        let by_range = process.proc_path().join("map_files").join(mapping.range_name());
        let file = match open_regular(&by_range) {
            Ok(file) => file,
            Err(first) => {
                let below = mapping.path.strip_prefix("/").unwrap_or(&mapping.path);
                let file = open_regular(&process.proc_path().join("root").join(below)).map_err(|_| first)?;
                if file.metadata()?.ino() != mapping.inode {
                    return Err(io::Error::new(
                        io::ErrorKind::NotFound,
                        "the file was replaced after the process mapped it, and the mapped one cannot be reached \
                         without CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE",
                    ));
                }
                file
            }
        };
        let metadata = file.metadata()?;
        Ok(Self {
            id: LibraryId { device: metadata.dev(), inode: metadata.ino() },
            is_overlaid: rustix::fs::fstatfs(&file).is_ok_and(|system| is_overlay(system.f_type)),
            lower: Lower {
                // Above these bits an overlay over several file systems puts which of them it is (`xino`).
                inode: metadata.ino() & u64::from(u32::MAX),
                size: metadata.size(),
                modified: (metadata.mtime(), metadata.mtime_nsec()),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            },
            path: mapping.path.clone(),
            deleted: mapping.deleted,
            file,
        })
    }

    /// A second descriptor of the same open file.
    pub fn try_clone_file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// The same open file once more.
    pub fn try_clone(&self) -> io::Result<Self> {
        let Self { id, is_overlaid, lower, ref path, deleted, ref file } = *self;
        Ok(Self { id, is_overlaid, lower, path: path.clone(), deleted, file: file.try_clone()? })
    }

    /// Whether a uprobe on one is a uprobe on the other. Each overlay gives a file a device number of its
    /// own. But the kernel attaches to the inode below it (`d_real_inode` in kernel/trace/trace_uprobe.c),
    /// which two containers of one image share. No system call tells which inode that is. So files on
    /// overlays count as one if everything that overlays do not change is equal.
    pub fn shares_probes_with(&self, other: &Self) -> bool {
        self.id == other.id || ((self.is_overlaid || other.is_overlaid) && self.lower == other.lower)
    }

    /// The process's name of the file, for people.
    pub fn shown(&self) -> String {
        super::printable(&self.path.to_string_lossy())
    }

    /// A path of ours that names exactly this inode, whatever happens to the original path.
    pub fn stable_path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.file.as_raw_fd().to_string())
    }
}

/// Why a process has no library to trace.
#[derive(Debug)]
pub enum LibraryError {
    Maps(u32, io::Error),
    /// The process is there and maps no NCCL.
    NoNccl {
        pid: u32,
        name: String,
    },
    Open {
        pid: u32,
        path: PathBuf,
        error: io::Error,
    },
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Maps(pid, error) if error.kind() == io::ErrorKind::PermissionDenied => {
                write!(f, "the mappings of process {pid} cannot be read ({error}): run as root")
            }
            Self::Maps(pid, error) => write!(f, "the mappings of process {pid} cannot be read: {error}"),
            Self::NoNccl { pid, name } => write!(
                f,
                "process {pid} (`{name}`) has no NCCL library mapped, under any name: it has not loaded NCCL yet, or it is \
                 not the process that does"
            ),
            Self::Open { pid, path, error } => {
                write!(
                    f,
                    "`{}`, mapped by process {pid}, cannot be opened: {error}",
                    super::printable(&path.to_string_lossy())
                )
            }
        }
    }
}

impl std::error::Error for LibraryError {}

/// The libraries of `process` that are NCCL: by name; by content, if no name says so; or because `wanted`
/// names their file. Never empty.
pub fn nccl_libraries(process: &Process, wanted: Option<&Path>) -> Result<Vec<MappedLibrary>, LibraryError> {
    let pid = process.pid();
    let mappings = maps::read(pid).map_err(|error| LibraryError::Maps(pid, error))?;
    if mappings.is_empty() {
        let why = io::Error::new(
            io::ErrorKind::NotFound,
            "there are none: it is exiting, or a thread of the kernel",
        );
        return Err(LibraryError::Maps(pid, why));
    }
    let files = || mappings.iter().filter(|mapping| mapping.is_file_code());
    let mut chosen: Vec<&Mapping> = files()
        .filter(|mapping| wanted.map_or_else(|| mapping.is_nccl(), |path| mapping.path == path))
        .collect();
    if chosen.is_empty() && wanted.is_none() {
        let mut identifier = Identifier::default();
        chosen = files().filter(|mapping| identifier.evidence(process, mapping).is_some()).collect();
    }
    let mut libraries: Vec<MappedLibrary> = Vec::new();
    for mapping in chosen {
        let library = MappedLibrary::open(process, mapping).map_err(|error| LibraryError::Open {
            pid,
            path: mapping.path.clone(),
            error,
        })?;
        if !libraries.iter().any(|known| known.id == library.id) {
            libraries.push(library);
        }
    }
    if libraries.is_empty() {
        return Err(LibraryError::NoNccl { pid, name: process.name().to_owned() });
    }
    Ok(libraries)
}

/// `OVERLAYFS_SUPER_MAGIC`, include/uapi/linux/magic.h. The type of the number differs between architectures.
fn is_overlay(kind: impl TryInto<u64>) -> bool {
    const OVERLAY: u64 = 0x794c_7630;
    kind.try_into().is_ok_and(|kind| kind == OVERLAY)
}

/// The tenant chooses what is under `/proc/PID/root`. A pipe there must not block.
fn open_regular(path: &Path) -> io::Result<File> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits();
    let file = File::options().read(true).custom_flags(nonblock.cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}
