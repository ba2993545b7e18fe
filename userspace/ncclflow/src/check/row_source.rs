//! The rows of folders: from the recording where there is one, which has all of them, or else from the files
//! of lines.

use std::{
    collections::HashMap,
    fmt::Debug,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result, bail};
use flow::schema::{ClockReport, MessageRow, Op, OpRow, RankKey};

use super::{parts::Part, rank_reader::recording};
use crate::{
    export::Source,
    record::Read,
    recording::FOLDER,
    sinks::{OutputDir, SessionFiles, Sink},
};

/// Takes the rows of one folder after the other. The messages of an op on a channel come together; the ops of
/// a rank can all come before.
pub(super) trait TakeRows: Debug + Default + Send {
    /// What comes now is of another folder.
    fn begin(&mut self, clock: Option<ClockReport>);

    /// A rank of this folder, before its rows. Gives the number by which it is called from now on; nothing:
    /// its rows are not wanted.
    fn rank(&mut self, communicator: &str, rank: i32) -> Option<usize>;

    fn op(&mut self, rank: usize, row: &OpRow);

    fn message(&mut self, rank: usize, row: &MessageRow);
}

/// Gives all rows of these folders to `taker`, and says what could not be read. A window in which nothing ran
/// is said, too; another folder without ops is an error.
pub(super) fn read_rows<T: TakeRows + 'static>(part: &Part, mut taker: T) -> Result<(T, Vec<String>)> {
    let mut notes = Vec::new();
    for dir in &part.folders {
        if has_recording(dir)? {
            let (read, has_ops);
            (taker, read, has_ops) = read_recording(dir, taker)?;
            notes.extend(said(dir, &read));
            if !has_ops {
                let none = format!(
                    "the recording in `{}` has no ops: it is of --level api, or nothing ran while it was made",
                    dir.display()
                );
                if part.windows.is_none() {
                    bail!(none);
                }
                notes.push(none);
            }
        } else {
            read_lines(dir, &mut taker)?;
        }
    }
    Ok((taker, notes))
}

/// A window's parent has no recording of its own.
fn has_recording(path: &Path) -> Result<bool> {
    Ok(OutputDir::open(path)?.open_subfolder(FOLDER).is_ok())
}

fn read_lines(path: &Path, taker: &mut impl TakeRows) -> Result<()> {
    let recording = recording(path)?;
    taker.begin(recording.clock);
    for file in &recording.ranks {
        let Some(rank) = taker.rank(&file.folder, file.rank) else { continue };
        file.flows(|row| taker.op(rank, &row))?;
        file.steps(|row| taker.message(rank, &row))?;
    }
    Ok(())
}

fn read_recording<T: TakeRows + 'static>(path: &Path, mut taker: T) -> Result<(T, Read, bool)> {
    let source = Source::look(path.to_path_buf())?;
    taker.begin(source.clock());
    let taker = Arc::new(Mutex::new(taker));
    let rows = Rows { taker: Arc::clone(&taker), ranks: HashMap::new(), at: None, has_ops: Arc::default() };
    let has_ops = Arc::clone(&rows.has_ops);
    let context = || format!("reading the recording in `{}`", path.display());
    let read = source.open()?.read_all(SessionFiles::of_sink(Box::new(rows))).with_context(context)?.0;
    let (taker, has_ops) = (std::mem::take(&mut *lock(&taker)), *lock(&has_ops));
    Ok((taker, read, has_ops))
}

/// A panic elsewhere ends the program anyway.
fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Rows<T> {
    taker: Arc<Mutex<T>>,
    /// How the taker calls them.
    ranks: HashMap<RankKey, Option<usize>>,
    /// Of the op that came last.
    at: Option<usize>,
    has_ops: Arc<Mutex<bool>>,
}

impl<T: TakeRows> Sink for Rows<T> {
    fn op(&mut self, op: &Op) {
        let mut taker = lock(&self.taker);
        if self.ranks.is_empty() {
            *lock(&self.has_ops) = true;
        }
        let name = |taker: &mut T| taker.rank(&op.rank.comm_name(), op.rank.rank);
        self.at = *self.ranks.entry(op.rank).or_insert_with(|| name(&mut taker));
        if let Some(rank) = self.at {
            taker.op(rank, &op.row);
        }
    }

    fn messages(&mut self, _op: &Op, messages: &[MessageRow]) {
        let Some(rank) = self.at else { return };
        let mut taker = lock(&self.taker);
        for message in messages {
            taker.message(rank, message);
        }
    }
}

/// What a reader should know of what was read.
fn said(path: &Path, read: &Read) -> Vec<String> {
    read.notes().into_iter().map(|note| format!("{}: {note}", path.display())).collect()
}
