//! Forged memory: a real interpreter's, with lists that are circles, huge lengths and wild pointers. It ends
//! in "unknown", after bounded work.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    process::Command,
};

use cpython::{MAX_FRAMES, Memory, Python, StackEnd, ThreadState, Unknown, Unreadable, Walker};
use support::Subject;
use test_support::{damage::Random, need_pythons};

/// Program with two threads, a generator, and names that are not ASCII.
const PROGRAM: &str = "
import os, threading
def wait(number):
    threading.Event().wait() if number else (os.write(1, b'\\n'), os.read(0, 1))
threading.Thread(target=lambda: wait(1), daemon=True).start()
def größe():
    yield wait(0)
def 世界(): [None for _ in größe()]
世界()
";

/// Memory that was read of a real interpreter, and changed. It counts what is read of it.
#[derive(Default)]
struct Forged {
    pieces: BTreeMap<u64, Vec<u8>>,
    reads: Cell<u64>,
}

impl Memory for Forged {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.reads.set(self.reads.get() + 1);
        let mut filled = 0;
        while filled < into.len() {
            let at = address.checked_add(filled as u64).ok_or(Unreadable(address))?;
            let (start, bytes) = self.pieces.range(..=at).next_back().ok_or(Unreadable(at))?;
            let found = usize::try_from(at - start).ok().and_then(|from| bytes.get(from..));
            let found = found.filter(|found| !found.is_empty()).ok_or(Unreadable(at))?;
            let length = found.len().min(into.len() - filled);
            into[filled..filled + length].copy_from_slice(&found[..length]);
            filled += length;
        }
        Ok(())
    }
}

impl Forged {
    /// Writes bytes over what is there; they must be within one piece.
    fn put(&mut self, address: u64, bytes: &[u8]) {
        let (start, piece) = self.pieces.range_mut(..=address).next_back().unwrap();
        let from = usize::try_from(address - start).unwrap();
        piece[from..from + bytes.len()].copy_from_slice(bytes);
    }

    fn word(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }
}

/// Keeps what is read, without overlaps.
struct Keeping<'m>(&'m dyn Memory, RefCell<BTreeMap<u64, u8>>);

impl Memory for Keeping<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.0.read(address, into)?;
        self.1.borrow_mut().extend((address..).zip(into.iter().copied()));
        Ok(())
    }
}

/// Takes everything that a walk reads of a real interpreter.
fn snapshot(subject: &Subject) -> (Python, Forged) {
    let (runtime, version, _) = subject.runtime();
    let keeping = Keeping(&subject.memory, RefCell::default());
    let python = Python::at(&keeping, runtime, version).unwrap();
    assert!(walk(python, &keeping).unwrap() >= 6);
    let mut forged = Forged::default();
    let mut end = None;
    for (address, byte) in keeping.1.into_inner() {
        match forged.pieces.last_entry() {
            Some(mut last) if end == Some(address) => last.get_mut().push(byte),
            _ => _ = forged.pieces.insert(address, vec![byte]),
        }
        end = Some(address + 1);
    }
    (python, forged)
}

/// Walks everything. Returns the number of frames that got names.
fn walk(python: Python, memory: &dyn Memory) -> Result<usize, Unknown> {
    let mut walker = Walker::new(python, memory);
    let mut named = 0;
    for thread in walker.threads()? {
        let stack = walker.stack(thread);
        assert!(stack.frames.len() <= MAX_FRAMES);
        named += stack.frames.iter().filter(|frame| walker.frame(**frame).is_ok()).count();
    }
    Ok(named)
}

/// Gives the check a real interpreter of the oldest and of the newest version, and the thread with the
/// generator.
fn for_each(check: impl Fn(Python, Forged, ThreadState)) {
    let Some(pythons) = need_pythons() else { return };
    for python in [&pythons[0], &pythons[pythons.len() - 1]] {
        println!("{}", python.release);
        let mut command = Command::new(&python.program);
        let mut subject = Subject::start(command.args(["-I", "-X", "utf8", "-c", PROGRAM]));
        subject.line().unwrap();
        let (python, forged) = snapshot(&subject);
        let walker = Walker::new(python, &forged);
        let main = subject.thread(&walker.threads().unwrap(), subject.pid());
        check(python, forged, main);
    }
}

