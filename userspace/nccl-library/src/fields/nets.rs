//! Network devices that NCCL's own network plugins keep, by number, and those of its topology.

use super::field_ref::fields;

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

fields! {
    /// Network device of NCCL's own plugin for InfiniBand and RoCE: one adapter's port, or several as one
    /// (src/transport/net_ib.cc, src/transport/net_ib/common.h).
    Dump ib_merged_dev = "ncclIbMergedDev" {
        /// Name of the adapter: `mlx5_0`, `mlx5_0+mlx5_1`.
        NAME = "devName" since "2.20";
    }

    /// Network device of NCCL's own plugin for sockets (src/transport/net_socket.cc).
    Dump net_socket_dev = "ncclNetSocketDev" {
        /// Name of the interface.
        NAME = "devName";
    }

    /// Node of the topology (src/graph/topo.h).
    Dump topo_node = "ncclTopoNode" {
        /// Number of the network device, as the plugin counts them; before 2.21 `ID` is.
        NET_DEV = "net.dev" since "2.21";
        /// GUID of a network device, as the plugin tells it: of a verbs adapter its `sys_image_guid`, of a
        /// socket's interface its number.
        NET_GUID = "net.asic";
        ID = "id";
    }

    /// All nodes of one kind.
    Dump topo_node_set = "ncclTopoNodeSet" {
        COUNT = "count";
        /// `ncclTopoNode[NCCL_TOPO_MAX_NODES]`.
        NODES = "nodes";
    }

    /// The hosts of a communicator, as NCCL sees their hardware.
    Dump topo_system = "ncclTopoSystem" {
        /// An `ncclTopoNodeSet` for each kind of node; network devices are kind 5 (`NET`).
        NODES = "nodes";
    }
}
