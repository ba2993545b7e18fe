//! Walks lists in the target's memory at one hit, and sends a record for each node; last the probe's own.
//!
//! Most launches have a task, its device work and nothing else, and what a launch costs here is felt by the
//! job. So records are sent together, in *packs*, and what the walk needs of a node it takes from the node's
//! record.
//!
//! A pack is a global function, which the verifier sees once, so its work does not grow with the lists. All
//! frames of a call may have 512 bytes together, so the walk's state is small and nothing is nested that can
//! follow.

use core::mem::MaybeUninit;

use aya_ebpf::{helpers::generated::bpf_probe_read_user, programs::ProbeContext};

use crate::{
    common::{
        CUT, MAX_GATES, MAX_NODES, MAX_QUEUES, NODE_BYTES_AT, ONE_NODE, PACK_BYTES, PACKED, PACKED_BYTES,
        PART_SLOTS, Queue, SLOTS,
    },
    emit::{self, Origin, send_part},
    fetch::{self, Words},
    gates::{open_gate, send_row},
    maps,
    output::{Entry, bpf_user_pt_regs_t},
    pack::{clear, number_all, pack_is_lost, place_of},
    scratch, short,
    state::{Room, State},
    tally::Tally,
};

/// Packs of one walk. More are not sent for one hit, and the lists count as cut.
const BLOCK: u32 = 128;
const BLOCKS: u32 = 64;

/// Turns in which a pack is filled: a turn can add none, where a list ends or a node's rows have just been
/// sent.
const TURNS: u32 = 8;

/// Rows that are sent in one go.
const ROWS: u32 = 16;

/// What a turn says: the walk is over; the next turn may follow; or the pack is to be sent, as rows or
/// records of another size come.
const OVER: u64 = 0;
const NEXT: u64 = 1;
const SEND: u64 = 2;

/// Runs the walk of the probe that was hit.
#[inline(always)]
pub fn record(ctx: &ProbeContext, origin: Origin) {
    let cookie = emit::cookie(ctx);
    if short::record(ctx, cookie, origin) != 0 {
        return;
    }
    let Some(hit) = emit::hit(cookie) else { return };
    let Some(slot) = scratch::claim_state() else {
        hit.tally.lost_full();
        return;
    };
    // SAFETY: a live element of STATES, ours until it is released.
    let state = unsafe { State::begun(&raw mut (*slot).room, cookie, hit.hit, origin) };
    follow(ctx, state);
    scratch::release(slot);
}

/// Sends what there is.
#[inline(always)]
fn follow(ctx: &ProbeContext, state: &mut State) {
    if find_lists(ctx, state) == 0 {
        state.queue = MAX_QUEUES as u16;
    }
    let mut block = 0;
    while block < BLOCKS {
        if send_block(state, emit::context(ctx)) == OVER {
            return;
        }
        block += 1;
    }
    cut(state);
    send_pack(state, emit::context(ctx));
}

impl State {
    /// A walk that begins.
    ///
    /// # Safety
    ///
    /// There is room for a state, which nothing else refers to.
    #[inline(always)]
    unsafe fn begun<'a>(room: *mut Self, cookie: u32, hit: u64, origin: Origin) -> &'a mut Self {
        const { assert!(size_of::<State>() % 8 == 0 && align_of::<State>() == 8) };
        let mut word = 0;
        while word < size_of::<Self>() / 8 {
            // SAFETY: within the room. Volatile, as a call of `memset` goes byte by byte.
            unsafe { room.cast::<u64>().add(word).write_volatile(0) };
            word += 1;
        }
        // SAFETY: all of it was written, and 0 is a value of every field.
        let state = unsafe { &mut *room };
        (state.ts_ns, state.pid_tgid) = (origin.ts_ns, origin.pid_tgid);
        (state.cookie, state.hit) = (cookie, hit);
        state
    }
}

/// Runs the head plan and puts what it found into `state`; 0 if there is no walk.
#[inline(never)]
fn find_lists(ctx: &ProbeContext, state: &mut State) -> u64 {
    let Some(walk) = maps::WALKS.get(state.cookie) else { return 0 };
    if walk.n_queues == 0 {
        return 0;
    }
    let mut room = MaybeUninit::uninit();
    let words = fetch::entry(ctx, &mut room);
    let mut nothing = MaybeUninit::uninit();
    let run = fetch::run_of_head(words, walk.head_plan, Room::zeroed(&mut nothing));
    let Some(faults) = fetch::faults(run) else { return 0 };
    state.unread = (faults != 0) as u8;
    take_heads(words, state)
}

