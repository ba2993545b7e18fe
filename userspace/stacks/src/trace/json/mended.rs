//! JSON as programs write it, made into JSON as it is defined, byte by byte as it is read.
//!
//! Python's `json` writes `NaN` and `Infinity`; others write control characters and bytes of no text into
//! names, a comma behind the last element, a byte order mark, or zeros behind the end of the file. None of it
//! touches what is read here.

use std::io::{self, Read};

const BLOCK: usize = 64 << 10;
/// Longest word that is looked at: `-Infinity`, or a number.
const MAX_WORD: usize = 512;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Stands for a byte that is no text.
const NO_TEXT: u8 = b'?';

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Begin,
    /// Between strings.
    Outside,
    String,
    /// After a backslash.
    Escape,
}

/// A reader of JSON that mends what it reads.
pub(super) struct Mended<R> {
    from: R,
    block: Vec<u8>,
    /// Bytes that are mended and not read yet, from `at` on.
    out: Vec<u8>,
    at: usize,
    place: Place,
    /// Bytes of a number, or of a word that should be one, that is not at its end.
    word: Vec<u8>,
    /// Bytes of a character that is not at its end; at the beginning, of the byte order mark.
    character: Vec<u8>,
    /// A comma that something may follow.
    comma: bool,
    is_over: bool,
}

impl<R: Read> Mended<R> {
    pub(super) fn new(from: R) -> Self {
        Self {
            from,
            block: vec![0; BLOCK],
            out: Vec::with_capacity(BLOCK + BLOCK / 4),
            at: 0,
            place: Place::Begin,
            word: Vec::new(),
            character: Vec::new(),
            comma: false,
            is_over: false,
        }
    }

    fn take(&mut self, byte: u8) {
        match self.place {
            Place::Begin => self.begin(byte),
            Place::Outside => self.outside(byte),
            Place::String => self.inside(byte),
            Place::Escape => {
                self.place = Place::String;
                if !matches!(byte, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' | b'u') {
                    // No escape: a backslash of a path.
                    self.out.push(b'\\');
                    return self.inside(byte);
                }
                self.out.push(byte);
            }
        }
    }

    fn begin(&mut self, byte: u8) {
        self.character.push(byte);
        if BYTE_ORDER_MARK.starts_with(&self.character) {
            if self.character == BYTE_ORDER_MARK {
                self.character.clear();
                self.place = Place::Outside;
            }
            return;
        }
        self.place = Place::Outside;
        for byte in std::mem::take(&mut self.character) {
            self.outside(byte);
        }
    }

    fn outside(&mut self, byte: u8) {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' | 0 => {
                self.end_word();
                self.out.push(if byte == 0 { b' ' } else { byte });
            }
            b',' => {
                self.end_word();
                self.end_comma();
                self.comma = true;
            }
            b']' | b'}' => {
                self.end_word();
                self.comma = false;
                self.out.push(byte);
            }
            b'[' | b'{' | b':' | b'"' => {
                self.end_word();
                self.end_comma();
                self.out.push(byte);
                if byte == b'"' {
                    self.place = Place::String;
                }
            }
            _ if self.word.len() < MAX_WORD => self.word.push(byte),
            _ => {
                // Too long for a number: as it is.
                self.end_comma();
                self.out.append(&mut self.word);
                self.word.push(byte);
            }
        }
    }

    fn inside(&mut self, byte: u8) {
        if byte >= 0x80 {
            self.character.push(byte);
            match std::str::from_utf8(&self.character) {
                Ok(_) => self.out.append(&mut self.character),
                // More of it may come.
                Err(error) if error.error_len().is_none() => {}
                Err(_) => {
                    // The last one may begin another character.
                    let last = (self.character.len() > 1).then(|| self.character.pop()).flatten();
                    self.end_character();
                    if let Some(last) = last {
                        self.inside(last);
                    }
                }
            }
            return;
        }
        self.end_character();
        match byte {
            b'"' => self.place = Place::Outside,
            b'\\' => self.place = Place::Escape,
            _ => {}
        }
        self.out.push(if byte < 0x20 { b' ' } else { byte });
    }

    /// Ends a character that lacks bytes.
    fn end_character(&mut self) {
        self.out.extend(self.character.drain(..).map(|_| NO_TEXT));
    }

    fn end_comma(&mut self) {
        if std::mem::take(&mut self.comma) {
            self.out.push(b',');
        }
    }

    /// Ends a word: one that JSON does not have is quoted.
    fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        self.end_comma();
        if is_json(&self.word) {
            self.out.append(&mut self.word);
            return;
        }
        self.out.push(b'"');
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
        self.out.extend(self.word.drain(..).map(|byte| if is_plain(byte) { byte } else { NO_TEXT }));
        self.out.push(b'"');
    }

    fn end(&mut self) {
        if self.place == Place::Begin {
            self.place = Place::Outside;
            for byte in std::mem::take(&mut self.character) {
                self.outside(byte);
            }
        }
        self.end_character();
        self.end_word();
        self.end_comma();
        self.is_over = true;
    }
}

