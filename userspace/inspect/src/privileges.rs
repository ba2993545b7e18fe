//! Capabilities are of threads: each keeps those that it needs, and the threads that parse, write or serve
//! keep none.
//!
//! All threads have one memory, so this is no wall against somebody who runs code in it. It protects against
//! a thread that is tricked into opening, reading or removing what it should not.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Capabilities to read other processes and their libraries.
pub const READS_PROCESSES: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);

/// Capabilities of [`READS_PROCESSES`], also where a library's file was replaced (CHECKPOINT_RESTORE; before
/// Linux 5.9 SYS_ADMIN), and to read the stacks of threads (PERFMON). Each child of this program keeps those
/// that it needs.
pub const DUMPS: CapabilitySet = READS_PROCESSES
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::PERFMON);

/// Capability to write in a folder of another user. What is in the folder belongs to us.
pub const WRITES_ELSEWHERE: CapabilitySet = CapabilitySet::DAC_OVERRIDE;

/// Keeps only these capabilities of the thread. Threads that it starts have no more.
pub fn keep_only(wanted: CapabilitySet) {
    keep(wanted, CapabilitySet::empty());
}

/// Keeps only these capabilities of a thread that starts programs, which inherit those of them that it may
/// hand on.
pub(crate) fn keep_for_children(wanted: CapabilitySet) {
    keep(wanted, wanted);
}

/// Keeps those of `wanted` that the thread has, and those of `handed_on` that programs started by it inherit
/// already.
fn keep(wanted: CapabilitySet, handed_on: CapabilitySet) {
    let Ok(CapabilitySets { effective, inheritable, .. }) = capabilities(None) else { return };
    let kept = effective & wanted;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: inheritable & kept & handed_on };
    // Giving up capabilities is always allowed.
    let _ = set_capabilities(None, sets);
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn effective() -> CapabilitySet {
        capabilities(None).unwrap().effective
    }

    #[test]
    fn a_thread_that_gives_capabilities_up_takes_none_from_others() {
        let before = effective();
        let (some, none) = thread::spawn(|| {
            keep_only(READS_PROCESSES);
            let some = effective();
            keep_only(CapabilitySet::empty());
            // The thread cannot get them back.
            keep_only(READS_PROCESSES);
            (some, effective())
        })
        .join()
        .unwrap();
        assert_eq!(some, before & READS_PROCESSES);
        assert_eq!(none, CapabilitySet::empty());
        assert_eq!(effective(), before);
    }
}
