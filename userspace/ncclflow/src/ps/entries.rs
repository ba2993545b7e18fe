//! The list as data: the schema of `--json` (docs/OUTPUT.md).

use serde::Serialize;

use super::launches::Launches;
use crate::{
    dump::RankReport,
    target::{Container, Description, Evidence, MappedLibrary, Process, printable},
};
use nccl_library::symbols::{Resolution, SymbolSource};

/// Version of the schema. Keys may be added within one version; none changes its meaning.
pub const PS_SCHEMA: u32 = 1;

/// All that was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PsReport {
    pub schema: u32,
    pub host: String,
    /// Unix time of the look, in seconds.
    pub unix_time: u64,
    /// In the order of their PIDs.
    pub processes: Vec<ProcessEntry>,
    /// Processes that may not be looked at; whether they use NCCL is not known.
    /// [`denied_remedy`](crate::target::denied_remedy) says what to do.
    pub denied: usize,
    /// `/proc` hides the processes of other users (`hidepid`), so [`Self::denied`] does not count them.
    pub hidden: bool,
}

/// A process that has NCCL mapped.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessEntry {
    /// In the PID namespace of this program.
    pub pid: u32,
    /// In its own PID namespace.
    pub own_pid: u32,
    /// The kernel's short name of it.
    pub name: String,
    pub command: String,
    pub uid: u32,
    pub user: String,
    /// Seconds since it was started.
    pub age_seconds: Option<u64>,
    pub cgroup: Option<String>,
    pub container: Option<Container>,
    /// It sees other mounts than this program.
    pub own_mounts: bool,
    /// It is in another PID namespace.
    pub own_pids: bool,
    pub libraries: Vec<LibraryEntry>,
    /// `None`: ncclflow did not look for them, or could not.
    pub communicators: Option<Vec<CommunicatorEntry>>,
    /// It was forked from this process and has copies of its communicators, which are listed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<u32>,
    /// All its memory was scanned.
    pub scan_is_complete: Option<bool>,
    /// What is not known, and why.
    pub errors: Vec<String>,
}

/// A file that is NCCL, or holds it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LibraryEntry {
    /// As the process names it.
    pub path: String,
    /// It was unlinked or replaced after the process mapped it.
    pub deleted: bool,
    pub device: u64,
    pub inode: u64,
    /// What shows that it is NCCL.
    pub found_by: Evidence,
    pub version: Option<String>,
    /// CUDA that it was built for.
    pub cuda_version: Option<String>,
    pub build_id: Option<String>,
    /// Where `record` would have its symbols and layouts from.
    pub symbols: Option<SymbolSource>,
    /// Why its communicators are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
}

/// A rank of a communicator, in the process.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    pub(super) fn new(
        process: &Process,
        description: Description,
        libraries: Vec<LibraryEntry>,
        errors: Vec<String>,
    ) -> Self {
        let age_seconds = description.age_seconds();
        let Description { uid, user, command, cgroup, container, own_mounts, own_pids, started: _ } =
            description;
        Self {
            pid: process.pid(),
            own_pid: process.own_pid(),
            name: process.name().to_owned(),
            command,
            uid,
            user,
            age_seconds,
            cgroup,
            container,
            own_mounts,
            own_pids,
            libraries,
            communicators: None,
            forked_from: None,
            scan_is_complete: None,
            errors,
        }
    }

    /// Its container, or else the namespaces that it does not share with this program; `-` if there are none.
    pub(super) fn container_cell(&self) -> String {
        match (&self.container, self.own_mounts, self.own_pids) {
            (Some(container), ..) => container.short(),
            (None, true, true) => "own mounts, pids".to_owned(),
            (None, true, false) => "own mounts".to_owned(),
            (None, false, true) => "own pids".to_owned(),
            (None, false, false) => "-".to_owned(),
        }
    }
}

impl LibraryEntry {
    pub(super) fn new(file: &MappedLibrary) -> Self {
        Self {
            path: printable(&file.path.display().to_string()),
            deleted: file.deleted,
            device: file.id.device,
            inode: file.id.inode,
            found_by: Evidence::Name,
            version: None,
            cuda_version: None,
            build_id: None,
            symbols: None,
            unusable: None,
        }
    }

    pub(super) fn describe(&mut self, resolution: &Resolution) {
        self.version = resolution.nccl_version.map(|version| version.to_string());
        self.cuda_version = resolution.cuda_version.map(|(major, minor)| format!("{major}.{minor}"));
        self.build_id = resolution.build_id.as_ref().map(ToString::to_string);
        self.symbols = Some(resolution.symbol_source);
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