#[test]
fn circles_end() {
    for_each(|python, mut forged, main| {
        let offsets = python.offsets;
        let at = |base: u64, offset: u32| base + u64::from(offset);
        let stack = Walker::new(python, &forged).stack(main);
        assert_eq!(stack.end, StackEnd::Outermost);

        // The outermost frame's predecessor is the innermost.
        let frame_of = |forged: &Forged| {
            let first = forged.word(at(main.address, offsets.thread.frame));
            offsets.frame.in_c_frame.map_or(first, |current_frame| forged.word(at(first, current_frame)))
        };
        let innermost = frame_of(&forged);
        let mut outermost = innermost;
        while forged.word(at(outermost, offsets.frame.previous)) != 0 {
            outermost = forged.word(at(outermost, offsets.frame.previous));
        }
        forged.put(at(outermost, offsets.frame.previous), &innermost.to_le_bytes());
        let stack = Walker::new(python, &forged).stack(main);
        assert_eq!((stack.frames.len(), stack.end), (MAX_FRAMES, StackEnd::Limit));
        forged.put(at(outermost, offsets.frame.previous), &[0; 8]);

        // A thread that follows itself, and an interpreter.
        let next = forged.word(at(main.address, offsets.thread.next));
        forged.put(at(main.address, offsets.thread.next), &main.address.to_le_bytes());
        assert!(matches!(Walker::new(python, &forged).threads(), Err(Unknown::TooMuch(_))));
        forged.put(at(main.address, offsets.thread.next), &next.to_le_bytes());
        let interpreter = forged.word(at(python.runtime, offsets.runtime.interpreters_head));
        forged.put(at(interpreter, offsets.interpreter.next), &interpreter.to_le_bytes());
        assert!(matches!(Walker::new(python, &forged).threads(), Err(Unknown::TooMuch(_))));
        forged.put(at(interpreter, offsets.interpreter.next), &[0; 8]);
        assert!(walk(python, &forged).unwrap() >= 6, "everything was put back");
    });
}

#[test]
fn lengths_and_pointers_that_cannot_be_are_not_followed() {
    for_each(|python, mut forged, main| {
        let offsets = python.offsets;
        let at = |base: u64, offset: u32| base + u64::from(offset);
        let code = Walker::new(python, &forged).stack(main).frames[0].code;
        let name = forged.word(at(code, offsets.code.name));
        let table = forged.word(at(code, offsets.code.line_table));
        let kind = at(code, offsets.object.kind);
        let lengths = [at(name, offsets.text.length), at(table, offsets.bytes.length)];
        for length in lengths {
            let old = forged.word(length);
            for wrong in [u64::MAX, 1 << 63, 1 << 40, (1 << 20) + 1] {
                forged.put(length, &wrong.to_le_bytes());
                let found = Walker::new(python, &forged).code_object(code);
                assert!(matches!(found, Err(Unknown::TooMuch(_))), "{wrong}: {found:?}");
            }
            forged.put(length, &old.to_le_bytes());
        }
        let pointers = [at(code, offsets.code.name), at(code, offsets.code.filename), kind];
        for pointer in pointers {
            let old = forged.word(pointer);
            for wrong in [0, 1, 8, u64::MAX, u64::MAX - 7, 0xffff_8000_0000_0000, main.address] {
                forged.put(pointer, &wrong.to_le_bytes());
                assert!(Walker::new(python, &forged).code_object(code).is_err(), "{wrong:#x}");
            }
            forged.put(pointer, &old.to_le_bytes());
        }
        // The thread of another interpreter.
        let interpreter = at(main.address, offsets.thread.interpreter);
        forged.put(interpreter, &main.address.to_le_bytes());
        assert!(matches!(Walker::new(python, &forged).threads(), Err(Unknown::Contradiction(_))));
    });
}

/// Changes something at random 20,000 times; mostly pointers, to somewhere else that is there.
#[test]
fn whatever_is_forged_the_work_is_bounded() {
    for_each(|python, forged, _| {
        let addresses: Vec<u64> = forged.pieces.keys().copied().collect();
        let mut random = Random(0x1d87_2b41_93c5_6e0f);
        let (mut most, mut unknown) = (0, 0);
        for _ in 0..10_000 {
            let mut changed = Forged { pieces: forged.pieces.clone(), reads: Cell::new(0) };
            for _ in 0..=random.below(4) {
                let address = addresses[random.below(addresses.len())];
                let length = changed.pieces[&address].len();
                if length < 8 {
                    continue;
                }
                let place = address + random.below(length / 8) as u64 * 8;
                let value = match random.below(4) {
                    0 => random.number(),
                    1 => [0, u64::MAX, 1 << 31, 1 << 12][random.below(4)],
                    _ => addresses[random.below(addresses.len())] + 8 * random.below(8) as u64,
                };
                changed.put(place, &value.to_le_bytes());
            }
            // What the interpreter says of its own layouts may have changed, too.
            match Python::at(&changed, python.runtime, Some(python.offsets.version)) {
                Ok(python) => unknown += u32::from(walk(python, &changed).is_err()),
                Err(_) => unknown += 1,
            }
            most = most.max(changed.reads.get());
        }
        println!("at most {most} reads; {unknown} times nothing was known");
        assert!(most <= 200_010, "{most}");
        assert!(unknown > 100, "{unknown}");
    });
}
