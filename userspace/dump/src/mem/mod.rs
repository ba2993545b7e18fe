//! `ncclflow mem`: the memory that NCCL has allocated, by communicator, transport and purpose, out of its own structs,
//! beside what the driver says of the process.
//!
//! Structs have what NCCL has asked for: buffers of connections, and the FIFO of work. Of buffers of NVLink SHARP and
//! CollNet, of what kernels and CUDA itself take, and of windows and buffers that the program has registered they
//! tell nothing.

mod read;
mod text;

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use inspect::{
    gpu::{GpuSurvey, GpuWatch},
    host::host_name,
    memory::{Memory, ReadError, ScanEnd},
};
use serde::{Deserialize, Serialize};

pub(crate) use self::read::MemLayout;
use self::read::Seen;
pub use self::text::render;
use super::{Choice, Chosen, DumpOptions, OnProgress, RankReport, chosen, copies, process, search};

/// Time that the GPUs' driver may take.
const GPU_PATIENCE: Duration = Duration::from_secs(3);

/// Way of a connection's data, or another use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Transport {
    /// Peer access: NVLink or PCIe.
    #[serde(rename = "P2P")]
    P2p,
    /// Shared memory of the host.
    #[serde(rename = "SHM")]
    Shm,
    #[serde(rename = "NET")]
    Net,
    #[serde(rename = "COLLNET")]
    CollNet,
    /// The network, by the proxy of another process (PXN): the memory is that process's.
    #[serde(rename = "PXN")]
    Proxy,
    /// It cannot be told.
    #[serde(rename = "unknown")]
    Unknown,
    /// No connection: the FIFO of work, which the host fills for the kernels.
    #[serde(rename = "work")]
    Work,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Purpose {
    /// Rings, trees and other graphs of collectives.
    Collectives,
    /// Sends and receives, of which all-to-alls are made, too.
    SendRecv,
}

/// Memory of a communicator's connections of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    pub transport: Transport,
    pub purpose: Purpose,
    /// Ends of connections, each of one direction.
    pub connections: u64,
    pub gpu_bytes: u64,
    /// Pinned or shared memory of the host.
    pub host_bytes: u64,
    /// Connections among them whose memory cannot be told.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub untold: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Part {
    fn new(transport: Transport, purpose: Purpose) -> Self {
        Self { transport, purpose, connections: 0, gpu_bytes: 0, host_bytes: 0, untold: 0 }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommunicatorMemory {
    pub comm_hash: String,
    pub comm_name: Option<String>,
    pub rank: u32,
    pub n_ranks: u32,
    pub cuda_dev: u32,
    pub bus_id: Option<String>,
    pub nccl_version: Option<String>,
    pub parts: Vec<Part>,
    /// Sentences on what cannot be told.
    pub remarks: Vec<String>,
}

/// What the driver says of a process on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverMemory {
    pub bus_id: Option<String>,
    /// All GPU memory of the process, whoever has allocated it.
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessMemory {
    pub pid: u32,
    pub name: String,
    /// Sums over its communicators.
    pub gpu_bytes: u64,
    pub host_bytes: u64,
    pub driver: Vec<DriverMemory>,
    pub communicators: Vec<CommunicatorMemory>,
    /// Reason why nothing, or not all, is known.
    pub error: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemReport {
    pub host: String,
    pub processes: Vec<ProcessMemory>,
    /// Processes that may not be inspected.
    pub denied: usize,
    /// Reason why the driver's figures are missing.
    pub driver_missing: Option<String>,
}

/// Reads the memory of NCCL in these processes.
///
/// # Errors
/// None of the processes is there.
pub fn mem(choice: &Choice, options: &DumpOptions, progress: &mut OnProgress<'_>) -> Result<MemReport> {
    let Chosen { processes, refused, denied } = chosen(choice)?;
    let mut gpus = GpuWatch::start();
    gpus.ask();
    let mut targets = search::find(processes.into_iter().map(|process| (process, None)), options, progress);
    let mut ranks: Vec<RankReport> = targets.iter_mut().flat_map(process::Target::read).collect();
    copies::leave_out(&mut targets, &mut ranks);
    let GpuSurvey { readings, missing } = gpus.finish(GPU_PATIENCE);
    let mut driver: BTreeMap<u32, Vec<DriverMemory>> = BTreeMap::new();
    for reading in readings.into_iter().flatten() {
        for process in reading.gpu.processes.into_iter().flatten() {
            let Some(bytes) = process.memory_bytes else { continue };
            let of_gpu = DriverMemory { bus_id: reading.gpu.bus_id.clone(), bytes };
            driver.entry(process.pid).or_default().push(of_gpu);
        }
    }
    let mut of_target = |target: &process::Target| {
        let pid = target.report.pid;
        let own = ranks.iter().filter(|rank| rank.pid == pid);
        let read = target.memories(own);
        let (communicators, error) = match read {
            Ok(communicators) => (communicators, target.report.error.clone().or_else(|| target.unsearched())),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let sum = |bytes: fn(&Part) -> u64| {
            communicators.iter().flat_map(|one| &one.parts).map(bytes).fold(0, u64::saturating_add)
        };
        ProcessMemory {
            pid,
            name: target.report.name.clone(),
            gpu_bytes: sum(|part| part.gpu_bytes),
            host_bytes: sum(|part| part.host_bytes),
            driver: driver.remove(&pid).unwrap_or_default(),
            communicators,
            error,
        }
    };
    let mut all: Vec<ProcessMemory> = targets.iter().map(&mut of_target).collect();
    all.extend(refused.into_iter().map(|(pid, error)| ProcessMemory {
        pid,
        error: Some(error.to_string()),
        ..ProcessMemory::default()
    }));
    Ok(MemReport { host: host_name(), processes: all, denied, driver_missing: missing })
}

impl process::Target {
    /// Says that a limit ended the search for communicators, if so.
    fn unsearched(&self) -> Option<String> {
        let ended_by = self.report.scan.as_ref()?.ended_by?;
        let is_limit = matches!(ended_by, ScanEnd::ByteLimit | ScanEnd::TimeLimit);
        is_limit.then(|| "not all of its memory was searched for communicators (--max-seconds)".to_owned())
    }

    /// Reads the memory of these of its communicators.
    fn memories<'r>(
        &self,
        ranks: impl Iterator<Item = &'r RankReport>,
    ) -> Result<Vec<CommunicatorMemory>, ReadError> {
        let memory = Memory::new(&self.process);
        let (mut seen, mut all) = (Seen::default(), Vec::new());
        for rank in ranks {
            let Some(found) = self.found.iter().find(|found| found.address == rank.address) else { continue };
            let (parts, mut remarks) = match &found.layout.mem {
                Some(layout) => match layout.read(memory, &found.layout.comm, rank, &mut seen) {
                    Ok(read) => read,
                    Err(error) if error.is_final() => return Err(error),
                    Err(error) => (Vec::new(), vec![format!("its memory cannot be told: {error}")]),
                },
                None => (
                    Vec::new(),
                    vec!["its memory cannot be told: fields of this NCCL are not known".to_owned()],
                ),
            };
            if rank.shares_resources {
                remarks
                    .push("connections that it shares with another communicator are counted once".to_owned());
            }
            all.push(CommunicatorMemory {
                comm_hash: rank.comm_hash.clone(),
                comm_name: rank.comm_name.clone(),
                rank: rank.rank,
                n_ranks: rank.n_ranks,
                cuda_dev: rank.cuda_dev,
                bus_id: rank.bus_id.clone(),
                nccl_version: rank.nccl_version.clone(),
                parts,
                remarks,
            });
        }
        Ok(all)
    }
}
