//! All kinds. Ranks 0 to 3; where a rank is another one, it is said.

use rustix::process::Signal;

use super::kind::{
    Expected::{self, CannotTell, Circle, Healthy},
    Given, Kind,
    Over::{SharedMemory, Sockets, TwoNodes},
    Then,
};
use super::thread_kinds::{self, THREAD_ENDED, UNWAKEABLE};
use crate::harness::job::Shape;

const RANKS: Shape = Shape { ranks: 4, processes: true, tree: false };
const TREE: Shape = Shape { ranks: 4, processes: true, tree: true };
const EIGHT: Shape = Shape { ranks: 8, processes: true, tree: false };

pub(super) const PLAIN: Kind = Kind {
    name: "",
    over: SharedMemory,
    shape: RANKS,
    workload: "",
    then: Then::Nothing,
    given: Given::All,
    expected: Healthy,
    since: 0,
    until: u32::MAX,
    says: "",
    moves: false,
};

pub(super) const fn stuck(kinds: &'static [&'static str], culprits: &'static [u32]) -> Expected {
    Expected::Named { state: "stuck", kinds, culprits }
}

pub(super) const fn waiting(kinds: &'static [&'static str], culprits: &'static [u32]) -> Expected {
    Expected::Named { state: "waiting", kinds, culprits }
}

const ABSENT: Kind = Kind {
    name: "absent",
    workload: "--absent 2@3 --iters 6 --sync",
    expected: stuck(&["notJoined"], &[2]),
    says: "rank 2 has not joined",
    ..PLAIN
};

const BUSY_CPU: Kind = Kind {
    name: "cpu",
    workload: "--busy 1@4 --iters 8 --sync",
    expected: waiting(&["notJoined"], &[1]),
    says: "it ran on the CPU",
    ..PLAIN
};

const CHECKPOINT: Kind = Kind {
    name: "checkpoint",
    workload: "--checkpoint 3@4 --iters 8 --sync",
    expected: waiting(&["notJoined"], &[3]),
    ..PLAIN
};

const COMPUTES: Kind = Kind {
    name: "gpu-computes",
    workload: "--compute 1={}/compute --iters 1000000 --sync",
    then: Then::Touch("compute"),
    expected: waiting(&["computing"], &[1]),
    ..PLAIN
};

const SPINS: Kind = Kind {
    name: "gpu-spins",
    workload: "--spin 1={}/spin --iters 1000000 --sync",
    then: Then::Touch("spin"),
    expected: waiting(&["otherKernel"], &[1]),
    says: "with 1 warp on each",
    ..PLAIN
};

const GONE: Kind = Kind {
    name: "gone",
    workload: "--survive --iters 1000000 --sync",
    then: Then::Signal(2, Signal::KILL),
    given: Given::Without(2),
    expected: stuck(&["gone"], &[2]),
    ..PLAIN
};

const STOPPED: Kind = Kind {
    name: "stopped",
    workload: "--iters 1000000 --sync",
    then: Then::Signal(3, Signal::STOP),
    expected: stuck(&["stopped", "notJoined"], &[3]),
    says: "is stopped: process",
    ..PLAIN
};

const FROZEN: Kind = Kind {
    name: "frozen",
    workload: "--iters 1000000 --sync",
    then: Then::Freeze(2),
    expected: stuck(&["stopped"], &[2]),
    says: "held by the freezer of its cgroup",
    ..PLAIN
};

const STARVED: Kind = Kind {
    name: "starved",
    // Only a thread that is ready to run is starved: as NCCL's are, which spin.
    workload: "--iters 1000000 --sync --env NCCLFLOW_BED_GIVES_WAY=0",
    then: Then::Starve(1),
    expected: stuck(&["starved"], &[1]),
    says: "got no processor",
    ..PLAIN
};

const OPEN_GROUP: Kind = Kind {
    name: "open-group",
    workload: "--open-group 1@3 --iters 6 --sync",
    expected: stuck(&["notJoined"], &[1]),
    says: "1 more called, in a group that it has not ended",
    ..PLAIN
};

const RECEIVE: Kind = Kind {
    name: "receive",
    workload: "--absent 1@0 --ops sendrecv --comms 2 --iters 4",
    expected: stuck(&["noCounterpart"], &[1]),
    says: "rank 1 has no",
    ..PLAIN
};

