//! Kinds of hangs that the tools are asked about: `rank.py` makes them.

/// What is done to the job after some moments of work.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    Nothing,
    /// A file of this name is made in the job's folder.
    Touch(&'static str),
    /// The culprit's process is killed.
    Kill,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// What `rank.py` calls it.
    pub(super) name: &'static str,
    /// The rank that is to blame.
    pub(super) culprit: u32,
    /// Options of the bed. `{}` is the job's folder.
    pub(super) options: &'static str,
    pub(super) then: Then,
}

const PLAIN: Kind = Kind { name: "", culprit: 0, options: "", then: Then::Nothing };
/// One node, without proxies.
const SHARED: &str = "--env NCCL_SHM_DISABLE=0";

pub(super) const KINDS: [Kind; 6] = [
    // A lock in a data loader that is never given back.
    Kind { name: "lock", culprit: 2, options: SHARED, ..PLAIN },
    // One rank of a pair goes on to the collective of all.
    Kind { name: "call-skipped", culprit: 1, options: SHARED, ..PLAIN },
    // An all-reduce of one element beside one of many.
    Kind { name: "barrier", culprit: 3, options: "--env NCCL_BUFFSIZE=262144", ..PLAIN },
    Kind {
        name: "spin",
        culprit: 1,
        options: "--env NCCL_SHM_DISABLE=0 --spin 1={}/spin",
        then: Then::Touch("spin"),
    },
    Kind { name: "killed", culprit: 2, then: Then::Kill, ..PLAIN },
    // One rank does not make a group that all must make.
    Kind { name: "new-group", culprit: 3, options: SHARED, ..PLAIN },
];
