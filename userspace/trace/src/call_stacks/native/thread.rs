//! Thread that unwinds copied stacks and names their frames.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use flow::{decode::StackEvent, schema::StackRow};
use nccl_library::symbols::DebugFiles;

use super::{
    copies::{Copied, Copies},
    merge::{Merged, merge, row},
    slots::{SlotSink, Slots},
};
use crate::call_stacks::{StackBook, Traced};
use inspect::threads::{NativeFrame, NativeNames, Unwinder, Unwound};

/// Maximum number of pieces and stacks that wait: 9 MiB.
const MAX_WAITING: usize = 8192;

/// Maximum number of stacks that are named together, as each look at a file takes long.
const TOGETHER: usize = 256;

/// Maximum number of processes whose mappings are remembered.
const MAX_PROCESSES: usize = 64;

/// Options for native frames.
#[derive(Debug)]
pub(crate) struct NativeOptions {
    /// Python's frames are merged into the native ones; otherwise there are native ones alone.
    pub(crate) with_python: bool,
    pub debug_files: DebugFiles,
    /// Sink that tells the kernel side where return addresses are.
    pub sink: SlotSink,
}

enum Work {
    Piece(Box<[u8]>),
    Stack(Box<Named>),
}

/// A stack with Python's frames.
struct Named {
    hit: (u32, u32, u64),
    facts: StackRow,
    traced: Arc<Traced>,
}

/// Input of the thread: stacks, and pieces of them.
#[derive(Clone, Debug)]
pub(crate) struct NativeFeed(SyncSender<Work>);

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Work")
    }
}

impl NativeFeed {
    /// Adds a piece from the kernel, without waiting: if there is no room for it, its stack ends there.
    pub(crate) fn add_piece(&self, record: &[u8]) {
        let _ = self.0.try_send(Work::Piece(record.into()));
    }

    /// Adds native frames to a stack whose pieces have come, and then puts it into the book. Waits for room
    /// in the queue. Gives the stack back if the thread has ended.
    pub(crate) fn add(&self, event: &StackEvent, facts: StackRow, traced: Arc<Traced>) -> Option<StackRow> {
        let hit = (event.origin.tgid, event.origin.tid, event.origin.ts_ns);
        // Waiting is harmless: the thread that names Python's frames has its own queue.
        match self.0.send(Work::Stack(Box::new(Named { hit, facts, traced }))) {
            Ok(()) => None,
            Err(error) => match error.0 {
                Work::Stack(named) => Some(named.facts),
                Work::Piece(_) => None,
            },
        }
    }
}

/// Starts the thread, which ends when nobody can feed it any more.
pub(crate) fn start(options: NativeOptions, book: StackBook) -> io::Result<NativeFeed> {
    let (sender, work) = sync_channel(MAX_WAITING);
    thread::Builder::new().name("ncclflow-native".to_owned()).spawn(move || {
        let NativeOptions { with_python, debug_files, sink } = options;
        let worker = Worker {
            with_python,
            copies: Copies::default(),
            slots: Slots::new(sink),
            unwinders: HashMap::new(),
            names: NativeNames::new(debug_files),
        };
        worker.run(&work, &book);
    })?;
    Ok(NativeFeed(sender))
}

struct Worker {
    with_python: bool,
    copies: Copies,
    slots: Slots,
    /// Unwinders by the number of the process.
    unwinders: HashMap<u64, Unwinder>,
    names: NativeNames,
}

/// A stack that was unwound.
struct Ready {
    named: Named,
    copied: Copied,
    unwound: Unwound,
    of_runtime: Option<u64>,
}

impl Worker {
    fn run(mut self, work: &Receiver<Work>, book: &StackBook) {
        while let Ok(first) = work.recv() {
            let mut ready = Vec::new();
            let mut next = Some(first);
            while let Some(item) = next {
                match item {
                    Work::Piece(record) => self.copies.add(&record),
                    Work::Stack(named) => match self.unwind(*named) {
                        Ok(unwound) => ready.push(unwound),
                        Err(facts) => {
                            book.push(facts);
                            book.waiting.fetch_sub(1, Ordering::AcqRel);
                        }
                    },
                }
                if ready.len() >= TOGETHER {
                    break;
                }
                next = work.try_recv().ok();
            }
            self.name(ready, book);
        }
    }

    /// Unwinds a stack now: its process, and its code, may be gone soon.
    fn unwind(&mut self, named: Named) -> Result<Ready, StackRow> {
        const UNKNOWN: &str = "native frames not known";
        let Named { hit, facts, traced } = &named;
        let Some(copied) = self.copies.take(*hit) else {
            return Err(with_unknown(facts.clone(), "native frames not copied"));
        };
        let process = &traced.process;
        if self.unwinders.len() >= MAX_PROCESSES && !self.unwinders.contains_key(&traced.number) {
            self.unwinders.clear();
        }
        let pc = copied.stack.registers.first().copied().unwrap_or(0);
        let unwinder = match self.unwinders.remove(&traced.number) {
            Some(known) => known.refreshed(process, pc),
            None => Unwinder::new(process),
        };
        let Ok(mut unwinder) = unwinder else { return Err(with_unknown(facts.clone(), UNKNOWN)) };
        let unwound = unwinder.unwind(process, &copied.stack);
        let runtime = traced.interpreter.as_ref().map(|interpreter| interpreter.python.runtime);
        let of_runtime = runtime.and_then(|address| unwinder.file_of_variable(address));
        self.unwinders.insert(traced.number, unwinder);
        self.slots.add(copied.key, &unwound.slots);
        Ok(Ready { named, copied, unwound, of_runtime })
    }

    /// Names stacks, with one look at each file of a process.
    fn name(&mut self, mut ready: Vec<Ready>, book: &StackBook) {
        ready.sort_by_key(|ready| ready.named.traced.number);
        for of_process in ready.chunk_by(|a, b| a.named.traced.number == b.named.traced.number) {
            let Some(first) = of_process.first() else { continue };
            let places: Vec<_> = of_process.iter().map(|ready| ready.unwound.places.as_slice()).collect();
            let named = self.names.name(&first.named.traced.process, &places);
            for (ready, native) in of_process.iter().zip(named) {
                book.push(facts(ready, &native, self.with_python));
                book.waiting.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

fn with_unknown(facts: StackRow, why: &str) -> StackRow {
    let unknown = facts.unknown.or_else(|| Some(why.to_owned()));
    StackRow { unknown, ..facts }
}

/// Makes the stack with its native frames.
fn facts(ready: &Ready, native: &[NativeFrame], with_python: bool) -> StackRow {
    let Ready { named: Named { facts, .. }, copied, unwound, of_runtime } = ready;
    let mut python = facts.frames.clone();
    python.reverse();
    let has_python = !python.is_empty();
    let mut merged = if with_python {
        merge(native, python, copied.enters, *of_runtime, facts.cut)
    } else {
        Merged { frames: native.iter().map(row).collect(), ..Merged::default() }
    };
    merged.frames.reverse();
    // Python's frames can reach further out than the copy.
    let reaches_out = with_python && has_python && !merged.lacks_python;
    let cut = if reaches_out { facts.cut } else { unwound.is_cut || merged.lacks_python };
    let is_lost = merged.lacks_native || !(unwound.is_whole || unwound.is_cut);
    let all = StackRow {
        frames: merged.frames,
        cut,
        thread: (!has_python || !with_python).then(|| copied.thread.clone()),
        ..facts.clone()
    };
    if is_lost && !merged.lacks_python { with_unknown(all, "native frames not known") } else { all }
}
