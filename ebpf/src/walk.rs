//! Walks lists in the target's memory at one hit, and sends a record for each node; last the probe's own.
//!
//! Most launches have a task, its device work and nothing else, and what a launch costs here is felt by the job. So records are
//! sent together, in *packs*, and what the walk needs of a node it takes from the node's record.
//!
//! A pack is a global function, which the verifier sees once, so its work does not grow with the lists. All frames of a call
//! may have 512 bytes together, so the walk's state is small and nothing is nested that can follow.

use core::mem::MaybeUninit;

use aya_ebpf::{helpers::generated::bpf_probe_read_user, programs::ProbeContext};

use crate::{
    common::{
        CUT, GATE_TAGS, Gate, MAX_GATES, MAX_NODES, MAX_QUEUES, MAX_ROWS, NODE_BYTES_AT, NOWHERE, ONE_NODE,
        PACK_BYTES, PACKED, PACKED_BYTES, PART_SLOTS, Queue, RecordHeader, SLOTS, Seen,
    },
    emit::{self, Origin},
    fetch::{self, Room, Words},
    maps,
    output::{Entry, bpf_user_pt_regs_t},
    tally::Tally,
};

/// Packs of one walk. More are not sent for one hit, and the lists count as cut.
const BLOCK: u32 = 128;
const BLOCKS: u32 = 64;

/// Turns in which a pack is filled: a turn can add none, where a list ends or a node's rows have just been sent.
const TURNS: u32 = 8;

/// Rows that are sent in one go.
const ROWS: u32 = 16;

/// What a turn says: the walk is over; the next turn may follow; or the pack is to be sent, as rows or records of another size
/// come.
const OVER: u64 = 0;
const NEXT: u64 = 1;
const SEND: u64 = 2;

/// A walk in progress. Plain numbers, as the verifier wants it of what global functions are given.
#[repr(C)]
pub struct State {
    /// Address of the node that is next; 0: the list is at its end.
    node: u64,
    /// Once the node was sent: the one after it.
    after: u64,
    ts_ns: u64,
    pid_tgid: u64,
    /// Number of the probe's own record.
    hit: u64,
    /// By list: the address of its first node; once it was begun, the number of its nodes.
    words: [u64; MAX_QUEUES],
    identity: [u64; 2],
    /// By list: nodes to follow.
    limits: [u16; MAX_QUEUES],
    /// Nodes of the list that were sent.
    index: u16,
    /// List that is followed; the lists before it are done.
    queue: u16,
    cookie: u32,
    /// What a gate lets through: rows and plans that are still to be sent, and where they begin.
    tag: u32,
    n_plans: u16,
    first_plan: u16,
    rows_left: u8,
    plans_left: u8,
    row: u8,
    first_row: u8,
    /// Number of rows less one, to wrap around; 255: rows are not wrapped.
    row_mask: u8,
    /// Number of rows, where the node names them.
    named_rows: u8,
    reversed: u8,
    /// 1 once the node was sent; its gates are next.
    sent: u8,
    /// The gate that is next for the node, counted from 1; 0: none.
    gate: u8,
    /// The gate that let the rows through.
    opened: u8,
    /// By list: its gates are not to be left out.
    gated: u8,
    /// Of what the gate let through something was lost: it is to be sent again.
    lost: u8,
    /// Records in the pack.
    packed: u8,
    /// The probe's own record was sent, or lost.
    closed: u8,
}

/// Runs the walk of the probe that was hit.
#[inline(always)]
pub fn record(ctx: &ProbeContext) {
    let cookie = emit::cookie(ctx);
    let Some(hit) = emit::hit(cookie).map(|hit| hit.hit) else { return };
    let origin = Origin::here();
    let mut state = State {
        node: 0,
        after: 0,
        ts_ns: origin.ts_ns,
        pid_tgid: origin.pid_tgid,
        hit,
        words: [0; MAX_QUEUES],
        identity: [0; 2],
        limits: [0; MAX_QUEUES],
        index: 0,
        queue: 0,
        cookie,
        tag: 0,
        n_plans: 0,
        first_plan: 0,
        rows_left: 0,
        plans_left: 0,
        row: 0,
        first_row: 0,
        row_mask: 0,
        named_rows: 0,
        reversed: 0,
        sent: 0,
        gate: 0,
        opened: 0,
        gated: 0,
        lost: 0,
        packed: 0,
        closed: 0,
    };
    if find_lists(ctx, &mut state) == 0 {
        state.queue = MAX_QUEUES as u16;
    }
    let mut block = 0;
    while block < BLOCKS {
        if send_block(&mut state, emit::context(ctx)) == OVER {
            return;
        }
        block += 1;
    }
    cut(&mut state);
    send_pack(&mut state, emit::context(ctx));
}

