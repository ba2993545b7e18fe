//! The rows of folders: from the recording where there is one, which has all of them, or else from the files
//! of lines.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    num::NonZero,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context as _, Result, bail};
use flow::schema::{ApiCall, ApiCallRow, MessageRow, MessageSums, Op, OpRow, RankKey, StackRow};
use foldhash::HashMap;

use super::{
    claims::Claims,
    parts::Part,
    rank_reader::{FolderClock, recording},
};
use crate::{
    export::Source,
    record::{Read, ReadPart},
    recording::{FOLDER, Selection},
    sinks::{OutputDir, SessionFiles, Sink},
};

/// Takes the rows of one folder. The messages of an op on a channel come together; the ops of a rank can all
/// come before.
pub(super) trait TakeRows: Debug + Send + 'static {
    /// A rank of this folder, before its rows. Gives the number by which it is called from now on; nothing:
    /// its rows are not wanted.
    fn rank(&mut self, communicator: &str, rank: i32) -> Option<usize>;

    fn op(&mut self, rank: usize, row: &OpRow);

    /// Whether the messages of the op that came last, of this rank, are of use.
    fn wants_messages(&self, rank: usize, row: &OpRow) -> bool;

    fn message(&mut self, rank: usize, row: &MessageRow);

    /// Whether the sums of its messages are of use, where the messages are not.
    fn wants_message_sums(&self, _rank: usize, _row: &OpRow) -> bool {
        false
    }

    fn message_sums(&mut self, _rank: usize, _sums: &MessageSums) {}

    /// Whether recordings of calls, which have no ops, are of use.
    fn wants_calls(&self) -> bool {
        false
    }

    /// A call of the API, of a recording without ops. `was_lost`: others may be missing before it.
    fn call(&mut self, _rank: usize, _row: &ApiCallRow, _was_lost: bool) {}

    /// A call stack of this folder, before what names it or after.
    fn stack(&mut self, _row: &StackRow) {}
}

/// Puts together what several folders have. They are read side by side, and come in their order.
pub(super) trait Gather: Send {
    /// What is made of the rows of a folder.
    type Folder: TakeRows;

    /// For the rows of a folder with this clock. Folders before it can still be missing here.
    fn folder(&self, clock: Option<FolderClock>) -> Self::Folder;

    /// From when and until when rows are of use, as wall time in nanoseconds. `is_of_calls`: of a recording of calls,
    /// which has no ops.
    fn times(&self, _is_of_calls: bool) -> RangeInclusive<u64> {
        0..=u64::MAX
    }

    /// Takes what the next folder has. False: that depends on the folders before it, of which some were
    /// missing when it was begun; it must be read once more.
    fn add(&mut self, folder: Self::Folder) -> bool;
}

/// How far the reading of recordings is, in bytes. Called by several threads, one at a time.
pub type ReadingProgress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// Gives all rows of these folders to `gather`, and says what could not be read. A window in which nothing ran
/// is said, too; another folder without ops is an error.
pub(super) fn read_rows<G: Gather>(
    part: &Part,
    gather: G,
    progress: ReadingProgress<'_>,
) -> Result<(G, Vec<String>)> {
    let inputs = part.folders.iter().map(|dir| Input::look(dir)).collect::<Result<Vec<_>>>()?;
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

/// A folder that was looked at.
struct Input {
    path: PathBuf,
    /// Of its recording; without one, its lines are read.
    recording: Option<Source>,
    bytes: u64,
}

impl Input {
    fn look(path: &Path) -> Result<Self> {
        let recording = if has_recording(path)? { Some(Source::look(path.to_path_buf())?) } else { None };
        let bytes = recording.as_ref().map_or(0, |source| source.bytes);
        Ok(Self { path: path.to_path_buf(), recording, bytes })
    }

    fn is_of_calls(&self) -> bool {
        self.recording.as_ref().is_some_and(Source::is_of_calls)
    }

    /// Its clock, as its report has it.
    fn clock(&self) -> Option<FolderClock> {
        match &self.recording {
            Some(source) => source.clock().map(FolderClock::of_recording),
            None => recording(&self.path).ok().and_then(|recording| recording.clock),
        }
    }
}

/// What the threads that read have in common.
struct Work<'a, G: Gather> {
    inputs: &'a [Input],
    /// Nothing need have run in them.
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

/// What was made of a folder's rows, and what a reader should know of them.
type ReadFolder<G> = (<G as Gather>::Folder, Vec<String>);

struct State<G: Gather> {
    /// Folders that a thread has taken, and those of them that `gather` has.
    begun: usize,
    added: usize,
    /// Folders that were read before those before them.
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
                (at, input, state.gather.folder(input.clock()), state.gather.times(input.is_of_calls()))
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
                (state.gather.folder(input.clock()), state.gather.times(input.is_of_calls()));
            let (folder, _) = self.read(at, input, folder, times)?;
            state.gather.add(folder);
        }
        state.notes.extend(notes);
        Ok(())
    }

    fn read(
        &self,
        at: usize,
        input: &Input,
        folder: G::Folder,
        times: RangeInclusive<u64>,
    ) -> Result<ReadFolder<G>> {
        let Some(source) = &input.recording else {
            return Ok((read_lines(&input.path, folder)?, Vec::new()));
        };
        let (folder, read, has_rows) = read_recording(source, folder, &times, &mut |bytes| {
            let mut told = lock(&self.progress);
            let Told { bytes: by_folder, sum, of_bytes, progress } = &mut *told;
            let Some(before) = by_folder.get_mut(at) else { return };
            *sum += bytes.saturating_sub(*before);
            *before = bytes.max(*before);
            progress(*sum, *of_bytes);
        })?;
        let mut notes = said(&input.path, &read);
        // Of a part of it, the rows can lie elsewhere.
        if !has_rows && *times.start() == 0 {
            let none = format!(
                "the recording in `{}` has no operations: it was made with --level api, or nothing ran \
                 meanwhile",
                input.path.display()
            );
            if !self.is_window {
                bail!(none);
            }
            notes.push(none);
        }
        Ok((folder, notes))
    }
}

