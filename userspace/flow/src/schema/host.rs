//! Where something was seen.

use nccl_library::nccl::Name;
use serde::{Deserialize, Serialize};

/// Where and in which process an op was seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostInfo {
    pub host: Name,
    /// Process id in our own PID namespace.
    pub pid: u32,
}
