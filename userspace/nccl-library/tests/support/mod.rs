//! Where the real libraries and the independent layouts are, and what is said when they are not there.

#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod damage;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Reports that something was skipped, or fails if it is required.
pub(crate) fn skip(thing: &str, why: &str) {
    let required = env::var("NCCLFLOW_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name.trim() == thing), "required, but skipped: {thing}: {why}");
    eprintln!("SKIPPED {thing}: {why}");
}

fn cache() -> PathBuf {
    if let Some(path) = env::var_os("NCCLFLOW_NCCL_CACHE") {
        return path.into();
    }
    let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    base.unwrap_or_else(|| PathBuf::from("/nonexistent")).join("ncclflow/nccl")
}

pub(crate) fn layouts_directory() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/nccl-layouts");
    env::var_os("NCCLFLOW_LAYOUTS").map_or_else(default, PathBuf::from)
}

/// The libraries of the cache, by directory name.
pub(crate) fn libraries() -> BTreeMap<String, PathBuf> {
    let directory = cache();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
        let library = entry.path().join("libnccl.so.2");
        let name = entry.file_name().to_string_lossy().into_owned();
        if library.is_file() && name.contains("-cu") {
            found.insert(name, library);
        }
    }
    if found.is_empty() {
        skip("nccl", &format!("no library in {}; `cargo xtask nccl fetch` fills it", directory.display()));
    }
    found
}

/// What this thread has worked so far: limits on it hold on a busy machine, too.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
