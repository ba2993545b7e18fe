//! Processes of a job, on all its hosts, as NCCL's reliability service knows them (`rasPeers`,
//! src/ras/peers.cc): 2.24 and later, on by default. They give a rank that was not read a host, a PID and a
//! GPU; and the service says which processes it has found to be dead.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
};

use super::{AbsentPeer, absent, own_list};
use inspect::{
    memory::Memory,
    process::{LibraryId, Process},
};
use nccl_library::{
    elf::{ElfVaddr, RuntimeAddr},
    fields::{
        IntField,
        ras::PEERS,
        ras_peer::{ADDRESS, HOST_HASH, NVML_DEVS, PID, PID_HASH, STRUCT},
    },
    layouts::Layouts,
    symbols::Resolution,
};

/// Bound of the size of a `rasPeerInfo`.
const MAX_PEER_SIZE: u64 = 1 << 10;
/// Offset at which the address ends in a `sockaddr_in6`.
const IPV6_END: u64 = 24;
/// Maximum number of processes, more than a job has.
const MAX_PEERS: u64 = 1 << 17;
/// Maximum number of GPUs of one process that are listed.
const MAX_GPUS: usize = 16;
/// The first PID namespace of every Linux (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// Addresses of the lists in a library, and offsets of the fields of a `rasPeerInfo`.
#[derive(Clone, Copy, Debug)]
pub(super) struct RasPeers {
    variables: [ElfVaddr; 4],
    /// Bytes of the struct.
    size: u64,
    /// Offset and size of the address. The list of the dead has nothing but such addresses.
    address: (usize, usize),
    pid: IntField,
    nvml_devs: IntField,
    /// Hash of the host, from 2.26 on.
    host_hash: Option<IntField>,
    pid_hash: Option<IntField>,
}

/// A process in the list.
#[derive(Clone, Debug)]
pub(super) struct RasPeer {
    peer: AbsentPeer,
    /// Hashes of host and process, without a communicator's in them: from 2.26 on.
    hashes: Option<(u64, u64)>,
}

/// The list of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers {
    peers: Vec<RasPeer>,
    /// Namespaces in which a process of the job may have its PID: before 2.26 its hash has to be made.
    namespaces: Vec<String>,
}

impl RasPeers {
    /// Returns the addresses; `None` if the library has no such list, or nothing tells where.
    pub(super) fn of(resolution: &Resolution) -> Option<Self> {
        let [peers, count, dead, dead_count] = PEERS.map(|name| resolution.variables.get(name).copied());
        Self::new([peers?, count?, dead?, dead_count?], &resolution.layouts)
    }

    fn new(variables: [ElfVaddr; 4], layouts: &Layouts) -> Option<Self> {
        let size = STRUCT.size(layouts).ok().filter(|size| (1..=MAX_PEER_SIZE).contains(size))?;
        // Addresses of both families are looked for in the field, and none is longer than the struct.
        let address = ADDRESS.find(layouts).filter(|field| (IPV6_END..=size).contains(&field.size))?;
        Some(Self {
            variables,
            size,
            address: (usize::try_from(address.offset).ok()?, usize::try_from(address.size).ok()?),
            pid: PID.find_int(layouts)?,
            nvml_devs: NVML_DEVS.find_int(layouts)?,
            host_hash: HOST_HASH.find_int(layouts),
            pid_hash: PID_HASH.find_int(layouts),
        })
    }

    /// Reads the list of a process; `None` where it has none, or where it does not find itself in it.
    pub(super) fn read(self, process: &Process, library: LibraryId) -> Option<Peers> {
        let memory = Memory::new(process);
        let base = own_list::base_of(process, library)?;
        let [peers, count, dead, dead_count] = self.variables;
        let list = |pointer: ElfVaddr, count: ElfVaddr, size: u64| {
            let read = || own_list::head(memory, base, pointer, count);
            let (at, count) = read()?;
            if at == 0 || count > MAX_PEERS {
                return (count == 0).then(Vec::new);
            }
            let bytes = memory.bytes(RuntimeAddr(at), count.checked_mul(size)?).ok()?;
            // The service must not have put another list in its place meanwhile.
            (read()? == (at, count)).then_some(bytes)
        };
        let (_, address_size) = self.address;
        let dead = list(dead, dead_count, u64::try_from(address_size).ok()?)?;
        let dead: BTreeSet<&[u8]> = dead.chunks_exact(address_size).collect();
        let entries = list(peers, count, self.size)?;
        let entries = entries.chunks_exact(usize::try_from(self.size).ok()?);
        let peers: Vec<RasPeer> = entries.filter_map(|entry| self.peer(entry, &dead)).collect();
        let own = std::fs::read_link(Path::new(&process.proc_path()).join("ns/pid"));
        let own = own.map(|link| link.display().to_string()).ok();
        let mut namespaces = vec![FIRST_NAMESPACE.to_owned()];
        namespaces.extend(own.filter(|own| own != FIRST_NAMESPACE));
        // The process itself must be in the list, which proves the struct.
        peers.iter().any(|peer| peer.peer.pid == process.own_pid()).then_some(Peers { peers, namespaces })
    }

