//! Kinds of hangs, and of waits that are none, that differ by what threads of a rank do.

use super::{
    kind::Kind,
    kinds::{PLAIN, stuck, waiting},
};

pub(super) const THREAD_ENDED: Kind = Kind {
    name: "first-thread-ended",
    workload: "--ends-thread 2@3 --iters 6 --sync",
    expected: stuck(&["notJoined"], &[2]),
    says: "its first thread has ended, and",
    ..PLAIN
};

pub(super) const UNWAKEABLE: Kind = Kind {
    name: "uninterruptible",
    workload: "--unwakeable 3@2 --iters 6 --sync",
    expected: stuck(&["notJoined"], &[3]),
    says: "its first thread is in state D, in ",
    ..PLAIN
};

/// The rank's first thread waits for another one, which launches and computes, as of servers and schedulers.
pub(super) const WORKER_COMPUTES: Kind = Kind {
    name: "worker-computes",
    workload: "--worker 1 --busy 1@4 --iters 8 --sync",
    expected: waiting(&["notJoined"], &[1]),
    says: "it ran on the CPU",
    ..PLAIN
};

/// The same, and that thread sleeps.
pub(super) const WORKER_SLEEPS: Kind = Kind {
    name: "worker-sleeps",
    workload: "--worker 2 --absent 2@3 --iters 6 --sync",
    expected: stuck(&["notJoined"], &[2]),
    says: "(worker) has called NCCL, too",
    ..PLAIN
};

/// The same, beside a thread that spins and has nothing to do with NCCL.
pub(super) const SPINNER: Kind = Kind {
    name: "worker-sleeps-beside-spinner",
    workload: "--worker 2 --spinner 2 --absent 2@3 --iters 6 --sync",
    ..WORKER_SLEEPS
};
