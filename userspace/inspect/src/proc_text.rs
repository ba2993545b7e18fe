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

/// Returns a field of the text of `/proc/PID/stat` or a task's, by proc(5)'s count; it must stand behind the
/// name.
pub fn stat_field(stat: &str, field: usize) -> Option<&str> {
    // The name stands in parentheses and may hold anything. The third field follows.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(field.checked_sub(3)?)
}

/// Returns the name in such a text, which may hold anything.
pub fn stat_name(stat: &str) -> Option<&str> {
    let (rest, _) = stat.rsplit_once(')')?;
    rest.split_once('(').map(|(_, name)| name)
}

/// Returns the nanoseconds that a thread has been on a processor, and those that it has waited for one, by
/// the text of its `schedstat` (Documentation/scheduler/sched-stats.rst).
pub fn run_times(schedstat: &str) -> Option<[u64; 2]> {
    let mut numbers = schedstat.split_ascii_whitespace().map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??])
}

/// Returns how often a thread was given a processor, by the text of its `schedstat`.
pub fn turns(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// Tells whether a thread has ended, by its `status`: it is a zombie, or dead.
pub fn has_ended(status: &str) -> bool {
    status_field(status, "State").is_some_and(|state| state.starts_with(['Z', 'X']))
}

/// Returns the real user by the text of `/proc/PID/status`. The owner of `/proc/PID` is root for programs
/// that may not be dumped (proc(5)), and a process can make that so.
pub(crate) fn real_uid(status: &str) -> Option<u32> {
    status_field(status, "Uid")?.split_ascii_whitespace().next()?.parse().ok()
}

/// Puts bytes back that the kernel writes as `\040` and so on, if they are among those that it escapes.
pub(crate) fn unescape(text: &[u8], is_escaped: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|digits| byte == b'\\' && digits.iter().all(u8::is_ascii_digit))
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok())
            .filter(|byte| is_escaped(*byte));
        out.push(octal.unwrap_or(byte));
        rest = if octal.is_some() { tail.get(3..).unwrap_or_default() } else { tail };
    }
    out
}
