//! Facts about a process (its job, user and container), and about a rank of a communicator.

use serde::{Deserialize, Serialize};

use super::{Container, Variables};
use crate::schema::{CommunicatorReport, NicRow};

/// A process, and whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Process number, as ncclflow sees it.
    pub pid: u32,
    /// Start of the process. With the PID, it tells the process from all others of the host: see
    /// [`TargetReport`](crate::session::TargetReport).
    pub started_ticks: Option<u64>,
    /// The kernel's short name of the process.
    pub name: String,
    #[serde(flatten)]
    pub whose: Whose,
}

/// Owner and job of a process, which do not change while it lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whose {
    pub uid: u32,
    /// Name in the recording host's `/etc/passwd`, or the number where that has no name.
    pub user: String,
    pub cgroup: Option<String>,
    pub container: Option<Container>,
    /// User in whose session the process is, if that is another one: the tenant is that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_user: Option<SessionUser>,
    /// Variables of launchers in its initial environment; `None` if that could not be read.
    pub environment: Option<Variables>,
    /// Rank by `--rank-map`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped_rank: Option<u32>,
    /// Job's name by `--job`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_job: Option<String>,
}

/// User in whose session a process is, by the control group: root of the user's own containers has another
/// number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionUser {
    pub uid: u32,
    /// Name in the recording host's `/etc/passwd`, or the number where that has no name.
    pub user: String,
}

/// A communicator's description of itself and of this rank. `None` for what its version lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommunicatorFacts {
    /// Process, as ncclflow sees it.
    pub pid: u32,
    /// `commHash`, as folders are called: see [`crate::schema::comm_hash_name`].
    pub comm_hash: String,
    pub rank: i32,
    /// Size of the communicator. Since 1.6.
    #[serde(default)]
    pub n_ranks: Option<i32>,
    /// The name that the program gave; 2.27 and later.
    pub comm_name: Option<String>,
    pub local_rank: Option<u32>,
    pub node: Option<u32>,
    pub n_nodes: Option<u32>,
    pub cuda_dev: Option<u32>,
    /// NVML's number of the device; 2.18.3 and later.
    pub nvml_dev: Option<u32>,
    /// PCI address, as the driver writes it: `0000:3b:00.0`.
    pub bus_id: Option<String>,
    /// UUID, as the driver has it for that address. The next two are also the driver's.
    pub gpu_uuid: Option<String>,
    /// Number N of the host's `/dev/nvidiaN`.
    pub gpu_minor: Option<u32>,
    /// Number of instances (MIG) that the GPU is divided into.
    pub gpu_instances: Option<u32>,
    /// Network devices of the connections with neighbours in rings and trees. Since 1.8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicRow>,
}

impl CommunicatorFacts {
    /// Keeps the values that both have, for communicators that cannot be told from each other.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        fn same<T: PartialEq>(one: Option<T>, other: Option<&T>) -> Option<T> {
            one.filter(|one| Some(one) == other)
        }
        Self {
            n_ranks: same(self.n_ranks, other.n_ranks.as_ref()),
            comm_name: same(self.comm_name, other.comm_name.as_ref()),
            local_rank: same(self.local_rank, other.local_rank.as_ref()),
            node: same(self.node, other.node.as_ref()),
            n_nodes: same(self.n_nodes, other.n_nodes.as_ref()),
            cuda_dev: same(self.cuda_dev, other.cuda_dev.as_ref()),
            nvml_dev: same(self.nvml_dev, other.nvml_dev.as_ref()),
            bus_id: same(self.bus_id, other.bus_id.as_ref()),
            gpu_uuid: same(self.gpu_uuid, other.gpu_uuid.as_ref()),
            gpu_minor: same(self.gpu_minor, other.gpu_minor.as_ref()),
            gpu_instances: same(self.gpu_instances, other.gpu_instances.as_ref()),
            nics: if self.nics == other.nics { self.nics } else { Vec::new() },
            ..self
        }
    }

    /// Makes the row of this rank. Where several communicators have one hash, it is that of the first.
    pub fn report(&self) -> CommunicatorReport {
        let mut row = CommunicatorReport {
            comm_hash: self.comm_hash.clone(),
            folder: self.comm_hash.clone(),
            rank: self.rank,
            n_ranks: self.n_ranks.unwrap_or_default(),
            pid: self.pid,
            ..CommunicatorReport::default()
        };
        self.fill(&mut row);
        row
    }

    /// Puts the values into the row of this rank.
    pub fn fill(&self, row: &mut CommunicatorReport) {
        row.comm_name.clone_from(&self.comm_name);
        row.local_rank = self.local_rank;
        row.node = self.node;
        row.n_nodes = self.n_nodes;
        row.cuda_dev = self.cuda_dev;
        row.nvml_dev = self.nvml_dev;
        row.bus_id.clone_from(&self.bus_id);
        row.gpu_uuid.clone_from(&self.gpu_uuid);
        row.gpu_minor = self.gpu_minor;
        row.gpu_instances = self.gpu_instances;
        row.nics.clone_from(&self.nics);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_that_look_alike_only_what_both_say_is_kept() {
        let one =
            CommunicatorFacts { local_rank: Some(1), cuda_dev: Some(2), ..CommunicatorFacts::default() };
        let other = CommunicatorFacts { cuda_dev: Some(3), ..one.clone() };
        assert_eq!(one.clone().and(&other), CommunicatorFacts { cuda_dev: None, ..one });
    }
}
