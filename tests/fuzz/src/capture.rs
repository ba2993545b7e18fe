//! What is done with a capture (`record --capture`).

use std::{fs, path::PathBuf, sync::LazyLock};

use ncclflow::{record::Kept, sinks::SessionFiles};

/// A file of this process's that is written over.
static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("ncclflow-fuzz-{}.cap", std::process::id())));

/// Reads it whole, with all that follows but files. Errors are fine; the fuzzer looks for panics, time and memory.
///
/// # Panics
/// If it takes too long.
pub fn use_capture(bytes: &[u8]) {
    if fs::write(&*FILE, bytes).is_err() {
        return;
    }
    super::in_time(bytes.len(), || {
        if let Ok(kept) = Kept::open(&FILE) {
            let _read = kept.read_all(SessionFiles::nowhere());
        }
    });
}
