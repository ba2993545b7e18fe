//! Walks the Python stack of the thread that was hit, by the offsets that user space has found, and sends its
//! id; its frames only if they were not sent before. Where native frames are wanted, too, they are in the id, and
//! a copy of the stack is sent with it: see [`crate::native`].
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
        DICT_VERSION, ENTERS_BEFORE_LEFT_OUT, ENTERS_EACH, FRAME_BYTES, LARGEST_STACK, MAX_CODE_WORDS,
        MAX_STACK_FRAMES, MAX_THREADS_WALKED, NAME_BYTES, NO_INSTRUCTION, NO_OFFSET, NOT_HASHED, PieceHead,
        PythonWalk, RawFrame, RecordHeader, STACK_COOKIE, STACK_CUT, STACK_KNOWN, STACK_NATIVE,
        STACK_NO_THREAD, STACK_NOT_COPIED, STACK_RECORD, STACK_UNREADABLE, SentStack, StackHead, StringHead,
        TAKES_NATIVE, TAKES_PYTHON, mix, mix_begun,
    },
    emit::{self, Origin},
    maps, native,
    output::{Entry, bpf_user_pt_regs_t},
    scratch,
    tally::Tally,
};

/// A stack that is being walked.
#[repr(C)]
pub struct Stack {
    walk: PythonWalk,
    pub head: StackHead,
    /// The frame that is next; 0: there is none.
    frame: u64,
    /// State of the thread; 0: it was not found.
    thread: u64,
    /// What leads to its innermost frame, if it was read with the state; else 0.
    root: u64,
    /// Number of the thread as its process knows it.
    tid: u64,
    /// Frames that are left out count, too: a list in a circle ends.
    steps: u64,
    /// What is sent with each piece of the native stack.
    pub piece: PieceHead,
    /// The id without the hashes of names.
    key: u64,
    /// [`mix`] of the hashes of names, once they were read.
    names_hash: u64,
    has_names: u64,
    /// Version of the dictionary of interned strings before they were read; 0: not known, or not all names are in it.
    interned: u64,
    /// What was found of the stack among those that were sent.
    sent: SentStack,
    /// Of the name that is read.
    string: StringHead,
    references: u64,
    /// Where `near` begins in the target's memory, and bytes of it that are there.
    near_at: u64,
    pub near_len: u64,
    /// A copy of memory near the frame: several frames mostly lie in it. Then of the top of the native stack.
    pub near: [u64; NEAR_WORDS],
    code: [u64; MAX_CODE_WORDS],
    frames: [RawFrame; MAX_STACK_FRAMES],
    /// By frame: address of its code's name.
    names: [u64; MAX_STACK_FRAMES],
}

/// Words that are copied at once.
pub const NEAR_WORDS: usize = 512;

/// Bytes of a thread's state that are read at once.
const STATE_BYTES: u32 = 512;

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
    stack.has_names = 0;
    stack.interned = 0;
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

/// What [`find_sent`] says.
const UNSENT: u64 = 0;
const SENT_BEFORE: u64 = 1;
const NAMES_FIRST: u64 = 2;

/// Adds to the id what tells the names of code from others, and says whether the stack was sent before.
///
/// Reading each name's hash takes as long as reading each code object. Names are interned nearly always. As long as no
/// interned string has come or gone since the hashes were read, they need not be read again.
#[inline(always)]
fn was_sent(stack: &mut Stack) -> bool {
    stack.key = stack.head.id;
    let mut found = find_sent(stack);
    if found == NAMES_FIRST {
        read_names(stack);
        found = find_sent(stack);
    }
    found == SENT_BEFORE
}

/// [`was_sent`], or [`NAMES_FIRST`]: the hashes of names must be read. What it works with is in `stack`, as its own frame
/// has little room: see `every_kernel_has_room_for_the_frames_of_the_programs`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_sent(stack: *mut Stack) -> u64 {
    if stack.is_null() {
        return UNSENT;
    }
    // SAFETY: not null, and given by `send_stack`.
    let stack = unsafe { &mut *stack };
    let mut is_known = 0;
    if let Some(known) = maps::STACKS_SENT.get_ptr(&stack.key) {
        // SAFETY: a live element of the map. Another stack can take its place meanwhile: then it is not whole.
        stack.sent = unsafe { known.read_volatile() };
        is_known = stack.sent.is_whole(stack.key) as u64;
    }
    if stack.walk.code_name == NO_OFFSET {
        return is_known;
    }
    if stack.has_names == 0 {
        // Before the names are read: what changes after this is seen at the next hit.
        read_version(stack);
        if is_known == 0 || stack.interned == 0 || stack.sent.interned != stack.interned {
            return NAMES_FIRST;
        }
        stack.head.id = stack.sent.id;
        return SENT_BEFORE;
    }
    stack.head.id = mix(stack.key, stack.names_hash);
    if is_known == 0 || stack.sent.id != stack.head.id {
        return UNSENT;
    }
    if stack.interned != 0 {
        keep_sent(stack);
    }
    SENT_BEFORE
}

