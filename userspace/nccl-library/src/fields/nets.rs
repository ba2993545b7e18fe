//! Network devices that NCCL's own network plugins keep, by number: [`super::net_socket_dev`]
//! (src/transport/net_socket.cc) and [`super::ib_merged_dev`] (src/transport/net_ib.cc).

/// Name of the plugin for sockets.
pub const SOCKET: &str = "Socket";
/// Variable with the devices of the plugin for sockets; up to 2.31 it is `static`, and has its mangled name.
pub const SOCKET_DEVICES: [&str; 2] = ["ncclNetSocketDevs", "_ZL17ncclNetSocketDevs"];
/// Name of the plugin for InfiniBand and RoCE.
pub const IB: &str = "IB";
/// Variable with the devices of the plugin for InfiniBand and RoCE; from 2.20 on.
pub const IB_DEVICES: [&str; 1] = ["ncclIbMergedDevs"];
/// Kind of the nodes of the topology that are network devices (`NET`, src/graph/topo.h).
pub const TOPOLOGY_KIND: u64 = 5;
