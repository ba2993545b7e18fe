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
    /// Ranks that have rows.
    pub(super) ranks: BTreeMap<i32, RankData>,
}

#[derive(Debug, Default)]
pub(super) struct Communicators {
    comms: Numbered<String, Comm, MAX_COMMS>,
    ranks: usize,
    pub(super) hosts: Vec<String>,
    /// Number of the present host.
    pub(super) host: usize,
    /// Communicators in the report of the present recording.
    facts: Vec<CommunicatorReport>,
    /// Numbers of the ranks whose rows came. `None`: there was no room.
    known: foldhash::HashMap<RankKey, Option<usize>>,
    pub(super) left_out: u64,
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
        let facts = all().find(|facts| facts.folder == key.comm_name()).or_else(|| all().next());
        let Some(number) = self.comms.number(&key.comm_name()) else {
            self.left_out += 1;
            return None;
        };
        let comm = self.comms.at(number)?;
        comm.n_ranks = comm.n_ranks.max(n_ranks);
        if comm.name.is_none() {
            comm.name = facts.and_then(|facts| facts.comm_name.clone());
        }
        match comm.ranks.entry(key.rank) {
            Entry::Occupied(_) => {}
            Entry::Vacant(_) if self.ranks >= MAX_RANKS => {
                self.left_out += 1;
                return None;
            }
            Entry::Vacant(place) => {
                self.ranks += 1;
                place.insert(RankData::new(self.host, key, facts));
            }
        }
        Some(number)
    }

    pub(super) fn rank(&mut self, comm: usize, rank: i32) -> Option<&mut RankData> {
        self.comms.at(comm)?.ranks.get_mut(&rank)
    }

    /// Returns the number of the communicator with this name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.comms.find(name)
    }

    /// Returns the communicators with their folders' names, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(String, Comm)> {
        self.comms.iter()
    }
}

impl RankData {
    /// Makes the data of a rank of which no row was counted yet.
    fn new(host: usize, key: RankKey, facts: Option<&CommunicatorReport>) -> Self {
        let gpu = |facts: &CommunicatorReport| facts.gpu_minor.or(facts.nvml_dev).or(facts.cuda_dev);
        Self {
            rank: key.rank,
            host,
            pid: key.pid,
            job_rank: facts.and_then(|facts| facts.job_rank),
            node: facts.and_then(|facts| facts.node),
            gpu: facts.and_then(gpu).map(|gpu| gpu.to_string()),
            bus_id: facts.and_then(|facts| facts.bus_id.clone()),
            ..Self::default()
        }
    }
}
