//! Native call stacks: told apart by their return addresses, and copied where they are new.
//!
//! Nothing is unwound here. User space has unwound the copy of a stack, and says where in it the return addresses
//! were. Words at these places tell the next hit's stack from another one, exactly: stacks with the same return
//! addresses are the same. As long as no places are known, the words at the top of the stack do, which also
//! differ where only data do.

use aya_ebpf::helpers::generated::bpf_probe_read_user;

use crate::{
    common::{
        COPIES_AT_ONCE, COPY_EVERY_NS, MAX_PIECES, MAX_SLOTS, PIECE_BYTES, PIECE_RECORD, PIECE_REGISTERS,
        PieceHead, RecordHeader, STACK_PIECE, loss_slot, mix, mix_begun,
    },
    emit::{self, Origin},
    maps,
    output::{Entry, bpf_user_pt_regs_t},
    share,
    state::{NEAR_WORDS, Stack},
    user::word,
};

/// The registers of [`PieceHead::registers`].
#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
pub fn registers(ctx: *mut bpf_user_pt_regs_t) -> Option<[u64; PIECE_REGISTERS]> {
    let regs = ctx.cast::<aya_ebpf::bindings::pt_regs>();
    // SAFETY: a uprobe's context is a pt_regs. Volatile: each is a load of its own at a constant offset.
    unsafe {
        Some([
            (&raw const (*regs).rip).read_volatile() as u64,
            (&raw const (*regs).rsp).read_volatile() as u64,
            (&raw const (*regs).rbp).read_volatile() as u64,
            (&raw const (*regs).rbx).read_volatile() as u64,
            (&raw const (*regs).r12).read_volatile() as u64,
            (&raw const (*regs).r13).read_volatile() as u64,
            (&raw const (*regs).r14).read_volatile() as u64,
            (&raw const (*regs).r15).read_volatile() as u64,
        ])
    }
}

/// User space unwinds x86-64 only.
#[cfg(not(bpf_target_arch = "x86_64"))]
#[inline(always)]
pub fn registers(_: *mut bpf_user_pt_regs_t) -> Option<[u64; PIECE_REGISTERS]> {
    None
}

/// Mixes what tells the native frames from others into the stack's id.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn mix_native(stack: *mut Stack, tgid: u32, ts_ns: u64) -> u64 {
    if stack.is_null() {
        return 0;
    }
    // SAFETY: not null, and given by `send_stack`.
    let stack = unsafe { &mut *stack };
    let [ip, sp, ..] = stack.piece.registers;
    let key = mix(mix(mix(mix_begun(tgid), ip), sp), word(sp).unwrap_or(0));
    stack.piece.key = key;
    let mut id = mix(stack.head.id, key);
    // SAFETY: so many bytes are there; the helper checks the address.
    let is_near =
        unsafe { bpf_probe_read_user((&raw mut stack.near).cast(), 8 * NEAR_WORDS as u32, sp as *const _) }
            >= 0;
    // What was there of Python's frames is not any more.
    stack.near_len = 0;
    if let Some(slots) = maps::RETURN_SLOTS.get_ptr(&key) {
        // SAFETY: a live element of the map. User space may write it meanwhile: then the id is one that is not known.
        let n = unsafe { (&raw const (*slots).n).read_volatile() } as usize;
        id = mix(id, n as u64);
        let mut i = 0;
        while i < MAX_SLOTS {
            if i >= n {
                break;
            }
            // SAFETY: as above.
            let at = unsafe { (&raw const (*slots).at[i]).read_volatile() } as usize;
            let found = if is_near && at < NEAR_WORDS {
                stack.near[at % NEAR_WORDS]
            } else {
                word(sp.wrapping_add(8 * at as u64)).unwrap_or(0)
            };
            id = mix(id, found ^ (at as u64) << 48);
            i += 1;
        }
    } else if is_near {
        let mut i = 0;
        while i < NEAR_WORDS {
            id = mix(id, stack.near[i]);
            i += 1;
        }
    } else {
        id = mix(id, ts_ns);
    }
    stack.head.id = id;
    1
}

/// Whether the process may have another stack copied now: it takes time and room in the buffer.
#[inline(always)]
pub fn may_copy(tgid: u32, ts_ns: u64) -> bool {
    if !maps::through_perf() {
        if share::unread(maps::ring_number()) > maps::wakeup_bytes() {
            return false;
        }
    }
    let Some(next) = maps::NEXT_COPY.get_ptr_mut(loss_slot(tgid)) else { return false };
    // Two threads at once may both be let through: it is a pace, and no account.
    // SAFETY: a live element, an aligned word.
    unsafe {
        let earliest = ts_ns.saturating_sub(COPIES_AT_ONCE * COPY_EVERY_NS);
        let at = next.read_volatile();
        let at = if at < earliest { earliest } else { at };
        if at > ts_ns {
            return false;
        }
        next.write_volatile(at + COPY_EVERY_NS);
    }
    true
}

/// Sends a copy of the stack, as far as it can be read, in pieces.
#[inline(always)]
pub fn send_copy(stack: *mut Stack, ts_ns: u64, ctx: *mut bpf_user_pt_regs_t) {
    let mut piece = 0;
    while piece < MAX_PIECES as u32 {
        if send_piece(stack, piece, ts_ns, ctx) == 0 {
            return;
        }
        piece += 1;
    }
}

/// Sends one piece; 0: it cannot be read, or there is no room for it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn send_piece(stack: *mut Stack, piece: u32, ts_ns: u64, ctx: *mut bpf_user_pt_regs_t) -> u64 {
    if stack.is_null() {
        return 0;
    }
    // SAFETY: not null, and given by `send_stack`.
    let stack = unsafe { &mut *stack };
    let first = stack.piece.registers[1] & !(PIECE_BYTES as u64 - 1);
    stack.piece.address = first.wrapping_add(piece as u64 * PIECE_BYTES as u64);
    let Some(entry) = Entry::<PIECE_RECORD>::reserve() else { return 0 };
    let room: *mut u8 = entry.room().cast();
    // A piece does not cross the end of a page: it is there or not.
    // SAFETY: behind the heads there is room for the bytes; the helper checks the address.
    let failed = unsafe {
        bpf_probe_read_user(
            room.add(size_of::<RecordHeader>() + size_of::<PieceHead>()).cast(),
            PIECE_BYTES as u32,
            stack.piece.address as *const _,
        )
    } < 0;
    if failed {
        entry.discard();
        return 0;
    }
    let origin = Origin { ts_ns, ..Origin::here() };
    let header = emit::header_of(STACK_PIECE as u32, PIECE_RECORD as u16, 0, origin, 0);
    // SAFETY: header and head are within the room, which is 8-byte aligned.
    unsafe {
        room.cast::<RecordHeader>().write(header);
        room.add(size_of::<RecordHeader>()).cast::<PieceHead>().write(stack.piece);
    }
    entry.send(ctx, |_| {}) as u64
}
