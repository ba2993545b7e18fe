//! NCCL's environment: all traffic over sockets on the loopback interface, one algorithm and protocol.

use std::path::Path;

use anyhow::{Result, bail};

use crate::nodes;
use crate::options::{Algo, GPUS, Options, Proto};

/// The settings, in the order in which they are made; later ones win.
pub(crate) fn settings(options: &Options) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut set = |key: &str, value: &str| all.push((key.to_owned(), value.to_owned()));
    // With P2P and SHM off every rank is a node of its own and all traffic goes through the network
    // transport.
    set("NCCL_P2P_DISABLE", "1");
    set("NCCL_SHM_DISABLE", "1");
    set("NCCL_IB_DISABLE", "1");
    set("NCCL_NET", "Socket");
    set("NCCL_SOCKET_IFNAME", "lo");
    // Turns off what the emulated device does not have.
    set("NCCL_CUMEM_ENABLE", "0");
    set("NCCL_CUMEM_HOST_ENABLE", "0");
    set("NCCL_NVLS_ENABLE", "0");
    set("NCCL_RAS_ENABLE", "0");
    set("NCCL_GIN_ENABLE", "0");
    set("NCCL_ALGO", algorithm(options.algo));
    set("NCCL_PROTO", protocol(options.proto));
    if options.proto == Proto::Simple {
        set("NCCL_P2P_LL_THRESHOLD", "0");
    }
    if let Some(channels) = options.channels {
        for name in ["MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_P2P_NCHANNELS", "MAX_P2P_NCHANNELS"] {
            set(&format!("NCCL_{name}"), &channels.to_string());
        }
    }
    if options.absent.is_some()
        || options.busy.is_some()
        || options.unwakeable.is_some()
        || options.open_group.is_some()
        || options.ends_thread.is_some()
        || options.checkpoint.is_some()
        || !options.is_consistent()
    {
        // A rank that never joins must be missing in the kernels, not while the others connect.
        set("NCCL_RUNTIME_CONNECT", "0");
    }
    if let Some(file) = &options.debug_file {
        set("NCCL_DEBUG", "INFO");
        set("NCCL_DEBUG_FILE", &file.to_string_lossy());
        set("NCCL_DEBUG_SUBSYS", "INIT,GRAPH,NET,COLL,P2P,TUNING");
    }
    if let (Some(through), Some(rank)) = (options.nodes, options.child) {
        for (key, value) in nodes::settings(through, rank) {
            set(key, &value);
        }
    }
    if let Some(rank) = options.child.filter(|rank| *rank >= GPUS) {
        set("NCCL_HOSTID", &format!("ncclflow-bed-host-{}", rank / GPUS));
    }
    all.extend(options.env.iter().cloned());
    all
}

fn algorithm(algo: Algo) -> &'static str {
    match algo {
        Algo::Ring => "Ring",
        Algo::Tree => "Tree",
        // 2.23 adds rings and trees to a list that has none of those, nor NVLS; trees of NVLS do neither
        // operation.
        Algo::Pat => "NVLSTree,PAT",
    }
}

fn protocol(proto: Proto) -> &'static str {
    match proto {
        Proto::Simple => "Simple",
        Proto::Ll => "LL",
        Proto::Ll128 => "LL128",
    }
}

/// Variable that asks jobs to give way.
const GIVES_WAY: &str = "NCCLFLOW_BED_GIVES_WAY";
/// Niceness of jobs that give way.
const NICE: i32 = 10;

/// Tells whether others have the processors first: NCCL's threads spin while they wait, and on a machine with
/// few processors a program that looks at them would wait for most of the time.
pub fn gives_way() -> bool {
    std::env::var_os(GIVES_WAY).is_some_and(|value| value == "1")
}

fn give_way() -> Result<()> {
    // SAFETY: it changes this process only, whose threads are all still to come.
    if gives_way() && unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } != 0 {
        bail!("{GIVES_WAY}: {}", std::io::Error::last_os_error());
    }
    Ok(())
}

/// Makes the settings. To be called before other threads exist.
pub(crate) fn apply(options: &Options) -> Result<()> {
    give_way()?;
    if let Some(through) = options.nodes {
        for (key, file) in nodes::files(through)? {
            set(key, &file);
        }
    }
    for (key, value) in settings(options) {
        set(&key, &value);
    }
    Ok(())
}

/// Sets the algorithm for a version. Trees are for all-reduce only, PAT for all-gather and reduce-scatter.
/// From 2.24 on NCCL refuses operations that it has no algorithm for, and takes a list by function. To be
/// called after the library was opened, which gives its version, and before its first use.
pub(crate) fn apply_for_version(options: &Options, version: (u32, u32)) {
    let by_function = match options.algo {
        Algo::Ring => return,
        Algo::Tree => "Ring;allreduce:Tree",
        Algo::Pat => "Ring;allgather:PAT;reducescatter:PAT",
    };
    if version >= (2, 24) && !options.env.iter().any(|(key, _)| key == "NCCL_ALGO") {
        set("NCCL_ALGO", by_function);
    }
}

fn set(key: &str, value: &str) {
    // SAFETY: this is the only thread, so nobody reads the environment meanwhile.
    unsafe { std::env::set_var(key, value) };
}

/// Whether there is something at `path` now.
pub(crate) fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
