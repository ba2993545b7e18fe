//! Where the programs and libraries under test are.

use std::{
    env,
    path::{Path, PathBuf},
};

use test_support::need;

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

/// The bed as a shared library, for programs that call NCCL themselves.
pub fn bed_library() -> Option<PathBuf> {
    built("libncclflow_bed.so")
}

/// `ncclflow-patterns`.
pub fn patterns() -> Option<PathBuf> {
    built("ncclflow-patterns")
}

/// The NVML double.
pub fn nvml_double() -> Option<PathBuf> {
    built("libnvidia_ml.so")
}

/// The profiler plugin.
pub fn truth_profiler() -> Option<PathBuf> {
    built("libncclflow_truth_profiler.so")
}

/// An official NCCL library out of the cache, by the name of its folder: `2.27.5-cu12`.
pub use test_support::nccl;
