//! The file that a trace goes to: the trace itself, or an archive of it and of traces of torch's profiler,
//! which Perfetto (v58 and later) opens as one timeline.
//!
//! The archive is a tar file. A member's size is known when it is written, so its header is written last,
//! into the place that was left for it. `perfetto_manifest.json` says how the clocks of the members stand to
//! each other (Perfetto's docs/reference/perfetto-manifest.md, version 1).

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};

use recording::sinks::NewFile;
use stacks::trace::{self, About, TraceFile};

use crate::export::torch_traces::{self, TorchTrace};
use crate::sources::Source;

/// Name of our own trace in an archive.
const OWN: &str = "ncclflow.pftrace";

const MANIFEST: &str = "perfetto_manifest.json";

/// Level of compression, as for files of lines: three times as fast as the default.
const LEVEL: u32 = 3;

/// Bytes of a block of tar.
const BLOCK: usize = 512;

/// Most traces beside ours.
const MAX_TRACES: usize = 1024;

/// Most bytes of a trace beside ours, unpacked: the viewer holds 2 GB.
const MAX_BYTES: u64 = 16 << 30;

/// A trace of torch's profiler.
#[derive(Debug)]
struct Beside {
    trace: TraceFile,
    about: About,
    /// Offset from its times to Unix times, in ns.
    offset_ns: i64,
    /// Unix times of its first and its last slice.
    span_ns: (i64, i64),
}

impl Beside {
    fn open(path: &Path) -> Result<Self> {
        let mut trace = TraceFile::open(path)?;
        let (about, span) = trace::about(&mut trace)?;
        let context = || format!("in `{}`", path.display());
        let Some((first, last)) = span else {
            bail!("`{}` has no slice: it is not a trace of torch's profiler", path.display());
        };
        let offset_ns = trace::unix_offset(about.base_ns, first).with_context(context)?;
        let span_ns = (first.saturating_add(offset_ns), last.saturating_add(offset_ns));
        Ok(Self { trace, about, offset_ns, span_ns })
    }

    /// Returns what the trace says of itself.
    fn facts(&self) -> TorchTrace<'_> {
        let About { rank, world_size, .. } = self.about;
        let (begin, end) = self.span_ns;
        let unix = |at: i64| u64::try_from(at).unwrap_or_default();
        TorchTrace { path: self.trace.path(), rank, world_size, span_ns: (unix(begin), unix(end)) }
    }

    fn member(at: usize) -> String {
        format!("torch-{at}.json")
    }

    /// Makes the manifest's entry of the trace. Each trace is a machine of its own: in containers of several
    /// hosts, processes have the same numbers, and GPUs are processes to torch.
    fn entry(&self, at: usize) -> Value {
        let file = self.trace.path().file_name().unwrap_or_default().to_string_lossy();
        let rank = self.about.rank.map(|rank| format!("rank {rank}, ")).unwrap_or_default();
        json!({
            "path": Self::member(at),
            "machine": { "name": format!("torch: {rank}{file}") },
            "clocks": {
                "sync_to": { "file": OWN, "clock": "REALTIME" },
                "offset_ns": self.offset_ns,
            },
        })
    }
}

/// A file, as it is or compressed.
#[derive(Debug)]
enum Packed {
    Plain(Box<NewFile>),
    Gzip(Box<GzEncoder<NewFile>>),
}

impl Packed {
    fn file(&mut self) -> &mut dyn Write {
        match self {
            Self::Plain(file) => file,
            Self::Gzip(file) => file,
        }
    }

    /// Completes the file, and gives it its name.
    fn finish(&mut self) -> Result<()> {
        match self {
            Self::Plain(file) => file.finish(),
            Self::Gzip(file) => {
                file.try_finish().context("compressing the trace")?;
                file.get_mut().finish()
            }
        }
    }
}

/// Output that a trace is written to.
#[derive(Debug)]
pub(super) struct TraceOutput {
    file: Packed,
    /// Number of bytes so far, unpacked.
    at: u64,
    /// Name and begin of the member that is being written.
    member: Option<(String, u64)>,
    beside: Vec<Beside>,
}

