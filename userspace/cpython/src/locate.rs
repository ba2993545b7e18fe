//! The search for `_PyRuntime` in a library or program, and for the version that the file states.
//!
//! `_PyRuntime` is an exported symbol of every build that extensions can be loaded into, stripped or not.
//! From 3.10 on it is also alone in the section `.PyRuntime` (Python/pylifecycle.c), which serves where
//! nothing is exported.

use nccl_library::elf::{Budget, ElfVaddr, Error, Image, SymbolTable};
use serde::{Deserialize, Serialize};

use crate::{COOKIE, Version};

const SECTION: &str = ".PyRuntime";
/// Bytes of a file that may be read for the search; a static interpreter has 1 MB of symbols.
const MAX_BYTES: u64 = 256 << 20;

/// `_PyRuntime` in a file, and other places that are looked at. Distances are bytes from the file's first
/// byte, as it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    pub distance: u64,
    /// Version that the file states: by `Py_Version` (3.11 and later), or by `_Py_DebugOffsets` (3.13 and
    /// later).
    pub version: Option<Version>,
    /// Distance of `PyDict_Type`, if it is exported.
    pub dict_type: Option<u64>,
    /// Distance of the variables that begin as zero, and their bytes.
    pub zeroed: Option<(u64, u64)>,
}

#[derive(Default)]
struct Symbols {
    runtime: Option<ElfVaddr>,
    version: Option<ElfVaddr>,
    dict_type: Option<ElfVaddr>,
}

impl Symbols {
    fn of(table: Option<&SymbolTable>) -> Self {
        let mut symbols = Self::default();
        for object in table.into_iter().flat_map(SymbolTable::objects) {
            match object.name {
                "_PyRuntime" => symbols.runtime = Some(object.address),
                "PyDict_Type" => symbols.dict_type = Some(object.address),
                "Py_Version" => symbols.version = Some(object.address),
                _ => {}
            }
        }
        symbols
    }
}

/// Finds `_PyRuntime`; `None` where the file has none that can be found.
pub fn runtime(image: &Image) -> Result<Option<Runtime>, Error> {
    let mut budget = Budget::new(MAX_BYTES, 0);
    // The exported symbols are fewer, and enough nearly always.
    let mut symbols = Symbols::of(SymbolTable::read_exported(image, &mut budget)?.as_ref());
    if symbols.runtime.is_none() {
        symbols = Symbols::of(SymbolTable::read(image, &mut budget)?.as_ref());
    }
    let by_section = || {
        let section = image.section(SECTION).filter(|section| section.address.0 != 0);
        section.map(|section| section.address)
    };
    let (Some(address), Some(base)) = (symbols.runtime.or_else(by_section), image.base()) else {
        return Ok(None);
    };
    let stated = stated_version(image, address, &mut budget);
    let version = stated.or_else(|| {
        let [hex] = words(image, symbols.version?, &mut budget)?;
        Version::from_hex(hex)
    });
    let distance = |address: ElfVaddr| address.0.wrapping_sub(base.0);
    Ok(Some(Runtime {
        distance: distance(address),
        version,
        dict_type: symbols.dict_type.map(distance),
        zeroed: image.zeroed().map(|(address, bytes)| (distance(address), bytes)),
    }))
}

/// Reads the version from `_Py_DebugOffsets`, which the file holds as they will be in memory.
fn stated_version(image: &Image, runtime: ElfVaddr, budget: &mut Budget) -> Option<Version> {
    let [cookie, hex, free_threaded] = words(image, runtime, budget)?;
    let version = Version::from_hex(hex).filter(|_| cookie.to_le_bytes() == COOKIE)?;
    Some(Version { free_threaded: free_threaded == 1, ..version })
}

fn words<const N: usize>(image: &Image, address: ElfVaddr, budget: &mut Budget) -> Option<[u64; N]> {
    let bytes = image.loaded_bytes(address, 8 * N as u64, budget).ok()?;
    let words = bytes.as_chunks::<8>().0.first_chunk::<N>()?;
    Some(words.map(u64::from_le_bytes))
}