const ENDED: Kind = Kind {
    name: "ended",
    workload: "--iters 3 --comms 2 --hold-file {}/held",
    expected: Healthy,
    says: "the job waits elsewhere",
    ..PLAIN
};

/// NCCL's own list says where the communicators are, in processes of much memory.
const LISTED: Kind = Kind {
    name: "listed",
    workload: "--iters 3 --comms 3 --hold-file {}/held --mapped 200 --env NCCL_RAS_ENABLE=1",
    since: 24,
    says: "\"endedBy\": \"listed\"",
    ..ENDED
};

const NOT_BEGUN: Kind = Kind {
    name: "not-begun",
    // Before its first operation; the wait for the word to go is over.
    workload: "--iters 0 --comms 2 --hold-file {}/held",
    expected: Healthy,
    ..PLAIN
};

const BUSY: Kind = Kind {
    name: "busy",
    workload: "--iters 1000000 --bytes 4194304 --sync --call-log {}/calls",
    expected: Healthy,
    moves: true,
    ..PLAIN
};

const STALL: Kind = Kind {
    name: "stall",
    // Without `--sync` ranks go on launching for some seconds.
    workload: "--stall 2={}/stall --iters 1000000 --bytes 8388608 --sync",
    then: Then::Touch("stall"),
    ..PLAIN
};

const ORDER: Kind = Kind {
    name: "order",
    workload: "--swap 1@4 --comms 2 --iters 8 --sync --survive",
    expected: Circle { first: &[1], second: &[0, 2, 3] },
    says: "in a circle",
    ..PLAIN
};

const FORKED: Kind = Kind {
    name: "left-over",
    workload: "--fork --survive --iters 1000000 --sync",
    then: Then::Signal(2, Signal::KILL),
    given: Given::WithChildren,
    expected: stuck(&["gone"], &[2]),
    says: "left-over child of it",
    ..PLAIN
};

const SPLIT: Kind = Kind {
    name: "split",
    workload: "--makes 0,2,3=split:0@2 --absent 1@2 --iters 4 --sync",
    expected: stuck(&["callNotMade"], &[1]),
    says: "rank 1 has not called ncclCommSplit",
    since: 18,
    ..PLAIN
};

/// One rank never ends a communicator that the others end (pytorch#180611).
const FINALIZE: Kind = Kind {
    name: "finalize",
    workload: "--makes 0,1,3=finalize:0@2 --absent 2@2 --iters 4 --sync",
    expected: stuck(&["callNotMade"], &[2]),
    says: "rank 2 has not called ncclCommFinalize",
    since: BLOCKING_END,
    ..PLAIN
};

/// Ranks end two communicators in other orders (pytorch#190396).
const ENDS: Kind = Kind {
    name: "ends-in-other-orders",
    workload: "--comms 2 --makes 0,3=finalize:0@4 --makes 1,2=finalize:1@4 --iters 8 --sync",
    expected: Circle { first: &[1, 2], second: &[0, 3] },
    says: "calls that all ranks must make wait for each other",
    since: BLOCKING_END,
    ..PLAIN
};

/// One rank destroys a communicator while the others are in an operation of another one, as by `destroy_process_group`.
const DESTROYS: Kind = Kind {
    name: "destroy-beside-operation",
    workload: "--comms 2 --makes 1=destroy:0@3 --iters 8 --sync",
    expected: Circle { first: &[1], second: &[0, 2, 3] },
    says: "a call that all ranks must make, and an operation wait for each other",
    since: BLOCKING_END,
    ..PLAIN
};

/// Up to 2.30 the end of a communicator does not wait for the other ranks of its node: 2.30.7 does not on the bed, and
/// its source has no barrier there (src/init.cc, commDestroySync, commReclaim); 2.31.2 does.
const BLOCKING_END: u32 = 31;

/// The ranks end a communicator, and the process of one is gone (vllm#39846): they wait in ncclCommDestroy for it.
const DESTROYS_WITHOUT_ONE: Kind = Kind {
    name: "destroy-without-one",
    workload: "--makes 0,1,3=destroy:0@2 --absent 2@2 --iters 4 --sync --survive",
    then: Then::SignalAtRest(2, Signal::KILL),
    given: Given::Without(2),
    expected: stuck(&["gone"], &[2]),
    says: "ncclCommDestroy",
    since: BLOCKING_END,
    ..PLAIN
};

