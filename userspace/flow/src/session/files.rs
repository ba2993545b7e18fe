//! Files made from a recording, and the room that they take.

use serde::{Deserialize, Serialize};

/// State of the files that are made from a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilesState {
    /// The files hold all of the recording.
    Complete,
    /// The files end at `limit_bytes`.
    Limit,
    /// The files end where a second signal ended them.
    Stopped,
    /// The files were removed for `max_size` or their age.
    Removed,
    /// The files are not complete; `errors` says why.
    Failed,
    /// No files were asked for.
    None,
    /// A state that a newer version writes.
    #[default]
    #[serde(other)]
    Unknown,
}

/// The line files, which are made from the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesReport {
    pub state: FilesState,
    /// Bytes of lines, before they are compressed.
    pub bytes: u64,
    /// Most bytes of all files with `flow_rank`: `--files-limit`, or half of `--max-size`.
    pub limit_bytes: Option<u64>,
    /// Records of the recording that were read for the files.
    pub records: u64,
    /// Records that were removed before they were read: the files lack them.
    pub missed_records: u64,
    /// Time of the last record read, by the records' clock.
    pub until_ns: Option<u64>,
}

impl FilesReport {
    /// Reports that no files were asked for.
    pub fn none() -> Self {
        Self { state: FilesState::None, ..Self::default() }
    }

    /// Reports files of which nothing is known.
    pub fn failed() -> Self {
        Self { state: FilesState::Failed, ..Self::default() }
    }
}

/// State of `--max-size` and `--max-age`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MaxSizeReport {
    /// Most bytes of the folder on the disk; `None`: there is only an age.
    pub bytes: Option<u64>,
    /// Bytes that the folder took when this was written, without this file in its last form.
    pub used_bytes: u64,
    /// Windows that were removed to make room, always the oldest.
    pub windows_removed: u64,
    pub bytes_removed: u64,
    /// Folders of removed windows; of more than 256 the latest.
    pub folders_removed: Vec<String>,
    /// Windows, or recordings, whose line files were removed; `ncclflow export` makes them again.
    pub lines_removed: u64,
}

/// Result of `--compress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Compressed {
    pub files: u64,
    /// Bytes of the lines.
    pub bytes: u64,
    /// Bytes of the compressed files.
    pub compressed_bytes: u64,
    /// Files left as they were, for lack of room for both forms under the limit.
    pub files_left: u64,
}
