//! Kind of trouble that a verdict is about: for scripts, beside the sentences for people.

use serde::{Deserialize, Serialize};

use crate::ProcessState;

/// Reason why ranks wait. Kinds may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// The culprits have launched fewer collectives.
    NotJoined,
    /// The culprits have launched other collectives, with other sizes, or in another order.
    OtherOperation,
    /// The GPUs of the culprits run another kernel.
    Computing,
    /// The GPUs of the culprits run a kernel that is not NCCL's and uses no memory.
    OtherKernel,
    /// The GPUs of the culprits run nothing, though others wait for them.
    GpuIdle,
    /// An op of the culprits is in flight, and they do nothing for it.
    NoProgress,
    /// The processes of the culprits are gone.
    Gone,
    /// The processes of the culprits live, and have no such communicator any more.
    Left,
    /// The culprits were not read.
    NotRead,
    /// The processes of the culprits are stopped: by a signal, a debugger, or the freezer of their cgroup.
    Stopped,
    /// The processes of the culprits are writing their core, or exiting.
    Dying,
    /// The processes of the culprits are ready to run, and get no processor.
    Starved,
    /// The culprits have not made a call that all ranks of the communicator must make.
    CallNotMade,
    /// The culprits have not made the send or the receive that others wait for.
    NoCounterpart,
    /// The culprits have not come to the communicator's set-up, in which the others wait.
    SettingUp,
    /// The culprits try to connect during the set-up, and nobody answers: an interface that cannot be
    /// reached, or a firewall.
    Unreachable,
    /// The set-up can never end: the ranks have other unique ids, sizes or one number twice.
    NeverMatches,
    /// Others wait in a call for the culprits to connect.
    Connecting,
    /// NCCL reports a failure, or a connection has broken.
    Failed,
    /// A GPU has stopped with an error (Xid).
    GpuError,
}

impl Kind {
    /// Returns the kind of a process that runs no code of its own now.
    pub(super) fn of_halted(state: ProcessState) -> Option<Self> {
        state.is_halted().then_some(match state {
            ProcessState::Dying => Self::Dying,
            ProcessState::Starved => Self::Starved,
            _ => Self::Stopped,
        })
    }

    /// Tells whether the culprits only have to go on with something else, and come: while they make progress
    /// there, nobody is stuck.
    pub(super) fn is_absence(self) -> bool {
        matches!(
            self,
            Self::NotJoined
                | Self::NoProgress
                | Self::GpuIdle
                | Self::NoCounterpart
                | Self::Connecting
                | Self::CallNotMade
                | Self::SettingUp
        )
    }
}
