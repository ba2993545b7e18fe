//! The search for functions of a library without symbols.
//!
//! It looks for the name that a function holds of itself in `.rodata`, for the instructions that refer to the
//! name in `.text`, and for the function that these are in, in `.eh_frame`. If that does not give one answer,
//! there is none.

mod code;
mod frames;
mod hooks;
mod known;

use std::collections::{BTreeMap, BTreeSet};

use self::code::Code;
use self::frames::{Frame, Frames};
use self::known::{KNOWN, Known};
use super::FoundBy;
use crate::elf::{Budget, ElfVaddr, Error, Image, Section};
use crate::nccl::NcclVersion;

/// Largest `.rodata` that is searched; official libraries have at most 0.5 MB.
const MAX_STRINGS: u64 = 64 << 20;
/// Most references to the names that are looked for; more mean that the file plays tricks.
const MAX_REFERENCES: usize = 1 << 16;
/// Longest function that is searched for a call.
const MAX_FUNCTION: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundFunction {
    pub(super) address: ElfVaddr,
    pub(super) found_by: FoundBy,
    /// Bytes, without a `.cold` part.
    pub(super) size: u64,
}

/// Answer of the search for each name: the copies, by address, or why there are none.
pub(super) type Search = BTreeMap<&'static str, Result<Vec<FoundFunction>, &'static str>>;

/// Looks for all functions that can be told by their names. `named` are the entries of functions that have a
/// symbol, with their names: under another name, they can only be callers.
pub(super) fn search(
    image: &Image,
    version: Option<NcclVersion>,
    named: &BTreeMap<u64, &str>,
    budget: &mut Budget,
) -> Result<Search, Error> {
    let Some(mut reader) = Code::of(image.machine()) else {
        return Ok(none_of("functions without symbols are not looked for in code of this processor"));
    };
    let (Some(text), Some(strings)) = (image.section(".text"), image.section(".rodata")) else {
        return Ok(none_of("the library has no `.text` or no `.rodata`"));
    };
    let mut names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
    names.extend(KNOWN.iter().flat_map(|known| known.callers));
    names.sort_unstable();
    names.dedup();
    let data = image.section_data(strings, MAX_STRINGS, budget)?;
    let found: BTreeMap<u64, usize> =
        code::find_names(strings.address.0, &data, &names).into_iter().collect();
    if found.is_empty() {
        return Ok(none_of("no code refers to its name"));
    }
    let mut references: BTreeSet<(u64, usize)> = BTreeSet::new();
    code::for_each_chunk(image, text, budget, |address, bytes| {
        reader.address_loads(address, bytes, |from, target| {
            if let Some(name) = found.get(&target)
                && references.len() < MAX_REFERENCES
            {
                references.insert((from, *name));
            }
        });
    })?;
    let frames = Frames::read(image, budget)?;
    let mut holders: BTreeMap<&str, BTreeSet<Frame>> = BTreeMap::new();
    for (from, name) in references {
        if let (Some(frame), Some(name)) = (frames.at(from), names.get(name)) {
            holders.entry(name).or_default().insert(frame);
        }
    }
    let parts = Parts::of(holders.values().flatten().copied().collect(), image, text, &frames, budget)?;
    let mut answer: Search =
        KNOWN.iter().map(|known| (known.name, decide(known, &holders, &parts, named))).collect();
    check_callers(image, &mut answer, budget)?;
    hooks::add(&mut answer, image, version, &frames, budget);
    Ok(answer)
}

fn none_of(why: &'static str) -> Search {
    KNOWN.iter().map(|known| (known.name, Err(why))).collect()
}

/// Division of frames into functions and parts of functions.
#[derive(Debug, Default)]
struct Parts {
    functions: BTreeSet<Frame>,
    /// The function that jumps into a part, if there is exactly one.
    owners: BTreeMap<Frame, Frame>,
}

