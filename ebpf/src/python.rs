//! Walks the Python stack of the thread that was hit, by the offsets that user space has found, and sends its
//! id; its frames only if they were not sent before, see [`crate::sent`]. Where native frames are wanted, too, they
//! are in the id, and a copy of the stack is sent with it: see [`crate::native`].
//!
//! NCCL's callers release the GIL, so CPython's own "current thread" is empty at a hit. The thread's state is
//! found by the thread's number among all threads of the interpreters, and kept.

use aya_ebpf::{
    helpers::{
        bpf_get_current_pid_tgid,
        generated::{bpf_get_current_comm, bpf_get_ns_current_pid_tgid, bpf_probe_read_user},
    },
    programs::ProbeContext,
};

use crate::{
    common::{
        ENTERS_BEFORE_LEFT_OUT, ENTERS_EACH, FRAME_BYTES, LARGEST_STACK, MAX_STACK_FRAMES, MAX_STATE_BYTES,
        MAX_THREADS_WALKED, NO_INSTRUCTION, NO_OFFSET, PythonWalk, RawFrame, RecordHeader, STACK_COOKIE,
        STACK_CUT, STACK_KNOWN, STACK_NATIVE, STACK_NO_THREAD, STACK_NOT_COPIED, STACK_RECORD,
        STACK_UNREADABLE, StackHead, TAKES_NATIVE, TAKES_PYTHON, VERSION_OF_CODE, mix, mix_begun,
    },
    emit::{self, Origin},
    maps, native,
    output::{Entry, bpf_user_pt_regs_t},
    scratch,
    sent::{self, was_sent},
    state::{NEAR_WORDS, Stack},
    tally::Tally,
    user::word,
};

/// Bytes of memory with frames that are copied at once.
const FRAMES_BYTES: u64 = 2048;

/// What a step says.
const OVER: u64 = 0;
const NEXT: u64 = 1;

/// Steps of a walk: frames, and those that are left out between them.
const STEPS: u32 = 2 * MAX_STACK_FRAMES as u32;

