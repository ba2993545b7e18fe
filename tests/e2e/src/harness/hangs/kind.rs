//! What a kind of hang is made of.

use rustix::process::Signal;

use crate::harness::job::Shape;

/// What connects the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// One node, shared memory, no proxies.
    SharedMemory,
    /// A node for each rank, sockets.
    Sockets,
    /// Nodes of two ranks with one network interface: a rank sends through the other one's process (PXN).
    TwoNodes,
}

impl Over {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::SharedMemory => "--env NCCL_SHM_DISABLE=0 --gpu-states {}/gpus",
            Self::Sockets => "--gpu-states {}/gpus",
            Self::TwoNodes => "--nodes collectives --gpu-states {}/gpus",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared memory",
            Self::Sockets => "sockets",
            Self::TwoNodes => "two nodes",
        }
    }
}

/// What is done to the job after some moments of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Nothing,
    /// A file of this name is made in the job's folder.
    Touch(&'static str),
    Signal(usize, Signal),
    /// The same once the job stands still: the others have ended all operations in which they need the rank.
    SignalAtRest(usize, Signal),
    /// The cgroup of a rank, which it has for itself, is frozen.
    Freeze(usize),
    /// The cgroup of a rank may use a thousandth of a processor.
    Starve(usize),
}

impl Then {
    /// Whether it ends this rank's process.
    pub fn kills(self, rank: usize) -> bool {
        matches!(self, Self::Signal(of, Signal::KILL) | Self::SignalAtRest(of, Signal::KILL) if of == rank)
    }
}

/// Which ranks' processes are given to `dump`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    All,
    Without(usize),
    /// The ranks, and the children that they have before anything is done to them.
    WithChildren,
}

/// What a dump must say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Of the communicator that is wrong, or of all that are not healthy. One of these kinds.
    Named { state: &'static str, kinds: &'static [&'static str], culprits: &'static [u32] },
    /// The communicators wait for each other; the second one's culprits are the ranks that have not begun it.
    Circle { first: &'static [u32], second: &'static [u32] },
    /// Nothing is wrong.
    Healthy,
    /// Nothing on the host tells; docs/DUMP.md says why.
    CannotTell,
}

impl Expected {
    /// The exit code of `dump`.
    pub fn code(self) -> i32 {
        match self {
            Self::Named { state: "waiting", .. } => 5,
            Self::Named { .. } | Self::Circle { .. } => 3,
            Self::Healthy => 0,
            Self::CannotTell => 4,
        }
    }
}

/// One kind of hang, or of a wait that is none.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// For `--kinds`.
    pub name: &'static str,
    pub over: Over,
    pub shape: Shape,
    /// Words for the bed. `{}` is the job's folder.
    pub workload: &'static str,
    pub then: Then,
    pub given: Given,
    pub expected: Expected,
    /// The first minor version of NCCL 2 in which it can be told, or made.
    pub since: u32,
    /// The first minor version in which it cannot be made any more.
    pub until: u32,
    /// Words of the dump.
    pub says: &'static str,
    /// It goes on for ever: there is no moment at which it has come to rest.
    pub moves: bool,
}

impl Kind {
    /// Whether it can be made on this library: `2.27.5-cu12`.
    pub fn is_for(&self, version: &str) -> bool {
        let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
        minor.is_some_and(|minor| (self.since..self.until).contains(&minor))
    }
}
