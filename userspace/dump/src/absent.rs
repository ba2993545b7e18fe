//! Finds the ranks that were not read: gone, in a process of this host, or elsewhere.
//!
//! Each communicator has a table of all its ranks with a hash of their host and of their process
//! (`ncclPeerInfo`; src/init.cc, fillInfo; src/misc/utils.cc, getHostHash and getPidHash). A process's hash
//! is made of the PID that it has in its own PID namespace and of the name of that namespace, which `/proc`
//! has, too. So the hashes of all live processes can be made and compared. The process that the table was
//! read from proves that they are made in the same way.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::{
    RankReport,
    owners::{self, Claim, Owner},
    process::Target,
    ras_peers::Peers,
};
use flow::schema::comm_hash_of_name;
use inspect::{
    memory::Memory,
    process::{Process, has_ended, in_first_pid_namespace, pids, read_text, status_field},
};
use nccl_library::{
    elf::RuntimeAddr,
    fields::{IntField, comm, peer_info},
    layouts::Layouts,
};

/// Maximum number of ranks that are listed; of a large job most ranks are on other hosts.
const MAX_LISTED: usize = 64;
/// Maximum number of ranks that are looked for.
const MAX_LOOKED_AT: usize = 1 << 12;

/// A rank that none of the processes that were read has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AbsentRank {
    pub rank: u32,
    pub place: Place,
    /// PID of the process that has the rank, if it is on this host and lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The rank's process, as NCCL's reliability service knows it (2.24 and later).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<AbsentPeer>,
}

/// A process, as NCCL's reliability service knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AbsentPeer {
    /// Address of its host that NCCL uses.
    pub host: String,
    /// PID in the process's own PID namespace.
    pub pid: u32,
    /// GPUs of the process, as NVML numbers them on its host.
    pub gpus: Vec<u32>,
    /// The service has found the process to be dead.
    pub is_dead: bool,
}

impl AbsentRank {
    /// Tells whether NCCL's reliability service has found the rank's process to be dead.
    pub(super) fn is_dead(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.is_dead)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// The rank was on this host, and no live process has it.
    Gone,
    /// A process of this host has the rank, but was not read, or the rank was not found in it.
    Here,
    /// The rank is on another host, or in a container that calls itself by another name.
    Elsewhere,
    /// The rank was on this host, and no process that can be seen from this PID namespace has it; or a newer
    /// ncclflow says something else.
    #[serde(other)]
    Unseen,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PeerTable {
    table: IntField,
    size: u64,
    host: IntField,
    pid: IntField,
}

impl PeerTable {
    pub(super) fn new(layouts: &Layouts) -> Option<Self> {
        Some(Self {
            table: comm::PEER_INFO.find_int(layouts)?,
            size: peer_info::STRUCT.size(layouts).ok()?,
            host: peer_info::HOST_HASH.find_int(layouts)?,
            pid: peer_info::PID_HASH.find_int(layouts)?,
        })
    }

    /// Reads the hashes of host and process of these ranks, without the communicator's own hash in them.
    fn read(self, memory: Memory<'_>, comm: &RankReport, ranks: Range<u32>) -> Option<Vec<(u64, u64)>> {
        let salt = comm_hash_of_name(&comm.comm_hash)?;
        let place = comm.address.checked_add(self.table.offset())?;
        let table = memory.word(RuntimeAddr(place)).ok().filter(|table| *table != 0)?;
        let at = table.checked_add(u64::from(ranks.start).checked_mul(self.size)?)?;
        let size = u64::try_from(ranks.len()).ok()?.checked_mul(self.size)?;
        let bytes = memory.bytes(RuntimeAddr(at), size).ok()?;
        let entries = bytes.chunks_exact(usize::try_from(self.size).ok().filter(|size| *size > 0)?);
        entries
            .map(|entry| {
                let [host, pid] = [self.host, self.pid].map(|field| field.unsigned(entry));
                Some((host?.wrapping_sub(salt), pid?.wrapping_sub(salt)))
            })
            .collect()
    }

    /// Returns the hash of the process that has this rank, as the rank's own entry has it.
    pub(super) fn own(self, memory: Memory<'_>, rank: &RankReport) -> Option<u64> {
        let own = self.read(memory, rank, rank.rank..rank.rank.checked_add(1)?)?;
        own.first().map(|(_, pid)| *pid)
    }

