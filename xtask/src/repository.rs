//! Place of the repository.

use std::path::{Path, PathBuf};

/// Returns the repository's root: the folder above this crate.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
