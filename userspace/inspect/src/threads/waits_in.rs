//! Where a thread sleeps, as far as it is in code of some libraries.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    thread,
};

use super::{
    MAX_GUESSES, NAP, NAP_LOOKS, Stack,
    modules::Modules,
    names::NativeNames,
    task::{self, Position},
    unwind::{Frame, unwind},
};
use crate::{
    memory::Memory,
    process::{Process, maps::Mapping},
};

/// Maximum number of times that a thread's stack is read which was elsewhere afterwards.
const MAX_READINGS: usize = 4;

/// Returns the functions of the libraries with these names that a thread is in, innermost first. Empty: it does
/// not sleep, or sleeps elsewhere. One that sleeps again and again at one place counts as one that sleeps
/// there.
///
/// Symbol tables of frameworks are large. One is read only if a return address into its library stands on the
/// stack, and `names` keeps what was found.
pub fn waits_in(process: &Process, tid: u32, libraries: &[&str], names: &mut NativeNames) -> Vec<String> {
    let Some(position) = asleep(process, tid) else { return Vec::new() };
    let Ok(mut modules) = Modules::read(process) else { return Vec::new() };
    let is_named = |mapping: &&Mapping| {
        let name = mapping.path.file_name();
        mapping.inode != 0
            && name.is_some_and(|name| libraries.iter().any(|library| name == OsStr::new(library)))
    };
    let wanted: BTreeSet<u64> = modules.files().filter(is_named).map(|mapping| mapping.inode).collect();
    let code = modules.code_of(&wanted);
    if code.is_empty() {
        return Vec::new();
    }
    let is_code = |word: u64| code.iter().any(|(start, end)| (*start..*end).contains(&word));
    let Some(frames) = stack(process, tid, &mut modules, position, is_code) else { return Vec::new() };
    let memory = Memory::new(process);
    let mut places = Vec::new();
    let mut asked: BTreeMap<u64, (Mapping, Vec<u64>)> = BTreeMap::new();
    for frame in frames.iter().filter(|frame| is_code(frame.pc)) {
        let Some((mapping, address)) = modules.locate(memory, frame.lookup()) else { continue };
        let mapping = mapping.clone();
        asked.entry(mapping.inode).or_insert_with(|| (mapping.clone(), Vec::new())).1.push(address);
        places.push((mapping, address));
    }
    for (mapping, addresses) in asked.values() {
        names.learn(process, mapping, addresses, false);
    }
    places.iter().filter_map(|(mapping, address)| names.at(mapping, *address).map(str::to_owned)).collect()
}

/// Reads the stack of a thread that was asleep at this position; `None` if none of this code is on it,
/// or the thread is elsewhere afterwards, each time.
fn stack(
    process: &Process,
    tid: u32,
    modules: &mut Modules,
    mut position: (u64, u64),
    is_code: impl Fn(u64) -> bool,
) -> Option<Vec<Frame>> {
    let memory = Memory::new(process);
    for _ in 0..MAX_READINGS {
        let (stack_pointer, pc) = position;
        let stack = Stack::at(pc, stack_pointer);
        let may_be_inside = is_code(pc) || stack.words(memory, modules).any(&is_code);
        let frames = may_be_inside.then(|| unwind(memory, modules, &stack, MAX_GUESSES).0);
        let now = asleep(process, tid)?;
        if now == position {
            return frames;
        }
        position = now;
    }
    None
}

/// Looks at a thread until it sleeps; returns its stack pointer and program counter.
fn asleep(process: &Process, tid: u32) -> Option<(u64, u64)> {
    for _ in 0..NAP_LOOKS {
        match task::position_of(process, tid) {
            Position::Blocked { stack_pointer, pc } => return Some((stack_pointer, pc)),
            Position::Running => thread::sleep(NAP),
            Position::Unknown => return None,
        }
    }
    None
}