/// Runs the head plan and puts what it found into `state`; 0 if there is no walk.
#[inline(never)]
fn find_lists(ctx: &ProbeContext, state: &mut State) -> u64 {
    let Some(walk) = maps::WALKS.get(state.cookie) else { return 0 };
    let Some(plan) = maps::PLANS.get(walk.head_plan) else { return 0 };
    if walk.n_queues == 0 {
        return 0;
    }
    let mut room = MaybeUninit::uninit();
    let words = fetch::entry(ctx, &mut room);
    let mut nothing = fetch::Room::empty();
    if fetch::run::<8, SLOTS>(words, walk.head_plan, plan.n_steps, &raw mut nothing, fetch::step_of_head)
        .is_none()
    {
        return 0;
    }
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

/// Makes a pack empty. Nothing of it is in the processor's caches, so some of every record is written before it is known what:
/// the memory is on its way while the nodes are read.
#[inline(always)]
fn clear(room: *mut Room<PACK_BYTES>) {
    const LINE: usize = 64;
    const LINES: usize = 4;
    let mut i = 0;
    while i < PACKED {
        let mut line = 0;
        while line < LINES {
            // SAFETY: within the pack, 8-byte aligned. Volatile, as it is written again.
            unsafe {
                room.cast::<u8>().add(i * PACKED_BYTES + line * LINE).cast::<u64>().write_volatile(0);
            }
            line += 1;
        }
        i += 1;
    }
}

/// The header of a record of a pack, if it is there.
#[inline(always)]
fn header_in<'a>(room: *mut Room<PACK_BYTES>, record: usize) -> Option<&'a mut RecordHeader> {
    // SAFETY: within the pack, 8-byte aligned; what stands there was written here.
    let header = unsafe { &mut *room.cast::<u8>().add(record * PACKED_BYTES).cast::<RecordHeader>() };
    if header.len != 0 { Some(header) } else { None }
}

/// Counts the records of a pack.
#[inline(always)]
fn number_all(room: *mut Room<PACK_BYTES>, state: &State) {
    let mut i = 0;
    while i < PACKED {
        if let Some(header) = header_in(room, i) {
            let own = header.probe as u32 == state.cookie;
            emit::number(header, if own { Some(state.hit) } else { None });
        }
        i += 1;
    }
}

/// Counts the records of a pack that was not sent.
#[inline(always)]
fn pack_is_lost(room: *mut Room<PACK_BYTES>) {
    let mut i = 0;
    while i < PACKED {
        if let Some(header) = header_in(room, i)
            && let Some(tally) = Tally::of(header.probe as u32)
        {
            tally.lost_full();
        }
        i += 1;
    }
}

/// The place of the pack's next record.
#[inline(always)]
fn place_of(room: *mut Room<PACK_BYTES>, state: &State) -> *mut Room<PACKED_BYTES> {
    if room.is_null() {
        return core::ptr::null_mut();
    }
    // Volatile, so that the address is not computed before it is known not to be null: the verifier forbids that.
    // SAFETY: a field of a live value.
    let packed = unsafe { (&raw const state.packed).read_volatile() } as usize;
    if packed >= PACKED {
        return core::ptr::null_mut();
    }
    // SAFETY: within the pack.
    unsafe { room.cast::<u8>().add(packed * PACKED_BYTES).cast() }
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
    let Some(faults) = emit::into_pack(plan, words, origin, place, fetch::step_of_part_small) else {
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

/// One byte of a node; 0 where it cannot be read.
#[inline(always)]
fn byte(node: u64, at: u16, place: *mut Room<PACKED_BYTES>, copied: u64) -> u8 {
    let at = at as usize;
    if (at as u64) < copied && !place.is_null() && at < PACKED_BYTES - NODE_BYTES_AT {
        // SAFETY: within the record.
        return unsafe { place.cast::<u8>().add(NODE_BYTES_AT + at).read() };
    }
    let mut value = 0u8;
    // SAFETY: `value` holds 1 byte; the helper checks the address.
    unsafe { bpf_probe_read_user((&raw mut value).cast(), 1, (node + at as u64) as *const _) };
    value
}

/// An `int` in the target's memory; 0 where it cannot be read.
#[inline(always)]
fn int(address: u64) -> u32 {
    let mut value = 0u32;
    // SAFETY: `value` holds 4 bytes; the helper checks the address.
    unsafe { bpf_probe_read_user((&raw mut value).cast(), 4, address as *const _) };
    value
}

fn key(state: &State, gate: u32) -> Seen {
    Seen {
        identity: state.identity,
        tgid: (state.pid_tgid >> 32) as u32,
        cookie: state.cookie,
        gate,
        tag: state.tag,
        rows: state.named_rows as u32 | (state.first_row as u32) << 8,
        padding: 0,
    }
}

/// Finds out which rows a gate lets through for this node: those that were not sent before.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn open_gate(
    state: *mut State,
    number: u32,
    place: *mut Room<PACKED_BYTES>,
    copied: u64,
) -> u64 {
    if state.is_null() || number as usize >= MAX_GATES {
        return 0;
    }
    // SAFETY: not null, and given by `record`.
    let state = unsafe { &mut *state };
    let Some(walk) = maps::WALKS.get(state.cookie) else { return 0 };
    let gate: &Gate = &walk.gates[number as usize];
    let node = state.node;
    if gate.only_at != NOWHERE && byte(node, gate.only_at, place, copied) as u16 != gate.only {
        return 0;
    }
    state.tag = if gate.tag_len == 1 {
        byte(node, gate.tag_at, place, copied) as u32
    } else {
        int(node + gate.tag_at as u64)
    };
    let fan = &gate.fans[if gate.one_fan != 0 { 0 } else { state.tag as usize % GATE_TAGS }];
    if fan.n_plans == 0 {
        return 0;
    }
    state.first_row = 0;
    state.named_rows = 0;
    state.row_mask = u8::MAX;
    state.reversed = gate.reversed as u8;
    if gate.first_row_at != NOWHERE {
        state.first_row = byte(node, gate.first_row_at, place, copied);
        state.named_rows = 1;
        if gate.rows_at != NOWHERE {
            state.named_rows = byte(node, gate.rows_at, place, copied);
            state.row_mask = byte(node, gate.modulo_at, place, copied).wrapping_sub(1);
        }
        if state.named_rows == 0 {
            return 0;
        }
    }
    let key = key(state, number);
    if maps::SEEN.get_ptr(&key).is_some() {
        return 0;
    }
    let mut n_rows = state.named_rows as u32;
    if n_rows == 0 {
        n_rows = int(state.identity[0] + walk.n_rows_at[fan.rows as usize & 1] as u64);
    }
    if n_rows == 0 {
        return 0;
    }
    // Where it cannot be kept the rows are sent again.
    let _ = maps::SEEN.insert(&key, 1, 0);
    state.first_plan = fan.first_plan;
    state.n_plans = fan.n_plans as u16;
    state.plans_left = fan.n_plans;
    state.row = 0;
    state.rows_left = if n_rows < MAX_ROWS { n_rows as u8 } else { MAX_ROWS as u8 };
    state.opened = number as u8;
    state.lost = 0;
    0
}

/// `row` with its bits in reverse order, of as many bits as `mask` has.
#[inline(always)]
fn reversed_below(row: u32, mask: u32) -> u32 {
    let (mut reversed, mut from, mut to) = (0, 1, (mask + 1) >> 1);
    let mut bit = 0;
    while bit < 7 {
        if row & from != 0 {
            reversed |= to;
        }
        from <<= 1;
        to >>= 1;
        bit += 1;
    }
    reversed
}

/// Sends one plan of one row; 0 after the last.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn send_row(state: *mut State, ctx: *mut bpf_user_pt_regs_t) -> u64 {
    if state.is_null() {
        return 0;
    }
    // SAFETY: not null, and given by `record`.
    let state = unsafe { &mut *state };
    let Some(walk) = maps::WALKS.get(state.cookie) else { return 0 };
    let mut row = state.row as u32;
    if state.reversed != 0 && state.row_mask != u8::MAX {
        row = reversed_below(row, state.row_mask as u32);
    }
    row += state.first_row as u32;
    if state.row_mask != u8::MAX {
        row &= state.row_mask as u32;
    }
    let address = state.identity[0] + walk.rows_at as u64 + row as u64 * walk.row_size as u64;
    let plan = state.first_plan + (state.n_plans - state.plans_left as u16);
    let given = (state.tag as u64) << 32 | row as u64;
    if send_part(plan as u32, address, given, state, ctx) == 0 {
        state.lost = 1;
    }
    state.plans_left -= 1;
    if state.plans_left == 0 {
        state.plans_left = state.n_plans as u8;
        state.row += 1;
        state.rows_left -= 1;
        if state.rows_left == 0 && state.lost != 0 {
            let _ = maps::SEEN.remove(&key(state, state.opened as u32));
        }
    }
    state.rows_left as u64
}

/// Sends the record of a node or row by itself; 0 if there was no room. `given`: its number, and above 32 bits the tag. (A
/// global function has five arguments at most.)
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn send_part(
    plan: u32,
    address: u64,
    given: u64,
    state: *mut State,
    ctx: *mut bpf_user_pt_regs_t,
) -> u64 {
    if state.is_null() {
        return 0;
    }
    // SAFETY: not null, and given by `record`.
    let origin = unsafe { Origin { ts_ns: (*state).ts_ns, pid_tgid: (*state).pid_tgid } };
    let Some(hit) = emit::part(plan) else { return 0 };
    let mut room = MaybeUninit::uninit();
    let words = Words::<PART_SLOTS>::zeroed(&mut room);
    words.0[0] = address;
    words.0[1] = given as u32 as u64;
    words.0[2] = given >> 32;
    // SAFETY: as above.
    words.0[3] = unsafe { (*state).identity[0] };
    emit::of_part(hit, words, origin, ctx)
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
        made = emit::into_pack(state.cookie, words, origin, place, fetch::step_of_part_small);
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
    let mut i = 0;
    while i < MAX_QUEUES {
        // SAFETY: within the record, 8-byte aligned.
        unsafe { place.cast::<u8>().add(nodes_at + 8 * i).cast::<u64>().write(state.words[i]) };
        i += 1;
    }
    0
}