/// Sends the stack of this thread, if its process has one that can be walked, before the record of the hit: the
/// two have the same thread and time.
#[inline(always)]
pub fn record(ctx: &ProbeContext, origin: Origin) {
    if maps::armed() {
        send_stack(origin.ts_ns, emit::context(ctx));
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn send_stack(ts_ns: u64, ctx: *mut bpf_user_pt_regs_t) -> u64 {
    let origin = Origin { ts_ns, pid_tgid: bpf_get_current_pid_tgid() };
    let tgid = (origin.pid_tgid >> 32) as u32;
    let Some(walk) = maps::PYTHONS.get_ptr(&tgid) else { return 0 };
    let Some(tally) = Tally::of(STACK_COOKIE) else { return 0 };
    let hit = tally.hit();
    let Some(slot) = scratch::claim_stack() else {
        tally.lost_full();
        return 0;
    };
    // SAFETY: a live element of STACKS, ours until it is released.
    let stack = unsafe { &mut (*slot).room };
    // SAFETY: a live element of PYTHONS.
    stack.walk = unsafe { *walk };
    stack.head = StackHead { id: mix_begun(tgid), flags: 0, n_frames: 0 };
    stack.frame = 0;
    stack.steps = 0;
    stack.piece.enters = 0;
    stack.near_len = 0;
    stack.has_spared = 0;
    stack.version = 0;
    stack.version_in = 0;
    if stack.walk.takes & TAKES_PYTHON != 0 {
        find_thread(stack, origin.pid_tgid);
        if stack.thread == 0 {
            stack.head.flags = STACK_NO_THREAD;
        } else {
            begin(stack);
            let mut step = 0;
            while step < STEPS {
                if take_frame(stack) == OVER {
                    break;
                }
                step += 1;
            }
        }
    }
    stack.head.id = mix(stack.head.id, stack.head.flags as u64);
    let is_known;
    let native = if stack.walk.takes & TAKES_NATIVE != 0 { native::registers(ctx) } else { None };
    match native {
        Some(registers) => {
            stack.piece.registers = registers;
            is_known = take_native(stack, tgid, ts_ns, ctx);
        }
        None => is_known = was_sent(stack),
    }
    if !send(stack, is_known, hit, origin, ctx) {
        tally.lost_full();
    }
    scratch::release(slot);
    0
}

/// Adds the native frames. A stack that is not copied has the id of its Python frames alone. Says whether the stack was
/// sent before.
#[inline(always)]
fn take_native(stack: &mut Stack, tgid: u32, ts_ns: u64, ctx: *mut bpf_user_pt_regs_t) -> bool {
    // SAFETY: there is room for 16 bytes.
    unsafe { bpf_get_current_comm((&raw mut stack.piece.comm).cast(), 16) };
    let python = stack.head.id;
    if stack.head.n_frames == 0 {
        // Who it is is all that is known besides.
        let comm: *const u64 = (&raw const stack.piece.comm).cast();
        // SAFETY: 16 bytes, 8-byte aligned, as what is before them has whole words.
        let [first, second] = unsafe { [comm.read(), comm.add(1).read()] };
        stack.head.id = mix(mix(python, first), second);
    }
    native::mix_native(stack, tgid, ts_ns);
    stack.head.flags |= STACK_NATIVE;
    if was_sent(stack) {
        return true;
    }
    if native::may_copy(tgid, ts_ns) {
        native::send_copy(stack, ts_ns, ctx);
        return false;
    }
    stack.head.flags = stack.head.flags & !STACK_NATIVE | STACK_NOT_COPIED;
    stack.head.id = mix(python, STACK_NOT_COPIED as u64);
    was_sent(stack)
}

/// The number of the thread that was hit, as its process knows it; 0: not known.
#[inline(always)]
fn own_tid(walk: &PythonWalk, pid_tgid: u64) -> u64 {
    let [device, inode] = walk.pid_namespace;
    if inode == 0 {
        return pid_tgid as u32 as u64;
    }
    let mut info = aya_ebpf::bindings::bpf_pidns_info { pid: 0, tgid: 0 };
    // SAFETY: `info` has the size that is given.
    let failed = unsafe { bpf_get_ns_current_pid_tgid(device, inode, &raw mut info, 8) } != 0;
    if failed { 0 } else { info.pid as u64 }
}

/// Finds the state of the thread that was hit: where it was the last time, or among all.
#[inline(always)]
fn find_thread(stack: &mut Stack, pid_tgid: u64) {
    stack.thread = 0;
    stack.tid = own_tid(&stack.walk, pid_tgid);
    if stack.tid == 0 {
        return;
    }
    stack.root = 0;
    if let Some(known) = maps::PYTHON_THREADS.get_ptr(&pid_tgid) {
        // SAFETY: a live element of the map.
        stack.thread = unsafe { known.read_volatile() };
        if is_known_state(stack) {
            return;
        }
    }
    (stack.root, stack.version_in) = (0, 0);
    if search(stack) != 0 {
        let _ = maps::PYTHON_THREADS.insert(&pid_tgid, &stack.thread, 0);
    } else {
        stack.thread = 0;
    }
}

/// [`is_its_state`] of a thread that was found before. One read has all that is needed of the state, if it is near.
#[inline(always)]
fn is_known_state(stack: &mut Stack) -> bool {
    let (at, len) = (stack.walk.state_at, stack.walk.state_len);
    if len == 0 || len > MAX_STATE_BYTES {
        return is_its_state(stack) != 0;
    }
    let near = (&raw mut stack.near).cast();
    // SAFETY: at most so many bytes as are there; the helper checks the address.
    if unsafe { bpf_probe_read_user(near, len, (stack.thread + at as u64) as *const _) } < 0 {
        return false;
    }
    stack.root = field(&stack.near, (stack.walk.thread_frame - at) as u64, 8);
    if stack.walk.version_of == VERSION_OF_CODE {
        stack.version_in = field(&stack.near, (stack.walk.thread_interpreter - at) as u64, 8);
    }
    field(&stack.near, (stack.walk.thread_tid - at) as u64, 4) == stack.tid
}

/// Whether `thread` is the state of the thread that was hit.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn is_its_state(stack: *mut Stack) -> u64 {
    if stack.is_null() {
        return 0;
    }
    // SAFETY: not null, and given by `find_thread`.
    let stack = unsafe { &*stack };
    let walk = &stack.walk;
    let mut place = stack.thread + walk.thread_tid as u64;
    if walk.thread_tid == NO_OFFSET {
        let Some(pthread) = word(stack.thread + walk.thread_pthread as u64) else { return 0 };
        place = pthread + walk.pthread_tid as u64;
    }
    match word(place) {
        Some(tid) if tid as u32 as u64 == stack.tid => 1,
        _ => 0,
    }
}

/// Looks at the threads of all interpreters.
#[inline(always)]
fn search(stack: &mut Stack) -> u64 {
    let walk = &stack.walk;
    let (threads, next, next_interpreter) =
        (walk.interpreter_threads as u64, walk.thread_next as u64, walk.interpreter_next as u64);
    let mut interpreter = word(stack.walk.interpreters).unwrap_or(0);
    stack.thread = 0;
    let mut looked = 0;
    while looked < MAX_THREADS_WALKED {
        if stack.thread == 0 {
            if interpreter == 0 {
                break;
            }
            stack.thread = word(interpreter + threads).unwrap_or(0);
            interpreter = word(interpreter + next_interpreter).unwrap_or(0);
        } else {
            if is_its_state(stack) != 0 {
                return 1;
            }
            stack.thread = word(stack.thread + next).unwrap_or(0);
        }
        looked += 1;
    }
    0
}

/// Goes to the thread's innermost frame.
#[inline(always)]
fn begin(stack: &mut Stack) {
    let root = match stack.root {
        0 => word(stack.thread + stack.walk.thread_frame as u64),
        root => Some(root),
    };
    let found = match root {
        Some(root) if stack.walk.root_frame != NO_OFFSET && root != 0 => {
            word(root + stack.walk.root_frame as u64)
        }
        root => root,
    };
    match found {
        Some(frame) => stack.frame = frame,
        None => stack.head.flags |= STACK_UNREADABLE,
    }
}

/// A field of a frame that was read, of so many bytes.
#[inline(always)]
fn field(near: &[u64; NEAR_WORDS], at: u64, len: u8) -> u64 {
    let word = near[(at >> 3) as usize % NEAR_WORDS] >> ((at & 7) << 3);
    match len {
        8 => word,
        4 => word as u32 as u64,
        _ => word & 0xff,
    }
}

/// Reads the next frame, unless it was read with another one. Gives where it is in `near`.
///
/// From 3.11 on most frames of a thread lie one after the other, the outer ones below the inner ones. So what is
/// below a frame is read with it, as far as its page goes: a read of what is not there takes longer than all
/// others. Frames elsewhere, as those of generators, are read alone, to another place.
#[inline(always)]
fn read_frame(stack: &mut Stack) -> Option<u64> {
    const ALONE: u64 = 8 * NEAR_WORDS as u64 - FRAME_BYTES as u64;
    let len = stack.walk.frame_len;
    if len > FRAME_BYTES as u32 {
        return None;
    }
    let frame = stack.frame;
    let at = frame.wrapping_sub(stack.near_at);
    if stack.near_len != 0 && at < stack.near_len && at + len as u64 <= stack.near_len {
        return Some(at);
    }
    let follows = stack.near_len == 0 || stack.near_at.wrapping_sub(frame) < FRAMES_BYTES;
    if stack.walk.in_chunks != 0 && follows {
        let in_page = frame & 4088;
        let below = if in_page < FRAMES_BYTES { in_page } else { FRAMES_BYTES };
        let from = frame - below;
        let bytes = (below as u32 & 4095) + len;
        let near = (&raw mut stack.near).cast();
        // SAFETY: at most 2048 + 128 bytes, which are there; the helper checks the address.
        if bytes <= (FRAMES_BYTES + FRAME_BYTES as u64) as u32
            && unsafe { bpf_probe_read_user(near, bytes, from as *const _) } >= 0
        {
            (stack.near_at, stack.near_len) = (from, bytes as u64);
            return Some(below);
        }
        stack.near_len = 0;
    }
    // SAFETY: `FRAME_BYTES` are there; the helper checks the address.
    let failed = unsafe {
        let alone = (&raw mut stack.near).cast::<u8>().add(ALONE as usize);
        bpf_probe_read_user(alone.cast(), len, frame as *const _)
    } < 0;
    if failed { None } else { Some(ALONE) }
}

/// An instruction in a thread's own copy of the bytecode, as the code object's own: so threads with the same stack have
/// the same id. It is looked for now, as a copy can be gone soon, and its number with another thread.
#[inline(always)]
fn in_code_object(walk: &PythonWalk, code: u64, instr: u64, copy: u64) -> u64 {
    let Some(copies) = word(code.wrapping_add(walk.code_copies as u64)) else { return NO_INSTRUCTION };
    // Behind the number of copies are their addresses.
    match word(copies.wrapping_add(8 + 8 * copy)) {
        Some(first) if first != 0 => {
            code.wrapping_add(walk.code_first as u64).wrapping_add(instr.wrapping_sub(first))
        }
        _ => NO_INSTRUCTION,
    }
}

/// Takes one frame, and goes to the one that called it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn take_frame(stack: *mut Stack) -> u64 {
    if stack.is_null() {
        return OVER;
    }
    // SAFETY: not null, and given by `send_stack`.
    let stack = unsafe { &mut *stack };
    if stack.frame == 0 {
        return OVER;
    }
    if stack.steps >= STEPS as u64 {
        stack.head.flags |= STACK_CUT;
        return OVER;
    }
    stack.steps += 1;
    let Some(at) = read_frame(stack) else {
        stack.head.flags |= STACK_UNREADABLE;
        return OVER;
    };
    let walk = &stack.walk;
    stack.frame = field(&stack.near, at + walk.frame_previous as u64, 8);
    let owner = field(&stack.near, at + walk.frame_owner as u64, 1) & 15;
    let code = field(&stack.near, at + walk.frame_code as u64, 8) & !walk.code_tags;
    let n = stack.head.n_frames as usize;
    if walk.owners_left_out >> owner & 1 != 0 || code == 0 {
        if walk.frame_enters == ENTERS_BEFORE_LEFT_OUT && n > 0 {
            stack.piece.enters |= 1 << ((n - 1) & 63);
        }
        return NEXT;
    }
    // Not before: what calls the outermost frame can be one that is left out.
    if n >= stack.walk.depth as usize || n >= MAX_STACK_FRAMES {
        stack.head.flags |= STACK_CUT;
        return OVER;
    }
    let mut instr = field(&stack.near, at + walk.frame_instr as u64, walk.instr_len);
    if walk.code_copies != 0 {
        let copy = field(&stack.near, at + walk.frame_copy as u64, 4);
        if copy != 0 {
            instr = in_code_object(walk, code, instr, copy);
            if instr == NO_INSTRUCTION {
                stack.head.flags |= STACK_UNREADABLE;
            }
        }
    }
    let enters = match walk.frame_enters {
        ENTERS_EACH => 1,
        ENTERS_BEFORE_LEFT_OUT => 0,
        place => (field(&stack.near, at + place as u64, 1) != 0) as u64,
    };
    stack.piece.enters |= enters << (n & 63);
    stack.head.id = mix(mix(stack.head.id, code), instr);
    let (mut guard, mut name) = (0, 0);
    // Else it is read only if it may have changed.
    if walk.version_of != VERSION_OF_CODE {
        (guard, name) = sent::guard(stack, n, code);
        stack.head.id = mix(stack.head.id, guard);
    }
    stack.frames[n] = RawFrame { code, instr, guard };
    stack.names[n] = name;
    stack.head.n_frames += 1;
    NEXT
}

