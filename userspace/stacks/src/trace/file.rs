//! A trace file: its format, and the progress of reading.

use std::{
    cell::Cell,
    fs::File,
    io::{self, BufRead as _, BufReader, Read, Seek as _},
    path::{Path, PathBuf},
    rc::Rc,
};

use anyhow::{Context as _, Result, bail};
use flate2::bufread::MultiGzDecoder;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

use super::{
    event::{Consumer, LeftOut},
    json, perfetto,
};

/// Bytes that are read at once.
const BLOCK: usize = 256 << 10;

/// Bytes after which a message about progress comes.
const PROGRESS: u64 = 8 << 20;

/// Progress of reading a trace, in bytes of its file.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub bytes: u64,
    pub of_bytes: u64,
}

/// An open trace. It can be read more than once.
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Perfetto,
}

impl TraceFile {
    /// Opens a regular file. No other file can be read twice, or has a size.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(
            openat(CWD, path, flags, Mode::empty())
                .with_context(|| format!("cannot open the trace `{}`", path.display()))?,
        );
        let status = fstat(&file).with_context(|| format!("looking at `{}`", path.display()))?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => bail!(
                "`{}` is a folder: `stacks` reads traces of profilers only, which are files; it does not read \
                 recordings yet",
                path.display()
            ),
            _ => bail!(
                "`{}` is not a regular file: a trace may have to be read twice; write it to a file first",
                path.display()
            ),
        }
        Ok(Self { path: path.to_owned(), file, bytes: u64::try_from(status.st_size).unwrap_or(0) })
    }

    /// Tells all events of the trace to `consumer`.
    pub(super) fn read(
        &mut self,
        consumer: &mut dyn Consumer,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<LeftOut> {
        self.read_all(consumer, progress).with_context(|| format!("reading `{}`", self.path.display()))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Copies the trace, unpacked where it is compressed. Returns the number of bytes. Fails beyond `most`.
    pub fn copy_unpacked(&mut self, to: &mut dyn io::Write, most: u64) -> Result<u64> {
        let context = format!("copying `{}`", self.path.display());
        self.file.rewind().with_context(|| context.clone())?;
        let mut bytes = BufReader::with_capacity(BLOCK, &self.file);
        let is_compressed = bytes.fill_buf().with_context(|| context.clone())?.starts_with(&[0x1f, 0x8b]);
        let plain: Box<dyn Read + '_> =
            if is_compressed { Box::new(MultiGzDecoder::new(bytes)) } else { Box::new(bytes) };
        let copied = io::copy(&mut plain.take(most.saturating_add(1)), to).context(context)?;
        if copied > most {
            bail!(
                "`{}` is longer than {} GiB unpacked: profile fewer steps",
                self.path.display(),
                most >> 30
            );
        }
        Ok(copied)
    }

    fn read_all(
        &mut self,
        consumer: &mut dyn Consumer,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<LeftOut> {
        self.file.rewind()?;
        let read = Rc::new(Cell::new(0));
        let mut bytes = BufReader::with_capacity(BLOCK, Counted { file: &self.file, read: Rc::clone(&read) });
        let is_compressed = bytes.fill_buf()?.starts_with(&[0x1f, 0x8b]);
        let mut plain: Box<dyn Read + '_> =
            if is_compressed { Box::new(MultiGzDecoder::new(bytes)) } else { Box::new(bytes) };
        let mut head = Vec::new();
        plain.by_ref().take(HEAD).read_to_end(&mut head)?;
        let format = format_of(&head)?;
        let whole = Watched {
            bytes: head.as_slice().chain(plain),
            read,
            of_bytes: self.bytes,
            next: PROGRESS,
            progress,
        };
        match format {
            Format::Json => json::read(whole, consumer),
            Format::Perfetto => perfetto::read(BufReader::with_capacity(BLOCK, whole), consumer),
        }
    }
}

/// Bytes at the beginning of a trace that tell its format.
const HEAD: u64 = 512;

fn format_of(head: &[u8]) -> Result<Format> {
    // A field of number 1 with a length: `Trace.packet`. As text it is an end of line.
    const PACKET: u8 = 0x0a;
    let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
    match (head.first(), first) {
        (None, _) => bail!("the trace is empty"),
        (_, Some(b'{' | b'[')) => Ok(Format::Json),
        (Some(&PACKET), Some(_)) => Ok(Format::Perfetto),
        _ => bail!(
            "not a trace: it begins neither as JSON (Kineto, Chrome) nor as Perfetto's protobuf; both can be \
             compressed by gzip"
        ),
    }
}

/// Reader that counts the bytes read of a file.
struct Counted<'f> {
    file: &'f File,
    read: Rc<Cell<u64>>,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read.set(self.read.get() + read as u64);
        Ok(read)
    }
}

/// Reader that tells how far the reading is.
struct Watched<'p, R> {
    bytes: R,
    read: Rc<Cell<u64>>,
    of_bytes: u64,
    next: u64,
    progress: &'p mut dyn FnMut(Progress),
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.read.get();
        if bytes >= self.next {
            self.next = bytes + PROGRESS;
            (self.progress)(Progress { bytes, of_bytes: self.of_bytes });
        }
        self.bytes.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_known_by_its_first_bytes() {
        for (head, format) in [
            (&b"{\"a\""[..], Format::Json),
            (b" \n\t[", Format::Json),
            (b"\n {", Format::Json),
            (b"\n\x04\x08\x01", Format::Perfetto),
            (b"\n\x20\x7a\x7b", Format::Perfetto),
        ] {
            assert_eq!(format_of(head).unwrap(), format, "{head:?}");
        }
        for (head, word) in [(&b""[..], "empty"), (b"PK\x03\x04", "not a trace"), (b"  \n", "not a trace")] {
            assert!(format_of(head).unwrap_err().to_string().contains(word), "{head:?}");
        }
    }
}
