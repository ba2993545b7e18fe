//! The file `session.json`.

use std::io::{self, Read as _, Write as _};

use flow::session::{FilesState, SessionReport};

use super::{
    budget::{Share, is_over_max_size},
    output_dir::OutputDir,
    reserved_file::ReservedFile,
};
use crate::resource_exhaustion::is_of_disk;

/// Name of the file.
const NAME: &str = "session.json";

/// Largest `session.json` that is read.
const MAX_SESSION: u64 = 64 << 20;

/// Writes `session.json`, in the place of an earlier one. Where the folder's limit leaves no room for all of
/// it, lists of gaps and CPUs are left out.
pub fn write_session(dir: &OutputDir, report: &SessionReport) -> io::Result<()> {
    let write = |report: &SessionReport| dir.replace_file(Share::Report, NAME, |file| report.write_to(file));
    match write(report) {
        Err(error) if is_over_max_size(&error) => write(&report.shortened()),
        written => written,
    }
}

/// Writes the last `session.json` of a recording: on a full disk into the room that was reserved for it. Else
/// the file would go on saying what was true before the disk was full.
pub fn write_last_session(
    dir: &OutputDir,
    report: &SessionReport,
    reserved: Option<&ReservedFile>,
) -> io::Result<()> {
    match (write_session(dir, report), reserved) {
        (Err(error), Some(reserved)) if is_of_disk(&error) => {
            let put = |report: &SessionReport| reserved.put(dir, NAME, &report.to_text()?);
            put(report).or_else(|_| put(&report.shortened()))
        }
        (written, _) => written,
    }
}

/// Reads `session.json` of a folder.
///
/// # Errors
/// If it cannot be read. What is no report gives an empty one.
pub fn read_session(dir: &OutputDir) -> io::Result<SessionReport> {
    let mut text = String::new();
    dir.open_file(NAME)?.take(MAX_SESSION).read_to_string(&mut text)?;
    Ok(SessionReport::parse(&text))
}

/// Notes in the `session.json` of a complete window that its line files were removed. No room is made for it:
/// the recording's own `session.json` says the same.
pub fn tell_window_of_removed_lines(dir: &OutputDir, window: &str) -> io::Result<()> {
    let Some(dir) = dir.complete_window(window)? else { return Ok(()) };
    let mut report = read_session(&dir)?;
    if let Some(window) = &mut report.window {
        window.lines_removed = true;
    }
    if let Some(files) = &mut report.files {
        files.state = FilesState::Removed;
    }
    let text = report.to_text()?;
    dir.replace_file(Share::Aggregates, NAME, |file| file.write_all(text.as_bytes()))
}