/// Takes over what the head plan found.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn take_heads(words: *mut Words<SLOTS>, state: *mut State) -> u64 {
    if words.is_null() || state.is_null() {
        return 0; // for the verifier, which allows null
    }
    // SAFETY: not null, and given by `find_lists`.
    let (words, state) = unsafe { (&(*words).0, &mut *state) };
    let Some(walk) = maps::WALKS.get(state.cookie) else { return 0 };
    let mut i = 0;
    while i < MAX_QUEUES {
        let queue = &walk.queues[i];
        if i < walk.n_queues as usize && words[queue.when as usize % SLOTS] != 0 {
            state.words[i] = words[queue.head as usize % SLOTS];
            let mut count = u64::MAX;
            if queue.count == ONE_NODE {
                count = 1;
            } else if queue.stride != 0 {
                count = words[queue.count as usize % SLOTS];
            }
            if words[queue.gates_when as usize % SLOTS] != 0 {
                state.gated |= 1 << i;
            }
            state.limits[i] = if count < MAX_NODES as u64 { count as u16 } else { MAX_NODES as u16 };
        }
        i += 1;
    }
    state.identity = [words[walk.identity[0] as usize % SLOTS], words[walk.identity[1] as usize % SLOTS]];
    state.node = state.words[0];
    state.words[0] = 0;
    1
}

/// Some packs; 0 when all is sent.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn send_block(state: *mut State, ctx: *mut bpf_user_pt_regs_t) -> u64 {
    let mut i = 0;
    while i < BLOCK {
        if send_pack(state, ctx) == OVER {
            return OVER;
        }
        i += 1;
    }
    NEXT
}

/// The walk has too many nodes: ends it.
#[inline(always)]
fn cut(state: &mut State) {
    let at = state.queue as usize;
    if at < MAX_QUEUES {
        state.words[at] |= CUT;
    }
    // Of the lists that were not begun the words are still addresses.
    let mut i = 0;
    while i < MAX_QUEUES {
        if i > at && state.words[i] != 0 {
            state.words[i] = CUT;
        }
        i += 1;
    }
    state.rows_left = 0;
    state.queue = MAX_QUEUES as u16;
}

/// Sends rows, or nodes in one pack, last with the probe's own record; [`OVER`] when all is sent.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn send_pack(state: *mut State, ctx: *mut bpf_user_pt_regs_t) -> u64 {
    if state.is_null() {
        return OVER;
    }
    // SAFETY: not null, and given by `record`.
    let state = unsafe { &mut *state };
    if state.rows_left != 0 {
        let mut i = 0;
        while i < ROWS {
            if send_row(state, ctx) == 0 {
                break;
            }
            i += 1;
        }
        return NEXT;
    }
    let entry = Entry::<PACK_BYTES>::reserve();
    let room = match &entry {
        Some(entry) => entry.room(),
        None => core::ptr::null_mut(),
    };
    if !room.is_null() {
        clear(room);
    }
    state.packed = 0;
    let mut i = 0;
    let mut said = NEXT;
    while i < TURNS {
        said = turn(state, room, ctx);
        if said != NEXT || state.packed >= PACKED as u8 {
            break;
        }
        i += 1;
    }
    if said == OVER && state.packed < PACKED as u8 {
        close(state, room, ctx);
    }
    if let Some(entry) = entry {
        if state.packed == 0 {
            entry.discard();
        } else {
            number_all(room, state);
            entry.send(ctx, pack_is_lost);
        }
    }
    if state.closed != 0 { OVER } else { NEXT }
}

/// Sends one node, or opens its gates; says what is next.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn turn(state: *mut State, room: *mut Room<PACK_BYTES>, ctx: *mut bpf_user_pt_regs_t) -> u64 {
    if state.is_null() {
        return OVER;
    }
    // SAFETY: not null, and given by `record`.
    let state = unsafe { &mut *state };
    let Some(walk) = maps::WALKS.get(state.cookie) else { return OVER };
    // To a list that is not at its end.
    let mut i = 0;
    while i < MAX_QUEUES {
        if state.node != 0 || state.queue as usize >= MAX_QUEUES {
            break;
        }
        state.queue += 1;
        state.index = 0;
        let at = state.queue as usize;
        if at < MAX_QUEUES {
            state.node = state.words[at];
            state.words[at] = 0;
        }
        i += 1;
    }
    let at = state.queue as usize;
    if at >= MAX_QUEUES {
        return OVER;
    }
    let queue = &walk.queues[at];
    let mut place = core::ptr::null_mut();
    let mut copied = 0;
    let mut alone = false;
    if state.sent == 0 {
        if state.index >= state.limits[at] {
            if queue.stride == 0 || state.limits[at] == MAX_NODES as u16 {
                state.words[at] |= CUT;
            }
            state.node = 0;
            return NEXT;
        }
        let Some(plan) = maps::PLANS.get(queue.plan) else { return OVER };
        if plan.class == 0 {
            place = place_of(room, state);
            copied = send_node(queue.plan, place, state);
        } else {
            if state.packed != 0 {
                return SEND; // what is in the pack comes before
            }
            alone = true;
            send_part(queue.plan, state.node, state.index as u64, state, ctx);
        }
        state.words[at] += 1;
        state.sent = 1;
        find_next(state, queue, place, copied);
        if queue.n_gates != 0 && state.gated & (1 << at) != 0 {
            state.gate = queue.first_gate + 1;
        }
    }
    let mut i = 0;
    while i < MAX_GATES {
        if state.gate == 0 || state.rows_left != 0 {
            break;
        }
        let number = state.gate - 1;
        state.gate = if number + 1 < queue.first_gate + queue.n_gates { state.gate + 1 } else { 0 };
        open_gate(state, number as u32, place, copied);
        i += 1;
    }
    if state.rows_left != 0 {
        return SEND;
    }
    state.node = state.after;
    state.index += 1;
    state.sent = 0;
    if alone { SEND } else { NEXT }
}

