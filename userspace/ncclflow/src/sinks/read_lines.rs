//! Reads files of JSON lines, also compressed ones. They may be of anybody's making.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write as _},
};

use anyhow::{Context as _, Result, bail};
use flate2::bufread::MultiGzDecoder;

use super::{layout::is_window, output_dir::OutputDir};

/// What a compressed file's name has at its end.
pub(super) const COMPRESSED: &str = ".gz";

/// A line longer than this is none of ours.
const MAX_LINE: u64 = 1 << 20;

/// A compressed file that holds more than so many times its size is none of ours, which hold ten to fifty
/// times …
const MAX_RATIO: u64 = 250;

/// … unless it is small.
const SMALL: u64 = 16 << 20;

/// Calls `each` with the folder and number of every rank of every communicator of a recording or a window, in
/// order. A folder without any is an error.
pub(crate) fn for_each_rank(
    dir: &OutputDir,
    mut each: impl FnMut(&str, &OutputDir, i32) -> Result<()>,
) -> Result<()> {
    if !each_rank(dir, &mut each)? {
        bail!(
            "`{}` holds no `<commHash>/proxy_flow_rank<r>.jsonl`: is it the folder of a recording?",
            dir.path().display()
        );
    }
    Ok(())
}

/// Whether a folder has files of ops of any rank.
#[cfg(feature = "program")]
pub(crate) fn has_ranks(dir: &OutputDir) -> Result<bool> {
    each_rank(dir, &mut |_, _, _| Ok(()))
}

/// As [`for_each_rank`]. Says whether there are any.
fn each_rank(dir: &OutputDir, each: &mut impl FnMut(&str, &OutputDir, i32) -> Result<()>) -> Result<bool> {
    let mut has_any = false;
    for folder in folders(dir)? {
        let Ok(subfolder) = dir.open_subfolder(&folder) else { continue };
        has_any |= each_rank_of(&folder, &subfolder, each)?;
        if folder.contains('.') {
            // In a window, the communicators of a process.
            for communicator in folders(&subfolder)? {
                let Ok(inner) = subfolder.open_subfolder(&communicator) else { continue };
                has_any |= each_rank_of(&communicator, &inner, each)?;
            }
        }
    }
    Ok(has_any)
}

fn folders(dir: &OutputDir) -> Result<Vec<String>> {
    let names = dir.names().with_context(|| format!("cannot list `{}`", dir.path().display()))?;
    // Windows are recordings of their own.
    Ok(names.into_iter().filter(|name| !is_window(name)).collect())
}

/// Whether there are any.
fn each_rank_of(
    name: &str,
    dir: &OutputDir,
    each: &mut impl FnMut(&str, &OutputDir, i32) -> Result<()>,
) -> Result<bool> {
    let names = dir.names().with_context(|| format!("cannot list `{}`", dir.path().display()))?;
    let ranks = ranks_of(&names);
    ranks.iter().try_for_each(|rank| each(name, dir, *rank))?;
    Ok(!ranks.is_empty())
}

/// Ranks that have a `proxy_flow` among these names, each once.
fn ranks_of(names: &[String]) -> BTreeSet<i32> {
    let rank_of = |name: &String| {
        let name = name.strip_suffix(COMPRESSED).unwrap_or(name);
        name.strip_prefix("proxy_flow_rank")?.strip_suffix(".jsonl")?.parse().ok()
    };
    names.iter().filter_map(rank_of).collect()
}

/// Calls `each` with the byte offset and text of every whole line of the file, or of its compressed form;
/// counts a last line without an end in `cut`. Offsets are those of the lines, not of the compressed bytes.
pub(crate) fn for_each_line(
    dir: &OutputDir,
    name: &str,
    cut: &mut u64,
    each: impl FnMut(u64, &str) -> Result<(), serde_json::Error>,
) -> Result<()> {
    let lines = open(dir, name).with_context(|| format!("opening `{name}`"))?;
    each_line(lines, name, cut, each)
}

/// The same of lines that are open already; `name` is for messages.
pub(super) fn each_line(
    mut lines: impl BufRead,
    name: &str,
    cut: &mut u64,
    mut each: impl FnMut(u64, &str) -> Result<(), serde_json::Error>,
) -> Result<()> {
    let (mut line, mut at) = (Vec::new(), 0u64);
    for number in 1u64.. {
        line.clear();
        let read = lines
            .by_ref()
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)
            .with_context(|| format!("reading `{name}`"))?;
        if read == 0 {
            break;
        }
        let Some(text) = line.strip_suffix(b"\n") else {
            if read as u64 == MAX_LINE {
                bail!("`{name}` line {number} is longer than {MAX_LINE} bytes: not a file of ncclflow's");
            }
            *cut += 1;
            break;
        };
        let text = std::str::from_utf8(text).with_context(|| format!("`{name}` line {number}"))?;
        each(at, text).with_context(|| format!("`{name}` line {number} is not a line of ncclflow's"))?;
        at += read as u64;
    }
    Ok(())
}