/// The rank's output goes into a pipe that nobody reads, as of a launcher that waits for its end first (LlamaFactory#10584).
const FULL_PIPE: Kind = Kind {
    name: "full-pipe",
    workload: "--full-pipe 2@3 --iters 6 --sync",
    expected: stuck(&["notJoined"], &[2]),
    says: "rank 2 has not joined",
    ..PLAIN
};

/// The rank waits for a lock file that a build left behind (pytorch#189245).
const POLLS: Kind = Kind {
    name: "lock-file",
    workload: "--polls 1@3 --iters 6 --sync",
    expected: stuck(&["notJoined"], &[1]),
    says: "rank 1 has not joined",
    ..PLAIN
};

/// The set-up of a second communicator, which torch makes at its first use, and to which one rank never comes
/// (pytorch#88103).
const SECOND_SET_UP: Kind = Kind {
    name: "second-set-up",
    workload: "--comms 2 --stays-out 3@1",
    expected: stuck(&["settingUp"], &[3]),
    says: "is the only other one of this job",
    since: 23,
    ..PLAIN
};

/// The rank's proxy thread may not poll as many connections as it wants to (nccl#550).
const FEW_FILES: Kind = Kind {
    name: "few-files",
    over: Sockets,
    workload: "--few-files 2=40",
    expected: stuck(&["fileLimit"], &[2]),
    says: "too few for NCCL's proxy thread",
    // Later versions end with an error.
    until: 32,
    ..PLAIN
};

