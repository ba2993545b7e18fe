//! Processes that can use a GPU.

use std::path::Path;

use crate::{process::Process, resolver};

/// Folder that the driver makes.
const DRIVER: &str = "/proc/driver/nvidia";
/// Beginning of the paths of its devices. Each CUDA context maps some of them.
const DEVICES: &str = "/dev/nvidia";

/// Tells whether a process can use a GPU: it has a device of the driver mapped. On a host without the driver,
/// or where the mappings cannot be read, every process can.
pub fn can_be_used_by(process: &Process) -> bool {
    if !Path::new(DRIVER).exists() {
        return true;
    }
    let is_device = |path: &Path| path.as_os_str().as_encoded_bytes().starts_with(DEVICES.as_bytes());
    resolver::maps(process.live_thread())
        .map_or(true, |mappings| mappings.iter().any(|mapping| is_device(&mapping.path)))
}