impl<R: Read> Read for Mended<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at >= self.out.len() {
            if self.is_over {
                return Ok(0);
            }
            self.out.clear();
            self.at = 0;
            let read = self.from.read(&mut self.block)?;
            let block = std::mem::take(&mut self.block);
            let mut bytes = block.get(..read).unwrap_or_default();
            while let Some((first, rest)) = bytes.split_first() {
                let plain =
                    if self.place == Place::String && self.character.is_empty() { plain(bytes) } else { 0 };
                if plain > 0 {
                    let (same, rest) = bytes.split_at(plain);
                    self.out.extend_from_slice(same);
                    bytes = rest;
                } else {
                    self.take(*first);
                    bytes = rest;
                }
            }
            self.block = block;
            if read == 0 {
                self.end();
            }
        }
        let left = self.out.get(self.at..).unwrap_or_default();
        let count = left.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..count), left.get(..count)) {
            to.copy_from_slice(from);
        }
        self.at += count;
        Ok(count)
    }
}

/// Returns the number of bytes of a string that need no look.
fn plain(bytes: &[u8]) -> usize {
    let is_plain = |byte: &u8| matches!(byte, 0x20..0x80) && !matches!(byte, b'"' | b'\\');
    bytes.iter().take_while(|byte| is_plain(byte)).count()
}

/// Tells whether a word is one that JSON has: `true`, `false`, `null` or a number.
fn is_json(word: &[u8]) -> bool {
    if matches!(word, b"true" | b"false" | b"null") {
        return true;
    }
    let word = word.strip_prefix(b"-").unwrap_or(word);
    let digits = |word: &[u8]| word.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(word);
    if whole == 0 || (whole > 1 && word.starts_with(b"0")) {
        return false;
    }
    let mut rest = word.get(whole..).unwrap_or_default();
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = fraction.get(count..).unwrap_or_default();
    }
    if let Some(exponent) = rest.strip_prefix(b"e").or(rest.strip_prefix(b"E")) {
        let exponent = exponent.strip_prefix(b"+").or(exponent.strip_prefix(b"-")).unwrap_or(exponent);
        let count = digits(exponent);
        return count > 0 && count == exponent.len();
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Reads a byte at a time.
    struct Slow<'b>(&'b [u8]);
    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let (Some((first, rest)), Some(to)) = (self.0.split_first(), buffer.first_mut()) else {
                return Ok(0);
            };
            (*to, self.0) = (*first, rest);
            Ok(1)
        }
    }

    fn mended(bytes: &[u8]) -> Vec<u8> {
        let mut whole = Vec::new();
        Mended::new(bytes).read_to_end(&mut whole).unwrap();
        // Wherever reads end.
        let mut slow = Vec::new();
        Mended::new(Slow(bytes)).read_to_end(&mut slow).unwrap();
        assert_eq!(whole, slow);
        whole
    }

    fn read(bytes: &[u8]) -> Value {
        let text = mended(bytes);
        serde_json::from_slice(&text)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&text)))
    }

    #[test]
    fn json_stays_as_it_is() {
        for text in [
            r#"{"a": [1, -0, 0.5, 1e9, -1.5E-3, true, false, null, "x\"\\\u00e9 é 🙂,}"], "b": {}}"#,
            "[]",
            "\n [ { } ,\t1 ] \n",
        ] {
            let comma_moves =
                |text: &[u8]| text.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect::<Vec<u8>>();
            assert_eq!(comma_moves(&mended(text.as_bytes())), comma_moves(text.as_bytes()));
            assert_eq!(read(text.as_bytes()), serde_json::from_str::<Value>(text).unwrap());
        }
    }

    #[test]
    fn what_others_write_is_read() {
        let words = br#"{"a": NaN, "b": -Infinity,"c":[inf,Infinity , nan],"d":01,"e":.5,"f":1.,"g":0x1F,"h":+1,"i":None}"#;
        let expected = json!({ "a": "NaN", "b": "-Infinity", "c": ["inf", "Infinity", "nan"], "d": "01", "e": ".5",
            "f": "1.", "g": "0x1F", "h": "+1", "i": "None" });
        assert_eq!(read(words), expected);
        assert_eq!(read(b"\xef\xbb\xbf{\"a\": 1}\0\0\0"), json!({ "a": 1 }));
        assert_eq!(read(b"{\"a\": [1, 2 , ] , }"), json!({ "a": [1, 2] }));
        assert_eq!(read(b"[\"a\nb\x01\tc\"]"), json!(["a b  c"]));
        assert_eq!(read(br#"["C:\dir\x", "a\"b"]"#), json!(["C:\\dir\\x", "a\"b"]));
        assert_eq!(
            read(b"[\"\xff\xfe\", \"\xc3\", \"\xc3\xc3\xa9\", \"\xe2\x82x\"]"),
            json!(["??", "?", "?é", "??x"])
        );
    }

    #[test]
    fn what_is_broken_stays_broken_and_nothing_grows_without_end() {
        for text in ["{\"a\": [1", "[1 2]", "{\"a\" 1}", "[\"a", "{]"] {
            assert!(serde_json::from_slice::<Value>(&mended(text.as_bytes())).is_err(), "{text}");
        }
        assert_eq!(mended(&[b'1'; 10_000]).len(), 10_000);
        let word = vec![b'x'; 100_000];
        assert!(mended(&word).len() <= word.len() + 2);
        assert_eq!(mended(b""), b"");
        assert_eq!(mended(b"\xef\xbb"), b"\"??\"");
    }
}