/// Reads the version of the dictionary of interned strings into `interned`; 0: not known.
#[inline(always)]
fn read_version(stack: &mut Stack) {
    // The pointer, too, each time: an interpreter that was begun again has another dictionary.
    stack.interned = 0;
    if stack.walk.interned == 0 || !read_word(&mut stack.interned, stack.walk.interned) {
        return;
    }
    let at = stack.interned.wrapping_add(DICT_VERSION);
    if !read_word(&mut stack.interned, at) {
        stack.interned = 0;
    }
}

/// Reads a word of the target's memory to a place in a map. Says whether it could be read.
#[inline(always)]
fn read_word(into: &mut u64, address: u64) -> bool {
    // SAFETY: it holds 8 bytes; the helper checks the address.
    unsafe { bpf_probe_read_user((&raw mut *into).cast(), 8, address as *const _) >= 0 }
}

/// Notes that the stack's frames were sent. Where it cannot be kept they are sent again.
#[inline(always)]
fn keep_sent(stack: &mut Stack) {
    stack.sent = SentStack::new(stack.key, stack.head.id, stack.interned);
    let _ = maps::STACKS_SENT.insert(&stack.key, &stack.sent, 0);
}

/// Reads the hash of each name, and adds it to what tells the frame's code from other code.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn read_names(stack: *mut Stack) -> u64 {
    if stack.is_null() {
        return 0;
    }
    // SAFETY: not null, and given by `send_stack`.
    let stack = unsafe { &mut *stack };
    stack.names_hash = 0;
    let mut i = 0;
    while i < MAX_STACK_FRAMES {
        if i >= stack.head.n_frames as usize {
            break;
        }
        let mut hash = 0;
        if stack.frames[i].guard != 0 {
            hash = name_hash(stack, stack.names[i]);
            stack.frames[i].guard = mix(stack.frames[i].guard, hash);
        }
        stack.names_hash = mix(stack.names_hash, hash);
        i += 1;
    }
    stack.has_names = 1;
    1
}

/// The hash of a string, or of what it says where it has none; 0: it could not be read. Where the string is not sure to be
/// the same as long as the dictionary of interned strings is, `interned` is 0 after it.
#[inline(always)]
fn name_hash(stack: &mut Stack, name: u64) -> u64 {
    let at = name.wrapping_add(stack.walk.string_hash as u64);
    let head = (&raw mut stack.string).cast();
    // SAFETY: 24 bytes are there; the helper checks the address.
    if unsafe { bpf_probe_read_user(head, 24, at.wrapping_sub(8) as *const _) } < 0 {
        stack.interned = 0;
        return 0;
    }
    if !stack.string.is_interned() && !is_static(stack, name) {
        stack.interned = 0;
    }
    if stack.string.hash != NOT_HASHED {
        return stack.string.hash;
    }
    let mut i = 0;
    while i < MAX_CODE_WORDS {
        // SAFETY: within the array. Volatile, as a call of `memset` takes room in the frames.
        unsafe { (&raw mut stack.code[i]).write_volatile(0) };
        i += 1;
    }
    let (characters, bytes) = stack.string.characters();
    let bytes = bytes as u32 & 127;
    let room = (&raw mut stack.code).cast();
    // SAFETY: at most 80 bytes, which are there; the helper checks the address.
    if bytes > NAME_BYTES as u32
        || unsafe { bpf_probe_read_user(room, bytes, at.wrapping_add(characters) as *const _) } < 0
    {
        stack.interned = 0;
        return 0;
    }
    let (mut hash, mut i) = (stack.string.length, 0);
    while i < NAME_BYTES / 8 {
        hash = mix(hash, stack.code[i]);
        i += 1;
    }
    hash
}