impl Parts {
    /// Divides the frames. A function is called or has its address taken, and begins with the frame that a
    /// call leaves. If no code does either, and none jumps into it, its address stands in a table (up to 2.18
    /// the transports' functions). Everything else is a part that the compiler put elsewhere, and is entered
    /// by jumps.
    fn of(
        wanted: BTreeSet<Frame>,
        image: &Image,
        text: &Section,
        frames: &Frames,
        budget: &mut Budget,
    ) -> Result<Self, Error> {
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return Ok(Self::default()) };
        let span = first.start..last.end;
        let starts: BTreeSet<u64> = wanted.iter().map(|frame| frame.start).collect();
        let mut entered: BTreeSet<u64> = BTreeSet::new();
        let mut jumpers: BTreeMap<Frame, BTreeSet<Frame>> = BTreeMap::new();
        let Some(mut reader) = Code::of(image.machine()) else { return Ok(Self::default()) };
        code::for_each_chunk(image, text, budget, |address, bytes| {
            let mut enter = |target| {
                if starts.contains(&target) {
                    entered.insert(target);
                }
            };
            reader.address_loads(address, bytes, |_, target| enter(target));
            reader.calls(address, bytes, &mut enter);
            reader.jumps(address, bytes, |from, target| {
                if span.contains(&target)
                    && let Some(part) = frames.at(target).filter(|part| wanted.contains(part))
                    && let Some(source) = frames.at(from).filter(|source| *source != part)
                {
                    let sources = jumpers.entry(part).or_default();
                    if source.is_entry {
                        sources.insert(source);
                    }
                }
            });
        })?;
        let is_function = |frame: &Frame| {
            frame.is_entry && (entered.contains(&frame.start) || !jumpers.contains_key(frame))
        };
        let (functions, parts): (BTreeSet<Frame>, BTreeSet<Frame>) =
            wanted.into_iter().partition(is_function);
        jumpers.retain(|part, sources| parts.contains(part) && sources.len() == 1);
        let owners = jumpers.iter().filter_map(|(part, sources)| Some((*part, *sources.first()?)));
        Ok(Self { owners: owners.collect(), functions })
    }

    fn function_of(&self, frame: &Frame) -> Option<Frame> {
        if self.functions.contains(frame) { Some(*frame) } else { self.owners.get(frame).copied() }
    }
}

fn decide(
    known: &Known,
    holders: &BTreeMap<&str, BTreeSet<Frame>>,
    parts: &Parts,
    named: &BTreeMap<u64, &str>,
) -> Result<Vec<FoundFunction>, &'static str> {
    let of = |name: &str| -> Result<BTreeSet<Frame>, &'static str> {
        let whole = |frame| parts.function_of(frame).ok_or("code of an unknown function refers to its name");
        holders.get(name).into_iter().flatten().map(whole).collect()
    };
    let mut candidates = of(known.name)?;
    if candidates.is_empty() {
        return Err("no code refers to its name");
    }
    for caller in known.callers {
        // Code that cannot be attributed to a caller is no reason to doubt the function.
        for frame in of(caller).unwrap_or_default() {
            candidates.remove(&frame);
        }
    }
    candidates.retain(|frame| named.get(&frame.start).is_none_or(|name| *name == known.name));
    match candidates.len() {
        0 => Err("it was inlined into its callers"),
        copies if copies > known.copies => Err("several functions refer to its name"),
        _ => {
            let found = candidates.iter().map(|frame| frame.function(FoundBy::OwnName));
            Ok(found.collect())
        }
    }
}

/// Drops a function whose only possible caller is not seen to call it.
fn check_callers(image: &Image, answer: &mut Search, budget: &mut Budget) -> Result<(), Error> {
    for known in KNOWN {
        let Some(caller) = known.called_by else { continue };
        let first = |name: &str| answer.get(name).and_then(|found| found.as_ref().ok()?.first()).copied();
        let Some(callee) = first(known.name) else { continue };
        let calls = match first(caller) {
            Some(caller) => {
                let size = caller.size.min(MAX_FUNCTION);
                let bytes = image.loaded_bytes(caller.address, size, budget)?;
                let mut found = false;
                if let Some(reader) = Code::of(image.machine()) {
                    reader.calls(caller.address.0, &bytes, |target| found |= target == callee.address.0);
                }
                found
            }
            None => false,
        };
        if !calls {
            answer.insert(known.name, Err("what refers to its name is not called by its caller"));
        }
    }
    Ok(())
}
