//! What a walk sends once: gates find out what was not sent before, and their rows are sent.

use aya_ebpf::helpers::generated::bpf_probe_read_user;

use crate::{
    common::{GATE_TAGS, Gate, MAX_GATES, MAX_ROWS, NODE_BYTES_AT, NOWHERE, PACKED_BYTES, SENT, Seen},
    emit::{UNREAD, send_part},
    maps,
    output::bpf_user_pt_regs_t,
    state::{Room, State},
};

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
    let tries = maps::tries(&key);
    if tries == 0 {
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
    let _ = maps::SEEN.insert(&key, SENT, 0);
    state.first_plan = fan.first_plan;
    state.n_plans = fan.n_plans as u16;
    state.plans_left = fan.n_plans;
    state.row = 0;
    state.rows_left = if n_rows < MAX_ROWS { n_rows as u8 } else { MAX_ROWS as u8 };
    state.opened = number as u8;
    state.lost = 0;
    state.faulted = 0;
    state.tries = tries as u8;
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
    match send_part(plan as u32, address, given, state, ctx) {
        0 => state.lost = 1,
        UNREAD => state.faulted = 1,
        _ => {}
    }
    state.plans_left -= 1;
    if state.plans_left == 0 {
        state.plans_left = state.n_plans as u8;
        state.row += 1;
        state.rows_left -= 1;
        if state.rows_left == 0 && state.lost != 0 {
            let _ = maps::SEEN.remove(&key(state, state.opened as u32));
        } else if state.rows_left == 0 && state.faulted != 0 {
            let _ = maps::SEEN.insert(&key(state, state.opened as u32), SENT + state.tries as u32, 0);
        }
    }
    state.rows_left as u64
}