/// The file's lines in a file that can be read from anywhere: itself, or a copy without a name of what it was
/// compressed from.
pub(super) fn open_seekable(dir: &OutputDir, name: &str) -> io::Result<File> {
    match dir.open_file(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut copy = dir.nameless_file()?;
            io::copy(&mut open_compressed(dir, name)?, &mut copy)?;
            copy.flush()?;
            Ok(copy)
        }
        opened => opened,
    }
}

fn open(dir: &OutputDir, name: &str) -> io::Result<Box<dyn BufRead>> {
    match dir.open_file(name) {
        // Both are there when the tracer was killed at the wrong moment; then they are the same.
        Ok(file) => Ok(Box::new(BufReader::new(file))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let lines = open_compressed(dir, name).map_err(|compressed| {
                if compressed.kind() == io::ErrorKind::NotFound { error } else { compressed }
            })?;
            Ok(Box::new(BufReader::new(lines)))
        }
        Err(error) => Err(error),
    }
}

fn open_compressed(dir: &OutputDir, name: &str) -> io::Result<impl Read + use<>> {
    let file = dir.open_file(&format!("{name}{COMPRESSED}"))?;
    let left = file.metadata()?.len().saturating_mul(MAX_RATIO).max(SMALL);
    Ok(Bounded { bytes: MultiGzDecoder::new(BufReader::new(file)), left })
}

/// Of what ends sooner than this, everything; of what does not, an error.
struct Bounded<R> {
    bytes: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("it holds more than {MAX_RATIO} times its size: not a file of ncclflow's"),
            )
        })?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn folder() -> (tempfile::TempDir, OutputDir) {
        let parent = tempfile::tempdir().unwrap();
        let dir = OutputDir::create(&parent.path().join("out")).unwrap();
        (parent, dir)
    }

    fn compressed(dir: &OutputDir, name: &str, fill: impl FnOnce(&mut dyn io::Write)) {
        let mut encoder = GzEncoder::new(dir.create_file(name).unwrap(), Compression::best());
        fill(&mut encoder);
        encoder.finish().unwrap();
    }

    fn lines(dir: &OutputDir, name: &str) -> Result<Vec<(u64, String)>> {
        let mut lines = Vec::new();
        for_each_line(dir, name, &mut 0, |at, line| {
            lines.push((at, line.to_owned()));
            Ok(())
        })?;
        Ok(lines)
    }

    #[test]
    fn compressed_lines_are_read_as_plain_ones_are() {
        let (_parent, dir) = folder();
        compressed(&dir, "a.jsonl.gz", |file| file.write_all(b"one\ntwo\n").unwrap());
        let expected = [(0, "one".to_owned()), (4, "two".to_owned())];
        assert_eq!(lines(&dir, "a.jsonl").unwrap(), expected);
        let mut text = String::new();
        let mut copy = open_seekable(&dir, "a.jsonl").unwrap();
        io::Seek::rewind(&mut copy).unwrap();
        copy.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\ntwo\n");
        assert_eq!(dir.names().unwrap(), ["a.jsonl.gz"]);
        assert!(format!("{:#}", lines(&dir, "b.jsonl").unwrap_err()).contains("opening `b.jsonl`"));
    }

    #[test]
    fn a_file_that_holds_a_thousand_times_its_size_is_refused() {
        let (_parent, dir) = folder();
        let line = [[b' '; 1023].as_slice(), b"\n"].concat();
        compressed(&dir, "bomb.jsonl.gz", |file| (0..64 << 10).for_each(|_| file.write_all(&line).unwrap()));
        let error = format!("{:#}", lines(&dir, "bomb.jsonl").unwrap_err());
        assert!(error.contains("times its size"), "{error}");
        assert!(open_seekable(&dir, "bomb.jsonl").is_err());
        assert_eq!(dir.names().unwrap(), ["bomb.jsonl.gz"]);
    }

    #[test]
    fn a_file_that_is_cut_or_no_archive_is_an_error() {
        let (_parent, dir) = folder();
        dir.create_file("a.jsonl.gz").unwrap().write_all(b"no archive").unwrap();
        assert!(lines(&dir, "a.jsonl").is_err());
        compressed(&dir, "b.jsonl.gz", |file| file.write_all(&b"line\n".repeat(1000)).unwrap());
        let path = dir.path().join("b.jsonl.gz");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
        assert!(lines(&dir, "b.jsonl").is_err());
    }

    #[test]
    fn a_rank_with_both_forms_counts_once() {
        let names = [
            "flow_steps_rank3.jsonl",
            "proxy_flow_rank2.jsonl",
            "proxy_flow_rank2.jsonl.gz",
            "proxy_flow_rank7.jsonl.gz.gz",
            "x",
        ];
        assert_eq!(ranks_of(&names.map(str::to_owned)), BTreeSet::from([2]));
    }
}
