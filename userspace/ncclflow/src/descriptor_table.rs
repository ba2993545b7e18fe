//! The room that the kernel has for this process's descriptors.

use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Resource, getrlimit},
};

/// Descriptors that the table has room for: many times what a recording of a few processes opens. The table
/// takes 8 KiB.
const ROOM: u64 = 1024;

/// Has the kernel make the table of descriptors large while there is one thread.
///
/// The table begins with room for 64, and is replaced by a larger one where that is too little. If threads
/// share it, the one that needs the room waits for an RCU grace period, and all others that open something
/// wait with it (`expand_fdtable` and `resize_in_progress`, fs/file.c, Linux 4.4 to 6.18). That was 5 to 45
/// ms of the time to attach. The table does not become smaller.
pub(crate) fn enlarge() {
    let most = getrlimit(Resource::Nofile).current.map_or(ROOM, |limit| limit.min(ROOM));
    let last = i32::try_from(most.saturating_sub(1)).unwrap_or(0);
    // If this fails, the table grows later. The descriptor is closed at once.
    let _ = fcntl_dupfd_cloexec(std::io::stdin(), last);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `FDSize` is the kernel's own count.
    #[test]
    fn the_table_has_room_and_nothing_is_left_open() {
        enlarge();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        assert!(size.trim().parse::<u64>().unwrap() >= ROOM, "{size}");
        assert!(!std::path::Path::new(&format!("/proc/self/fd/{}", ROOM - 1)).exists());
    }
}
