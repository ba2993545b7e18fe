//! Names of a GPU.

use std::{fs::File, io::Read as _, path::Path};

/// The driver's folder for each GPU of the host, whatever a container sees of them.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Bytes that are read of what the driver says of a GPU; it says some 500.
const MAX_INFORMATION: u64 = 64 << 10;

/// A PCI address as the driver writes it, of NCCL's number for it: `0000:3b:00.0` (src/misc/utils.cc,
/// int64ToBusId).
pub(super) fn bus_id(number: u64) -> Option<String> {
    let domain = u32::try_from(number >> 20).ok()?;
    let (bus, device, function) = ((number >> 12) & 0xff, (number >> 4) & 0xff, number & 0xf);
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

/// The UUID of the GPU at this PCI address, as `nvidia-smi -L` has it; of a GPU that is divided (MIG), that
/// of the whole.
pub(super) fn uuid(bus_id: &str) -> Option<String> {
    let mut text = String::new();
    let file = File::open(Path::new(GPUS).join(bus_id).join("information")).ok()?;
    file.take(MAX_INFORMATION).read_to_string(&mut text).ok()?;
    uuid_in(&text)
}

fn uuid_in(information: &str) -> Option<String> {
    let uuid = information.lines().find_map(|line| line.strip_prefix("GPU UUID:"))?.trim();
    // The driver writes question marks for a GPU that nobody has used yet.
    let is_uuid = uuid.starts_with("GPU-")
        && uuid.len() <= 64
        && uuid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_uuid.then(|| uuid.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as src/misc/utils.cc makes them of these names.
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
}
