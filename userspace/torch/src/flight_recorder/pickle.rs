//! Python's pickles, protocol 2, as far as a dump needs them: dictionaries, lists, pairs, texts, numbers.
//!
//! <https://github.com/python/cpython/blob/3.13/Lib/pickletools.py> describes the opcodes. A pickle is a
//! program for a machine with a stack, so a list can be written without knowing how long it gets. Texts that
//! stand in every entry are written once and then named by a number ([`Pickler::text`]): a crate that
//! serialises values (serde-pickle) does not do that, and call stacks would make a file ten times as large.

use std::{
    collections::HashMap,
    io::{self, Write},
    sync::Arc,
};

/// Maximum number of texts that are remembered. Others are written each time.
const MAX_REMEMBERED: usize = 1 << 18;

mod op {
    pub(super) const PROTO: u8 = 0x80;
    pub(super) const MARK: u8 = b'(';
    pub(super) const STOP: u8 = b'.';
    pub(super) const NONE: u8 = b'N';
    pub(super) const NEWTRUE: u8 = 0x88;
    pub(super) const NEWFALSE: u8 = 0x89;
    pub(super) const BININT: u8 = b'J';
    pub(super) const BININT1: u8 = b'K';
    pub(super) const BININT2: u8 = b'M';
    pub(super) const LONG1: u8 = 0x8a;
    pub(super) const BINFLOAT: u8 = b'G';
    pub(super) const BINUNICODE: u8 = b'X';
    pub(super) const EMPTY_LIST: u8 = b']';
    pub(super) const APPENDS: u8 = b'e';
    pub(super) const EMPTY_DICT: u8 = b'}';
    pub(super) const SETITEMS: u8 = b'u';
    pub(super) const TUPLE2: u8 = 0x86;
    pub(super) const BINPUT: u8 = b'q';
    pub(super) const LONG_BINPUT: u8 = b'r';
    pub(super) const BINGET: u8 = b'h';
    pub(super) const LONG_BINGET: u8 = b'j';
}

/// A value that was written before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remembered(u32);

#[derive(Debug)]
pub(super) struct Pickler<W> {
    out: W,
    texts: HashMap<Arc<str>, Remembered>,
    /// Number of values that were given one.
    given: u32,
}

impl<W: Write> Pickler<W> {
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&[op::PROTO, 2])?;
        Ok(Self { out, texts: HashMap::new(), given: 0 })
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// Ends the pickle, which is the value on the stack.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.put(&[op::STOP])?;
        Ok(self.out)
    }

    /// Begins a dictionary, of the keys and values that follow up to [`Self::end_dict`].
    pub(super) fn begin_dict(&mut self) -> io::Result<()> {
        self.put(&[op::EMPTY_DICT, op::MARK])
    }

    pub(super) fn end_dict(&mut self) -> io::Result<()> {
        self.put(&[op::SETITEMS])
    }

    /// Writes a list without values yet.
    pub(super) fn empty_list(&mut self) -> io::Result<()> {
        self.put(&[op::EMPTY_LIST])
    }

    /// Begins values, up to [`Self::end_values`], that are appended to the list below them on the stack.
    pub(super) fn begin_values(&mut self) -> io::Result<()> {
        self.put(&[op::MARK])
    }

    pub(super) fn end_values(&mut self) -> io::Result<()> {
        self.put(&[op::APPENDS])
    }

    /// Writes a list, each item with `write`.
    pub(super) fn list<T>(
        &mut self,
        items: &[T],
        mut write: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.empty_list()?;
        self.begin_values()?;
        items.iter().try_for_each(|item| write(self, item))?;
        self.end_values()
    }

    /// Makes a pair of the two values on top of the stack.
    pub(super) fn pair(&mut self) -> io::Result<()> {
        self.put(&[op::TUPLE2])
    }

    /// Remembers the value on top of the stack.
    pub(super) fn remember(&mut self) -> io::Result<Remembered> {
        let number = self.given;
        self.given = number.checked_add(1).ok_or_else(|| too_much("values"))?;
        self.numbered([op::BINPUT, op::LONG_BINPUT], number)?;
        Ok(Remembered(number))
    }

    /// Writes a remembered value again.
    pub(super) fn again(&mut self, value: Remembered) -> io::Result<()> {
        self.numbered([op::BINGET, op::LONG_BINGET], value.0)
    }

    /// Writes an opcode with a number: the short one where a byte is enough.
    fn numbered(&mut self, [short, long]: [u8; 2], number: u32) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(number) {
            return self.put(&[short, byte]);
        }
        self.put(&[long])?;
        self.put(&number.to_le_bytes())
    }

    pub(super) fn none(&mut self) -> io::Result<()> {
        self.put(&[op::NONE])
    }

    pub(super) fn flag(&mut self, value: bool) -> io::Result<()> {
        self.put(&[if value { op::NEWTRUE } else { op::NEWFALSE }])
    }

    pub(super) fn number(&mut self, value: i64) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(value) {
            return self.put(&[op::BININT1, byte]);
        }
        if let Ok(short) = u16::try_from(value) {
            self.put(&[op::BININT2])?;
            return self.put(&short.to_le_bytes());
        }
        if let Ok(word) = i32::try_from(value) {
            self.put(&[op::BININT])?;
            return self.put(&word.to_le_bytes());
        }
        self.put(&[op::LONG1, 8])?;
        self.put(&value.to_le_bytes())
    }

    pub(super) fn float(&mut self, value: f64) -> io::Result<()> {
        self.put(&[op::BINFLOAT])?;
        self.put(&value.to_be_bytes())
    }

    /// Writes a text that may come again: the second time only its number.
    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(known) = self.texts.get(text) {
            return self.again(*known);
        }
        self.text_once(text)?;
        if self.texts.len() < MAX_REMEMBERED {
            let value = self.remember()?;
            self.texts.insert(text.into(), value);
        }
        Ok(())
    }

    /// Writes a text in full.
    fn text_once(&mut self, text: &str) -> io::Result<()> {
        let bytes = u32::try_from(text.len()).map_err(|_| too_much("bytes of a text"))?;
        self.put(&[op::BINUNICODE])?;
        self.put(&bytes.to_le_bytes())?;
        self.put(text.as_bytes())
    }
}

fn too_much(of_what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a pickle cannot hold more than 2^32 {of_what}"))
}