/// All there are.
pub const KINDS: &[Kind] = &[
    ABSENT,
    Kind { name: "absent-sockets", over: Sockets, ..ABSENT },
    Kind { name: "absent-tree", over: Sockets, shape: TREE, ..ABSENT },
    Kind { name: "absent-eight", shape: EIGHT, ..ABSENT },
    BUSY_CPU,
    Kind { name: "cpu-sockets", over: Sockets, ..BUSY_CPU },
    CHECKPOINT,
    Kind { name: "checkpoint-sockets", over: Sockets, ..CHECKPOINT },
    Kind {
        name: "other-collective",
        // Two collectives can fit each other by chance, and both end. Rank 2 does not begin its own: what its kernels
        // wait for is always there.
        workload: "--swap 2@0 --sync --ops allreduce,allgather --hold 2=/",
        expected: stuck(&["otherOperation"], &[2]),
        since: 26,
        says: "the operations differ",
        ..PLAIN
    },
    COMPUTES,
    SPINS,
    Kind {
        name: "gpu-spins-two-communicators",
        workload: "--comms 2 --spin 1={}/spin --iters 1000000 --sync",
        ..SPINS
    },
    // The op stands in flight, and its GPU has its input.
    Kind {
        name: "gpu-computes-sockets",
        over: Sockets,
        expected: waiting(&["noProgress"], &[1]),
        ..COMPUTES
    },
    // Its send stands in the list of rank 1's proxy, whose GPU waits for it.
    Kind {
        name: "kernel-held-behind-another",
        over: TwoNodes,
        until: 29,
        workload: "--hold 0={}/hold --iters 1000000 --sync",
        then: Then::Touch("hold"),
        expected: stuck(&["noProgress", "gpuIdle"], &[0]),
        says: "rank 0 makes no progress",
        ..PLAIN
    },
    Kind {
        name: "kernel-held-of-another",
        over: TwoNodes,
        until: 29,
        workload: "--hold 1={}/hold --iters 1000000 --sync",
        then: Then::Touch("hold"),
        expected: stuck(&["noProgress", "gpuIdle"], &[1]),
        says: "rank 1 makes no progress",
        ..PLAIN
    },
    Kind {
        name: "kernel-held",
        workload: "--hold 3={}/hold --iters 1000000 --sync",
        then: Then::Touch("hold"),
        expected: stuck(&["gpuIdle"], &[3]),
        says: "either its kernel has not begun",
        ..PLAIN
    },
    GONE,
    Kind { name: "gone-given", given: Given::All, says: "no live process is that rank", ..GONE },
    Kind { name: "gone-sockets", over: Sockets, expected: stuck(&["failed", "gone"], &[2]), ..GONE },
    Kind {
        name: "not-given",
        workload: "--hold 0={}/hold --iters 1000000 --sync",
        then: Then::Touch("hold"),
        given: Given::Without(2),
        expected: CannotTell,
        says: "which was not read",
        ..PLAIN
    },
    RECEIVE,
    Kind { name: "receive-sockets", over: Sockets, ..RECEIVE },
    ENDED,
    Kind { name: "ended-sockets", over: Sockets, ..ENDED },
    LISTED,
    NOT_BEGUN,
    Kind { name: "not-begun-sockets", over: Sockets, ..NOT_BEGUN },
    Kind {
        name: "idle-communicator",
        workload: "--absent 1@4 --comms 2 --iters 8 --sync",
        expected: stuck(&["notJoined"], &[1]),
        says: "in another one",
        ..PLAIN
    },
    ORDER,
    STOPPED,
    Kind { name: "stopped-sockets", over: Sockets, ..STOPPED },
    BUSY,
    Kind { name: "busy-sockets", over: Sockets, ..BUSY },
    // All GPUs run NCCL's kernels, and nothing tells them apart.
    Kind { name: "stall", expected: CannotTell, ..STALL },
    Kind {
        name: "stall-sockets",
        over: Sockets,
        expected: stuck(&["noProgress"], &[2]),
        says: "rank 2 makes no progress",
        ..STALL
    },
    Kind {
        name: "stall-sends",
        over: Sockets,
        workload: "--stall 2={}/stall --iters 1000000 --ops sendrecv",
        then: Then::Touch("stall"),
        expected: stuck(&["noProgress"], &[2]),
        says: "rank 2 makes no progress",
        ..PLAIN
    },
    // Of small slots, another size takes another number.
    Kind {
        name: "size",
        over: Sockets,
        workload: "--size-of 1=1048576@3 --survive --bytes 4194304 --env NCCL_BUFFSIZE=262144 --iters 8",
        expected: stuck(&["otherOperation"], &[1]),
        says: "differ",
        ..PLAIN
    },
    // The rank has ended its part, and goes on; the others stand in theirs.
    Kind {
        name: "size-shared",
        workload: "--size-of 1=1048576@3 --survive --bytes 4194304 --env NCCL_BUFFSIZE=262144 --iters 8 --sync",
        expected: stuck(&["otherOperation", "gpuIdle"], &[1]),
        ..PLAIN
    },
    Kind {
        name: "order-of-ops",
        over: Sockets,
        workload: "--swap 1@4 --survive --ops allreduce,sendrecv --bytes 4194304 --env NCCL_BUFFSIZE=262144 --iters 8",
        expected: stuck(&["otherOperation"], &[1]),
        says: "the order differs",
        ..PLAIN
    },
    // A child of each rank outlives it, with a copy of its memory (EgoVerse#682).
    FORKED,
    Kind { name: "left-over-sockets", over: Sockets, expected: stuck(&["failed", "gone"], &[2]), ..FORKED },
    // The rank has ended early, and its process lives (pytorch#196968).
    Kind {
        name: "left",
        over: Sockets,
        workload: "--leaves 2@3 --iters 8 --sync --survive",
        expected: stuck(&["left", "failed"], &[2]),
        says: "which has no such communicator any more",
        ..PLAIN
    },
    UNWAKEABLE,
    Kind { name: "uninterruptible-sockets", over: Sockets, ..UNWAKEABLE },
    OPEN_GROUP,
    Kind { name: "open-group-sockets", over: Sockets, ..OPEN_GROUP },
    FROZEN,
    Kind { name: "frozen-sockets", over: Sockets, ..FROZEN },
    STARVED,
    Kind { name: "starved-sockets", over: Sockets, ..STARVED },
    THREAD_ENDED,
    Kind { name: "first-thread-ended-sockets", over: Sockets, ..THREAD_ENDED },
    SPLIT,
    Kind { name: "split-sockets", over: Sockets, ..SPLIT },
    FINALIZE,
    ENDS,
    DESTROYS,
    DESTROYS_WITHOUT_ONE,
    FULL_PIPE,
    POLLS,
    SECOND_SET_UP,
    FEW_FILES,
    thread_kinds::WORKER_COMPUTES,
    Kind { name: "worker-computes-sockets", over: Sockets, ..thread_kinds::WORKER_COMPUTES },
    thread_kinds::WORKER_SLEEPS,
    thread_kinds::SPINNER,
];

/// The kind of this name.
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_each_of_one_kind() {
        let names: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), KINDS.len());
        assert!(names.len() >= 55 && !names.contains(""));
    }
}
