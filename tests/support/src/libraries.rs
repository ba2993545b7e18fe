//! NCCL's own libraries, in the cache that `cargo xtask nccl fetch` fills.

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use crate::skip::{need, skip};

/// The cache: a folder for each library, like `2.27.5-cu12/`.
#[must_use]
pub fn cache() -> PathBuf {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = variable("NCCLFLOW_NCCL_CACHE") {
        return path;
    }
    let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    base.unwrap_or_else(|| PathBuf::from("/nonexistent")).join("ncclflow/nccl")
}

/// A library by the name of its folder, like `2.27.5-cu12`; if it is not there, skips.
///
/// # Panics
/// As [`skip`] does.
#[must_use]
pub fn nccl(version: &str) -> Option<PathBuf> {
    let path = cache().join(version).join("libnccl.so.2");
    need("nccl", path.exists(), &format!("run `cargo xtask nccl fetch {version}`")).then_some(path)
}

/// All libraries, by the name of their folder; if there is none, skips.
///
/// # Panics
/// As [`skip`] does.
#[must_use]
pub fn libraries() -> BTreeMap<String, PathBuf> {
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
        skip("nccl", &format!("no library in {}; run `cargo xtask nccl fetch all-bed`", directory.display()));
    }
    found
}

/// Whether to run every combination, not only those that cover each part: `$NCCLFLOW_LONG`.
#[must_use]
pub fn is_long() -> bool {
    env::var_os("NCCLFLOW_LONG").is_some_and(|value| !value.is_empty() && value != "0")
}
