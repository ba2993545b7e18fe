//! Text that others made, safe for a terminal.
//!
//! Names, paths and what is in a target's memory belong to a tenant. A terminal obeys control characters
//! (escape sequences begin with one), and shows text in another order after bidirectional ones.

use std::{
    borrow::Cow,
    fmt::Write as _,
    io::{self, Write},
    mem,
};

/// Tells whether a terminal obeys this character and does not show it: the control characters of ASCII and of
/// Latin-1 (U+0080 to U+009F), Unicode's separators of lines, and its bidirectional controls.
pub fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Makes a name or path that a tenant chose safe: what a terminal would obey is replaced.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| if is_obeyed(c) { char::REPLACEMENT_CHARACTER } else { c }).collect())
}

/// Form in which characters that a terminal would obey are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// U+FFFD.
    Replaced,
    /// `\u202e`, which means the same character in a string of JSON; outside strings JSON has none of these
    /// characters.
    Escaped,
}

/// Writer for everything that is printed for people. Ends of lines and tabs are ours; tenants' names have
/// lost theirs before.
#[derive(Debug)]
pub struct PlainWriter<W: Write> {
    to: W,
    form: Form,
    /// First bytes of a character of which the rest has not come.
    rest: Vec<u8>,
}

impl<W: Write> PlainWriter<W> {
    /// Makes a writer of text, which replaces what a terminal would obey and what is no UTF-8.
    pub fn new(to: W) -> Self {
        Self { to, form: Form::Replaced, rest: Vec::new() }
    }

    /// Makes a writer of JSON, whose values stay the same.
    pub fn of_json(to: W) -> Self {
        Self { form: Form::Escaped, ..Self::new(to) }
    }

    fn clean(&self, text: &str, cleaned: &mut String) {
        for c in text.chars() {
            match self.form {
                _ if !is_obeyed(c) || matches!(c, '\n' | '\t') => cleaned.push(c),
                Form::Replaced => cleaned.push(char::REPLACEMENT_CHARACTER),
                // All of them have four digits at most. Writing to a string cannot fail.
                Form::Escaped => _ = write!(cleaned, "\\u{:04x}", u32::from(c)),
            }
        }
    }
}

impl<W: Write> Write for PlainWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_plain = |byte: &u8| matches!(byte, b'\n' | b'\t' | b' '..=b'~');
        if self.rest.is_empty() && bytes.iter().all(is_plain) {
            self.to.write_all(bytes)?;
            return Ok(bytes.len());
        }
        let mut all = mem::take(&mut self.rest);
        all.extend_from_slice(bytes);
        let (mut left, mut cleaned) = (all.as_slice(), String::new());
        while let Err(error) = str::from_utf8(left) {
            let (good, bad) = left.split_at(error.valid_up_to());
            self.clean(&String::from_utf8_lossy(good), &mut cleaned);
            left = bad;
            let Some(len) = error.error_len() else { break };
            cleaned.push(char::REPLACEMENT_CHARACTER);
            left = left.get(len..).unwrap_or_default();
        }
        if let Ok(text) = str::from_utf8(left) {
            self.clean(text, &mut cleaned);
            left = &[];
        }
        self.to.write_all(cleaned.as_bytes())?;
        self.rest = left.to_vec();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}]0;x\u{7}b\rc\u{9b}31md\u{202e}e\u{2066}f\u{200f}g\u{7f}h\u{2028}ä語";

    fn written(text: &[u8], pieces: usize, json: bool) -> String {
        let mut out = Vec::new();
        let mut writer = if json { PlainWriter::of_json(&mut out) } else { PlainWriter::new(&mut out) };
        text.chunks(pieces).for_each(|piece| writer.write_all(piece).unwrap());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn nothing_that_a_terminal_obeys_passes_however_it_is_cut_into_pieces() {
        for pieces in 1..HOSTILE.len() {
            let text = written(HOSTILE.as_bytes(), pieces, false);
            assert!(!text.contains(is_obeyed), "{text:?}");
            assert!(text.ends_with("h\u{fffd}ä語") && text.starts_with("a\u{fffd}]0;x\u{fffd}b"), "{text:?}");
        }
        assert_eq!(plain(HOSTILE), written(HOSTILE.as_bytes(), 5, false));
        assert_eq!(written(b"no \xff UTF-8 \xc3(\n", 3, false), "no \u{fffd} UTF-8 \u{fffd}(\n");
    }

    #[test]
    fn json_says_the_same_as_before() {
        let value = serde_json::json!({ "name": HOSTILE, "list": [HOSTILE, 1] });
        for pieces in [1, 2, 7, 1000] {
            let text = written(serde_json::to_string_pretty(&value).unwrap().as_bytes(), pieces, true);
            assert!(!text.replace('\n', "").contains(is_obeyed), "{text:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
    }
}
