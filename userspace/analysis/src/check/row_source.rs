//! The rows of recordings, which are read side by side.

use std::{
    collections::BTreeMap,
    num::NonZero,
    ops::RangeInclusive,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context as _, Result, bail};
use flow::schema::ClockReport;

use super::{claims::Claims, parts::Part};
use crate::export::Source;
use recording::{
    format::Selection,
    rows::{Read, ReadPart},
    sinks::Sink,
};

/// Facts about a folder before its rows come.
#[derive(Debug, Default)]
pub(super) struct FolderFacts {
    pub(super) clock: Option<ClockReport>,
    /// Owners, for the names of communicators.
    pub(super) claims: Claims,
    /// Set where calls are taken, as there are no ops.
    pub(super) calls: Option<Calls>,
}

/// Calls of a recording without ops.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    /// The recording lost records: calls may be missing before any.
    pub(super) was_lost: bool,
}

/// Collects from several folders, which are read side by side, and added in their order.
pub(super) trait Gather: Send {
    /// Sink for the rows of a folder.
    type Folder: Sink;

    /// Returns the sink for a folder. Earlier folders may not have been added yet.
    fn folder(&self, facts: FolderFacts) -> Self::Folder;

    /// Returns the range of wall times, in nanoseconds, whose rows are of use. `is_of_calls`: the recording
    /// has calls and no ops.
    fn times(&self, _is_of_calls: bool) -> RangeInclusive<u64> {
        0..=u64::MAX
    }

    /// Adds the next folder. `false`: its content depends on earlier folders, some of which were missing when
    /// it was begun; it must be read once more.
    fn add(&mut self, folder: Self::Folder) -> bool;
}

/// Callback with the bytes read, and of all recordings. Called by several threads, one at a time.
pub type ReadingProgress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// Gives all rows of these folders to `gather`, and returns what could not be read. A window in which nothing
/// ran is told, too; another folder without ops is an error.
pub(super) fn read_rows<G: Gather>(
    part: &Part,
    gather: G,
    progress: ReadingProgress<'_>,
) -> Result<(G, Vec<String>)> {
    let inputs = part.folders.iter().cloned().map(Source::look).collect::<Result<Vec<_>>>()?;
    let of_bytes = inputs.iter().map(|input| input.bytes).sum();
    let work = Work {
        inputs: &inputs,
        is_window: part.windows.is_some(),
        progress: Mutex::new(Told { bytes: vec![0; inputs.len()], sum: 0, of_bytes, progress }),
        state: Mutex::new(State {
            begun: 0,
            added: 0,
            waiting: BTreeMap::new(),
            gather,
            notes: Vec::new(),
            failed: None,
        }),
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(inputs.len());
    thread::scope(|scope| {
        // This thread is one of them.
        for _ in 1..threads {
            scope.spawn(|| work.run());
        }
        work.run();
    });
    let State { gather, notes, failed, .. } = work.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok((gather, notes)), Err)
}

/// State shared by the reading threads.
struct Work<'a, G: Gather> {
    inputs: &'a [Source],
    /// The folders are windows; possibly nothing ran in them.
    is_window: bool,
    progress: Mutex<Told<'a>>,
    state: Mutex<State<G>>,
}

struct Told<'a> {
    /// Bytes read of each folder, and of all.
    bytes: Vec<u64>,
    sum: u64,
    of_bytes: u64,
    progress: ReadingProgress<'a>,
}

/// Result of a folder's rows, and notes for the reader.
type ReadFolder<G> = (<G as Gather>::Folder, Vec<String>);

struct State<G: Gather> {
    /// Folders that a thread has taken, and those of them that `gather` has.
    begun: usize,
    added: usize,
    /// Folders that were read before earlier ones.
    waiting: BTreeMap<usize, Result<ReadFolder<G>>>,
    gather: G,
    notes: Vec<String>,
    failed: Option<anyhow::Error>,
}

impl<G: Gather> Work<'_, G> {
    /// Reads folders until there are no more.
    fn run(&self) {
        loop {
            let (at, input, folder, times) = {
                let mut state = lock(&self.state);
                let at = state.begun;
                let Some(input) = self.inputs.get(at).filter(|_| state.failed.is_none()) else { return };
                state.begun += 1;
                (at, input, state.gather.folder(facts(input)), state.gather.times(input.is_of_calls()))
            };
            let read = self.read(at, input, folder, times);
            let mut state = lock(&self.state);
            state.waiting.insert(at, read);
            while let Some(read) = {
                let next = state.added;
                state.waiting.remove(&next)
            } {
                let added = state.added;
                let result = read.and_then(|(folder, notes)| self.add(&mut state, added, folder, notes));
                if let Err(error) = result {
                    state.failed.get_or_insert(error);
                }
                state.added += 1;
            }
        }
    }

    fn add(&self, state: &mut State<G>, at: usize, folder: G::Folder, notes: Vec<String>) -> Result<()> {
        if state.failed.is_some() {
            return Ok(());
        }
        if !state.gather.add(folder)
            && let Some(input) = self.inputs.get(at)
        {
            // It has all those before it now.
            let (folder, times) =
                (state.gather.folder(facts(input)), state.gather.times(input.is_of_calls()));
            let (folder, _) = self.read(at, input, folder, times)?;
            state.gather.add(folder);
        }
        state.notes.extend(notes);
        Ok(())
    }

    fn read(
        &self,
        at: usize,
        source: &Source,
        folder: G::Folder,
        times: RangeInclusive<u64>,
    ) -> Result<ReadFolder<G>> {
        let (folder, read) = read_recording(source, folder, &times, &mut |bytes| {
            let mut told = lock(&self.progress);
            let Told { bytes: by_folder, sum, of_bytes, progress } = &mut *told;
            let Some(before) = by_folder.get_mut(at) else { return };
            *sum += bytes.saturating_sub(*before);
            *before = bytes.max(*before);
            progress(*sum, *of_bytes);
        })?;
        let mut notes = said(&source.path, &read);
        // If only a part was read, the rows may be elsewhere.
        let has_rows = read.ops > 0 || source.is_of_calls() && read.calls > 0;
        if !has_rows && *times.start() == 0 {
            let none = format!(
                "the recording in `{}` has no operations: it was made with --level api, or nothing ran \
                 meanwhile",
                source.path.display()
            );
            if !self.is_window {
                bail!(none);
            }
            notes.push(none);
        }
        Ok((folder, notes))
    }
}

fn facts(source: &Source) -> FolderFacts {
    FolderFacts {
        clock: source.session().known_clock(),
        claims: Claims::of(source.session()),
        calls: source.is_of_calls().then(|| Calls { was_lost: source.session().has_losses() }),
    }
}

fn read_recording<S: Sink>(
    source: &Source,
    sink: S,
    times: &RangeInclusive<u64>,
    progress: &mut dyn FnMut(u64),
) -> Result<(S, Read)> {
    let own = |wall_ns: &u64| wall_ns.saturating_sub(source.offset_ns());
    let selection = Selection { from_ns: own(times.start()), ..Selection::ALL };
    let until_ns = own(times.end());
    let part = ReadPart { selection, until_ns, progress, goes_on: &mut || (), is_stopped: &|| false };
    source.read(sink, part).with_context(|| format!("reading the recording in `{}`", source.path.display()))
}

/// A panic elsewhere ends the program anyway.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns notes for the reader on what was read.
fn said(path: &Path, read: &Read) -> Vec<String> {
    read.notes().into_iter().map(|note| format!("{}: {note}", path.display())).collect()
}
