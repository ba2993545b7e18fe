//! Network devices that the connections of a rank go over: NCCL's number of each, its name, and what the
//! kernel says of its ports.
//!
//! A network plugin numbers its devices (`netDev`). NCCL's own plugins for InfiniBand and RoCE and for sockets
//! keep their names in variables ([`nets`]). Of another plugin only the topology tells, by GUID
//! (src/graph/topo.h).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    ConnectionReport, RankReport,
    comm_layout::CommLayout,
    communicator,
    connections::ConnectionLayout,
    own_list,
    places::{self, Places, Wanted},
    proxy::MAX_DEVICES,
};
use flow::{
    identity::CommunicatorFacts,
    schema::{NicRow, device_label},
    text::joined,
};
use inspect::{
    adapters::Port,
    memory::{AddressSpace, Memory},
    process::{Process, maps::Mapping, printable},
    resolver,
};
use nccl_library::{
    elf::{ElfVaddr, RuntimeAddr},
    fields::{
        ArrayField, FieldRef, IntField, StructRef, comm, ib_merged_dev, net_socket_dev, nets, topo_node,
        topo_node_set, topo_system,
    },
    layouts::Layouts,
    nccl::Direction,
    symbols::Resolution,
};

/// Bound of the size of a node of the topology, with its links.
const MAX_NODE_SIZE: u64 = 1 << 16;
/// Bound of the length of a device's name.
const MAX_NAME: u64 = 1 << 10;

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NicReport {
    /// Number of the device, as NCCL's network plugin counts them.
    pub dev: u32,
    /// Network plugin: `IB`, `Socket`, or the name of another.
    pub net: Option<String>,
    /// Adapter (`mlx5_0`, `mlx5_0+mlx5_1`) or interface (`eth0`); null where it is not known.
    pub name: Option<String>,
    /// GUID as the plugin tells it, in hex digits; null for sockets, which have none.
    pub guid: Option<String>,
    /// Ports of its adapters, by the kernel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
}

impl NicReport {
    /// Names the device, as well as it is known: `mlx5_0`.
    pub(super) fn label(&self) -> String {
        device_label(self.dev, self.net.as_deref(), self.name.as_deref())
    }

    /// Returns the ports that carry no messages.
    pub(super) fn down(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(|port| !port.is_up())
    }
}

/// Names the network devices of a rank: `, NIC mlx5_0, mlx5_3`.
pub(super) fn shown(nics: &[NicReport]) -> String {
    const SHOWN: usize = 4;
    let named = joined(nics.iter().take(SHOWN).map(NicReport::label), ", ");
    let more = if nics.len() > SHOWN { " …" } else { "" };
    if nics.is_empty() { String::new() } else { format!(", NIC {named}{more}") }
}

/// Device's number, GUID, and the node's own number, which is the device's before 2.21.
const NODE: [Wanted; 3] = [(topo_node::NET_DEV, false), (topo_node::NET_GUID, true), (topo_node::ID, true)];

/// Devices of the topology: the set of network devices in the system, its count, its nodes, and their fields.
#[derive(Clone, Copy, Debug)]
struct TopologyLayout {
    /// Offset of the set of network devices.
    set: u64,
    count: IntField,
    nodes: ArrayField,
    node: Places<3>,
}

/// Table of devices, a variable of the library: the plugin's name, the table, and where a name is in it.
#[derive(Clone, Copy, Debug)]
struct NameTable {
    plugin: &'static str,
    variable: ElfVaddr,
    /// Size of a device.
    size: u64,
    /// Offset and length of the name.
    name: (u64, u64),
}

#[derive(Debug)]
pub(super) struct NicLayout {
    /// Pointers to the plugin and to the topology.
    comm: Places<2>,
    topology: Option<TopologyLayout>,
    names: Vec<NameTable>,
}

/// Returns the mapping of a file that has this address.
fn file_at(mappings: &[Mapping], at: u64) -> Option<&Mapping> {
    let mut files = mappings.iter().filter(|mapping| mapping.inode != 0);
    files.find(|mapping| (mapping.start.0..mapping.end.0).contains(&at))
}

