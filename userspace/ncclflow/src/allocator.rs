//! Memory allocation of this program's threads.

/// Makes all threads allocate from one arena.
///
/// glibc gives each thread an arena of its own. Memory that one thread allocates and another one frees goes
/// back to the first one's arena, where the others cannot use it: 4 MiB more for a recording of 8 processes.
/// The threads of a recording hand over whole blocks and allocate rarely, so they hardly wait for each other
/// here.
///
/// glibc decides how many arenas there are when a second thread allocates for the first time, and then keeps
/// to it. So this is the first call of `main`. musl has no arenas.
#[cfg(target_env = "gnu")]
pub fn share_one_arena() {
    // SAFETY: `mallopt` takes two numbers, and may be called at any time (mallopt(3)). It changes from which
    // arenas new memory comes, and nothing about memory that is allocated.
    let is_set = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    debug_assert_eq!(is_set, 1, "one arena is a valid number");
}

/// Does nothing: musl has no arenas.
#[cfg(not(target_env = "gnu"))]
pub fn share_one_arena() {}
