//! Walks the Python stack of the thread that was hit, by the offsets that user space has found, and sends its
//! id; its frames only if they were not sent before.
//!
//! NCCL's callers release the GIL, so CPython's own "current thread" is empty at a hit. The thread's state is
//! found by the thread's number among all threads of the interpreters, and kept.

use aya_ebpf::{
    helpers::{
        bpf_get_current_pid_tgid,
        generated::{bpf_get_ns_current_pid_tgid, bpf_probe_read_user},
    },
    programs::ProbeContext,
};

use crate::{
    common::{
        FRAME_BYTES, LARGEST_STACK, MAX_CODE_WORDS, MAX_STACK_FRAMES, MAX_THREADS_WALKED, NO_OFFSET,
        PythonWalk, RawFrame, RecordHeader, STACK_COOKIE, STACK_CUT, STACK_NO_THREAD, STACK_RECORD,
        STACK_UNREADABLE, StackHead, mix, mix_begun,
    },
    emit::{self, Origin},
    maps,
    output::{Entry, bpf_user_pt_regs_t},
    scratch,
    tally::Tally,
};

/// A stack that is being walked.
#[repr(C)]
pub struct Stack {
    walk: PythonWalk,
    head: StackHead,
    /// The frame that is next; 0: there is none.
    frame: u64,
    /// State of the thread; 0: it was not found.
    thread: u64,
    /// Number of the thread as its process knows it.
    tid: u64,
    /// Frames that are left out count, too: a list in a circle ends.
    steps: u64,
    fields: [u64; FRAME_BYTES / 8],
    code: [u64; MAX_CODE_WORDS],
    frames: [RawFrame; MAX_STACK_FRAMES],
}

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
    stack.head.id = mix(stack.head.id, stack.head.flags as u64);
    if !send(stack, hit, origin, ctx) {
        tally.lost_full();
    }
    scratch::release(slot);
    0
}

/// A word of the target's memory; nothing where it cannot be read.
#[inline(always)]
fn word(address: u64) -> Option<u64> {
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
    if let Some(known) = maps::PYTHON_THREADS.get_ptr(&pid_tgid) {
        // SAFETY: a live element of the map.
        stack.thread = unsafe { known.read_volatile() };
        if is_its_state(stack) != 0 {
            return;
        }
    }
    if search(stack) != 0 {
        let _ = maps::PYTHON_THREADS.insert(&pid_tgid, &stack.thread, 0);
    } else {
        stack.thread = 0;
    }
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
    let found = match word(stack.thread + stack.walk.thread_frame as u64) {
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
fn field(fields: &[u64; FRAME_BYTES / 8], at: u8, len: u8) -> u64 {
    let word = fields[(at as usize >> 3) % (FRAME_BYTES / 8)] >> ((at & 7) << 3);
    match len {
        8 => word,
        4 => word as u32 as u64,
        _ => word & 0xff,
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
    let fields = (&raw mut stack.fields).cast();
    let len = stack.walk.frame_len;
    // SAFETY: at most so many bytes as are there; the helper checks the address.
    if len > FRAME_BYTES as u32 || unsafe { bpf_probe_read_user(fields, len, stack.frame as *const _) } < 0 {
        stack.head.flags |= STACK_UNREADABLE;
        return OVER;
    }
    let walk = &stack.walk;
    stack.frame = field(&stack.fields, walk.frame_previous, 8);
    let owner = field(&stack.fields, walk.frame_owner, 1) & 15;
    let code = field(&stack.fields, walk.frame_code, 8) & !walk.code_tags;
    if walk.owners_left_out >> owner & 1 != 0 || code == 0 {
        return NEXT;
    }
    // Not before: what calls the outermost frame can be one that is left out.
    let n = stack.head.n_frames as usize;
    if n >= stack.walk.depth as usize || n >= MAX_STACK_FRAMES {
        stack.head.flags |= STACK_CUT;
        return OVER;
    }
    let mut frame =
        RawFrame { code, instr: field(&stack.fields, walk.frame_instr, walk.instr_len), guard: 0 };
    let len = walk.code_words as u32 * 8;
    let words = (&raw mut stack.code).cast();
    // SAFETY: at most so many bytes as are there; the helper checks the address.
    if len > (MAX_CODE_WORDS * 8) as u32
        || unsafe { bpf_probe_read_user(words, len, (code + walk.code_words_at as u64) as *const _) } < 0
    {
        // A guard of 0: the code could not be read.
        stack.head.flags |= STACK_UNREADABLE;
    } else {
        let mut i = 0;
        while i < MAX_CODE_WORDS {
            if i < walk.code_words as usize {
                frame.guard = mix(frame.guard, stack.code[i]);
            }
            i += 1;
        }
        if walk.code_name != NO_OFFSET {
            let at = (walk.code_name as usize).wrapping_sub(walk.code_words_at as usize) >> 3;
            let name = if at < MAX_CODE_WORDS { stack.code[at] } else { 0 };
            frame.guard = mix(frame.guard, word(name + walk.string_hash as u64).unwrap_or(0));
        }
    }
    stack.head.id = mix(mix(mix(stack.head.id, frame.code), frame.instr), frame.guard);
    stack.frames[n] = frame;
    stack.head.n_frames += 1;
    NEXT
}

/// Sends the id, and with it the frames if the id is new. Says whether it is on its way.
#[inline(always)]
fn send(stack: &mut Stack, hit: u64, origin: Origin, ctx: *mut bpf_user_pt_regs_t) -> bool {
    if maps::STACKS_SENT.get_ptr(&stack.head.id).is_some() {
        let Some(entry) = Entry::<STACK_RECORD>::reserve() else { return false };
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
        // Where it cannot be kept it is sent again.
        let _ = maps::STACKS_SENT.insert(&stack.head.id, &1, 0);
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
