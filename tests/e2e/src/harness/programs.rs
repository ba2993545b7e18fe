//! Where the programs and libraries under test are.

use std::{
    env,
    path::{Path, PathBuf},
};

use super::need::need;

/// The folder that cargo puts programs into: where we are, or above the folders of tests and examples.
fn target_folder() -> PathBuf {
    let here = env::current_exe().unwrap_or_default();
    let folder = here.parent().unwrap_or(Path::new(""));
    let inside = folder.file_name().is_some_and(|name| name == "deps" || name == "examples");
    if inside { folder.parent().unwrap_or(folder) } else { folder }.to_path_buf()
}

fn built(name: &str) -> Option<PathBuf> {
    let path = target_folder().join(name);
    need("programs", path.exists(), "run `cargo xtask test`, which builds the programs first").then_some(path)
}

/// `ncclflow`.
pub fn ncclflow() -> Option<PathBuf> {
    built("ncclflow")
}

/// `ncclflow-bed`.
pub fn bed() -> Option<PathBuf> {
    built("ncclflow-bed")
}

/// `ncclflow-patterns`.
pub fn patterns() -> Option<PathBuf> {
    built("ncclflow-patterns")
}

/// The profiler plugin.
pub fn truth_profiler() -> Option<PathBuf> {
    built("libncclflow_truth_profiler.so")
}

/// An official NCCL library out of the cache, by the name of its folder: `2.27.5-cu12`.
pub fn nccl(version: &str) -> Option<PathBuf> {
    let path = place_of_nccl(version)?;
    need("nccl", path.exists(), &format!("run `cargo xtask nccl fetch {version}`")).then_some(path)
}

/// Whether that library is there, for those that no test demands.
pub fn is_cached(version: &str) -> bool {
    place_of_nccl(version).is_some_and(|path| path.exists())
}

fn place_of_nccl(version: &str) -> Option<PathBuf> {
    let cache = env::var_os("NCCLFLOW_NCCL_CACHE").map(PathBuf::from).or_else(|| {
        let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
        Some(base.join("ncclflow/nccl"))
    })?;
    Some(cache.join(version).join("libnccl.so.2"))
}
