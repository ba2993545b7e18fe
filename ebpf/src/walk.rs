//! Walks lists in the target's memory at one hit, and sends a record for each node; last the probe's own.
//!
//! The walk is made of *turns*: each sends one record and finds what is next. A turn is a global function, which the verifier
//! sees once, so its work does not grow with the lists. All frames of a call may have 512 bytes together, so the walk's state
//! is small and nothing is nested that can follow.

use core::mem::MaybeUninit;

use aya_ebpf::{helpers::generated::bpf_probe_read_user, programs::ProbeContext};

use crate::{
    common::{
        CUT, GATE_TAGS, Gate, MAX_GATES, MAX_NODES, MAX_QUEUES, MAX_ROWS, NODES_SLOT, NOWHERE, PART_SLOTS,
        Queue, SLOTS, Seen, Walk,
    },
    emit::{self, Origin},
    fetch::{self, Words},
    maps,
    output::bpf_user_pt_regs_t,
};

/// Turns of one walk. More records than this are not sent for one hit, and the lists count as cut.
const BLOCK: u32 = 128;
const BLOCKS: u32 = 128;

/// A walk in progress. Plain numbers, as the verifier wants it of what global functions are given.
#[repr(C)]
pub struct State {
    /// Address of the node that is next; 0: the list is at its end.
    node: u64,
    ts_ns: u64,
    pid_tgid: u64,
    /// By list: the address of its first node; once it was begun, the number of its nodes.
    words: [u64; MAX_QUEUES],
    identity: [u64; 2],
    /// Address of row 0.
    rows: u64,
    /// By list: nodes to follow.
    limits: [u32; MAX_QUEUES],
    cookie: u32,
    /// List that is followed; the lists before it are done.
    queue: u32,
    /// Nodes of it that were sent.
    index: u32,
    /// Rows of the table, for two kinds of fans.
    n_rows: [u8; 2],
    first_row: u8,
    /// Number of rows less one, to wrap around; 255: rows are not wrapped.
    row_mask: u8,
    /// What a gate lets through: rows and plans that are still to be sent, and where they begin.
    tag: u32,
    rows_left: u16,
    plans_left: u16,
    n_plans: u16,
    first_plan: u16,
    row: u16,
    /// The gate that is next for the node.
    gate: u16,
    reversed: u8,
    /// By list: its gates are not to be left out.
    gated: u8,
    /// Of what the gate let through something was lost: it is to be sent again.
    lost: u8,
    rows_in_all: u8,
}

/// Runs the walk of the probe that was hit.
#[inline(always)]
pub fn record(ctx: &ProbeContext) {
    let cookie = emit::cookie(ctx);
    let Some(hit) = emit::hit(cookie).map(|hit| hit.hit) else { return };
    let origin = Origin::here();
    let mut state = State {
        node: 0,
        ts_ns: origin.ts_ns,
        pid_tgid: origin.pid_tgid,
        words: [0; MAX_QUEUES],
        identity: [0; 2],
        rows: 0,
        limits: [0; MAX_QUEUES],
        cookie,
        queue: 0,
        index: 0,
        n_rows: [0; 2],
        first_row: 0,
        row_mask: 0,
        tag: 0,
        rows_left: 0,
        plans_left: 0,
        n_plans: 0,
        first_plan: 0,
        row: 0,
        gate: 0,
        reversed: 0,
        gated: 0,
        lost: 0,
        rows_in_all: 0,
    };
    if find_lists(ctx, &mut state) != 0 {
        let mut block = 0;
        while block < BLOCKS {
            if walk_block(&mut state, emit::context(ctx)) == 0 {
                break;
            }
            block += 1;
        }
    }
    close(ctx, &state, hit);
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
            let count = if queue.stride != 0 { words[queue.count as usize % SLOTS] } else { u64::MAX };
            if words[queue.gates_when as usize % SLOTS] != 0 {
                state.gated |= 1 << i;
            }
            state.limits[i] = if count < MAX_NODES as u64 { count as u32 } else { MAX_NODES };
        }
        i += 1;
    }
    state.identity = [words[walk.identity[0] as usize % SLOTS], words[walk.identity[1] as usize % SLOTS]];
    state.rows = words[walk.rows as usize % SLOTS];
    let rows = |slot: u8| {
        let n = words[slot as usize % SLOTS];
        if n < MAX_ROWS as u64 { n as u8 } else { MAX_ROWS as u8 }
    };
    state.n_rows = [rows(walk.n_rows[0]), rows(walk.n_rows[1])];
    begin_list(state, 0);
    1
}