/// Whether an object is one of the interpreter's own variables, which stay: in 3.11 that are the names of code without a
/// name, as `<module>` and `<lambda>`, which are not interned. They begin with 999,999,999 references
/// (`_PyObject_IMMORTAL_REFCNT`, Include/internal/pycore_object.h), and no other object has nearly as many.
#[inline(always)]
fn is_static(stack: &mut Stack, object: u64) -> bool {
    read_word(&mut stack.references, object) && stack.references >= 500_000_000 && stack.references < 1 << 31
}

/// A word of the target's memory; nothing where it cannot be read.
#[inline(always)]
pub fn word(address: u64) -> Option<u64> {
    let mut value = 0u64;
    // SAFETY: `value` holds 8 bytes; the helper checks the address.
    let failed = unsafe { bpf_probe_read_user((&raw mut value).cast(), 8, address as *const _) } < 0;
    if failed { None } else { Some(value) }
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
    stack.root = 0;
    if search(stack) != 0 {
        let _ = maps::PYTHON_THREADS.insert(&pid_tgid, &stack.thread, 0);
    } else {
        stack.thread = 0;
    }
}

/// [`is_its_state`] of a thread that was found before. Where its number and what leads to its frames are near each
/// other, one read has both.
#[inline(always)]
fn is_known_state(stack: &mut Stack) -> bool {
    let (tid, frame) = (stack.walk.thread_tid, stack.walk.thread_frame);
    let (first, last) = if tid < frame { (tid, frame) } else { (frame, tid) };
    let len = last.wrapping_sub(first).wrapping_add(8);
    if tid == NO_OFFSET || len > STATE_BYTES {
        return is_its_state(stack) != 0;
    }
    let near = (&raw mut stack.near).cast();
    // SAFETY: at most so many bytes as are there; the helper checks the address.
    if unsafe { bpf_probe_read_user(near, len, (stack.thread + first as u64) as *const _) } < 0 {
        return false;
    }
    stack.root = field(&stack.near, (frame - first) as u64, 8);
    field(&stack.near, (tid - first) as u64, 4) == stack.tid
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
    let (guard, name) = match neighbour(stack, n, code) {
        Some(known) => known,
        None => guard_of_code(stack, code),
    };
    if guard == 0 {
        stack.head.flags |= STACK_UNREADABLE;
    }
    stack.head.id = mix(mix(mix(stack.head.id, code), instr), guard);
    stack.frames[n] = RawFrame { code, instr, guard };
    stack.names[n] = name;
    stack.head.n_frames += 1;
    NEXT
}

/// Frames that are compared with one that follows: functions that call themselves, or each other in a circle, as the
/// modules of a model do, have their code read once. Reads take most of a hit's time. No code goes while it is in a
/// frame of the stack.
const NEIGHBOURS: usize = 4;

/// Guard and name of this code if it is that of one of the frames before, of which `n` are there.
#[inline(always)]
fn neighbour(stack: &Stack, n: usize, code: u64) -> Option<(u64, u64)> {
    let mut back = 1;
    while back <= NEIGHBOURS {
        let at = n.wrapping_sub(back);
        if at < MAX_STACK_FRAMES && stack.frames[at].code == code {
            return Some((stack.frames[at].guard, stack.names[at]));
        }
        back += 1;
    }
    None
}

/// What tells this code object from another at its address, but for the hash of its name; 0: it could not be read. And
/// where its name is, if that is asked for.
#[inline(always)]
fn guard_of_code(stack: &mut Stack, code: u64) -> (u64, u64) {
    let walk = &stack.walk;
    let len = walk.code_words as u32 * 8;
    let words = (&raw mut stack.code).cast();
    // SAFETY: at most so many bytes as are there; the helper checks the address.
    if len > (MAX_CODE_WORDS * 8) as u32
        || unsafe { bpf_probe_read_user(words, len, (code + walk.code_words_at as u64) as *const _) } < 0
    {
        return (0, 0);
    }
    let (mut guard, mut i) = (0, 0);
    while i < MAX_CODE_WORDS {
        if i >= walk.code_words as usize {
            break;
        }
        guard = mix(guard, stack.code[i]);
        i += 1;
    }
    let at = (walk.code_name as usize).wrapping_sub(walk.code_words_at as usize) >> 3;
    (guard, if at < MAX_CODE_WORDS { stack.code[at] } else { 0 })
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
        keep_sent(stack);
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
