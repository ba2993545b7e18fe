//! Which stacks were sent before.
//!
//! A stack is known by the addresses of its code objects and instructions. Code that is dropped leaves its address to other
//! code, so what tells a code object from others counts, too: words of it, and before CPython 3.12 its name. Reading these
//! takes most of a hit's time. Where the interpreter has a number that changes when code objects, or names, are dropped
//! (see [`PythonWalk::version_of`](crate::common::PythonWalk::version_of)), they are read again only after it has changed.

use aya_ebpf::helpers::generated::bpf_probe_read_user;

use crate::{
    common::{
        MAX_CODE_WORDS, MAX_STACK_FRAMES, NAME_BYTES, NO_OFFSET, NO_VERSION, NOT_HASHED, STACK_UNREADABLE,
        SentStack, VERSION_OF_CODE, VERSION_OF_NAMES, mix,
    },
    maps,
    state::Stack,
    user::read_word,
};

/// What [`find_sent`] says.
const UNSENT: u64 = 0;
const SENT_BEFORE: u64 = 1;
const READ_FIRST: u64 = 2;

/// Adds to the id what a version can spare, and says whether the stack was sent before.
#[inline(always)]
pub fn was_sent(stack: &mut Stack) -> bool {
    stack.key = stack.head.id;
    let mut found = find_sent(stack);
    if found == READ_FIRST {
        read_spared(stack);
        found = find_sent(stack);
    }
    found == SENT_BEFORE
}

/// [`was_sent`], or [`READ_FIRST`]: what a version can spare must be read. What it works with is in `stack`, as its own
/// frame has little room: see `every_kernel_has_room_for_the_frames_of_the_programs`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_sent(stack: *mut Stack) -> u64 {
    if stack.is_null() {
        return UNSENT;
    }
    // SAFETY: not null, and given by `send_stack`.
    let stack = unsafe { &mut *stack };
    let mut is_known = 0;
    // Kernels before 6.2 take no key or element of a map from memory that a function was given.
    let key = stack.key;
    if let Some(known) = maps::STACKS_SENT.get_ptr(&key) {
        // SAFETY: a live element of the map. Another stack can take its place meanwhile: then it is not whole.
        stack.sent = unsafe { known.read_volatile() };
        is_known = stack.sent.is_whole(stack.key) as u64;
    }
    if stack.walk.version_of == NO_VERSION && !has_names(stack) {
        return is_known;
    }
    if stack.has_spared == 0 {
        // Before that is read: what changes after this is seen at the next hit.
        read_version(stack);
        if is_known == 0 || stack.version == 0 || stack.sent.version != stack.version {
            return READ_FIRST;
        }
        stack.head.id = stack.sent.id;
        return SENT_BEFORE;
    }
    stack.head.id = mix(stack.key, stack.spared);
    if is_known == 0 || stack.sent.id != stack.head.id {
        return UNSENT;
    }
    if stack.version != 0 {
        keep_sent(stack);
    }
    SENT_BEFORE
}

/// Whether code is told from other code by its name, too.
#[inline(always)]
fn has_names(stack: &Stack) -> bool {
    stack.walk.code_name != NO_OFFSET
}

/// Reads the version that the process has now; 0: not known. The pointer to what has it, too, each time: an interpreter
/// that was begun again has another dictionary.
#[inline(always)]
fn read_version(stack: &mut Stack) {
    stack.version = 0;
    let mut is_there = true;
    if stack.walk.version_of == VERSION_OF_NAMES {
        is_there = read_word(&mut stack.version_in, stack.walk.interned);
    } else if stack.walk.version_of != VERSION_OF_CODE {
        return;
    } else if stack.version_in == 0 {
        let at = stack.thread.wrapping_add(stack.walk.thread_interpreter as u64);
        is_there = read_word(&mut stack.version_in, at);
    }
    let at = stack.version_in.wrapping_add(stack.walk.version_at as u64);
    if is_there && read_word(&mut stack.version, at) {
        // Interpreters of one process count each for itself.
        stack.version = mix(stack.version, stack.version_in);
    }
}

/// Notes that the stack's frames were sent. Where it cannot be kept they are sent again. It has a frame of its own: the
/// element must be in one.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn keep_sent(stack: *mut Stack) -> u64 {
    if stack.is_null() {
        return 0;
    }
    // SAFETY: not null, and given by `send_stack` or `find_sent`.
    let stack = unsafe { &*stack };
    let (key, sent) = (stack.key, SentStack::new(stack.key, stack.head.id, stack.version));
    maps::STACKS_SENT.insert(&key, &sent, 0).is_ok() as u64
}

/// Reads for each frame what tells its code from other code and is not in the key, and adds it to the frame's guard.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn read_spared(stack: *mut Stack) -> u64 {
    if stack.is_null() {
        return 0;
    }
    // SAFETY: not null, and given by `send_stack`.
    let stack = unsafe { &mut *stack };
    stack.spared = 0;
    let mut i = 0;
    while i < MAX_STACK_FRAMES {
        if i >= stack.head.n_frames as usize {
            break;
        }
        if stack.walk.version_of == VERSION_OF_CODE {
            let code = stack.frames[i].code;
            (stack.frames[i].guard, _) = guard(stack, i, code);
            stack.spared = mix(stack.spared, stack.frames[i].guard);
        } else {
            let mut hash = 0;
            if stack.frames[i].guard != 0 {
                hash = name_hash(stack, stack.names[i]);
                stack.frames[i].guard = mix(stack.frames[i].guard, hash);
            }
            stack.spared = mix(stack.spared, hash);
        }
        i += 1;
    }
    stack.has_spared = 1;
    1
}

/// Frames that are compared with one that follows: functions that call themselves, or each other in a circle, as the
/// modules of a model do, have their code read once. No code goes while it is in a frame of the stack.
const NEIGHBOURS: usize = 4;

/// What tells the code of frame `n` from other code at its address, but for the hash of its name; 0: it could not be read,
/// which the stack then says. And where its name is, if that is asked for.
#[inline(always)]
pub fn guard(stack: &mut Stack, n: usize, code: u64) -> (u64, u64) {
    let (guard, name) = match neighbour(stack, n, code) {
        Some(known) => known,
        None => guard_of_code(stack, code),
    };
    if guard == 0 {
        stack.head.flags |= STACK_UNREADABLE;
        stack.version = 0;
    }
    (guard, name)
}

/// Guard and name of this code if it is that of one of the frames before `n`.
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

/// [`guard`], read.
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

/// The hash of a string, or of what it says where it has none; 0: it could not be read. Where the string is not sure to be
/// the same as long as the dictionary of interned strings is, `version` is 0 after it.
#[inline(always)]
fn name_hash(stack: &mut Stack, name: u64) -> u64 {
    let at = name.wrapping_add(stack.walk.string_hash as u64);
    let head = (&raw mut stack.string).cast();
    // SAFETY: 24 bytes are there; the helper checks the address.
    if unsafe { bpf_probe_read_user(head, 24, at.wrapping_sub(8) as *const _) } < 0 {
        stack.version = 0;
        return 0;
    }
    if !stack.string.is_interned() && !is_static(stack, name) {
        stack.version = 0;
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
        stack.version = 0;
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