    /// Returns the ranks of `rank`'s communicator that are not among `known` (in order), with their places; none
    /// if the hashes are not made as this module makes them.
    pub(super) fn absent(
        self,
        memory: Memory<'_>,
        rank: &RankReport,
        known: &[u32],
        live: &LiveProcesses,
        peers: Option<&Peers>,
    ) -> Vec<AbsentRank> {
        let Some(table) = self.read(memory, rank, 0..rank.n_ranks) else { return Vec::new() };
        let Some(&(own_host, own_pid)) = table.get(rank.rank as usize) else { return Vec::new() };
        // The process that was read must be found by its own entry, which proves the hashes.
        let Some(kind) = live.kind_of(rank.pid, own_pid) else { return Vec::new() };
        let missing = (0u32..).zip(&table).filter(|(number, _)| known.binary_search(number).is_err());
        let placed = missing.map(|(number, (host, pid))| {
            let found = live.find(|hashes| hashes.get(kind) == Some(pid));
            let place = match found {
                Some(_) => Place::Here,
                None if *host != own_host => Place::Elsewhere,
                None if live.is_complete => Place::Gone,
                None => Place::Unseen,
            };
            let peer = peers.and_then(|peers| peers.find(*host, *pid, kind));
            AbsentRank { rank: number, place, pid: found, peer }
        });
        // Ranks that are gone are not crowded out.
        let mut placed: Vec<AbsentRank> = placed.take(MAX_LOOKED_AT).collect();
        placed.sort_by_key(|absent| absent.place != Place::Gone && !absent.is_dead());
        placed.truncate(MAX_LISTED);
        placed.sort_by_key(|absent| absent.rank);
        placed
    }
}

/// Finds the ranks that no process that was read has. The table of a communicator's ranks is read once for
/// each owner of such a communicator: another one, who claims a rank that is gone, hides nothing.
pub(super) fn find(targets: &[Target], ranks: &mut [RankReport]) {
    let mut incomplete = incomplete(ranks, &|rank| {
        targets.iter().find(|target| target.report.pid == rank.pid)?.report.owner.as_ref()
    });
    if incomplete.is_empty() {
        return;
    }
    let live = LiveProcesses::read();
    for rank in ranks {
        let Some(known) = incomplete.remove(&(rank.pid, rank.address)) else { continue };
        if let Some(target) = targets.iter().find(|target| target.report.pid == rank.pid) {
            rank.absent = target.absent(rank, &known, &live);
        }
    }
}

/// Returns the ranks, in order, that are known of each communicator of one owner that has more, by process
/// and address of the first of them.
fn incomplete<'o>(
    ranks: &[RankReport],
    owner_of: &impl Fn(&RankReport) -> Option<&'o Owner>,
) -> BTreeMap<(u32, u64), Vec<u32>> {
    let mut by_hash: BTreeMap<(&str, u32), Vec<&RankReport>> = BTreeMap::new();
    for rank in ranks {
        by_hash.entry((&rank.comm_hash, rank.n_ranks)).or_default().push(rank);
    }
    let claims = by_hash.into_values().flat_map(|ranks| owners::tell_apart(ranks, owner_of));
    let incomplete = claims.filter_map(|Claim { ranks, .. }| {
        let first = ranks.first()?;
        let known: BTreeSet<u32> = ranks.iter().map(|rank| rank.rank).collect();
        let is_incomplete = known.len() < first.n_ranks as usize;
        is_incomplete.then(|| ((first.pid, first.address), known.into_iter().collect()))
    });
    incomplete.collect()
}

/// The live processes of this host, by the hashes that NCCL would make of them.
#[derive(Debug, Default)]
pub(super) struct LiveProcesses {
    /// PID in our namespace, and hashes, one of each kind.
    processes: Vec<(u32, [u64; 2])>,
    /// Every process of the host was looked at.
    is_complete: bool,
}

impl LiveProcesses {
    pub(super) fn read() -> Self {
        let Ok(pids) = pids() else { return Self::default() };
        let mut live = Self { is_complete: in_first_pid_namespace().unwrap_or(false), ..Self::default() };
        for pid in pids {
            let mut folder = Path::new("/proc").join(pid.to_string());
            let Ok(status) = read_text(folder.join("status")) else { continue };
            if has_ended(&status) {
                let process = Process::open(pid).ok();
                let Some(process) = process.filter(Process::has_lost_its_first_thread) else { continue };
                folder = process.proc_path();
            }
            match hashes_of(&folder, &status) {
                Some(hashes) => live.processes.push((pid, hashes)),
                // The process ended meanwhile, or may not be looked at.
                None => live.is_complete &= !folder.exists(),
            }
        }
        live
    }