    fn peer(&self, entry: &[u8], dead: &BTreeSet<&[u8]>) -> Option<RasPeer> {
        let (begin, size) = self.address;
        let address = entry.get(begin..begin.checked_add(size)?)?;
        let pid = u32::try_from(self.pid.unsigned(entry)?).ok().filter(|pid| *pid > 0)?;
        let gpus = self.nvml_devs.unsigned(entry)?;
        let hash = |field: Option<IntField>| field?.unsigned(entry);
        Some(RasPeer {
            peer: AbsentPeer {
                host: host_of(address)?,
                pid,
                gpus: (0..64).filter(|gpu| gpus >> gpu & 1 == 1).take(MAX_GPUS).collect(),
                is_dead: dead.contains(address),
            },
            hashes: hash(self.host_hash).zip(hash(self.pid_hash)),
        })
    }
}

impl Peers {
    /// Finds the process with these hashes, as `ncclPeerInfo` has them without the communicator's.
    pub(super) fn find(&self, host: u64, pid: u64, kind: usize) -> Option<AbsentPeer> {
        let by_pid = |peer: &RasPeer| {
            self.namespaces.iter().any(|namespace| {
                let text = format!("{}{namespace}", peer.peer.pid);
                absent::hashes(text.as_bytes()).get(kind) == Some(&pid)
            })
        };
        let mut own = self.peers.iter().filter(|peer| match peer.hashes {
            Some(hashes) => hashes == (host, pid),
            None => by_pid(peer),
        });
        // PIDs are the same on several hosts: without a hash of the host, one that comes twice tells nothing.
        let first = own.next()?;
        own.next().is_none().then(|| first.peer.clone())
    }
}

/// Returns the address in an `ncclSocketAddress`.
fn host_of(address: &[u8]) -> Option<String> {
    /// `AF_INET` and `AF_INET6`.
    const V4: u16 = 2;
    const V6: u16 = 10;
    match u16::from_le_bytes(address.get(..2)?.try_into().ok()?) {
        V4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(address.get(4..8)?).ok()?).to_string()),
        V6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(address.get(8..24)?).ok()?).to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use nccl_library::{elf::Machine, symbols::shipped::Table};

    use super::*;

    fn entry(size: usize, last_of_ip: u8, pid: u32, nvml: u64, hashes: Option<(u64, u64)>) -> Vec<u8> {
        let mut bytes = vec![0; size];
        bytes[..8].copy_from_slice(&[2, 0, 0x6d, 0x7c, 10, 0, 0, last_of_ip]);
        bytes[28..32].copy_from_slice(&pid.to_le_bytes());
        bytes[40..48].copy_from_slice(&nvml.to_le_bytes());
        if let Some((host, process)) = hashes {
            bytes[48..56].copy_from_slice(&host.to_le_bytes());
            bytes[56..64].copy_from_slice(&process.to_le_bytes());
        }
        bytes
    }

    /// Returns the layout that the shipped table has of a version.
    fn layout(version: &str) -> Option<RasPeers> {
        let table = Table::shipped().unwrap();
        let library = table.with_version(version.parse().unwrap(), (12, 9), Machine::X86_64).unwrap();
        RasPeers::new([ElfVaddr(0); 4], &table.layouts(library).unwrap())
    }

    fn list(version: &str, entries: &[Vec<u8>], dead: &[&[u8]]) -> Peers {
        let ras = layout(version).unwrap();
        let dead: BTreeSet<&[u8]> = dead.iter().copied().collect();
        assert!(entries.iter().all(|entry| entry.len() as u64 == ras.size));
        Peers {
            peers: entries.iter().map(|entry| ras.peer(entry, &dead).unwrap()).collect(),
            namespaces: vec![FIRST_NAMESPACE.to_owned()],
        }
    }

    #[test]
    fn a_process_of_another_host_is_found_by_its_hashes_and_said_to_be_dead_by_its_address() {
        let (alive, dead) = (entry(64, 7, 4711, 8, Some((1, 2))), entry(64, 8, 4711, 0b11, Some((1, 3))));
        let peers = list("2.28.9", &[alive, dead.clone()], &[&dead[..28]]);
        let peer = |host: &str, gpus: &[u32], is_dead| {
            Some(AbsentPeer { host: host.to_owned(), pid: 4711, gpus: gpus.to_vec(), is_dead })
        };
        assert_eq!(peers.find(1, 2, 0), peer("10.0.0.7", &[3], false));
        assert_eq!(peers.find(1, 3, 0), peer("10.0.0.8", &[0, 1], true));
        assert_eq!(peers.find(2, 2, 0), None);
    }

    /// The PID of `hashes_are_those_that_libraries_make`.
    #[test]
    fn before_2_26_the_hash_is_made_of_the_pid() {
        let (one, other) = (entry(48, 7, 4632, 1, None), entry(48, 8, 4633, 1, None));
        let peers = list("2.24.3", &[one.clone(), other], &[]);
        assert_eq!(peers.find(5, 0xa1a1_27a3_7484_5b43, 0).unwrap().host, "10.0.0.7");
        // The same PID on two hosts.
        let peers = list("2.24.3", &[one, entry(48, 9, 4632, 1, None)], &[]);
        assert_eq!(peers.find(5, 0xa1a1_27a3_7484_5b43, 0), None);
        assert!(layout("2.23.4").is_none());
    }

    #[test]
    fn addresses_are_those_of_sockets() {
        let mut v6 = [0; 28];
        (v6[0], v6[8], v6[23]) = (10, 0xfd, 1);
        assert_eq!(host_of(&v6).as_deref(), Some("fd00::1"));
        assert_eq!(host_of(&[0; 28]), None);
        assert_eq!(host_of(&[2, 0]), None);
    }
}
