//! Small files of `/proc` and `/etc` as text.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

/// Most bytes that are read of one file. A kernel's configuration has some 300 KB; a tenant chooses how long
/// a command line is.
pub const MAX_TEXT: u64 = 8 << 20;

/// Returns the text of a file. Bytes that are not UTF-8 are replaced: the kernel cuts a process's name at 15
/// bytes, which can be in the middle of a character.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_TEXT).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns a field of the text of `/proc/PID/status`.
pub fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
