//! A trace file: its format, and the progress of reading.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use flate2::bufread::GzDecoder;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

use super::{
    event::{Consumer, LeftOut, explained},
    json, perfetto,
};

/// Bytes that are read at once.
const BLOCK: usize = 256 << 10;

/// Bytes after which a message about progress comes.
const PROGRESS: u64 = 8 << 20;

/// Progress of reading, in bytes of files that were read or passed over.
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
            FileType::Directory => bail!("`{}` is a folder: a trace of a profiler is a file", path.display()),
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
        let plain = unpacked(&self.file).with_context(|| context.clone())?;
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
        let mut plain =
            unpacked(Watched { file: &self.file, read: 0, of_bytes: self.bytes, next: PROGRESS, progress })?;
        let mut head = Vec::new();
        let read = plain.by_ref().take(HEAD).read_to_end(&mut head);
        read.map_err(|error| explained(error, 0, "events"))?;
        let format = format_of(&head)?;
        let whole = head.as_slice().chain(plain);
        match format {
            Format::Json => json::read(whole, consumer),
            Format::Perfetto => perfetto::read(BufReader::with_capacity(BLOCK, whole), consumer),
        }
    }
}

/// Reads these bytes, unpacked where they are compressed.
fn unpacked<'r>(bytes: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let mut bytes = BufReader::with_capacity(BLOCK, bytes);
    let is_compressed = bytes.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if is_compressed {
        Box::new(Members { member: Some(GzDecoder::new(bytes)) })
    } else {
        Box::new(bytes)
    })
}

/// The members of a gzip file, one after the other. Zeros behind the last one are padding, as gzip(1) has it.
struct Members<R> {
    /// The member that is being read; `None` after the last.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            match member.read(buffer) {
                Ok(0) if !buffer.is_empty() => {}
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    // Whatever the decoder calls it: there is no more of the file.
                    let is_cut = member.get_mut().fill_buf().is_ok_and(<[u8]>::is_empty);
                    return Err(if is_cut { io::ErrorKind::UnexpectedEof.into() } else { error });
                }
                read => return read,
            }
            let Some(mut rest) = self.member.take().map(GzDecoder::into_inner) else { break };
            loop {
                let zeros = rest.fill_buf()?.iter().take_while(|byte| **byte == 0).count();
                if zeros == 0 {
                    break;
                }
                rest.consume(zeros);
            }
            match rest.fill_buf()? {
                [] => {}
                [0x1f, ..] => self.member = Some(GzDecoder::new(rest)),
                _ => {
                    let what = "something that is not compressed follows the compressed trace";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
            }
        }
        Ok(0)
    }
}

/// Bytes at the beginning of a trace that tell its format.
const HEAD: u64 = 512;

fn format_of(head: &[u8]) -> Result<Format> {
    // A field of number 1 with a length: `Trace.packet`. As text it is an end of line.
    const PACKET: u8 = 0x0a;
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
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

/// Reader of a file that tells how far the reading is.
struct Watched<'f> {
    file: &'f File,
    read: u64,
    of_bytes: u64,
    next: u64,
    progress: &'f mut dyn FnMut(Progress),
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read >= self.next {
            self.next = self.read + PROGRESS;
            (self.progress)(Progress { bytes: self.read, of_bytes: self.of_bytes });
        }
        let read = self.file.read(buffer)?;
        self.read += read as u64;
        Ok(read)
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
            (b"\xef\xbb\xbf{", Format::Json),
            (b"\n\x04\x08\x01", Format::Perfetto),
            (b"\n\x20\x7a\x7b", Format::Perfetto),
        ] {
            assert_eq!(format_of(head).unwrap(), format, "{head:?}");
        }
        for (head, word) in [(&b""[..], "empty"), (b"PK\x03\x04", "not a trace"), (b"  \n", "not a trace")] {
            assert!(format_of(head).unwrap_err().to_string().contains(word), "{head:?}");
        }
    }

    #[test]
    fn members_follow_each_other_zeros_are_padding_and_a_cut_file_is_cut() {
        use std::io::Write as _;
        let packed = |text: &[u8]| {
            let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            to.write_all(text).unwrap();
            to.finish().unwrap()
        };
        let text: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let (first, second) = text.split_at(12345);
        let members = [packed(first), packed(second)].concat();
        let read = |bytes: &[u8]| {
            let mut all = Vec::new();
            unpacked(bytes).unwrap().read_to_end(&mut all).map(|_| all)
        };
        assert_eq!(read(&members).unwrap(), text);
        assert_eq!(read(&[&members[..], &[0; 1000]].concat()).unwrap(), text);
        assert_eq!(read(&[&packed(first)[..], &[0; 700], &packed(second)].concat()).unwrap(), text);
        for length in [members.len() - 1, members.len() - 8, members.len() / 2, 30, 11, 5] {
            let cut = read(&members[..length]).unwrap_err();
            assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof, "{length}: {cut}");
        }
        assert!(read(&[&members[..], b"no gzip"].concat()).is_err());
    }
}
