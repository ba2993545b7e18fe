//! Nodes of two GPUs that share one NIC (`--nodes-of-two`), so that NCCL sends through another rank's proxy (PXN).
//!
//! GPU 0 is far from the NIC, GPU 1 beside it, and NVLink lies between the two: what GPU 0 sends to another node goes through the
//! proxy of GPU 1's process. NCCL decides that by itself, from the topology file that it is given; nothing of it is replaced. In each node
//! ranks exchange over shared memory. Collectives only: ncclSend goes through the own proxy, as its PXN wants GPUDirect, or
//! `NCCL_P2P_PXN_LEVEL=1`, with which NCCL itself crashes (2.27.5: ncclTopoGetNetDev reads `*dev` of a null pointer from ncclTopoGetPxnRanks).

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};

use anyhow::{Context, Result};

/// Ranks of a node.
const SIZE: u32 = 2;

/// The device of a rank: its number in its node.
pub(crate) fn device(rank: u32) -> u32 {
    rank % SIZE
}

/// What makes `rank` part of its node.
pub(crate) fn settings(rank: u32) -> Vec<(&'static str, String)> {
    vec![
        ("NCCL_HOSTID", format!("ncclflow-bed-node-{}", rank / SIZE)),
        ("NCCL_P2P_DISABLE", "0".to_owned()),
        ("NCCL_SHM_DISABLE", "0".to_owned()),
        // The topology's NVLinks are believed. CUDA says that there is no access to peers, so that data goes over shared memory.
        ("NCCL_IGNORE_DISABLED_P2P", "2".to_owned()),
        // Sockets send from host memory only. The topology says that the NIC reaches GPU memory, as PXN is for such NICs; this takes
        // it back for sends, and the far GPU's distance to the NIC for receives.
        ("NCCL_NET_GDR_READ", "0".to_owned()),
    ]
}

/// Sets `NCCL_TOPO_FILE`, for as long as the process lives. For the time before other threads exist.
pub(crate) fn provide_topology() -> Result<String> {
    // SAFETY: a name and no pointers into this process's memory besides.
    let descriptor = unsafe { libc::memfd_create(c"topology".as_ptr(), 0) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error()).context("a file in memory");
    }
    // SAFETY: it was just made and is nobody else's.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(TOPOLOGY.as_bytes())?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::mem::forget(file);
    Ok(path)
}

/// GPUs where the bed has them (bus 0x10 and 0x11), behind two switches.
const TOPOLOGY: &str = r#"<system version="1">
  <cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:10:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" gdr="1">
          <nvlink target="0000:11:00.0" count="18" tclass="0x030200"/>
        </gpu>
      </pci>
    </pci>
    <pci busid="0000:02:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" gdr="0">
          <nvlink target="0000:10:00.0" count="18" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:20:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="lo" dev="0" speed="100000" port="1" latency="0.000000" guid="0x1" maxconn="64" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>
"#;
