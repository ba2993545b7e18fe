//! A communicator made up in our own memory, found and read as if it were another process's.

use serde_json::{Value, json};

use super::*;
use inspect::process::Process;
use nccl_library::layouts::Layouts;

/// Words of the made-up `ncclComm`.
const WORDS: usize = 64;
const CHANNELS: usize = 20;
/// A struct within, of one word.
pub(crate) const CONFIG: usize = 16;
const END: usize = WORDS - 1;
/// Fields of the made-up struct, each a word of its own, in this order behind `startMagic`.
const FIELDS: [&str; 14] = [
    "commHash",
    "rank",
    "nRanks",
    "nChannels",
    "node",
    "nNodes",
    "localRank",
    "cudaDev",
    "proxyState",
    "sharedRes",
    "opCount",
    "collOpCount",
    "initState",
    "childAbortFlag",
];

/// Results of a set-up: src/nccl.h.in.
const RESULTS: [(&str, i64); 3] = [("ncclSuccess", 0), ("ncclInternalError", 3), ("ncclInProgress", 7)];

pub(crate) fn index(name: &str) -> usize {
    1 + FIELDS.iter().position(|field| *field == name).unwrap()
}

fn member(name: &str, word: usize, words: usize, inner: Option<&str>, elements: Option<usize>) -> Value {
    let mut member = json!({ "name": name, "offset": 8 * word, "size": 8 * words, "type_name": "" });
    if let Some(count) = elements {
        member["array"] = json!({ "count": count, "elem_size": 8 * words / count, "dims": [count] });
    }
    if let Some(inner) = inner {
        member["inner"] = json!(inner);
    }
    member
}

pub(crate) fn layout() -> CommLayout {
    layout_with(&[("startMagic", 0), ("endMagic", END)])
}

/// Words that are found and, before 2.21, the pointers that are found instead.
fn layout_with(marks: &[(&str, usize)]) -> CommLayout {
    let plain = |name: &str, word: usize| member(name, word, 1, None, None);
    let mut comm: Vec<Value> = marks.iter().map(|(name, word)| plain(name, *word)).collect();
    comm.extend(FIELDS.iter().map(|name| plain(name, index(name))));
    comm.push(member("config", CONFIG, 1, Some("ncclConfig_t"), None));
    comm.push(member("channels", CHANNELS, 16, Some("ncclChannel"), Some(4)));
    let channel = [plain("peers", 0), member("ring", 1, 3, Some("ncclRing"), None)];
    let ring = [plain("prev", 0), plain("next", 1), plain("userRanks", 2)];
    let layouts = json!({
        "structs": {
            "ncclComm": { "size": 8 * WORDS, "members": comm },
            "ncclChannel": { "size": 32, "members": channel },
            "ncclConfig_t": { "size": 8, "members": [plain("splitShare", 0)] },
            "ncclRing": { "size": 24, "members": ring },
        },
        "enums": { "ncclResult_t": { "size": 4, "values": RESULTS } },
    });
    let layouts: Layouts = serde_json::from_value(layouts).unwrap();
    CommLayout::new(&layouts, None).unwrap()
}

/// Rank 1 of 3, one channel: 0 → 1 → 2.
pub(crate) struct Made {
    pub(crate) words: Vec<u64>,
    pub(crate) user_ranks: Box<[i32; 3]>,
}

pub(crate) fn made() -> Made {
    let user_ranks = Box::new([1, 2, 0]);
    let mut words = vec![0; WORDS];
    (words[0], words[END]) = (MAGIC, MAGIC);
    let values = [0xabcd, 1, 3, 1, 0, 1, 1, 5, 0, 0, 77, 9];
    words[1..13].copy_from_slice(&values);
    words[CHANNELS + 1..CHANNELS + 4].copy_from_slice(&[0, 2, user_ranks.as_ptr() as u64]);
    Made { words, user_ranks }
}

fn read_it(made: &Made) -> Result<Communicator, Rejection> {
    let process = Process::open(std::process::id()).unwrap();
    let space = AddressSpace::read(&process).unwrap();
    read(Memory::new(&process), &layout(), &space, made.words.as_ptr() as u64)
}

#[test]
fn a_communicator_is_read() {
    let comm = read_it(&made()).unwrap().report;
    assert_eq!(comm.comm_hash, "0x000000000000abcd");
    assert_eq!((comm.rank, comm.n_ranks, comm.cuda_dev), (1, 3, 5));
    assert_eq!((comm.counters.op_count, comm.counters.coll_op_count), (Some(77), Some(9)));
    assert_eq!((comm.channels[0].ring_prev, comm.channels[0].ring_next), (0, 2));
}

#[test]
fn what_contradicts_itself_is_no_communicator() {
    let wrong: [(usize, u64); 10] = [
        (0, 1),
        (END, MAGIC + 1),
        (index("rank"), 3),
        (index("nRanks"), 0),
        (index("nChannels"), 5),
        (index("nNodes"), 4),
        (index("localRank"), 3),
        (index("proxyState"), 0x10),
        (CHANNELS + 2, 3),
        (CHANNELS + 3, 0x10),
    ];
    for (word, value) in wrong {
        let mut made = made();
        made.words[word] = value;
        assert!(read_it(&made).is_err(), "word {word}");
    }
    // The ring must be the one that userRanks has.
    let mut made = made();
    made.words[CHANNELS + 1] = 1;
    assert!(read_it(&made).is_err());
}

#[test]
fn a_name_has_nothing_that_a_terminal_obeys() {
    let process = Process::open(std::process::id()).unwrap();
    let name = "dp\u{202e}\u{1b}x\0";
    let read = text(Memory::new(&process), name.as_ptr() as u64);
    assert_eq!(read.as_deref(), Some("dp\u{fffd}\u{fffd}x"));
}

#[test]
fn a_scan_finds_the_communicator_and_none_of_the_decoys() {
    let mut decoys = vec![MAGIC; 4096];
    decoys[7] = 1;
    let made = made();
    let process = Process::open(std::process::id()).unwrap();
    let space = AddressSpace::read(&process).unwrap();
    let (found, report) =
        find(Memory::new(&process), &layout(), &space, ScanLimits::default(), false, &mut |_| {}).unwrap();
    // Other tests of this process make communicators too.
    assert!(found.iter().any(|comm| comm.report.address == made.words.as_ptr() as u64));
    let decoys = decoys.as_ptr_range();
    assert!(
        !found.iter().any(|comm| (decoys.start as u64..decoys.end as u64).contains(&comm.report.address))
    );
    assert!(report.complete && report.scanned_bytes > 0, "{report:?}");
}

#[test]
fn before_the_marks_communicators_are_found_by_the_pointer_to_themselves_and_by_their_list() {
    const OWN: usize = 60;
    const NEXT: usize = 61;
    let (mut first, mut second) = (made(), made());
    (first.words[0], second.words[0]) = (0, 0);
    let (own, next) = (first.words.as_ptr() as u64, second.words.as_ptr() as u64);
    (first.words[OWN], first.words[NEXT]) = (own, next);
    // The second one points to the first of its process, not to itself.
    second.words[OWN] = own;
    let process = Process::open(std::process::id()).unwrap();
    let space = AddressSpace::read(&process).unwrap();
    let layout = layout_with(&[("intraComm0", OWN), ("intraNext", NEXT)]);
    let (found, _) =
        find(Memory::new(&process), &layout, &space, ScanLimits::default(), false, &mut |_| {}).unwrap();
    let addresses: Vec<u64> = found.iter().map(|comm| comm.report.address).collect();
    assert!(addresses.contains(&own) && addresses.contains(&next), "{addresses:x?}");
}
