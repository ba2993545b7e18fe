//! Lines of code in call stacks.

use flow::schema::FrameRow;

/// Returns the innermost frame of the user's own code, or else the innermost with a known file.
pub(crate) fn users_line(frames: &[FrameRow]) -> Option<&FrameRow> {
    let known = || frames.iter().rev().filter(|frame| frame.file.is_some());
    let own =
        |frame: &&FrameRow| frame.file.as_deref().is_some_and(|file| !flow::schema::is_of_a_library(file));
    known().find(own).or_else(|| known().next())
}

/// `model.py:88`
pub(crate) fn place(frame: &FrameRow) -> String {
    let file = frame.file.as_deref().unwrap_or("?");
    let name = file.rsplit('/').next().unwrap_or(file);
    let line = frame.line.map_or_else(|| "?".to_owned(), |line| line.to_string());
    format!("{name}:{line}")
}
