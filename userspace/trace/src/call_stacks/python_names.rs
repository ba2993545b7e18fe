//! Thread that finds function, file and line of the frames of stacks.

use std::{
    collections::{HashMap, HashSet},
    io,
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use cpython::{CodeObject, Instruction, Offsets, Walker};
use flow::{
    decode::{RecordView, StackEvent},
    schema::{FrameRow, StackId, StackRow},
};
use ncclflow_common::{RawFrame, STACK_COOKIE};

use super::{book::StackBook, native::NativeFeed};
use inspect::{
    process::{Process, printable},
    python::{Copied, Interpreter, guard_of, guard_places, is_alive, word},
};

/// Maximum number of stacks that wait to be named. Stacks beyond it have no frames.
const MAX_WAITING: usize = 4096;

/// Maximum number of code objects, and stacks, that are remembered.
const MAX_KNOWN: usize = 65_536;

/// Number of processes from which on those that have ended are dropped.
const MANY: usize = 256;

/// Name of a frame whose code was not read.
const NOT_KNOWN: &str = "?";

/// Interpreters of the processes that are traced, by the process number that records have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interpreters(Arc<Mutex<AllTraced>>);

#[derive(Debug, Default)]
struct AllTraced {
    next: u64,
    by_tgid: HashMap<u32, Arc<Traced>>,
}

#[derive(Debug)]
pub(crate) struct Traced {
    pub process: Process,
    /// The interpreter; `None` if the process runs no Python, or one that is not known.
    pub interpreter: Option<Interpreter>,
    /// Number of this process alone; another process can only have the same PID.
    pub number: u64,
}

impl Interpreters {
    fn with<T>(&self, work: impl FnOnce(&mut AllTraced) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a process. `tgid` is its number in the initial PID namespace.
    pub(crate) fn insert(&self, tgid: u32, process: Process, interpreter: Option<&Interpreter>) {
        self.with(|all| {
            if all.by_tgid.len() >= MANY {
                all.by_tgid.retain(|_, traced| !traced.process.has_exited());
            }
            let number = all.next;
            all.next += 1;
            all.by_tgid.insert(tgid, Arc::new(Traced { process, interpreter: interpreter.copied(), number }))
        });
    }

    fn get(&self, tgid: u32) -> Option<Arc<Traced>> {
        self.with(|all| all.by_tgid.get(&tgid).cloned())
    }
}

/// Input of the thread, for the one who takes records first: passes on stacks that are new.
#[derive(Clone, Debug)]
pub(crate) struct StackFeed {
    to_thread: SyncSender<StackEvent>,
    waiting: Arc<AtomicUsize>,
}

impl StackFeed {
    /// Passes on a stack's record; others are left alone.
    pub(crate) fn note(&self, record: &RecordView<'_>) {
        if u32::from(record.header.probe) != STACK_COOKIE {
            return;
        }
        // A record that is no valid stack is counted where it is decoded.
        let Ok(event) = StackEvent::of(record) else { return };
        if event.frames.is_none() {
            return;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if self.to_thread.try_send(event).is_err() {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Starts the thread, which ends when nobody can feed it any more. `native` adds native frames, if they are
/// wanted.
pub(crate) fn start(
    interpreters: Interpreters,
    book: StackBook,
    native: Option<NativeFeed>,
) -> io::Result<StackFeed> {
    let (to_thread, events) = sync_channel(MAX_WAITING);
    let waiting = Arc::clone(&book.waiting);
    thread::Builder::new()
        .name("ncclflow-stacks".to_owned())
        .spawn(move || name_stacks(&events, &interpreters, &book, native.as_ref()))?;
    Ok(StackFeed { to_thread, waiting })
}

fn name_stacks(
    events: &Receiver<StackEvent>,
    interpreters: &Interpreters,
    book: &StackBook,
    native: Option<&NativeFeed>,
) {
    let mut names = Names::default();
    for event in events {
        if let Some(facts) = names.facts(&event, interpreters) {
            let facts = match (native, interpreters.get(event.origin.tgid)) {
                (Some(native), Some(traced)) if event.is_native => match native.add(&event, facts, traced) {
                    // The stack waits on, until it has its native frames.
                    None => continue,
                    Some(facts) => facts,
                },
                _ => facts,
            };
            book.push(facts);
        }
        book.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A code object: process, address and guard, which told it from others at the time.
type CodeKey = (u64, u64, u64);

#[derive(Debug, Default)]
struct Names {
    /// Code objects; `None`: it was gone when it was looked for.
    codes: HashMap<CodeKey, Option<Rc<CodeObject>>>,
    named: HashSet<(u64, u64)>,
}

impl Names {
    /// Names a stack; `None`: it was named before, or its process is not traced.
    fn facts(&mut self, event: &StackEvent, interpreters: &Interpreters) -> Option<StackRow> {
        let traced = interpreters.get(event.origin.tgid)?;
        if self.named.len() >= MAX_KNOWN {
            self.named.clear();
        }
        if !self.named.insert((traced.number, event.id)) {
            return None;
        }
        let raw = event.frames.as_deref().unwrap_or_default();
        self.learn(&traced, raw);
        // Innermost first: its code is the most likely to be gone soon.
        let mut frames: Vec<FrameRow> = raw.iter().map(|frame| self.frame(&traced, frame)).collect();
        frames.reverse();
        let unknown = if event.has_no_thread {
            Some("no Python thread")
        } else if event.is_unreadable {
            Some("page not there")
        } else if frames.iter().any(|frame| frame.function == NOT_KNOWN) {
            Some("code gone")
        } else if event.is_not_copied {
            Some("native frames not copied")
        } else {
            None
        };
        Some(StackRow {
            pid: traced.process.pid(),
            stack: StackId(event.id),
            frames,
            cut: event.is_cut,
            unknown: unknown.map(str::to_owned),
            thread: None,
        })
    }

    fn frame(&self, traced: &Traced, frame: &RawFrame) -> FrameRow {
        let code = self.codes.get(&(traced.number, frame.code, frame.guard)).and_then(Option::as_ref);
        let Some((interpreter, code)) = traced.interpreter.as_ref().zip(code) else {
            return FrameRow { function: NOT_KNOWN.to_owned(), ..FrameRow::default() };
        };
        let offsets = &interpreter.python.offsets;
        let raw = match offsets.instruction() {
            Instruction::Pointer => frame.instr,
            // The number is an `int`.
            #[expect(clippy::cast_possible_truncation, reason = "it has 32 bits")]
            _ => i64::from((frame.instr as u32).cast_signed()).cast_unsigned(),
        };
        FrameRow {
            function: printable(code.qualname.as_deref().unwrap_or(&code.name)),
            file: Some(printable(&code.filename)),
            line: code.line(offsets.instruction_offset(frame.code, raw)),
            module: None,
        }
    }

    /// Reads the code objects of these frames that are not known. One counts if the object at the address now
    /// is the one that was there at the hit.
    fn learn(&mut self, traced: &Traced, frames: &[RawFrame]) {
        let Some(Interpreter { python, walk }) = &traced.interpreter else { return };
        if self.codes.len() >= MAX_KNOWN {
            self.codes.clear();
        }
        let unknown = |frame: &&RawFrame| !self.codes.contains_key(&(traced.number, frame.code, frame.guard));
        // Innermost first: its code is the most likely to be gone soon.
        let mut new: Vec<&RawFrame> = Vec::new();
        for frame in frames.iter().filter(unknown) {
            if !new.iter().any(|known| (known.code, known.guard) == (frame.code, frame.guard)) {
                new.push(frame);
            }
        }
        if new.is_empty() {
            return;
        }
        let copied = Copied::new(&traced.process);
        fetch_code_objects(&copied, &python.offsets, new.iter().map(|frame| frame.code));
        let mut walker = Walker::new(*python, &copied);
        let codes: Vec<_> = new.iter().map(|frame| walker.code_object(frame.code).ok()).collect();
        // The order matters. If the code of the hit was in use after it was read, it was until then. If other
        // code has taken its place before it was looked at, that shows now.
        let now = Copied::new(&traced.process);
        let places = new.iter().flat_map(|frame| guard_places(walk, frame.code));
        now.fetch(places);
        for (frame, code) in new.iter().zip(codes) {
            let code = code.filter(|_| {
                is_alive(&python.offsets, &now, frame.code)
                    && guard_of(walk, &now, frame.code) == Some(frame.guard)
            });
            self.codes.insert((traced.number, frame.code, frame.guard), code);
        }
    }
}

/// Copies code objects, and then the strings and tables that they point to.
fn fetch_code_objects(copied: &Copied<'_>, offsets: &Offsets, codes: impl Iterator<Item = u64> + Clone) {
    /// Bytes of a head, with all fields that are read of it.
    const HEAD: usize = 256;
    let of_code = &offsets.code;
    copied.fetch(codes.clone().map(|code| (code, HEAD)));
    let fields =
        [of_code.filename, of_code.name, of_code.qualname.unwrap_or(of_code.name), of_code.line_table];
    let pointers = codes.flat_map(|code| fields.map(|field| code.checked_add(u64::from(field))));
    let pointers: Vec<u64> = pointers.flatten().filter_map(|at| word(copied, at)).collect();
    copied.fetch(pointers.into_iter().filter(|at| *at != 0).map(|at| (at, 0)));
}
