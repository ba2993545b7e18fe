//! Finds the files that are NCCL, or contain it, among those that a process has mapped.
//!
//! A file that is named like NCCL is taken for NCCL. For others the content decides: a file with NCCL's
//! version string contains NCCL. If it exports NCCL's calls, it is NCCL under another name. A library that
//! only wraps NCCL's calls has no version string.

use std::{collections::HashMap, fmt, fs::File, io, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    library::{LibraryId, MappedLibrary, read_small},
    maps::Mapping,
    mounts::{MountTable, Unsafe},
    running::Process,
};
use crate::unresponsive::Silent;
use nccl_library::{
    elf::{Budget, Image, SymbolTable, may_export},
    nccl::find_versions,
};

/// Calls that every NCCL exports.
const CALLS: [&str; 2] = ["ncclCommInitRank", "ncclAllReduce"];
/// Most bytes of one file that are read to tell: the largest official library has 0.6 MB of exported symbols
/// and 0.5 MB of strings, and frameworks with NCCL inside some tens.
const MAX_BYTES: u64 = 256 << 20;
/// Most files that are remembered. When there are more, all are forgotten.
const MAX_KNOWN: usize = 1 << 16;

/// Part of a file that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Depth {
    /// Its exports: some kilobytes.
    Exports,
    /// Its exports and all its constants, to tell whether NCCL is inside.
    Constants,
}

/// Evidence that a file is NCCL, or holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// The file is called `libnccl…`.
    Name,
    /// The file exports NCCL's calls, and states a version of NCCL.
    Exports,
    /// Linked statically: the file's symbol table has NCCL's calls, and it states a version of NCCL.
    Symbols,
    /// Linked statically: the file states a version of NCCL, but has no symbol of NCCL's, as it was stripped.
    VersionString,
}

/// Most files whose content is looked at in one look at a process, and most bytes of them. Files that are
/// named like NCCL do not count. Programs map some hundreds of files, most of them known from other
/// processes.
const FILES_PER_LOOK: usize = 512;
const BYTES_PER_LOOK: u64 = 1 << 30;

/// Evidence in the content of a file, and the number of bytes that were read for it.
pub(crate) type Judged = (Option<Evidence>, u64);

/// Reason for which a file is not looked at. Nothing of it was touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotAsked {
    FileSystem(Unsafe),
    /// A process that asked for the file, or for its neighbours on this device, did not come back.
    GivenUp,
    /// This look has reached its limit.
    NotNow,
}

impl fmt::Display for NotAsked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileSystem(why) => why.fmt(f),
            Self::GivenUp => f.write_str(
                "its file system did not answer when it, or another file there, was asked for before; it is not asked again",
            ),
            Self::NotNow => f.write_str("the process has more files than are looked at at a time"),
        }
    }
}

impl From<NotAsked> for io::Error {
    fn from(why: NotAsked) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, why.to_string())
    }
}

/// A file as the lines of `/proc/PID/maps` name it: device, major and minor, and inode.
pub type Named = ((u32, u32), u64);

/// Files that did not answer: their inodes, by device. After two of a device none of its files is asked for.
pub(crate) type SilentFiles = Silent<u64, (u32, u32), 2>;

/// Function that judges a file by its content. `None`: its process was lost over the file.
type Judge = Box<dyn FnMut(File, Depth) -> Option<Judged> + Send>;

/// Looks at the files of processes, and remembers for each whether it is NCCL: most processes of a host map
/// the same ones.
pub(crate) struct Identifier {
    /// Results by file, and by the depth of the look.
    known: HashMap<(LibraryId, Depth), Option<Evidence>>,
    mounts: MountTable,
    silent: SilentFiles,
    /// Callback that is told of each file before its file system is asked for it.
    before: Box<dyn FnMut(Named) + Send>,
    judge: Judge,
    /// Files that this look may still look at, and bytes of them.
    left: (usize, u64),
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identifier").field("known", &self.known.len()).finish_non_exhaustive()
    }
}

impl Default for Identifier {
    fn default() -> Self {
        Self::new(Box::new(|_| {}), Box::new(|file, depth| Some(evidence(file, depth))))
    }
}

impl Identifier {
    pub(crate) fn new(before: Box<dyn FnMut(Named) + Send>, judge: Judge) -> Self {
        let (known, mounts, silent) = (HashMap::new(), MountTable::default(), SilentFiles::default());
        Self { known, mounts, silent, before, judge, left: (0, 0) }
    }

    /// Sets the files that are not to be asked for from now on. With `allow_fuse`, file systems that may
    /// block or lie are asked.
    pub(crate) fn set_limits(&mut self, allow_fuse: bool, silent: SilentFiles) {
        self.mounts.allow_fuse = allow_fuse;
        self.silent = silent;
    }

    /// Prepares for a look at the files of a process.
    pub(crate) fn begin(&mut self, process: &Process) {
        self.left = (FILES_PER_LOOK, BYTES_PER_LOOK);
        self.mounts.refresh(process.pid());
    }

    /// Returns the evidence that the file of a mapping is NCCL or holds it, by its name or all its content.
    pub(crate) fn evidence(
        &mut self,
        process: &Process,
        mapping: &Mapping,
    ) -> Result<Option<Evidence>, NotAsked> {
        if mapping.is_nccl() {
            return Ok(Some(Evidence::Name));
        }
        self.judge(process, mapping, Depth::Constants)
    }