/// Sends the id, and with it the frames if they were not sent before. Says whether it is on its way.
#[inline(always)]
fn send(stack: &mut Stack, is_known: bool, hit: u64, origin: Origin, ctx: *mut bpf_user_pt_regs_t) -> bool {
    if is_known {
        let Some(entry) = Entry::<STACK_RECORD>::reserve() else { return false };
        stack.head.flags |= STACK_KNOWN;
        write_head(entry.room().cast(), stack, STACK_RECORD, hit, origin);
        return entry.send(ctx, |_| {});
    }
    let Some(entry) = Entry::<LARGEST_STACK>::reserve() else { return false };
    let room: *mut u8 = entry.room().cast();
    let n = stack.head.n_frames as usize;
    let mut i = 0;
    while i < MAX_STACK_FRAMES {
        if i >= n {
            break;
        }
        // SAFETY: within the room, which is 8-byte aligned.
        unsafe {
            room.add(STACK_RECORD + i * size_of::<RawFrame>()).cast::<RawFrame>().write(stack.frames[i])
        };
        i += 1;
    }
    write_head(room, stack, STACK_RECORD + i * size_of::<RawFrame>(), hit, origin);
    // The code may be gone soon.
    let sent = entry.send_at_once(ctx);
    if sent {
        sent::keep_sent(stack);
    }
    sent
}

#[inline(always)]
fn write_head(room: *mut u8, stack: &Stack, len: usize, hit: u64, origin: Origin) {
    let header = emit::header_of(STACK_COOKIE, len as u16, hit, origin, 0);
    // SAFETY: header and head are within the room, which is 8-byte aligned.
    unsafe {
        room.cast::<RecordHeader>().write(header);
        room.add(size_of::<RecordHeader>()).cast::<StackHead>().write(stack.head);
    }
}
