//! Nodes whose GPUs share one NIC (`--nodes`), so that NCCL sends through another rank's proxy (PXN).
//!
//! In nodes of two (`collectives`), GPU 0 is far from the NIC, GPU 1 is beside it, and NVLink connects the
//! two. What GPU 0 sends to another node goes through the proxy of GPU 1's process. NCCL decides that by
//! itself, from the topology file that it is given; none of its code is replaced. Within a node, ranks
//! exchange data over shared memory.
//!
//! Sockets send and receive host memory only, while PXN is made for NICs that reach a GPU's memory. So the
//! topology says that the NIC reaches the memory of some GPUs, and a setting tells NCCL not to send from
//! there. Then NCCL chooses PXN and still uses host memory (up to 2.28; later versions need GPU memory for
//! sends too). Such a GPU must not receive over the network. The exception is the far GPU of two, which is
//! too far for NCCL to use GPU memory.
//!
//! In nodes of three (`sends`), the third GPU receives all that comes over the network, and `ncclSend` of the
//! first goes through the second's proxy, as collectives do. (NCCL connects ranks with others' proxies while
//! it makes a communicator. It does so for sends alone only where it would send from GPU memory.)

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};

use anyhow::{Context, Result};
use clap::ValueEnum;

/// Which operations go through another rank's proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Through {
    /// Of two ranks a node, those of the first
    Collectives,
    /// Of three ranks a node, those of the first, and what it sends: `--ops sendacross`
    Sends,
}

impl Through {
    /// Ranks of a node.
    pub(crate) fn size(self) -> u32 {
        match self {
            Self::Collectives => 2,
            Self::Sends => 3,
        }
    }
}

/// The settings that make `rank` part of its node.
pub(crate) fn settings(through: Through, rank: u32) -> Vec<(&'static str, String)> {
    vec![
        ("NCCL_HOSTID", format!("ncclflow-bed-node-{}", rank / through.size())),
        ("NCCL_P2P_DISABLE", "0".to_owned()),
        ("NCCL_SHM_DISABLE", "0".to_owned()),
        // NCCL believes the topology's NVLinks. CUDA reports no access to peers, so that data
        // goes over shared memory.
        ("NCCL_IGNORE_DISABLED_P2P", "2".to_owned()),
        // Nothing is sent from GPU memory, whatever the topology says.
        ("NCCL_NET_GDR_READ", "0".to_owned()),
        // Nor from slots in host memory that several connections share: NCCL has none for PXN.
        ("NCCL_NET_SHARED_BUFFERS", "0".to_owned()),
    ]
}

/// Sets `NCCL_TOPO_FILE` and others for the life of the process. To be called before other threads exist.
pub(crate) fn files(through: Through) -> Result<Vec<(&'static str, String)>> {
    let topology = match through {
        Through::Collectives => topology(&[FAR, NEAR]),
        Through::Sends => topology(&[FAR, Gpu { reached: true, ..NEAR }, Gpu { reached: false, ..FAR }]),
    };
    let mut files = vec![("NCCL_TOPO_FILE", in_memory(&topology)?)];
    if through == Through::Sends {
        files.push(("NCCL_GRAPH_FILE", in_memory(GRAPHS)?));
    }
    Ok(files)
}

fn in_memory(text: &str) -> Result<String> {
    // SAFETY: a name and no pointers into this process's memory besides.
    let descriptor = unsafe { libc::memfd_create(c"topology".as_ptr(), 0) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error()).context("a file in memory");
    }
    // SAFETY: it was just made and is nobody else's.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(text.as_bytes())?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::mem::forget(file);
    Ok(path)
}

#[derive(Debug, Clone, Copy)]
struct Gpu {
    /// Beside the NIC, behind one switch.
    near: bool,
    /// The NIC reaches its memory.
    reached: bool,
}

const FAR: Gpu = Gpu { near: false, reached: true };
const NEAR: Gpu = Gpu { near: true, reached: false };

/// PCI address of one of the bed's GPUs.
fn bus(device: usize) -> String {
    format!("0000:{:02x}:00.0", 0x10 + device)
}

fn topology(gpus: &[Gpu]) -> String {
    const LINK: &str = r#"link_speed="32.0 GT/s PCIe" link_width="16""#;
    const NIC: &str = r#"<nic><net name="lo" dev="0" speed="100000" port="1" latency="0.0" guid="0x1" maxconn="64" gdr="1"/></nic>"#;
    let switch = |number: u32, content: &str| {
        format!(r#"<pci busid="0000:0{number}:00.0" class="0x060400" {LINK}>{content}</pci>"#)
    };
    let (mut with_nic, mut without) = (Vec::new(), Vec::new());
    for (device, gpu) in gpus.iter().enumerate() {
        let others = (0..gpus.len()).filter(|other| *other != device);
        let link = |other| format!(r#"<nvlink target="{}" count="9" tclass="0x030200"/>"#, bus(other));
        let links = others.map(link).collect::<Vec<_>>().concat();
        let (bus, reached) = (bus(device), u8::from(gpu.reached));
        let side = if gpu.near { &mut with_nic } else { &mut without };
        side.push(format!(
            r#"<pci busid="{bus}" class="0x030200" {LINK}><gpu dev="{device}" sm="90" gdr="{reached}">{links}</gpu></pci>"#
        ));
    }
    with_nic.push(format!(r#"<pci busid="0000:30:00.0" class="0x020000" {LINK}>{NIC}</pci>"#));
    let cpu =
        r#"numaid="0" affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143""#;
    format!(
        r#"<system version="1"><cpu {cpu}>{}{}</cpu></system>"#,
        switch(1, &without.concat()),
        switch(2, &with_nic.concat())
    )
}

/// Ring and tree whose third GPU receives.
const GRAPHS: &str = r#"<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="12" speedinter="12" latencyinter="0" typeintra="NVL" typeinter="PXN" samechannels="1">
    <channel><net dev="0"/><gpu dev="2"/><gpu dev="1"/><gpu dev="0"/><net dev="0"/></channel>
  </graph>
  <graph id="1" pattern="3" crossnic="0" nchannels="1" speedintra="12" speedinter="12" latencyinter="0" typeintra="NVL" typeinter="PHB" samechannels="1">
    <channel><net dev="0"/><gpu dev="2"/><gpu dev="1"/><gpu dev="0"/><net dev="0"/></channel>
  </graph>
</graphs>
"#;
