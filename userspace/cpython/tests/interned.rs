//! The dictionary of interned strings of every CPython that is found, against the table of symbols where
//! there is one, and against what the program does.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{collections::BTreeMap, path::Path, process::Command};

use cpython::{Memory, Statics, Unreadable, Version, interned, shipped};
use nccl_library::elf::{Budget, Image, SymbolTable, TableKind};
use support::Subject;
use test_support::need_pythons;

/// Program that interns a string that is new, makes and drops dictionaries and strings that are not interned,
/// and drops the first.
const PROGRAM: &str = "
import sys
def stop(what):
    print(what, flush=True)
    sys.stdin.readline()
stop('begun')
stop('nothing')
for i in range(1000):
    kept = {str(i): [i] for i in range(100)}
stop('others')
new = sys.intern('a name that nobody has ' + str(len(sys.argv)))
stop('came')
del new
stop('went')
";

/// Returns the address of the variable's symbol, in a file that has all symbols.
fn by_symbol(image: &Image) -> Option<u64> {
    let table = SymbolTable::read(image, &mut Budget::new(256 << 20, 0)).unwrap()?;
    let mut named = table.objects().filter(|object| object.name == "interned");
    let found = named.next().filter(|_| table.kind() == TableKind::Full)?;
    assert!(named.next().is_none(), "two variables of this name");
    Some(found.address.0)
}

fn check(program: &Path, what: &str) -> bool {
    let mut subject = Subject::start(Command::new(program).args(["-I", "-c", PROGRAM]));
    let mut at = None;
    let mut versions = Vec::new();
    let mut has_symbol = false;
    while let Some(line) = subject.line() {
        let python = subject.python();
        let (statics, image, distance) = subject.statics();
        let found = interned(&python.offsets, &subject.memory, &statics);
        if python.offsets.version.since(3, 12) {
            assert_eq!(found, None, "{what}");
            return false;
        }
        let variable = found.unwrap_or_else(|| panic!("{what}: not found at `{}`", line.trim()));
        assert_eq!(*at.get_or_insert(variable), variable, "{what}");
        if let Some(symbol) = by_symbol(&image) {
            assert_eq!(variable, symbol.wrapping_add(distance), "{what}");
            has_symbol = true;
        }
        let word = |at: u64| {
            let mut bytes = [0; 8];
            subject.memory.read(at, &mut bytes).unwrap();
            u64::from_le_bytes(bytes)
        };
        versions.push(word(word(variable) + 24));
        subject.go_on();
    }
    let [begun, nothing, others, came, went] = versions[..] else { panic!("{what}: {versions:?}") };
    assert!(begun != 0 && begun == nothing && nothing == others, "{what}: {versions:?}");
    assert!(others != came && came != went && went != others, "{what}: {versions:?}");
    has_symbol
}

/// Memory that is made for a test: a dictionary of strings, the strings, and a variable that points to the
/// dictionary.
struct Made(BTreeMap<u64, Vec<u8>>);

impl Memory for Made {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let (start, bytes) = self.0.range(..=address).next_back().ok_or(Unreadable(address))?;
        let from = usize::try_from(address - start).unwrap();
        let found = from.checked_add(into.len()).and_then(|end| bytes.get(from..end));
        into.copy_from_slice(found.ok_or(Unreadable(address))?);
        Ok(())
    }
}