impl NicLayout {
    pub(super) fn of(layouts: &Layouts, variables: &BTreeMap<String, ElfVaddr>) -> Self {
        let table = |plugin: &'static str, variable: &[&str], device: StructRef, name: FieldRef| {
            let name = name.find(layouts).filter(|name| name.size <= MAX_NAME)?;
            let variable = *variable.iter().find_map(|name| variables.get(*name))?;
            let size = device.size(layouts).ok().filter(|size| *size <= MAX_NODE_SIZE)?;
            Some(NameTable { plugin, variable, size, name: (name.offset, name.size) })
        };
        let tables = [
            table(nets::SOCKET, &nets::SOCKET_DEVICES, net_socket_dev::STRUCT, net_socket_dev::NAME),
            table(nets::IB, &nets::IB_DEVICES, ib_merged_dev::STRUCT, ib_merged_dev::NAME),
        ];
        Self {
            comm: [comm::NET, comm::TOPOLOGY].map(|field| field.find_int(layouts)),
            topology: TopologyLayout::of(layouts),
            names: tables.into_iter().flatten().collect(),
        }
    }

    /// Returns the inode of the file in which the plugin of the communicator at `comm` is: of NCCL's own plugins, the
    /// library that has made it.
    pub(super) fn file_of_plugin(&self, memory: Memory<'_>, mappings: &[Mapping], comm: u64) -> Option<u64> {
        let [plugin, _] = places::read(memory, comm, self.comm).ok()?;
        file_at(mappings, plugin?).map(|mapping| mapping.inode)
    }

    /// Reads what the communicator at `comm` has of these devices. `mappings`: those of its process;
    /// `ports`: the host's.
    pub(super) fn read(
        &self,
        memory: Memory<'_>,
        mappings: &[Mapping],
        comm: u64,
        devs: &BTreeSet<u32>,
        ports: &[Port],
    ) -> Vec<NicReport> {
        let [plugin, topology] = places::read(memory, comm, self.comm).unwrap_or_default();
        // The plugin is a variable of the library, as its table of devices is.
        let file = plugin.and_then(|at| file_at(mappings, at));
        let base = file.and_then(|of_file| own_list::begin_of(mappings, of_file.inode));
        let plugin = plugin.filter(|at| *at != 0).and_then(|at| plugin_name(memory, at));
        let guids = topology.zip(self.topology).and_then(|(at, layout)| layout.guids(memory, at));
        let guids = guids.unwrap_or_default();
        let device = |&dev: &u32| {
            let is_socket = plugin.as_deref() == Some(nets::SOCKET);
            let guid = guids.get(&dev).copied().filter(|guid| !is_socket && *guid != 0);
            let own = self.name(memory, base, plugin.as_deref(), dev);
            let name = own.or_else(|| only_adapter(guid?, ports));
            let adapters: BTreeSet<&str> = name.iter().flat_map(|name| name.split('+')).collect();
            let of_device = |port: &&Port| !is_socket && adapters.contains(port.adapter.as_str());
            NicReport {
                dev,
                net: plugin.clone(),
                ports: ports.iter().filter(of_device).cloned().collect(),
                guid: guid.map(|guid| format!("{guid:016x}")),
                name,
            }
        };
        devs.iter().map(device).collect()
    }

    fn name(&self, memory: Memory<'_>, base: Option<u64>, plugin: Option<&str>, dev: u32) -> Option<String> {
        let table = self.names.iter().find(|table| Some(table.plugin) == plugin)?;
        let (offset, length) = table.name;
        let device = base?.checked_add(table.variable.0)?.checked_add(u64::from(dev) * table.size)?;
        text(&memory.bytes(RuntimeAddr(device.checked_add(offset)?), length).ok()?)
    }
}

/// Reader of the network devices of communicators, for one library.
#[derive(Debug)]
pub struct NicReader {
    comm: CommLayout,
    connections: ConnectionLayout,
    nics: NicLayout,
}

impl NicReader {
    /// Makes it of what a dump asks of a library; `None` where its layouts lack what it takes.
    pub fn of(resolution: &Resolution) -> Option<Self> {
        let layouts = &resolution.layouts;
        Some(Self {
            comm: CommLayout::new(layouts, resolution.nccl_version).ok()?,
            connections: ConnectionLayout::new(layouts).ok()?,
            nics: NicLayout::of(layouts, &resolution.variables),
        })
    }

