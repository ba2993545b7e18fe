//! What a dump does with memory that somebody has made up.
//!
//! An input is the library (1 byte, out of those whose layouts are shipped), and pieces of an arena: offset (4 bytes), length
//! (2), and as many bytes. The arena is memory of this process, always at the same address, so that pointers in it lead
//! somewhere. Before the pieces are written, it holds what should be a communicator with two ranks.

use std::sync::{LazyLock, Mutex, PoisonError};

use dump;
use inspect::process::{Process, maps::Mapping};
use nccl_library::{
    elf::{FileOffset, RuntimeAddr},
    fields::{FieldRef, channel, comm},
    layouts::Layouts,
    nccl::NcclVersion,
    symbols::shipped::Table,
};

const AT: u64 = 0x1000_0000_0000;
const BYTES: usize = 16 << 20;
/// `NCCL_MAGIC`, src/include/comm.h.
const MAGIC: u64 = 0x0280_0280_0280_0280;

/// Layouts of NCCL, of each era one.
static LAYOUTS: LazyLock<Vec<(NcclVersion, Layouts)>> = LazyLock::new(|| {
    let Ok(table) = Table::shipped() else { return Vec::new() };
    let mut all: Vec<(NcclVersion, Layouts)> = Vec::new();
    for library in table.libraries() {
        let is_new = all.iter().all(|(known, _)| *known != library.nccl);
        if is_new && let Ok(layouts) = table.layouts(library) {
            all.push((library.nccl, layouts));
        }
    }
    all
});

static ARENA: LazyLock<Option<Mutex<&'static mut [u8]>>> = LazyLock::new(|| {
    // SAFETY: a new mapping, which nobody else knows of and which is never unmapped. The address is one that nothing else has
    // (MAP_FIXED_NOREPLACE).
    let arena = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let at = std::ptr::without_provenance_mut(AT as usize);
        libc::mmap(at, BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    // SAFETY: as above; it is as long as this.
    (arena as u64 == AT).then(|| Mutex::new(unsafe { std::slice::from_raw_parts_mut(arena.cast(), BYTES) }))
});

/// The first byte of an input chooses one of so many.
pub fn libraries() -> usize {
    LAYOUTS.len()
}

/// Whether the made communicator is one for this library: those that have no magic words are known by other signs, which it
/// does not have.
pub fn has_magics(library: usize) -> bool {
    LAYOUTS.get(library).is_some_and(|(_, layouts)| comm::END_MAGIC.find_int(layouts).is_some())
}

/// Finds communicators, reads them twice, judges and renders. That there are none is fine.
///
/// # Panics
/// If it takes too long.
pub fn use_memory(input: &[u8]) {
    let _found = dump_of(input);
}

/// Ranks that were found.
///
/// # Panics
/// As [`use_memory`].
pub fn dump_of(input: &[u8]) -> usize {
    let (Some((first, mut rest)), Some(arena)) = (input.split_first(), &*ARENA) else { return 0 };
    let library = usize::from(*first) % LAYOUTS.len().max(1);
    let Some((version, layouts)) = LAYOUTS.get(library) else { return 0 };
    let made = communicator(layouts);
    let mut arena = arena.lock().unwrap_or_else(PoisonError::into_inner);
    let mut written: Vec<(usize, usize)> = Vec::new();
    let mut write = |offset: usize, bytes: &[u8]| {
        let bytes = &bytes[..bytes.len().min(BYTES - offset)];
        arena[offset..offset + bytes.len()].copy_from_slice(bytes);
        written.push((offset, bytes.len()));
    };
    for (offset, value, size) in made {
        write(offset % BYTES, &value.to_le_bytes()[..size.min(8)]);
    }
    while let Some((head, tail)) = rest.split_first_chunk::<6>() {
        let offset = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize % BYTES;
        let (piece, tail) =
            tail.split_at(usize::from(u16::from_le_bytes([head[4], head[5]])).min(tail.len()));
        write(offset, piece);
        rest = tail;
    }
    let mapping = Mapping {
        start: RuntimeAddr(AT),
        end: RuntimeAddr(AT + BYTES as u64),
        permissions: *b"rw-p",
        file_offset: FileOffset(0),
        device: (0, 0),
        inode: 0,
        path: "[heap]".into(),
        deleted: false,
    };
    let mut ranks = 0;
    super::in_time(input.len(), || {
        let Ok(process) = Process::open(std::process::id()) else { return };
        let report = dump::dump_of_forged_memory(process, layouts, *version, &[mapping]);
        if let Ok(report) = report {
            ranks = report.communicators.iter().map(|communicator| communicator.ranks.len()).sum();
            let _text = dump::render(&report, true, 60);
        }
    });
    for (offset, length) in written {
        arena[offset..offset + length].fill(0);
    }
    ranks
}

/// Two ranks of a communicator: where in the arena, values, and their sizes.
fn communicator(layouts: &Layouts) -> Vec<(usize, u64, usize)> {
    let mut made = Vec::new();
    for rank in 0..2_u64 {
        let base = 0x1000 + rank * 0x40_0000;
        let mut write = |field: &FieldRef, value: u64| {
            if let Some(field) = field.find_int(layouts) {
                made.push(((base + field.offset()) as usize, value, field.size()));
            }
        };
        for (field, value) in [
            (&comm::START_MAGIC, MAGIC),
            (&comm::END_MAGIC, MAGIC),
            (&comm::INTRA_COMM_0, AT + base),
            (&comm::HASH, 0x1234),
            (&comm::RANK, rank),
            (&comm::N_RANKS, 2),
            (&comm::NODE, 0),
            (&comm::N_NODES, 1),
            (&comm::LOCAL_RANK, rank),
            (&comm::CUDA_DEV, rank),
            (&comm::N_CHANNELS, 1),
            // Memory of the arena with nothing in it yet.
            (&comm::PROXY_STATE, AT + 0xf0_0000),
            (&comm::SHARED_RESOURCES, AT + 0xf1_0000),
        ] {
            write(field, value);
        }
        let Ok(channels) = comm::CHANNELS.array(layouts) else { continue };
        let along = 0xe0_0000 + rank * 64;
        for (field, value) in [
            (&channel::RING_PREV, 1 - rank),
            (&channel::RING_NEXT, 1 - rank),
            (&channel::RING_USER_RANKS, AT + along),
        ] {
            if let Some(field) = field.find_int(layouts) {
                made.push(((base + channels.offset + field.offset()) as usize, value, field.size()));
            }
        }
        made.push((along as usize, (1 - rank) << 32 | rank, 8));
    }
    made
}
