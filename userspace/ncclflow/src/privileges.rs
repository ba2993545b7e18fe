//! Capabilities are of threads: each keeps those that it needs, and the threads that parse, write or serve keep
//! none.
//!
//! All threads have one memory, so this is no wall against somebody who runs code in it. It is one against a
//! thread that is talked into opening, reading or removing what it should not.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// To read other processes and their libraries.
pub(crate) const READS_PROCESSES: CapabilitySet =
    CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);

/// The same, also where a library's file was replaced (CHECKPOINT_RESTORE; before Linux 5.9 SYS_ADMIN), and with the
/// stacks of their threads (PERFMON). Each child of this program keeps of these what it needs.
pub(crate) const DUMPS: CapabilitySet = READS_PROCESSES
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::PERFMON);

/// To write in a folder of another user. What is in it belongs to us.
pub(crate) const WRITES_ELSEWHERE: CapabilitySet = CapabilitySet::DAC_OVERRIDE;

/// Of what this thread may do, it keeps this. Threads that it starts keep no more.
pub(crate) fn keep_only(wanted: CapabilitySet) {
    keep(wanted, CapabilitySet::empty());
}

/// The same for a thread that starts programs: they inherit what it may hand on of this.
pub(crate) fn keep_for_children(wanted: CapabilitySet) {
    keep(wanted, wanted);
}

/// Keeps of `wanted` what the thread has, and of `handed_on` what programs that it starts inherit already.
fn keep(wanted: CapabilitySet, handed_on: CapabilitySet) {
    let Ok(CapabilitySets { effective, inheritable, .. }) = capabilities(None) else { return };
    let kept = effective & wanted;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: inheritable & kept & handed_on };
    // To have less is always allowed.
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
            // It cannot have them back.
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