/// Some turns; 0 when the walk is over.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn walk_block(state: *mut State, ctx: *mut bpf_user_pt_regs_t) -> u64 {
    if state.is_null() {
        return 0;
    }
    let mut i = 0;
    while i < BLOCK {
        if turn(state, ctx) == 0 {
            return 0;
        }
        i += 1;
    }
    1
}

/// Sends one record and finds what is next; 0 when the walk is over.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn turn(state: *mut State, ctx: *mut bpf_user_pt_regs_t) -> u64 {
    if state.is_null() {
        return 0;
    }
    // SAFETY: not null, and given by `record`.
    let state = unsafe { &mut *state };
    let Some(walk) = maps::WALKS.get(state.cookie) else { return 0 };
    let at = state.queue as usize;
    if at >= MAX_QUEUES || at >= walk.n_queues as usize {
        return 0;
    }
    if state.rows_left != 0 {
        send_row(state, walk, ctx);
        return 1;
    }
    let queue = &walk.queues[at];
    if state.gate != 0 {
        // The node was sent; its gates are next.
        let gate = state.gate - 1;
        state.gate = if gate as u8 + 1 < queue.first_gate + queue.n_gates { gate + 2 } else { 0 };
        open_gate(state, gate as u32);
        if state.gate == 0 && state.rows_left == 0 {
            find_next(state, queue);
        }
        return 1;
    }
    if state.node == 0 {
        let next = at + 1;
        begin_list(state, next);
        return 1;
    }
    if state.index >= state.limits[at] {
        if queue.stride == 0 || state.limits[at] == MAX_NODES {
            state.words[at] |= CUT;
        }
        state.node = 0;
        return 1;
    }
    send_part(queue.plan, state.node, state.index as u64, state, ctx);
    state.words[at] += 1;
    if queue.n_gates != 0 && state.gated & (1 << at) != 0 {
        state.gate = queue.first_gate as u16 + 1;
    } else {
        find_next(state, queue);
    }
    1
}

/// Makes the list `at` the one that is followed.
#[inline(always)]
fn begin_list(state: &mut State, at: usize) {
    state.queue = at as u32;
    state.index = 0;
    if at < MAX_QUEUES {
        state.node = state.words[at];
        state.words[at] = 0;
    }
}

/// Finds the node after this one.
#[inline(always)]
fn find_next(state: &mut State, queue: &Queue) {
    state.index += 1;
    if queue.stride != 0 {
        state.node += queue.stride as u64;
        return; // the limit ends the list
    }
    let mut next = 0u64;
    // SAFETY: `next` holds 8 bytes; the helper checks the address.
    let failed = unsafe {
        bpf_probe_read_user((&raw mut next).cast(), 8, (state.node + queue.next_at as u64) as *const _)
    } < 0;
    if failed && (state.queue as usize) < MAX_QUEUES {
        state.words[state.queue as usize] |= CUT;
    }
    state.node = next;
}

/// One byte of a node; 0 where it cannot be read.
#[inline(always)]
fn byte(node: u64, at: u16) -> u8 {
    let mut value = 0u8;
    // SAFETY: `value` holds 1 byte; the helper checks the address.
    unsafe { bpf_probe_read_user((&raw mut value).cast(), 1, (node + at as u64) as *const _) };
    value
}

fn key(state: &State, gate: u32) -> Seen {
    Seen {
        identity: state.identity,
        tgid: (state.pid_tgid >> 32) as u32,
        cookie: state.cookie,
        gate,
        tag: state.tag,
        rows: state.rows_in_all as u32 | (state.first_row as u32) << 8,
        padding: 0,
    }
}

