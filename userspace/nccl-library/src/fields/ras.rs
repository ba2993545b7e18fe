//! What NCCL's reliability service knows of the processes of a job (src/ras/ras_internal.h, src/ras/peers.cc), from 2.24 on.
//!
//! `rasPeers` and `nRasPeers` are all processes that share a communicator with this one, also those that are dead;
//! `rasDeadPeers` and `nRasDeadPeers` are the addresses of those that the service has found to be dead. The tables of shipped
//! layouts lack the struct. It has one of two shapes, and a process that finds itself in the list proves which.

use super::int::IntField;
use crate::nccl::NcclVersion;

/// `rasPeers`, `nRasPeers`, `rasDeadPeers` and `nRasDeadPeers`: pointers, and counts of 32 bits.
pub const VARIABLES: [&str; 4] = ["rasPeers", "nRasPeers", "rasDeadPeers", "nRasDeadPeers"];

/// Bytes of an `ncclSocketAddress`, which begins the struct: as large as a `sockaddr_in6`.
pub const ADDRESS_SIZE: u64 = 28;

/// Where the fields of a `rasPeerInfo` are.
#[derive(Clone, Copy, Debug)]
pub struct RasPeerLayout {
    /// Bytes of the struct.
    pub size: u64,
    /// PID in the process's own namespace.
    pub pid: IntField,
    /// A bit for each GPU, as CUDA numbers them in the process.
    pub cuda_devs: IntField,
    /// A bit for each GPU, as NVML numbers them on the host.
    pub nvml_devs: IntField,
    /// Hashes as in `ncclPeerInfo`, without `commHash` in them: from 2.26 on.
    pub host_hash: Option<IntField>,
    pub pid_hash: Option<IntField>,
}

impl RasPeerLayout {
    /// `None` before 2.24, or where the version is not known.
    pub fn of(version: Option<NcclVersion>) -> Option<Self> {
        let version = version?;
        let since = |minor| (version.major, version.minor) >= (2, minor);
        if !since(24) {
            return None;
        }
        let has_hashes = since(26);
        Some(Self {
            size: if has_hashes { 64 } else { 48 },
            pid: IntField::new(ADDRESS_SIZE, 4)?,
            cuda_devs: IntField::new(32, 8)?,
            nvml_devs: IntField::new(40, 8)?,
            host_hash: IntField::new(48, 8).filter(|_| has_hashes),
            pid_hash: IntField::new(56, 8).filter(|_| has_hashes),
        })
    }
}
