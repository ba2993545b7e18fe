//! Names of a GPU, as the driver's files in `/proc` have them.

use std::{fs::File, io::Read as _, path::Path};

/// Folder in which the driver has one folder for each GPU of the host, whatever a container sees of them.
pub(super) const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Maximum number of bytes read of a GPU's `information` file, which has some 500.
const MAX_INFORMATION: u64 = 64 << 10;

/// Returns a PCI address as the driver writes it, `0000:3b:00.0`, for NCCL's number of it (src/misc/utils.cc,
/// int64ToBusId).
pub fn bus_id(number: u64) -> Option<String> {
    let domain = u32::try_from(number >> 20).ok()?;
    let (bus, device, function) = ((number >> 12) & 0xff, (number >> 4) & 0xff, number & 0xf);
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

/// Returns the number of a GPU as `nvidia-smi` on the host has it: NVML counts them by PCI address, and in a
/// container only those that are given to it. `None`: the driver does not tell.
pub fn number_on_host(bus_id: &str) -> Option<u32> {
    number_in(Path::new(GPUS), bus_id)
}

fn number_in(gpus: &Path, bus_id: &str) -> Option<u32> {
    let entries = std::fs::read_dir(gpus).ok()?.take(MAX_GPUS).flatten();
    let mut all: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    all.sort_unstable();
    u32::try_from(all.iter().position(|one| one == bus_id)?).ok()
}

/// Maximum number of GPUs of a host that are looked at.
const MAX_GPUS: usize = 256;

/// The driver's folders of what can be divided and how it is: one for each GPU, named by its minor number.
const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";

/// Instances of a GPU that are counted; there are seven at most.
const MAX_INSTANCES: usize = 64;

/// Facts that the driver of this host states of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverFacts {
    /// UUID as `nvidia-smi -L` prints it; of a GPU that is divided (MIG), that of the whole.
    pub uuid: Option<String>,
    /// The N of `/dev/nvidiaN` on the host.
    pub minor: Option<u32>,
    /// Number of GPU instances (MIG) that the GPU is divided into.
    pub instances: Option<u32>,
}

impl DriverFacts {
    /// Reads the facts of the GPU at this PCI address. A fact that the driver does not state is `None`.
    pub(crate) fn read(bus_id: &str) -> Self {
        Self::read_in(Path::new(GPUS), Path::new(CAPABILITIES), bus_id)
    }

    fn read_in(gpus: &Path, capabilities: &Path, bus_id: &str) -> Self {
        let Some(text) = information(gpus, bus_id) else { return Self::default() };
        let minor = minor_in(&text);
        let instances = minor.and_then(|minor| instances_in(&capabilities.join(format!("gpu{minor}/mig"))));
        Self { uuid: uuid_in(&text), minor, instances }
    }
}

/// Reads the driver's `information` file of the GPU at this PCI address from `gpus`.
pub(super) fn information(gpus: &Path, bus_id: &str) -> Option<String> {
    let mut text = String::new();
    let file = File::open(gpus.join(bus_id).join("information")).ok()?;
    file.take(MAX_INFORMATION).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the text behind a name such as `Model:`.
pub(super) fn field<'t>(information: &'t str, name: &str) -> Option<&'t str> {
    information.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn minor_in(information: &str) -> Option<u32> {
    field(information, "Device Minor:")?.parse().ok()
}

/// Counts the folders `gi1`, `gi2` …, each an instance. A GPU that is not divided has none of them; a driver
/// that cannot divide GPUs does not have `folder`.
fn instances_in(folder: &Path) -> Option<u32> {
    let entries = std::fs::read_dir(folder).ok()?.take(MAX_INSTANCES).flatten();
    let is_instance = |name: &str| name.strip_prefix("gi").is_some_and(|id| id.parse::<u32>().is_ok());
    let instances = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_instance));
    u32::try_from(instances.count()).ok()
}

pub(super) fn uuid_in(information: &str) -> Option<String> {
    let uuid = field(information, "GPU UUID:")?;
    // The driver writes question marks for a GPU that nobody has used yet.
    let is_uuid = uuid.starts_with("GPU-")
        && uuid.len() <= 64
        && uuid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_uuid.then(|| uuid.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that src/misc/utils.cc makes of these names.
    #[test]
    fn addresses_are_those_of_the_driver() {
        // NCCL 2.28.9 logs `busId 60` for the H100 that the driver calls so.
        assert_eq!(bus_id(0x60).unwrap(), "0000:00:06.0");
        assert_eq!(bus_id(0x3b000).unwrap(), "0000:3b:00.0");
        assert_eq!(bus_id(0x001c_1012).unwrap(), "0001:c1:01.2");
        assert_eq!(bus_id(u64::MAX), None);
    }

    #[test]
    fn a_uuid_is_found_where_there_is_one() {
        let text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 301\nGPU UUID: \t GPU-3f0e3e0c-2c5d-6b5e-9d5a-0123456789ab\nVideo BIOS: \t ??\n";
        assert_eq!(uuid_in(text).as_deref(), Some("GPU-3f0e3e0c-2c5d-6b5e-9d5a-0123456789ab"));
        assert_eq!(uuid_in("GPU UUID: \t GPU-????????-????-????-????-????????????\n"), None);
        assert_eq!(uuid_in(""), None);
    }

    #[test]
    fn a_gpu_is_numbered_by_its_place_among_all_of_the_host() {
        let folder = tempfile::tempdir().unwrap();
        for bus_id in ["0000:cb:00.0", "0000:1b:00.0", "0001:0b:00.0", "0000:3b:00.0"] {
            std::fs::create_dir(folder.path().join(bus_id)).unwrap();
        }
        assert_eq!(number_in(folder.path(), "0000:1b:00.0"), Some(0));
        assert_eq!(number_in(folder.path(), "0000:cb:00.0"), Some(2));
        assert_eq!(number_in(folder.path(), "0001:0b:00.0"), Some(3));
        assert_eq!(number_in(folder.path(), "0000:00:00.0"), None);
        assert_eq!(number_in(&folder.path().join("none"), "0000:1b:00.0"), None);
    }

    /// Folders as in NVIDIA's MIG User Guide ("Device Nodes and Capabilities").
    #[test]
    fn the_host_s_number_and_the_instances_are_told_by_the_driver_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let (gpus, capabilities) = (folder.path().join("gpus"), folder.path().join("capabilities"));
        let bus_id = "0000:3b:00.0";
        let facts = || DriverFacts::read_in(&gpus, &capabilities, bus_id);
        assert_eq!(facts(), DriverFacts::default());
        std::fs::create_dir_all(gpus.join(bus_id)).unwrap();
        let uuid = "GPU-3f0e3e0c-2c5d-6b5e-9d5a-0123456789ab";
        let text = format!("Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t 3\n");
        std::fs::write(gpus.join(bus_id).join("information"), text).unwrap();
        let expected = DriverFacts { uuid: Some(uuid.to_owned()), minor: Some(3), instances: None };
        assert_eq!(facts(), expected);
        let mig = capabilities.join("gpu3/mig");
        std::fs::create_dir_all(&mig).unwrap();
        std::fs::create_dir_all(capabilities.join("gpu0/mig/gi1")).unwrap();
        std::fs::write(mig.join("config"), "").unwrap();
        assert_eq!(facts().instances, Some(0), "not divided");
        std::fs::create_dir_all(mig.join("gi1/ci0")).unwrap();
        std::fs::create_dir_all(mig.join("gi2/ci0")).unwrap();
        assert_eq!(facts().instances, Some(2));
    }
}
