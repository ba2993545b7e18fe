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

    /// Says what to do, or where to look next. `pids` are those of the culprits, as `-p` takes them; empty where they
    /// are not known.
    pub(super) fn next_step(self, pids: &str) -> String {
        let of = |text: &str| if pids.is_empty() { String::new() } else { format!("{text}{pids}") };
        match self {
            Self::NotJoined
            | Self::SettingUp
            | Self::CallNotMade
            | Self::NoCounterpart
            | Self::Connecting
            | Self::NoProgress
            | Self::GpuIdle
            | Self::Computing
            | Self::OtherKernel => format!("see where it is: ncclflow dump --stacks{}", of(" -p ")),
            Self::OtherOperation => "compare what the ranks called last: ncclflow history --all".to_owned(),
            Self::Gone => "find out why it ended: the launcher's log, `dmesg -T` (out of memory, Xid)".to_owned(),
            Self::Left => "look into its log for the error before".to_owned(),
            Self::NotRead => "give its PID, or merge the dump of its host (--merge)".to_owned(),
            Self::Stopped => format!("let it go on: kill -CONT{}, or thaw its cgroup", of(" ")),
            Self::Starved => {
                "give it processors: see the CPU limit of its cgroup (cpu.stat), and what else runs on its cores"
                    .to_owned()
            }
            Self::Dying => "wait until its core is written, or see what the kernel waits for: /proc/PID/stack".to_owned(),
            Self::Unreachable => {
                "check the interface (NCCL_SOCKET_IFNAME) and the firewall between the two hosts".to_owned()
            }
            Self::NeverMatches => {
                "give all ranks one unique id and size, and each its own number: MASTER_ADDR, MASTER_PORT, \
                 WORLD_SIZE, RANK"
                    .to_owned()
            }
            Self::Failed => "look into the logs of these ranks, with NCCL_DEBUG=WARN at the next start".to_owned(),
            Self::GpuError => "take the GPU out of use; NVIDIA's catalogue of Xids says what each asks for".to_owned(),
        }
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
