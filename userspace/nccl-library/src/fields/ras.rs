//! Knowledge that NCCL's reliability service has of the processes of a job (src/ras/ras_internal.h,
//! src/ras/peers.cc), from 2.24 on.
//!
//! `rasPeers` and `nRasPeers` are all processes that share a communicator with this one, also those that are
//! dead; `rasDeadPeers` and `nRasDeadPeers` are the addresses of those that the service has found to be dead.
//! `ncclComms` and `nNcclComms` are the communicators of this process (src/ras/ras.cc).

/// Variables of the library for the two lists of processes: pointers, and counts of 32 bits.
pub const PEERS: [&str; 4] = ["rasPeers", "nRasPeers", "rasDeadPeers", "nRasDeadPeers"];
/// Variables for the list of communicators: likewise.
pub const COMMUNICATORS: [&str; 2] = ["ncclComms", "nNcclComms"];