    /// Returns the way in which this process's hash is made, if it is one of the known ways.
    fn kind_of(&self, pid: u32, hash: u64) -> Option<usize> {
        let (_, hashes) = self.processes.iter().find(|(known, _)| *known == pid)?;
        hashes.iter().position(|known| *known == hash)
    }

    pub(super) fn find(&self, is_it: impl Fn(&[u64; 2]) -> bool) -> Option<u32> {
        self.processes.iter().find(|(_, hashes)| is_it(hashes)).map(|(pid, _)| *pid)
    }
}

/// Computes the hashes of a process, of which these are the folder in `/proc` (of a thread that has not
/// ended), and the status of its first thread.
pub(super) fn hashes_of(folder: &Path, status: &str) -> Option<[u64; 2]> {
    let numbers: Vec<&str> = status_field(status, "NSpid")?.split_whitespace().collect();
    // A process with one number is in the namespace of this program; its link need not be readable.
    let namespace = match &*numbers {
        [_] => std::fs::read_link("/proc/self/ns/pid"),
        _ => std::fs::read_link(folder.join("ns/pid")),
    };
    let text = format!("{}{}", numbers.last()?, namespace.ok()?.display());
    Some(hashes(text.as_bytes()))
}

/// Computes `getHash` in the ways of all versions: `eatHash` and `digestHash` of src/include/bitops.h, and
/// before 2.23 DJB2 with exclusive or (src/misc/utils.cc).
pub(super) fn hashes(text: &[u8]) -> [u64; 2] {
    let mut acc = [1 ^ text.len() as u64, 1u64];
    for chunk in text.chunks(8) {
        acc[0] = acc[0].wrapping_add(acc[1]);
        acc[1] ^= acc[0];
        acc[0] = (acc[0] ^ (acc[0] >> 31)).wrapping_mul(0x9de6_2bbc_8cef_3ce3);
        acc[1] = (acc[1] ^ (acc[1] >> 32)).wrapping_mul(0x485c_d631_1b59_9e79);
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        acc[0] = acc[0].wrapping_add(u64::from_le_bytes(word));
    }
    let mixed = (acc[0] ^ (acc[0] >> 31)).wrapping_mul(0xbac3_bd56_2846_de6b).wrapping_add(acc[1]);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0x995a_187a_14e7_b445);
    let djb2 = text.iter().fold(5381u64, |hash, byte| hash.wrapping_mul(33) ^ u64::from(*byte));
    [mixed, djb2]
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn hashes_are_those_that_libraries_make() {
        // Read from `ncclPeerInfo` of a process of NCCL 2.28.9 with this PID, less `commHash`.
        assert_eq!(hashes(b"4632pid:[4026531836]")[0], 0xa1a1_27a3_7484_5b43);
        // DJB2a of "a": 5381 * 33, exclusive or 97.
        assert_eq!(hashes(b"a")[1], 0x2_b5a5 ^ 0x61);
    }

    #[test]
    fn a_live_process_is_found_and_one_that_ended_is_not() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let live = LiveProcesses::read();
        let (_, [hash, _]) = *live.processes.iter().find(|(known, _)| *known == pid).unwrap();
        let find = |live: &LiveProcesses| live.find(|hashes| hashes[0] == hash);
        assert_eq!((live.kind_of(pid, hash), find(&live)), (Some(0), Some(pid)));
        // A zombie is dead, too: it has ended and nobody has fetched its status.
        child.kill().unwrap();
        waitid(WaitId::Pid(Pid::from_child(&child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert_eq!(find(&LiveProcesses::read()), None);
        child.wait().unwrap();
    }

    #[test]
    fn another_users_forged_rank_hides_none_that_is_gone() {
        let owners = [1000, 1000, 666].map(|uid| Owner { uid, ..Owner::default() });
        let owner_of = |rank: &RankReport| owners.get(rank.pid as usize - 1);
        let rank = |rank, pid| RankReport { rank, pid, n_ranks: 3, ..RankReport::default() };
        let all = [rank(0, 1), rank(1, 2), rank(2, 3)];
        let known = incomplete(&all, &owner_of);
        assert_eq!(known, BTreeMap::from([((1, 0), vec![0, 1]), ((3, 0), vec![2])]));
        let twice = [rank(0, 1), rank(1, 1), rank(1, 2)];
        assert_eq!(incomplete(&twice, &owner_of), BTreeMap::from([((1, 0), vec![0, 1])]));
    }
}