/// Finds out which rows a gate lets through for this node: those that were not sent before.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn open_gate(state: *mut State, number: u32) -> u64 {
    if state.is_null() || number as usize >= MAX_GATES {
        return 0;
    }
    // SAFETY: not null, and given by `record`.
    let state = unsafe { &mut *state };
    let Some(walk) = maps::WALKS.get(state.cookie) else { return 0 };
    let gate: &Gate = &walk.gates[number as usize];
    let node = state.node;
    if gate.only_at != NOWHERE && byte(node, gate.only_at) as u16 != gate.only {
        return 0;
    }
    let mut tag = 0u32;
    if gate.tag_len == 1 {
        tag = byte(node, gate.tag_at) as u32;
    } else {
        // SAFETY: `tag` holds 4 bytes; the helper checks the address.
        unsafe { bpf_probe_read_user((&raw mut tag).cast(), 4, (node + gate.tag_at as u64) as *const _) };
    }
    let fan = &gate.fans[if gate.one_fan != 0 { 0 } else { tag as usize % GATE_TAGS }];
    if fan.n_plans == 0 {
        return 0;
    }
    state.tag = tag;
    state.first_row = 0;
    state.row_mask = u8::MAX;
    state.reversed = gate.reversed as u8;
    let mut n_rows = state.n_rows[fan.rows as usize & 1];
    if gate.first_row_at != NOWHERE {
        state.first_row = byte(node, gate.first_row_at);
        n_rows = 1;
        if gate.rows_at != NOWHERE {
            n_rows = byte(node, gate.rows_at);
            state.row_mask = byte(node, gate.modulo_at).wrapping_sub(1);
        }
    }
    if n_rows > MAX_ROWS as u8 {
        n_rows = MAX_ROWS as u8;
    }
    state.rows_in_all = n_rows;
    let key = key(state, number);
    if n_rows == 0 || maps::SEEN.get_ptr(&key).is_some() {
        return 0;
    }
    // Where it cannot be kept the rows are sent again.
    let _ = maps::SEEN.insert(&key, 1, 0);
    state.first_plan = fan.first_plan;
    state.n_plans = fan.n_plans as u16;
    state.plans_left = fan.n_plans as u16;
    state.row = 0;
    state.rows_left = n_rows as u16;
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

/// Sends one plan of one row.
#[inline(always)]
fn send_row(state: &mut State, walk: &Walk, ctx: *mut bpf_user_pt_regs_t) {
    let mut row = state.row as u32;
    if state.reversed != 0 && state.row_mask != u8::MAX {
        row = reversed_below(row, state.row_mask as u32);
    }
    row += state.first_row as u32;
    if state.row_mask != u8::MAX {
        row &= state.row_mask as u32;
    }
    let address = state.rows + row as u64 * walk.row_size as u64;
    let plan = state.first_plan + (state.n_plans - state.plans_left);
    let given = (state.tag as u64) << 32 | row as u64;
    if send_part(plan as u32, address, given, state, ctx) == 0 {
        state.lost = 1;
    }
    state.plans_left -= 1;
    if state.plans_left == 0 {
        state.plans_left = state.n_plans;
        state.row += 1;
        state.rows_left -= 1;
        if state.rows_left == 0 {
            let at = state.queue as usize;
            if at >= MAX_QUEUES {
                return;
            }
            if state.lost != 0 {
                let last = if state.gate != 0 {
                    state.gate - 2
                } else {
                    (walk.queues[at].first_gate + walk.queues[at].n_gates) as u16 - 1
                };
                let _ = maps::SEEN.remove(&key(state, last as u32));
            }
            if state.gate == 0 {
                find_next(state, &walk.queues[at]);
            }
        }
    }
}

/// Sends the record of a node or row; 0 if there was no room. `given`: its number, and above 32 bits the tag. (A global
/// function has five arguments at most.)
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
    let Some(hit) = emit::hit(plan) else { return 0 };
    let mut room = MaybeUninit::uninit();
    let words = Words::<PART_SLOTS>::zeroed(&mut room);
    words.0[0] = address;
    words.0[1] = given as u32 as u64;
    words.0[2] = given >> 32;
    // SAFETY: as above.
    words.0[3] = unsafe { (*state).identity[0] };
    emit::of_part(hit, words, origin, ctx)
}

/// Sends the record of the probe itself.
#[inline(never)]
fn close(ctx: &ProbeContext, state: &State, hit: u64) -> u64 {
    let Some(hit) = emit::counted(state.cookie, hit) else { return 0 };
    let mut room = MaybeUninit::uninit();
    let words = fetch::entry(ctx, &mut room);
    let mut i = 0;
    while i < MAX_QUEUES {
        words.0[NODES_SLOT as usize + i] = state.words[i];
        i += 1;
    }
    let origin = Origin { ts_ns: state.ts_ns, pid_tgid: state.pid_tgid };
    emit::of_probe(hit, words, origin, emit::context(ctx))
}