    /// Returns the evidence in the content of the file of a mapping, looked at to this depth.
    pub(crate) fn judge(
        &mut self,
        process: &Process,
        mapping: &Mapping,
        depth: Depth,
    ) -> Result<Option<Evidence>, NotAsked> {
        self.may_ask(mapping)?;
        // A file that cannot be opened or read is no library that could be used.
        let Ok(file) = MappedLibrary::open(process, mapping, &self.mounts) else { return Ok(None) };
        if let Some(known) = self.known.get(&(file.id, depth)) {
            return Ok(*known);
        }
        let (files, bytes) = self.left;
        if files == 0 || bytes == 0 {
            return Err(NotAsked::NotNow);
        }
        let judged = file.open_file().ok().map(|file| (self.judge)(file, depth).unwrap_or((None, MAX_BYTES)));
        let (answer, read) = judged.unwrap_or_default();
        self.left = (files - 1, bytes.saturating_sub(read));
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert((file.id, depth), answer);
        Ok(answer)
    }

    /// Takes hold of the file of a mapping, if it may be asked for.
    pub(crate) fn open(&mut self, process: &Process, mapping: &Mapping) -> io::Result<MappedLibrary> {
        self.may_ask(mapping)?;
        MappedLibrary::open(process, mapping, &self.mounts)
    }

    /// Reads a small file in the folder of a mapped one, or in the folder above. `path` is as the process
    /// names it.
    pub(crate) fn read_beside(
        &mut self,
        process: &Process,
        mapping: &Mapping,
        path: &Path,
        limit: u64,
    ) -> io::Result<Vec<u8>> {
        self.may_ask(mapping)?;
        let check = |device| Ok(self.mounts.check_number(device).map_err(NotAsked::FileSystem)?);
        read_small(process, path, limit, check)
    }

    fn may_ask(&mut self, mapping: &Mapping) -> Result<(), NotAsked> {
        self.mounts.check(mapping.device).map_err(NotAsked::FileSystem)?;
        if self.silent.has(|inode| *inode == mapping.inode, &mapping.device) {
            return Err(NotAsked::GivenUp);
        }
        (self.before)((mapping.device, mapping.inode));
        Ok(())
    }
}

/// Looks at the content of a file.
pub(crate) fn evidence(file: File, depth: Depth) -> Judged {
    let mut budget = Budget::new(MAX_BYTES, u64::MAX);
    let found = Image::from_file(file).ok().and_then(|image| found_in(&image, depth, &mut budget));
    (found, MAX_BYTES.saturating_sub(budget.bytes_left()))
}

fn found_in(image: &Image, depth: Depth, budget: &mut Budget) -> Option<Evidence> {
    let exports = exports_calls(image, budget).unwrap_or(false);
    if !exports && depth == Depth::Exports {
        return None;
    }
    find_versions(image, budget).ok().flatten()?;
    Some(if exports {
        Evidence::Exports
    } else if has_calls(SymbolTable::read(image, budget)).unwrap_or(false) {
        Evidence::Symbols
    } else {
        Evidence::VersionString
    })
}

fn exports_calls(image: &Image, budget: &mut Budget) -> Result<bool, nccl_library::elf::Error> {
    for call in CALLS {
        if !may_export(image, call, budget)? {
            return Ok(false);
        }
    }
    has_calls(SymbolTable::read_exported(image, budget))
}

fn has_calls(
    table: Result<Option<SymbolTable>, nccl_library::elf::Error>,
) -> Result<bool, nccl_library::elf::Error> {
    let Some(table) = table? else { return Ok(false) };
    let found = |call: &str| table.functions().any(|function| function.name == call);
    Ok(CALLS.iter().all(|call| found(call)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use nccl_library::elf::{FileOffset, RuntimeAddr};
    use rustix::fs::{major, minor};

    use super::*;

    /// A mapping of a file as the kernel would say it.
    fn mapping(path: &std::path::Path) -> Mapping {
        let about = std::fs::metadata(path).unwrap();
        Mapping {
            start: RuntimeAddr(1),
            end: RuntimeAddr(2),
            permissions: *b"r-xp",
            file_offset: FileOffset(0),
            device: (major(about.dev()), minor(about.dev())),
            inode: about.ino(),
            path: path.to_path_buf(),
            deleted: false,
        }
    }

    #[test]
    fn a_look_ends_when_it_has_looked_at_as_much_as_it_may_and_the_next_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let process = Process::open(std::process::id()).unwrap();
        for (files, bytes, in_one_look) in [(12, 256 << 20, 4), (FILES_PER_LOOK + 20, 0, FILES_PER_LOOK)] {
            let judge = move |_, _| Some((None, bytes));
            let mut identifier = Identifier::new(Box::new(|_| {}), Box::new(judge));
            let mappings: Vec<Mapping> = (0..files)
                .map(|number| {
                    let path = folder.path().join(format!("{in_one_look}-{number}"));
                    std::fs::write(&path, number.to_string()).unwrap();
                    mapping(&path)
                })
                .collect();
            let mut looked_at = 0;
            let look = |identifier: &mut Identifier| {
                identifier.begin(&process);
                let answers = mappings.iter().map(|mapping| identifier.evidence(&process, mapping));
                answers.filter(|answer| *answer == Ok(None)).count()
            };
            while looked_at < files {
                let now = look(&mut identifier);
                assert_eq!(now, (looked_at + in_one_look).min(files), "those that are known cost nothing");
                looked_at = now;
            }
        }
        let named = folder.path().join("libnccl.so.2");
        std::fs::write(&named, "").unwrap();
        let mut identifier = Identifier::new(Box::new(|_| {}), Box::new(|_, _| panic!("its name says it")));
        assert_eq!(identifier.evidence(&process, &mapping(&named)), Ok(Some(Evidence::Name)));
    }
}