const DICT_TYPE: u64 = 0x50_0000;
const VARIABLES: u64 = 0x60_0000;
const DICT: u64 = 0x70_0000;
const KEYS: u64 = 0x71_0000;
const STRINGS: u64 = 0x80_0000;
const STRING_BYTES: u64 = 64;
const ENTRIES: u64 = 300;

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Made {
    /// Makes it as this version has it: the sixth variable points to the dictionary.
    fn of(minor: u8) -> Self {
        let dict = bytes_of(&[1, DICT_TYPE, ENTRIES, 77, KEYS, 0]);
        // 512 places for indices, of two bytes each.
        let mut keys = if minor < 11 {
            bytes_of(&[1, 512, 0xdead, 40, ENTRIES])
        } else {
            let mut keys = bytes_of(&[1, 0, 40, ENTRIES]);
            keys[8..11].copy_from_slice(&[9, 10, 1]);
            keys
        };
        keys.extend([0; 1024]);
        let mut strings = Vec::new();
        for entry in 0..ENTRIES {
            let string = STRINGS + entry * STRING_BYTES;
            // One in seven was deleted.
            let [key, value] = if entry % 7 == 3 { [0, 0] } else { [string, string] };
            let words = [entry, key, value];
            keys.extend(bytes_of(if minor < 11 { &words } else { &words[1..] }));
            strings.extend(bytes_of(&[1, 0x55_0000, 3, entry, 0xe5, 0, 0x41_4141, 0]));
        }
        let mut variables = vec![0; 4096];
        variables[40..48].copy_from_slice(&DICT.to_le_bytes());
        Self([(VARIABLES, variables), (DICT, dict), (KEYS, keys), (STRINGS, strings)].into())
    }

    fn put(&mut self, address: u64, value: u64) {
        let (start, bytes) = self.0.range_mut(..=address).next_back().unwrap();
        let from = usize::try_from(address - start).unwrap();
        bytes[from..from + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn found(&self, minor: u8) -> Option<u64> {
        let statics = Statics { dict_type: DICT_TYPE, zeroed: VARIABLES..VARIABLES + 4096 };
        interned(&shipped(Version::new(3, minor)).unwrap(), self, &statics)
    }
}

#[test]
fn what_is_not_beyond_doubt_is_not_taken() {
    for minor in [8, 9, 10, 11] {
        assert_eq!(Made::of(minor).found(minor), Some(VARIABLES + 40), "3.{minor}");
        assert_eq!(Made::of(minor).found(12), None);
        let entries = if minor < 11 { KEYS + 40 + 1024 + 8 } else { KEYS + 32 + 1024 };
        // Changes: of another type; small; without a version; with values elsewhere; keys that are nowhere,
        // or as large as the memory; a value that is not its key; a string that is not interned; the pointer
        // twice.
        let changes: [&[(u64, u64)]; 10] = [
            &[(DICT + 8, DICT_TYPE + 8)],
            &[(DICT + 16, 12)],
            &[(DICT + 24, 0)],
            &[(DICT + 40, KEYS)],
            &[(DICT + 32, 8)],
            &[(DICT + 32, u64::MAX - 7)],
            &[(KEYS + 8, u64::MAX)],
            &[(entries + 8, STRINGS + 64)],
            &[(STRINGS + 32, 0xe4)],
            &[(VARIABLES + 800, DICT)],
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut made = Made::of(minor);
            for (address, value) in *change {
                made.put(*address, *value);
            }
            assert_eq!(made.found(minor), None, "3.{minor}, change {number}");
        }
        // Two that are alike.
        let mut made = Made::of(minor);
        made.0.insert(DICT + 0x100, made.0[&DICT].clone());
        made.put(VARIABLES + 8, DICT + 0x100);
        assert_eq!(made.found(minor), None);
        let statics = |zeroed| Statics { dict_type: DICT_TYPE, zeroed };
        let offsets = shipped(Version::new(3, minor)).unwrap();
        #[expect(clippy::reversed_empty_ranges, reason = "what a file says can be anything")]
        let ranges = [0..0, 0..u64::MAX, u64::MAX - 3..u64::MAX, VARIABLES + 8..VARIABLES];
        for range in ranges {
            assert_eq!(interned(&offsets, &Made::of(minor), &statics(range)), None);
        }
    }
}

#[test]
fn the_dictionary_is_found_and_its_version_changes_with_it() {
    let Some(pythons) = need_pythons() else { return };
    let mut with_symbol = 0;
    for python in pythons {
        with_symbol += usize::from(check(&python.program, &python.release));
    }
    println!("{with_symbol} of them have the symbol");
}