impl TraceOutput {
    /// Creates the file. One that exists, or a link, is refused. With traces beside ours, it is an archive.
    pub(super) fn create(path: &Path, beside: &[PathBuf]) -> Result<Self> {
        if beside.len() > MAX_TRACES {
            bail!("more than {MAX_TRACES} traces to lay beside ours: no viewer shows them");
        }
        let beside = beside.iter().map(|path| Beside::open(path)).collect::<Result<Vec<_>>>()?;
        let hint = if beside.is_empty() {
            "give another name, or remove it; -f perfetto writes one new file"
        } else {
            "give another name, or remove it; -f perfetto --manifest writes one new archive, as job.tar"
        };
        let file = NewFile::create(path, hint)?;
        // Headers of an archive are written last, which a compressed file does not allow.
        let is_packed = beside.is_empty() && path.extension().is_some_and(|extension| extension == "gz");
        let file = if is_packed {
            Packed::Gzip(Box::new(GzEncoder::new(file, Compression::new(LEVEL))))
        } else {
            Packed::Plain(Box::new(file))
        };
        let mut made = Self { file, at: 0, member: None, beside };
        if !made.beside.is_empty() {
            made.begin_member(OWN).context("writing the archive")?;
        }
        Ok(made)
    }

    fn begin_member(&mut self, name: &str) -> io::Result<()> {
        self.member = Some((name.to_owned(), self.at));
        self.write_all(&[0; BLOCK])
    }

    fn end_member(&mut self) -> io::Result<()> {
        let Some((name, begin)) = self.member.take() else { return Ok(()) };
        let size = (self.at - begin).saturating_sub(BLOCK as u64);
        let mut header = tar::Header::new_gnu();
        header.set_path(&name)?;
        header.set_size(size);
        header.set_mode(0o600);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_cksum();
        let padding = usize::try_from(size.next_multiple_of(BLOCK as u64) - size).unwrap_or(0);
        self.write_all(&[0; BLOCK][..padding])?;
        match &mut self.file {
            Packed::Plain(file) => file.write_at(header.as_bytes(), begin),
            Packed::Gzip(_) => Err(io::Error::other("an archive is not compressed")),
        }
    }

    pub(super) fn is_packed(&self) -> bool {
        matches!(self.file, Packed::Gzip(_))
    }

    /// Completes the file, with the traces beside ours.
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.is_archive() {
            self.add_beside().context("writing the archive")?;
        }
        self.file.finish()
    }

    fn add_beside(&mut self) -> Result<()> {
        let mut beside = std::mem::take(&mut self.beside);
        self.end_member()?;
        for (at, one) in beside.iter_mut().enumerate() {
            self.begin_member(&Beside::member(at))?;
            one.trace.copy_unpacked(self, MAX_BYTES)?;
            self.end_member()?;
        }
        let entries = beside.iter().enumerate().map(|(at, one)| one.entry(at));
        let files: Vec<Value> = std::iter::once(json!({ "path": OWN })).chain(entries).collect();
        // Perfetto recognises the manifest by its first key.
        let manifest = json!({ "perfetto_manifest": {
            "version": 1,
            "trace_time": { "clock": "REALTIME", "file": OWN },
            "files": files,
        }});
        self.begin_member(MANIFEST)?;
        self.write_all(manifest.to_string().as_bytes())?;
        self.end_member()?;
        self.beside = beside;
        Ok(self.write_all(&[0; 2 * BLOCK])?)
    }

    /// Refuses traces beside ours that do not belong to the recordings; times of the others become those of
    /// the recordings, where these are not by their own host's clock.
    pub(super) fn check_beside(&mut self, sources: &[Source]) -> Result<()> {
        let beside: Vec<TorchTrace<'_>> = self.beside.iter().map(Beside::facts).collect();
        torch_traces::check(&beside, sources)?;
        for one in &mut self.beside {
            let ahead_ns = one.about.rank.and_then(|rank| torch_traces::ahead_ns(rank, sources));
            one.offset_ns = one.offset_ns.saturating_sub(ahead_ns.unwrap_or(0));
        }
        Ok(())
    }

    pub(super) fn is_archive(&self) -> bool {
        !self.beside.is_empty()
    }
}

impl Write for TraceOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.file().write(bytes)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.file().flush()
    }
}