    /// Reads the devices of the communicator at this address, and which channels go over each. There are none
    /// where another communicator is there, or none, or it has no connection over a network.
    pub fn read(&self, process: &Process, address: u64, facts: &CommunicatorFacts) -> Vec<NicRow> {
        let memory = Memory::new(process);
        let Ok(mappings) = resolver::maps(process.pid()) else { return Vec::new() };
        let space = AddressSpace::of(&mappings);
        let found = communicator::read(memory, &self.comm, &space, address).ok();
        let is_it = |report: &RankReport| {
            report.comm_hash == facts.comm_hash && i32::try_from(report.rank) == Ok(facts.rank)
        };
        let Some(found) = found.filter(|found| is_it(&found.report)) else { return Vec::new() };
        let connections = self.connections.of_neighbours(memory, &self.comm, &found.report);
        let devs: BTreeSet<u32> = connections.iter().filter_map(|connection| connection.net_dev).collect();
        if devs.is_empty() {
            return Vec::new();
        }
        let nics = self.nics.read(memory, &mappings, address, &devs, &[]);
        nics.into_iter().map(|nic| nic.row(&connections)).collect()
    }
}

impl NicReport {
    /// Makes its row of a recording.
    fn row(self, connections: &[ConnectionReport]) -> NicRow {
        let channels = |direction: Direction| {
            let mut by_peer = BTreeMap::<i32, Vec<u32>>::new();
            let own = connections.iter().filter(|connection| {
                (connection.direction, connection.net_dev) == (direction, Some(self.dev))
            });
            for connection in own {
                if let Ok(peer) = i32::try_from(connection.peer) {
                    by_peer.entry(peer).or_default().push(connection.channel);
                }
            }
            by_peer
        };
        let (sends, receives) = (channels(Direction::Send), channels(Direction::Recv));
        NicRow { dev: self.dev, net: self.net, name: self.name, guid: self.guid, sends, receives }
    }
}

impl TopologyLayout {
    fn of(layouts: &Layouts) -> Option<Self> {
        let sets = topo_system::NODES.array(layouts).ok()?;
        let nodes = topo_node_set::NODES.array(layouts).ok()?;
        if nets::TOPOLOGY_KIND >= sets.count || nodes.elem_size > MAX_NODE_SIZE {
            return None;
        }
        Some(Self {
            set: sets.offset + nets::TOPOLOGY_KIND * sets.elem_size,
            count: topo_node_set::COUNT.find_int(layouts)?,
            nodes,
            node: places::find(NODE, layouts).ok()?,
        })
    }

    /// Returns the GUIDs of the network devices, by number.
    fn guids(self, memory: Memory<'_>, system: u64) -> Option<BTreeMap<u32, u64>> {
        let set = system.checked_add(self.set).filter(|_| system != 0)?;
        let count = places::read_one(memory, set, Some(self.count))?;
        let nodes = set.checked_add(self.nodes.offset)?;
        let mut guids = BTreeMap::new();
        for index in 0..count.min(self.nodes.count).min(MAX_DEVICES) {
            let node = nodes.checked_add(index * self.nodes.elem_size)?;
            let [dev, guid, id] = places::read(memory, node, self.node).ok()?;
            // From 2.21 on the number of the device is a field of its own.
            let dev = if self.node[0].is_some() { dev? } else { id? };
            guids.insert(u32::try_from(dev).ok()?, guid?);
        }
        Some(guids)
    }
}

/// Reads the name of a network plugin, to which the first field of it points.
fn plugin_name(memory: Memory<'_>, plugin: u64) -> Option<String> {
    const LONGEST: usize = 32;
    let name = memory.word(RuntimeAddr(plugin)).ok().filter(|at| *at != 0)?;
    let mut bytes = [0; LONGEST];
    let read = memory.read_some(RuntimeAddr(name), &mut bytes).ok()?;
    text(bytes.get(..read)?)
}

/// Returns the text up to the first zero byte, if there is any; a tenant can have written it.
fn text(bytes: &[u8]) -> Option<String> {
    let text = bytes.split(|byte| *byte == 0).next()?;
    let text = printable(&String::from_utf8_lossy(text));
    (!text.is_empty()).then_some(text)
}

/// Returns the adapter with this number, if that is one only. libibverbs gives the number in the order of the
/// network, and NCCL takes it for one of this processor's.
fn only_adapter(guid: u64, ports: &[Port]) -> Option<String> {
    let of_guid = ports.iter().filter(|port| [guid, guid.swap_bytes()].contains(&port.system_guid));
    let adapters: BTreeSet<&str> = of_guid.map(|port| port.adapter.as_str()).collect();
    let mut adapters = adapters.into_iter();
    adapters.next().filter(|_| adapters.next().is_none()).map(str::to_owned)
}
