//! The short way through a walk, for the launch that most jobs make all day: see [`Short`].
//!
//! What it sends is what the walk would send, to the byte. Where anything is not as it should be it has sent
//! and counted nothing.

use core::mem::MaybeUninit;

use aya_ebpf::{helpers::generated::bpf_probe_read_user, programs::ProbeContext};

use crate::{
    common::{
        ARG_SLOTS, MAX_COPY, MAX_QUEUES, NODE_BYTES_AT, PACK_BYTES, PACKED_BYTES, RecordHeader, SHORT_COPIES,
        SHORT_HEADS, Seen, Short, ShortCopy, Walk,
    },
    emit::{self, Origin},
    fetch, maps,
    output::Entry,
    pack::{clear, pack_is_lost},
    state::Room,
    tally::Tally,
};

/// Nodes, and the probe's own record.
const RECORDS: usize = 3;
const OWN: usize = 2;

const HEADS: usize = SHORT_HEADS / 8;

/// Sends the records of the hit; 0 if the walk is to do it.
#[inline(never)]
pub fn record(ctx: &ProbeContext, cookie: u32, origin: Origin) -> u64 {
    let Some(walk) = maps::WALKS.get(cookie) else { return 0 };
    let short = &walk.short;
    let len = short.heads_len as u32;
    if len == 0 || len > SHORT_HEADS as u32 || !maps::armed() {
        return 0;
    }
    let mut room = MaybeUninit::uninit();
    let words = &mut fetch::entry::<HEADS>(ctx, &mut room).0;
    let from = [words[short.args[0] as usize % ARG_SLOTS], words[short.args[1] as usize % ARG_SLOTS]];
    // The arguments are taken: their room is that of the heads.
    if !read(words.as_mut_ptr().cast(), len, from[1] + short.heads_at as u64) {
        return 0;
    }
    // None that the loader gives is out of bounds.
    let head = |word: u8| words.get(word as usize).copied().unwrap_or(0);
    let nodes = [head(short.heads[0]), head(short.heads[1])];
    if nodes[0] == 0 || nodes[1] == 0 || head(short.empty[0]) != 0 || head(short.empty[1]) != 0 {
        return 0;
    }
    let Some(entry) = Entry::<PACK_BYTES>::reserve() else { return 0 };
    let pack = entry.room();
    clear(pack);
    if !fill(pack, short, nodes, from)
        || !say_nodes(pack, walk.nodes_at as usize)
        || !was_seen(pack, walk, cookie, from[0], origin)
    {
        entry.discard();
        return 0;
    }
    let mut header = emit::header_of(cookie, 0, 0, origin, 0);
    let numbers = [walk.queues[0].plan, walk.queues[1].plan, cookie];
    let mut i = 0;
    while i < RECORDS {
        let Some(tally) = Tally::of(numbers[i]) else {
            entry.discard();
            return 0;
        };
        (header.len, header.probe, header.hit) = (short.record_len[i], numbers[i] as u16, tally.hit());
        // SAFETY: the room of a record, 8-byte aligned.
        unsafe { pack.cast::<u8>().add(i * PACKED_BYTES).cast::<RecordHeader>().write(header) };
        i += 1;
    }
    entry.send(emit::context(ctx), pack_is_lost);
    1
}

#[inline(always)]
fn read(to: *mut u8, len: u32, from: u64) -> bool {
    // SAFETY: the callers have room for `len` bytes; the helper checks the address.
    unsafe { bpf_probe_read_user(to.cast(), len, from as *const _) >= 0 }
}

/// Byte `at` of a record of the pack, which has `len` bytes from there on; nothing for a place that the
/// loader never gives.
#[inline(always)]
fn place(pack: *mut Room<PACK_BYTES>, record: usize, at: usize, len: usize) -> Option<*mut u8> {
    if at < size_of::<RecordHeader>() || at > PACKED_BYTES - len {
        return None;
    }
    // SAFETY: within the record.
    Some(unsafe { pack.cast::<u8>().add(record * PACKED_BYTES).add(at & !7) })
}

/// Copies what is there into a record, and the address before it.
#[inline(always)]
fn copy(
    pack: *mut Room<PACK_BYTES>,
    record: usize,
    at: usize,
    emit: bool,
    from: u64,
    copy: &ShortCopy,
) -> bool {
    let len = copy.len as u32;
    if len > MAX_COPY as u32 {
        return false;
    }
    let Some(to) = place(pack, record, at, MAX_COPY) else { return false };
    if emit {
        // SAFETY: within the record: a header is before.
        unsafe { to.sub(8).cast::<u64>().write(from) };
    }
    read(to, len, from + copy.imm as u64)
}

/// Copies everything; says whether it could be read, and there is one node in each list.
#[inline(always)]
fn fill(pack: *mut Room<PACK_BYTES>, short: &Short, nodes: [u64; 2], from: [u64; 2]) -> bool {
    let mut i = 0;
    while i < nodes.len() {
        if !copy(pack, i, NODE_BYTES_AT, true, nodes[i], &short.nodes[i])
            || word(pack, i, NODE_BYTES_AT + short.next_at[i] as usize) != Some(0)
        {
            return false;
        }
        i += 1;
    }
    let mut i = 0;
    while i < SHORT_COPIES {
        let own = &short.own[i];
        let emit = short.own_emits & (1 << i) != 0;
        let address = if short.own_of_lists & (1 << i) != 0 { from[1] } else { from[0] };
        if own.len != 0 && !copy(pack, OWN, own.at as usize, emit, address, own) {
            return false;
        }
        i += 1;
    }
    true
}

/// Says in the probe's own record how many nodes there were.
#[inline(always)]
fn say_nodes(pack: *mut Room<PACK_BYTES>, at: usize) -> bool {
    let Some(nodes) = place(pack, OWN, at, 8 * MAX_QUEUES) else { return false };
    let mut i = 0;
    while i < MAX_QUEUES {
        // SAFETY: so many words are there.
        unsafe { nodes.cast::<u64>().add(i).write(if i < OWN { 1 } else { 0 }) };
        i += 1;
    }
    true
}

/// A word of a record that was copied.
#[inline(always)]
fn word(pack: *mut Room<PACK_BYTES>, record: usize, at: usize) -> Option<u64> {
    // SAFETY: 8 bytes are there, aligned.
    place(pack, record, at, 8).map(|word| unsafe { word.cast::<u64>().read() })
}

/// Whether the gate of the first node has nothing to let through.
#[inline(always)]
fn was_seen(pack: *mut Room<PACK_BYTES>, walk: &Walk, cookie: u32, table: u64, origin: Origin) -> bool {
    let short = &walk.short;
    let at = NODE_BYTES_AT + short.tag_at as usize;
    if at >= PACKED_BYTES {
        return false;
    }
    // SAFETY: within the record, and it was copied.
    let tag = unsafe { pack.cast::<u8>().add(at).read() } as u32;
    if tag < 16 && short.free_tags & (1 << tag) != 0 {
        return true;
    }
    let Some(hash) = word(pack, OWN, short.identity_at as usize) else { return false };
    let key = Seen {
        identity: [table, hash],
        tgid: (origin.pid_tgid >> 32) as u32,
        cookie,
        gate: walk.queues[0].first_gate as u32,
        tag,
        rows: 0,
        padding: 0,
    };
    maps::tries(&key) == 0
}
