//! The rows of recordings, which are read side by side.

use std::{
    collections::BTreeMap,
    num::NonZero,
    ops::RangeInclusive,
    path::Path,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};

use anyhow::{Context as _, Result};
use flow::{schema::ClockReport, session::SessionReport};

use super::{ownership::Claims, parts::Part};
use crate::{
    not_recorded::{EMPTY, why_empty},
    sources::{Jobs, Source},
};
use recording::{format::Selection, rows::ReadPart, sinks::Sink};

/// Facts about a folder before its rows come.
#[derive(Debug)]
pub(crate) struct FolderFacts {
    pub(super) path: Arc<Path>,
    /// Its report, with the GPU of each rank; while a recording goes on, it has no ranks yet.
    pub(crate) session: SessionReport,
    /// Owners, for the names of communicators.
    pub(crate) claims: Claims,
    /// Calls are taken, as there are no ops.
    pub(super) takes_calls: bool,
    /// The recording lost records: calls may be missing before any.
    pub(super) was_lost: bool,
    /// Jobs of its processes.
    pub(super) jobs: BTreeMap<u32, String>,
}

impl FolderFacts {
    pub(super) fn of(source: &Source, jobs: BTreeMap<u32, String>) -> Self {
        let session = source.session();
        Self {
            path: source.path.as_path().into(),
            session: session.clone(),
            claims: Claims::of(session),
            takes_calls: source.is_of_calls(),
            was_lost: session.has_losses(),
            jobs,
        }
    }

    #[cfg(test)]
    pub(super) fn made(path: &str, session: SessionReport) -> Self {
        let (claims, jobs) = (Claims::default(), BTreeMap::new());
        Self { path: Path::new(path).into(), session, claims, takes_calls: false, was_lost: false, jobs }
    }

    /// Returns the host's clock, if it is known.
    pub(super) fn clock(&self) -> Option<&ClockReport> {
        self.session.known_clock()
    }

    /// Returns the offset from the host's clock to wall time.
    pub(super) fn offset_ns(&self) -> Option<u64> {
        self.clock().map(|clock| clock.offset_ns)
    }

    /// Returns the end of the session, by the host's clock.
    pub(super) fn ended_ns(&self) -> Option<u64> {
        self.clock()?.ended_monotonic_ns
    }
}

/// Collects from several folders, which are read side by side, and added in their order.
pub(crate) trait Gather {
    /// Sink for the rows of a folder.
    type Folder: Sink;

    /// Returns the sink for a folder that comes after those that were added.
    fn folder(&self, facts: FolderFacts) -> Self::Folder;

    /// Returns the range of wall times, in nanoseconds, whose rows are of use. `is_of_calls`: the recording
    /// has calls and no ops.
    fn times(&self, _is_of_calls: bool) -> RangeInclusive<u64> {
        0..=u64::MAX
    }

    /// Adds the next folder. `false`: its content depends on earlier folders, which were not known when its
    /// sink was made; it must be read once more.
    fn add(&mut self, folder: Self::Folder) -> bool;
}

/// Callback with the bytes read, and of all recordings.
pub type ReadingProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// Gives all rows of these folders to `gather`, and returns what could not be read, or had nothing.
pub(super) fn read_rows<G: Gather>(
    part: &Part,
    gather: G,
    progress: ReadingProgress<'_>,
) -> Result<(G, Vec<String>)> {
    let sources = part.folders.iter().cloned().map(Source::look).collect::<Result<Vec<_>>>()?;
    read_sources(&sources, gather, progress)
}

/// Gives all rows of these sources to `gather`: as many threads read as there are processors.
pub(crate) fn read_sources<G: Gather>(
    sources: &[Source],
    mut gather: G,
    progress: ReadingProgress<'_>,
) -> Result<(G, Vec<String>)> {
    let of_bytes = sources.iter().map(|source| source.bytes).sum();
    let jobs = Jobs::of(sources);
    let work = |(at, source), gather: &G| {
        let facts = FolderFacts::of(source, jobs.of_source(at));
        Work::new(source, facts, gather)
    };
    let all_work: Vec<_> = sources.iter().enumerate().map(|of| work(of, &gather)).collect();
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(sources.len());
    let all_work = Mutex::new(all_work.into_iter().enumerate());
    // A panic elsewhere ends the program anyway.
    let next = || all_work.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (sender, news) = mpsc::channel();
    let mut notes = Vec::new();
    thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some((at, work)) = next() {
                    // Nobody listens after an error: then nothing more is begun.
                    let read = work.read(&mut |bytes| _ = sender.send((at, News::Bytes(bytes))));
                    if sender.send((at, News::Read(read))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut bytes = vec![0; sources.len()];
        // Folders that were read before earlier ones, and the number of those that `gather` has.
        let (mut waiting, mut added) = (BTreeMap::new(), 0);
        for (at, news) in news {
            match news {
                News::Bytes(read) => {
                    bytes.iter_mut().skip(at).take(1).for_each(|bytes| *bytes = read);
                    progress(bytes.iter().sum(), of_bytes);
                }
                News::Read(read) => _ = waiting.insert(at, read),
            }
            while let (Some(read), Some(source)) = (waiting.remove(&added), sources.get(added)) {
                let (folder, said) = read?;
                if !gather.add(folder) {
                    let (folder, ..) = work((added, source), &gather).read(&mut |_| ())?;
                    gather.add(folder);
                }
                notes.extend(said);
                added += 1;
            }
        }
        Ok((gather, notes))
    })
}

/// News of a folder that is being read.
enum News<F> {
    Bytes(u64),
    Read(Result<ReadFolder<F>>),
}

/// A folder's rows, and notes for the reader.
type ReadFolder<F> = (F, Vec<String>);

/// A folder that is to be read.
struct Work<'a, F> {
    source: &'a Source,
    folder: F,
    times: RangeInclusive<u64>,
}

impl<'a, F: Sink> Work<'a, F> {
    fn new(source: &'a Source, facts: FolderFacts, gather: &impl Gather<Folder = F>) -> Self {
        let (folder, times) = (gather.folder(facts), gather.times(source.is_of_calls()));
        Self { source, folder, times }
    }

    fn read(self, progress: &mut dyn FnMut(u64)) -> Result<ReadFolder<F>> {
        let Self { source, folder, times } = self;
        let shown = source.path.display();
        let own = |wall_ns: &u64| wall_ns.saturating_sub(source.offset_ns());
        let selection = Selection { from_ns: own(times.start()), ..Selection::ALL };
        let until_ns = own(times.end());
        let part = ReadPart { selection, until_ns, progress, goes_on: &mut || (), is_stopped: &|| false };
        let read = source.read(folder, part);
        let (folder, read) = read.with_context(|| format!("reading the recording in `{shown}`"))?;
        let mut notes: Vec<String> =
            read.notes().into_iter().map(|note| format!("{shown}: {note}")).collect();
        // If only a part was read, the rows may be elsewhere.
        let has_rows = *times.start() > 0 || read.ops > 0 || source.is_of_calls() && read.calls > 0;
        if !has_rows {
            let why = why_empty(source.is_of_calls(), &read);
            notes.push(format!("{EMPTY} in `{shown}`: {why}"));
        }
        Ok((folder, notes))
    }
}
