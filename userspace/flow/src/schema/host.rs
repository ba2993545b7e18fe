//! Host and process of what was seen.

use nccl_library::nccl::Name;
use serde::{Deserialize, Serialize};

/// Host and process in which an op was seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostInfo {
    pub host: Name,
    /// Process ID in ncclflow's own PID namespace.
    pub pid: u32,
}
