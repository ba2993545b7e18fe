//! Keeps resolved libraries for the next time: the search in the debugging information takes most of the time
//! to the first probe.
//!
//! # When an entry is this library's
//!
//! The library belongs to a tenant, who can give it any build-id. So the key names the file as it is now:
//! device, inode, size, mtime and ctime. On the file systems of a kernel a tenant can set the
//! mtime, but not the ctime: every write and every `utimensat` sets it to the present. A file that is changed
//! after it was resolved therefore has another ctime, and one that was changed a moment before is not kept
//! (two changes in one tick of the clock have one ctime; a file that is mapped for writing gets its ctime
//! before the last bytes). A hash of the content would prove the same, and take longer than the search.
//!
//! A tenant's own file system (FUSE) can answer anything. This gains the tenant wrong probes in its own
//! library and processes, which wrong debugging information gives it as well: an entry serves only the inode
//! that it was made from, and everything that probes send is distrusted.
//!
//! The key also has this program (version, and its file: development builds share a version) and all that was
//! asked for. An entry includes the machine code that it is of: the code is compared with the file's before a
//! probe is attached. Only answers from the library's own debugging information are kept: others depend on
//! debug files or on data that is shipped.
//!
//! # Whose the entries are
//!
//! Files of mode 0600 in a folder of mode 0700, both ours; links are not followed; a folder that others can
//! write to is not used. An entry that is damaged, foreign or of another key is written anew.

use std::{
    fs::{DirBuilder, File},
    io::{Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{process::LibraryId, resolver::What};
use nccl_library::symbols::{Resolved, SymbolSource};
use recording::sinks::{OutputDir, Share};

/// Format of the entries; raised when what is kept, or how, changes.
const FORMAT: u32 = 3;

/// Most bytes of an entry, which has some hundred kilobytes.
const MAX_BYTES: u64 = 16 << 20;

/// Most entries that are kept; the oldest go first.
const MAX_ENTRIES: usize = 128;

/// Age of a file's last change below which it is not kept.
const SETTLED: Duration = Duration::from_mins(1);

const OTHERS: u32 = 0o077;

#[derive(Debug)]
pub struct LayoutCache {
    dir: OutputDir,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheKey {
    format: u32,
    version: String,
    program: LibraryId,
    library: LibraryId,
    request: String,
}

impl CacheKey {
    /// Makes the key of a library for what is asked of it; `None` if this program's own file has no status.
    pub fn new(library: LibraryId, what: What) -> Option<Self> {
        let program = std::fs::metadata("/proc/self/exe").ok()?;
        Some(Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: LibraryId::from(&program),
            library,
            request: format!("{what:?}"),
        })
    }

    /// Returns the name of the entry's file. It comes from the library's inode, so that a changed library
    /// takes the place of its former self.
    fn file_name(&self) -> String {
        let request = crc32fast::hash(self.request.as_bytes());
        format!("{:x}-{:x}-{request:08x}", self.library.device, self.library.inode)
    }

    /// Tells whether the library has not been changed lately: then its ctime stands for what was read.
    fn is_settled(&self, now: SystemTime) -> bool {
        let changed = u64::try_from(self.library.changed.0).map(Duration::from_secs).unwrap_or_default();
        now.duration_since(SystemTime::UNIX_EPOCH + changed).is_ok_and(|age| age >= SETTLED)
    }
}

/// Returns the folder of the entries unless the user names one: root's are the host's.
pub fn default_folder() -> Option<PathBuf> {
    let base = if rustix::process::geteuid().is_root() {
        // The environment is not asked here: under sudo it can be the user's.
        PathBuf::from("/var/cache")
    } else {
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(home)?
    };
    Some(base.join("ncclflow/layouts"))
}

impl LayoutCache {
    /// Opens the folder, and creates it if it does not exist.
    pub fn open(path: &Path) -> Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .with_context(|| format!("cannot make the folder `{}`", path.display()))?;
        let dir = OutputDir::open(path)?;
        if !dir.is_private().with_context(|| format!("looking at `{}`", path.display()))? {
            bail!("`{}` is not used: others own it, or can write to it or read it", path.display());
        }
        Ok(Self { dir })
    }

    pub fn load(&self, key: &CacheKey) -> Option<Resolved> {
        let file = self.dir.open_file(&key.file_name()).ok()?;
        let metadata = file.metadata().ok()?;
        let ours = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & OTHERS == 0;
        if !ours || metadata.len() > MAX_BYTES {
            return None;
        }
        let (known, resolved) = sound(&file, metadata.len())?;
        (known == *key).then_some(resolved)
    }

    /// Keeps a resolved library, if it can be kept: see the module's text. The caller has made sure that the
    /// key's library is the one that was resolved.
    pub fn store(&self, key: &CacheKey, resolved: &Resolved) -> Result<bool> {
        let is_own = resolved.resolution.symbol_source == SymbolSource::OwnDwarf;
        if !is_own || !key.is_settled(SystemTime::now()) {
            return Ok(false);
        }
        self.write(key, resolved).map(|()| true)
    }

    fn write(&self, key: &CacheKey, resolved: &Resolved) -> Result<()> {
        self.make_room().context("making room in the cache")?;
        let entry = serde_json::to_vec(&(key, resolved))?;
        let check = crc32fast::hash(&entry).to_le_bytes();
        self.dir
            .replace_file(Share::Free, &key.file_name(), |file| {
                file.write_all(&entry)?;
                file.write_all(&check)
            })
            .context("writing to the cache")
    }

    fn make_room(&self) -> std::io::Result<()> {
        let names = self.dir.names()?;
        if names.len() < MAX_ENTRIES {
            return Ok(());
        }
        let age = |name: &String| self.dir.open_file(name).and_then(|file| file.metadata()?.modified());
        let mut by_age: Vec<(SystemTime, String)> =
            names.into_iter().map(|name| (age(&name).unwrap_or(SystemTime::UNIX_EPOCH), name)).collect();
        by_age.sort();
        let surplus = by_age.len() + 1 - MAX_ENTRIES;
        for (_, name) in by_age.iter().take(surplus) {
            self.dir.remove_file(name);
        }
        Ok(())
    }
}

/// Reads an entry, unless it is damaged.
fn sound(file: &File, bytes: u64) -> Option<(CacheKey, Resolved)> {
    let mut content = Vec::with_capacity(usize::try_from(bytes).ok()?);
    file.take(MAX_BYTES).read_to_end(&mut content).ok()?;
    let (entry, check) = content.split_last_chunk::<4>()?;
    if crc32fast::hash(entry) != u32::from_le_bytes(*check) {
        return None;
    }
    serde_json::from_slice(entry).ok()
}

#[cfg(test)]
mod tests;
