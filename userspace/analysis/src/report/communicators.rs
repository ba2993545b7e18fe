//! Communicators and their ranks: their identity, and the volume of each.

use std::collections::{BTreeMap, btree_map::Entry};

use flow::schema::{CommunicatorReport, RankKey, comm_hash_name};

use super::{counted::Numbered, data::RankData};

/// Most communicators that are kept, and most ranks of all of them.
const MAX_COMMS: usize = 4096;
const MAX_RANKS: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct Comm {
    pub(super) name: Option<String>,
    pub(super) n_ranks: i32,
    pub(super) ranks: BTreeMap<i32, RankInfo>,
}

/// A rank that has rows.
#[derive(Debug, Default)]
pub(super) struct RankInfo {
    host: usize,
    pid: u32,
    facts: Option<CommunicatorReport>,
    pub(super) collectives: u64,
    pub(super) p2p: u64,
    pub(super) calls: u64,
    pub(super) incomplete: u64,
}

#[derive(Debug)]
pub(super) struct Communicators {
    comms: Numbered<String, Comm>,
    ranks: usize,
    hosts: Vec<String>,
    host: usize,
    /// Communicators in the report of the present recording.
    facts: Vec<CommunicatorReport>,
    /// Numbers of the ranks whose rows came. `None`: there was no room.
    known: foldhash::HashMap<RankKey, Option<usize>>,
    pub(super) left_out: u64,
}

impl Default for Communicators {
    fn default() -> Self {
        let (ranks, hosts, host, facts, known, left_out) = Default::default();
        Self { comms: Numbered::new(MAX_COMMS), ranks, hosts, host, facts, known, left_out }
    }
}

impl Communicators {
    /// Begins the communicators of this host.
    pub(super) fn begin(&mut self, host: &str, facts: Vec<CommunicatorReport>) {
        let known = self.hosts.iter().position(|known| known == host);
        self.host = known.unwrap_or_else(|| {
            self.hosts.push(host.to_owned());
            self.hosts.len() - 1
        });
        self.facts = facts;
        self.known.clear();
    }

    pub(super) fn host(&self) -> usize {
        self.host
    }

    pub(super) fn hosts(&self) -> Vec<String> {
        self.hosts.clone()
    }

    /// Returns the number of the rank's communicator; `None` if there are too many.
    pub(super) fn number(&mut self, key: RankKey, n_ranks: i32) -> Option<usize> {
        if let Some(number) = self.known.get(&key) {
            self.left_out += u64::from(number.is_none());
            return *number;
        }
        let number = self.add(key, n_ranks);
        if self.known.len() < MAX_RANKS {
            self.known.insert(key, number);
        }
        number
    }

    fn add(&mut self, key: RankKey, n_ranks: i32) -> Option<usize> {
        let hash = comm_hash_name(key.hash);
        let is_it = |facts: &&CommunicatorReport| {
            facts.pid == key.pid && facts.rank == key.rank && facts.comm_hash == hash
        };
        let all = || self.facts.iter().filter(is_it);
        // Where rows are put beside those of another recording, the folder has another name.
        let facts = all().find(|facts| facts.folder == key.comm_name()).or_else(|| all().next()).cloned();
        let Some(number) = self.comms.number(&key.comm_name(), Comm::default) else {
            self.left_out += 1;
            return None;
        };
        let comm = self.comms.at(number)?;
        comm.n_ranks = comm.n_ranks.max(n_ranks);
        if comm.name.is_none() {
            comm.name = facts.as_ref().and_then(|facts| facts.comm_name.clone());
        }
        match comm.ranks.entry(key.rank) {
            Entry::Occupied(_) => {}
            Entry::Vacant(_) if self.ranks >= MAX_RANKS => {
                self.left_out += 1;
                return None;
            }
            Entry::Vacant(place) => {
                self.ranks += 1;
                place.insert(RankInfo { host: self.host, pid: key.pid, facts, ..RankInfo::default() });
            }
        }
        Some(number)
    }

    pub(super) fn rank(&mut self, comm: usize, rank: i32) -> Option<&mut RankInfo> {
        self.comms.at(comm)?.ranks.get_mut(&rank)
    }

    /// Returns the communicators with their folders' names, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(String, Comm)> {
        self.comms.iter()
    }
}

impl RankInfo {
    pub(super) fn data(&self, rank: i32, own_gpu_ns: Option<u64>) -> RankData {
        let facts = self.facts.as_ref();
        let gpu = |facts: &CommunicatorReport| facts.gpu_minor.or(facts.nvml_dev).or(facts.cuda_dev);
        RankData {
            rank,
            host: self.host,
            pid: self.pid,
            job_rank: facts.and_then(|facts| facts.job_rank),
            node: facts.and_then(|facts| facts.node),
            gpu: facts.and_then(gpu).map(|gpu| gpu.to_string()),
            bus_id: facts.and_then(|facts| facts.bus_id.clone()),
            collectives: self.collectives,
            p2p: self.p2p,
            calls: self.calls,
            incomplete: self.incomplete,
            own_gpu_ns,
        }
    }
}
