//! Copies of communicators in forked processes. A child that was forked, a data loader for instance, has all
//! of its parent's memory, with the communicators in it, and lives on when the parent dies. It is no rank.
//!
//! A communicator says itself which process it is of: each rank's entry in its table has a hash of the
//! process ([`super::absent`]). A copy is proven by two facts: the hash is of another process, and no thread
//! of NCCL runs in this one. Where the table is not there yet, the oldest of several processes of one user
//! and container with one rank at one address is the parent.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    RankReport,
    absent::{LiveProcesses, hashes_of},
    process::Target,
};
use inspect::{memory::Memory, process::read_text};

/// Maximum number of threads whose names are looked at.
const MAX_THREADS: usize = 4096;

/// A rank that a process has a copy of, although the process that was the rank is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopiedRank {
    pub comm_hash: String,
    pub rank: u32,
}

/// Owner of a communicator in a process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ownership {
    /// The process itself.
    Proven,
    Unknown,
    /// Another process, which has this hash.
    Other(u64),
}

/// Properties that a copy shares with its original: address, hash and rank, and user and container of the
/// process.
type Copied = (u64, String, u32, Option<(u32, Option<String>)>);

/// Claim of a process to a communicator. Of several to one, the least is the parent's: that of the process
/// that is proven, else of the oldest.
type Claim = (Ownership, Option<u64>, u32);

/// Leaves out the copies among the ranks, and notes in the reports of their processes whose they are.
pub(super) fn leave_out(targets: &mut [Target], ranks: &mut Vec<RankReport>) {
    let mut of_processes: BTreeMap<u32, Evidence> = BTreeMap::new();
    let mut claim = |rank: &RankReport| -> (Copied, Claim) {
        let target = targets.iter().find(|target| target.report.pid == rank.pid);
        let owned = target.map_or(Ownership::Unknown, |target| {
            let evidence = of_processes.entry(rank.pid).or_insert_with(|| Evidence::of(target));
            evidence.ownership(target, rank)
        });
        let owner = target.and_then(|target| target.report.owner.as_ref());
        let whose = owner.map(|owner| (owner.uid, owner.container.clone()));
        let copied = (rank.address, rank.comm_hash.clone(), rank.rank, whose);
        (copied, (owned, target.and_then(|target| target.started), rank.pid))
    };
    let claims: Vec<(Copied, Claim)> = ranks.iter().map(&mut claim).collect();
    let mut parents: BTreeMap<&Copied, Claim> = BTreeMap::new();
    for (copied, claim) in &claims {
        let known = parents.entry(copied).or_insert(*claim);
        *known = (*known).min(*claim);
    }
    let is_copy = |(_, (owned, ..)): &(Copied, Claim)| matches!(owned, Ownership::Other(_));
    let live = if claims.iter().any(is_copy) { LiveProcesses::read() } else { LiveProcesses::default() };
    let mut claims = claims.iter();
    ranks.retain(|rank| {
        let Some((copied, (owned, ..))) = claims.next() else { return true };
        let (owner, is_left_over) = match owned {
            Ownership::Proven => return true,
            Ownership::Other(hash) => {
                let owner = live.find(|hashes| hashes.contains(hash));
                (owner, owner.is_none())
            }
            Ownership::Unknown => match parents.get(copied) {
                Some((.., parent)) if *parent != rank.pid => (Some(*parent), false),
                _ => return true,
            },
        };
        if let Some(target) = targets.iter_mut().find(|target| target.report.pid == rank.pid) {
            target.report.forked_from = target.report.forked_from.or(owner);
            if is_left_over {
                let copied = CopiedRank { comm_hash: rank.comm_hash.clone(), rank: rank.rank };
                target.report.left_over_of.push(copied);
            }
        }
        false
    });
}

/// Facts of a process that tell whether the communicators in its memory are its own.
struct Evidence {
    /// Its own hashes, where they can be known.
    hashes: Option<[u64; 2]>,
    has_nccl_threads: bool,
}

impl Evidence {
    fn of(target: &Target) -> Self {
        let status = read_text(Path::new("/proc").join(target.report.pid.to_string()).join("status")).ok();
        let hashes = status.and_then(|status| hashes_of(&target.process.proc_path(), &status));
        Self { hashes, has_nccl_threads: has_nccl_threads(target) }
    }

    fn ownership(&self, target: &Target, rank: &RankReport) -> Ownership {
        let found = target.found.iter().find(|found| found.address == rank.address);
        let entry = found.and_then(|found| found.layout.peers?.own(Memory::new(&target.process), rank));
        match (entry, self.hashes) {
            (Some(entry), Some(hashes)) if hashes.contains(&entry) => Ownership::Proven,
            // Memory that is not written yet is zeros, and a newer version may make its hashes in another way.
            (Some(entry), Some(_)) if !self.has_nccl_threads && rank.set_up.is_none() => {
                Ownership::Other(entry)
            }
            _ => Ownership::Unknown,
        }
    }
}

/// Tells whether a thread that NCCL started runs in the process: a fork does not copy those.
fn has_nccl_threads(target: &Target) -> bool {
    let first = target.process.pid();
    let is_inside =
        target.report.threads.iter().any(|thread| thread.tid != first && thread.nccl_function.is_some());
    // They have names with NCCL_SET_THREAD_NAME=1 only.
    let name = |tid: u32| read_text(target.process.task_path(tid).join("comm")).ok();
    let has_name = || {
        target.process.thread_ids().take(MAX_THREADS).filter_map(name).any(|name| name.starts_with("NCCL"))
    };
    is_inside || target.roles.as_ref().is_some_and(|roles| !roles.proxies.is_empty()) || has_name()
}
