//! What this process may take for itself: descriptors and memory.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Two files a rank and one descriptor a probe are soon more than the usual soft limit of 1,024.
pub(super) fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it there is an error where descriptors run out.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// All threads allocate from one arena. glibc gives each thread one of its own, and what one thread allocates and
/// another frees goes back to the first one's, where the others cannot use it: 3 MiB more for a recording of 8
/// processes. Threads of a recording hand over whole blocks, and hardly wait for each other here. musl has no arenas.
/// glibc decides once how many arenas there are: where another thread has allocated before, this changes nothing.
#[cfg(target_env = "gnu")]
pub(super) fn share_one_arena() {
    // SAFETY: `mallopt` takes two numbers, and is safe to call from several threads (mallopt(3)). It changes from
    // which arenas new memory comes, and nothing about memory that is allocated.
    let is_set = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    debug_assert_eq!(is_set, 1, "one arena is a valid number");
}

#[cfg(not(target_env = "gnu"))]
pub(super) fn share_one_arena() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_other_threads_stays_good() {
        let before = vec![7_u8; 1 << 20];
        share_one_arena();
        let threads = (0..8).map(|thread| std::thread::spawn(move || vec![thread; 1 << 16]));
        for (thread, made) in (0_u8..).zip(threads.collect::<Vec<_>>()) {
            assert!(made.join().unwrap().iter().all(|byte| *byte == thread));
        }
        assert!(before.iter().all(|byte| *byte == 7));
    }
}
