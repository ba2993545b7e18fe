//! The list as data: the schema of `--json` (docs/OUTPUT.md).

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::launches::Launches;
use crate::{CopiedRank, HostNotRead, OfHost, RankReport, of_host::only};
use flow::{identity::Container, known};
use inspect::process::{Description, Evidence, MappedLibrary};
use nccl_library::symbols::{Resolution, SymbolSource};

/// Version of the schema. Keys may be added within one version; none changes its meaning.
pub const PS_SCHEMA: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PsReport {
    pub schema: u32,
    pub host: String,
    /// All hosts that were looked at, where they are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    pub unix_time: u64,
    /// Processes, those of a job together, in the order of their PIDs.
    pub processes: Vec<ProcessEntry>,
    /// Processes that cannot be inspected; whether they use NCCL is not known.
    /// [`denied_remedy`](inspect::process::denied_remedy) says what to do.
    pub denied: usize,
    /// `/proc` hides the processes of other users (`hidepid`), so [`Self::denied`] does not count them.
    pub hidden: bool,
    /// Other hosts that were asked and gave no list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts_not_read: Vec<HostNotRead>,
}

impl OfHost for PsReport {
    const COMMAND: &'static str = "ps";
    const SCHEMA: u32 = PS_SCHEMA;

    fn host(&self) -> Option<&str> {
        only(&self.host, self.processes.iter().filter_map(|process| process.host.as_ref()))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessEntry {
    /// Host of the process, in a list of several hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// PID in the namespace of this program.
    pub pid: u32,
    /// PID in the process's own namespace.
    pub own_pid: u32,
    pub name: String,
    /// Name of its job: Slurm's number, or the program and PID of the job's first process. Processes are of one
    /// job if they have its number, or are in one pod, or share a communicator.
    #[serde(default)]
    pub job: Option<String>,
    #[serde(flatten)]
    pub description: Description,
    pub libraries: Vec<LibraryEntry>,
    /// Communicators; `None` if ncclflow did not look for them, or could not.
    pub communicators: Option<Vec<CommunicatorEntry>>,
    /// PID of the process that this one was forked from. It has copies of that process's communicators, which
    /// are listed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<u32>,
    /// Ranks of processes that are gone, of whose communicators the process has copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_over_of: Vec<CopiedRank>,
    /// All memory of the process was scanned.
    pub scan_is_complete: Option<bool>,
    /// Reasons why something is not known.
    pub errors: Vec<String>,
}

/// A file that is NCCL, or holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LibraryEntry {
    /// Path of the file, as the process names it.
    pub path: String,
    /// The file was unlinked or replaced after the process mapped it.
    pub deleted: bool,
    pub device: u64,
    pub inode: u64,
    /// Evidence that the file is NCCL.
    #[serde(default, deserialize_with = "known")]
    pub found_by: Option<Evidence>,
    pub version: Option<String>,
    /// CUDA version that the library was built for.
    pub cuda_version: Option<String>,
    pub build_id: Option<String>,
    /// Source from which `record` would have the library's symbols and layouts.
    #[serde(default, deserialize_with = "known")]
    pub symbols: Option<SymbolSource>,
    /// Reason why the library's communicators are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommunicatorEntry {
    pub comm_hash: String,
    pub comm_name: Option<String>,
    pub rank: u32,
    pub n_ranks: u32,
    pub local_rank: u32,
    pub node: u32,
    pub n_nodes: u32,
    /// The GPU, by the process's own count, which `CUDA_VISIBLE_DEVICES` changes.
    pub cuda_dev: u32,
    /// The GPU, by NVML's count of the whole host, as `nvidia-smi` shows it.
    pub nvml_dev: Option<u32>,
    pub n_channels: u32,
    #[serde(flatten)]
    pub launches: Launches,
}

impl ProcessEntry {
    /// Returns the process's container, or else the namespaces that it does not share with this program; `-`
    /// if there are none.
    pub(super) fn container_cell(&self) -> String {
        let Description { container, own_mounts, own_pids, .. } = &self.description;
        let namespaces = match (own_mounts, own_pids) {
            (true, true) => "own mounts, pids",
            (true, false) => "own mounts",
            (false, true) => "own pids",
            (false, false) => "-",
        };
        container.as_ref().map_or_else(|| namespaces.to_owned(), Container::short)
    }
}

impl LibraryEntry {
    pub(super) fn new(file: &MappedLibrary, resolved: &Result<Resolution>) -> Self {
        let resolution = resolved.as_ref().ok();
        let cuda_version = resolution.and_then(|resolution| resolution.cuda_version);
        Self {
            path: file.shown(),
            deleted: file.deleted,
            device: file.id.device,
            inode: file.id.inode,
            found_by: None,
            version: resolution.and_then(|resolution| Some(resolution.nccl_version?.to_string())),
            cuda_version: cuda_version.map(|(major, minor)| format!("{major}.{minor}")),
            build_id: resolution.and_then(|resolution| Some(resolution.build_id.as_ref()?.to_string())),
            symbols: resolution.map(|resolution| resolution.symbol_source),
            unusable: resolved.as_ref().err().map(|error| format!("{error:#}")),
        }
    }
}

impl CommunicatorEntry {
    pub(super) fn new(rank: &RankReport, launches: Launches) -> Self {
        Self {
            comm_hash: rank.comm_hash.clone(),
            comm_name: rank.comm_name.clone(),
            rank: rank.rank,
            n_ranks: rank.n_ranks,
            local_rank: rank.local_rank,
            node: rank.node,
            n_nodes: rank.n_nodes,
            cuda_dev: rank.cuda_dev,
            nvml_dev: rank.nvml_dev,
            n_channels: rank.n_channels,
            launches,
        }
    }
}