/// A window's parent has no recording of its own.
fn has_recording(path: &Path) -> Result<bool> {
    Ok(OutputDir::open(path)?.open_subfolder(FOLDER).is_ok())
}

fn read_lines<T: TakeRows>(path: &Path, mut taker: T) -> Result<T> {
    for file in &recording(path)?.ranks {
        let Some(rank) = taker.rank(&file.folder, file.rank) else { continue };
        file.flows(|row| taker.op(rank, &row))?;
        file.steps(|row| taker.message(rank, &row))?;
    }
    Ok(taker)
}

fn read_recording<T: TakeRows>(
    source: &Source,
    taker: T,
    times: &RangeInclusive<u64>,
    progress: &mut dyn FnMut(u64),
) -> Result<(T, Read, bool)> {
    let shown = source.path.display();
    let takes_calls = source.is_of_calls() && taker.wants_calls();
    let calls = takes_calls.then(|| Calls { was_lost: source.has_losses() });
    let shared = Arc::new(Mutex::new(Shared { taker, has_rows: false }));
    let claims = Claims::parse(source.report());
    let rows = Rows { shared: Arc::clone(&shared), claims, ranks: HashMap::default(), at: None, calls };
    let own = |wall_ns: &u64| wall_ns.saturating_sub(source.offset_ns());
    let selection = Selection { from_ns: own(times.start()), ..Selection::ALL };
    let part = ReadPart { selection, until_ns: own(times.end()), progress, goes_on: &mut || () };
    let (read, files) = source
        .open()?
        .read(SessionFiles::of_sink(Box::new(rows)), part)
        .with_context(|| format!("reading the recording in `{shown}`"))?;
    drop(files);
    let shared =
        Arc::into_inner(shared).with_context(|| format!("the rows of `{shown}` are still in use"))?;
    let Shared { taker, has_rows } = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((taker, read, has_rows))
}

/// A panic elsewhere ends the program anyway.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Shared<T> {
    taker: T,
    /// There is something to take.
    has_rows: bool,
}

/// Calls are taken, as there are no ops.
#[derive(Clone, Copy, Debug)]
struct Calls {
    /// Records of the recording were lost.
    was_lost: bool,
}

/// Hands rows on to what takes them.
#[derive(Debug)]
struct Rows<T> {
    shared: Arc<Mutex<Shared<T>>>,
    claims: Claims,
    /// How the taker calls them.
    ranks: HashMap<RankKey, Option<usize>>,
    /// Of the op that came last.
    at: Option<usize>,
    /// Nothing: only ops are taken.
    calls: Option<Calls>,
}

impl<T: TakeRows> Sink for Rows<T> {
    fn op(&mut self, op: &Op) {
        let mut shared = lock(&self.shared);
        shared.has_rows = true;
        let taker = &mut shared.taker;
        let claims = &self.claims;
        let taken = self.ranks.entry(op.rank);
        self.at = *taken.or_insert_with(|| taker.rank(&claims.name(op.rank), op.rank.rank));
        if let Some(rank) = self.at {
            taker.op(rank, &op.row);
        }
    }

    fn wants_messages(&self, op: &Op) -> bool {
        self.at.is_some_and(|rank| lock(&self.shared).taker.wants_messages(rank, &op.row))
    }

    fn wants_message_sums(&self, op: &Op) -> bool {
        self.at.is_some_and(|rank| lock(&self.shared).taker.wants_message_sums(rank, &op.row))
    }

    fn message_sums(&mut self, _op: &Op, sums: &[MessageSums]) {
        let Some(rank) = self.at else { return };
        let mut shared = lock(&self.shared);
        for sums in sums {
            shared.taker.message_sums(rank, sums);
        }
    }

    fn messages(&mut self, _op: &Op, messages: &[MessageRow]) {
        let Some(rank) = self.at else { return };
        let mut shared = lock(&self.shared);
        for message in messages {
            shared.taker.message(rank, message);
        }
    }

    fn call(&mut self, call: &ApiCall) {
        let (Some(Calls { was_lost }), Some(key)) = (self.calls, call.rank) else { return };
        let mut shared = lock(&self.shared);
        shared.has_rows = true;
        let taker = &mut shared.taker;
        let rank = *self.ranks.entry(key).or_insert_with(|| taker.rank(&key.comm_name(), key.rank));
        if let Some(rank) = rank {
            taker.call(rank, &call.row, was_lost);
        }
    }

    fn stack(&mut self, stack: &StackRow) {
        lock(&self.shared).taker.stack(stack);
    }
}

/// What a reader should know of what was read.
fn said(path: &Path, read: &Read) -> Vec<String> {
    read.notes().into_iter().map(|note| format!("{}: {note}", path.display())).collect()
}