/// Sends the record of a node in the pack; says how many bytes of the node are in it, at [`NODE_BYTES_AT`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn send_node(plan: u32, place: *mut Room<PACKED_BYTES>, state: *mut State) -> u64 {
    if state.is_null() {
        return 0;
    }
    // SAFETY: not null, and given by `record`.
    let state = unsafe { &mut *state };
    if place.is_null() {
        emit::part_is_lost(plan);
        return 0;
    }
    let mut room = MaybeUninit::uninit();
    let words = Words::<PART_SLOTS>::zeroed(&mut room);
    words.0[0] = state.node;
    words.0[1] = state.index as u64;
    let origin = Origin { ts_ns: state.ts_ns, pid_tgid: state.pid_tgid };
    let Some(faults) = emit::into_pack(plan, words, origin, place, fetch::run_of_part_small) else {
        // The loader has checked the plan, so this does not happen; if it did, it would be a loss.
        emit::part_is_lost(plan);
        return 0;
    };
    state.packed += 1;
    if faults == 0
        && let Some(walk) = maps::WALKS.get(state.cookie)
        && (state.queue as usize) < MAX_QUEUES
    {
        return walk.queues[state.queue as usize].copied as u64;
    }
    0
}

/// Finds the node after this one.
#[inline(always)]
fn find_next(state: &mut State, queue: &Queue, place: *mut Room<PACKED_BYTES>, copied: u64) {
    if queue.stride != 0 {
        state.after = state.node + queue.stride as u64;
        return; // the limit ends the list
    }
    let at = queue.next_at as usize & !7;
    if at as u64 + 8 <= copied && !place.is_null() && at <= PACKED_BYTES - NODE_BYTES_AT - 8 {
        // SAFETY: within the record, 8-byte aligned.
        state.after = unsafe { place.cast::<u8>().add(NODE_BYTES_AT + at).cast::<u64>().read() };
        return;
    }
    let mut next = 0u64;
    // SAFETY: `next` holds 8 bytes; the helper checks the address.
    let failed =
        unsafe { bpf_probe_read_user((&raw mut next).cast(), 8, (state.node + at as u64) as *const _) } < 0;
    if failed && (state.queue as usize) < MAX_QUEUES {
        state.words[state.queue as usize] |= CUT;
    }
    state.after = next;
}

/// Sends the record of the probe itself, last in the pack.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn close(state: *mut State, pack: *mut Room<PACK_BYTES>, ctx: *mut bpf_user_pt_regs_t) -> u64 {
    if state.is_null() || ctx.is_null() {
        return 0;
    }
    // SAFETY: not null, and given by `record`.
    let state = unsafe { &mut *state };
    state.closed = 1;
    let place = place_of(pack, state);
    let mut made = None;
    if !place.is_null() {
        let mut room = MaybeUninit::uninit();
        let words = fetch::entry::<PART_SLOTS>(&ProbeContext::new(ctx.cast()), &mut room);
        let origin = Origin { ts_ns: state.ts_ns, pid_tgid: state.pid_tgid };
        made = emit::into_pack(state.cookie, words, origin, place, fetch::run_of_part_small);
    }
    if made.is_none() {
        if let Some(tally) = Tally::of(state.cookie) {
            tally.lost_full();
        }
        return 0;
    }
    state.packed += 1;
    let Some(walk) = maps::WALKS.get(state.cookie) else { return 0 };
    let nodes_at = walk.nodes_at as usize & !7;
    if nodes_at > PACKED_BYTES - 8 * MAX_QUEUES {
        return 0;
    }
    let cut = if state.unread != 0 { CUT } else { 0 };
    let mut i = 0;
    while i < MAX_QUEUES {
        let nodes = state.words[i] | cut;
        // SAFETY: within the record, 8-byte aligned.
        unsafe { place.cast::<u8>().add(nodes_at + 8 * i).cast::<u64>().write(nodes) };
        i += 1;
    }
    0
}
