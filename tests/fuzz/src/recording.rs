//! What is done with a recording.

use std::{fs, path::PathBuf, sync::LazyLock};

use recording::{
    format::Selection,
    rows::{ReadPart, RecordedSession},
    sinks::{OutputDir, SessionFiles},
};

use super::recording_blocks::segment;

/// A folder of this process's, with one segment that is written over.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("ncclflow-fuzz-{}", std::process::id()));
    let _ = fs::create_dir(&folder);
    folder
});

/// Reads it whole and in part, with all that follows but files. Errors are fine; the fuzzer looks for panics, time and memory. The first byte
/// says whether the others are a segment as it is in a file, or its blocks without checksums.
pub fn use_recording(input: &[u8]) {
    let Some((first, input)) = input.split_first() else { return };
    let bytes = if first & 1 == 0 { segment(input) } else { input.to_vec() };
    if fs::write(FOLDER.join("000001.nfr"), bytes).is_err() {
        return;
    }
    for selection in [Selection::ALL, Selection { from_ns: 1 << 40, to_ns: 1 << 50, ..Selection::ALL }] {
        let Ok(dir) = OutputDir::open(&FOLDER) else { return };
        let Ok(recorded) = RecordedSession::open_dir(dir) else { return };
        let part = ReadPart {
            selection,
            until_ns: 1 << 50,
            progress: &mut |_| (),
            goes_on: &mut || (),
            is_stopped: &|| false,
        };
        let _read = recorded.read(SessionFiles::nowhere(), part);
    }
}
