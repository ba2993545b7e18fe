//! What NCCL prints with `NCCL_DEBUG=INFO`: the topology it decided on, and the API calls it got.
//!
//! Wanted: `NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET,P2P,SHM,COLL,TUNING`, and `NCCL_DEBUG_FILE` with `%p` so that
//! processes do not share a file (they may: every line says its process and thread).
//!
//! Lines about rings, trees and connections do not name their communicator. Inside
//! `Init START … Init COMPLETE` the thread tells; a connection made later, on a thread of its own, belongs
//! to the one communicator of the process with that rank, if there is only one. What stays ambiguous is
//! kept apart, not guessed.

pub mod message;
pub mod record;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::communicator::{CommHash, Member};
pub use message::{ApiCall, Connection, Message, Ring, Tree, Tuning};
use record::Record;

#[derive(Debug, Default)]
pub struct DebugLog {
    pub communicators: Vec<LoggedCommunicator>,
    /// Connections that several communicators of a process could have made.
    pub unattributed: Vec<Connection>,
    /// Algorithm choices; rank 0 prints them, without its communicator.
    pub tunings: Vec<Tuning>,
    /// Tree lines that NCCL cut at 1023 characters: their last channels are missing.
    pub cut_tree_lines: usize,
}

/// A call of the API, and the thread that made it.
#[derive(Debug, Clone)]
pub struct LoggedCall {
    pub tid: u32,
    pub call: ApiCall,
}

/// One rank's view of a communicator.
#[derive(Debug, Clone)]
pub struct LoggedCommunicator {
    pub pid: u32,
    /// Address of `ncclComm`.
    pub comm: u64,
    pub rank: i32,
    pub n_ranks: i32,
    pub n_nodes: Option<i32>,
    /// What is printed as `commId`. Before 2.26 that is another hash of the same id: it names the
    /// communicator to other lines of the log and to nobody else. Of communicators that were split off
    /// another one, 2.23 and later print none.
    pub comm_hash: Option<CommHash>,
    pub complete: bool,
    pub destroyed: bool,
    pub rings: BTreeMap<u32, Ring>,
    pub trees: BTreeMap<u32, Tree>,
    /// Whole rings by channel, which rank 0 prints.
    pub ring_orders: BTreeMap<u32, Vec<i32>>,
    pub connections: Vec<Connection>,
    pub calls: Vec<LoggedCall>,
}

impl LoggedCommunicator {
    pub fn member(&self) -> Option<Member> {
        Some(Member { comm_hash: self.comm_hash?, rank: self.rank })
    }
}

impl DebugLog {
    pub fn read(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let mut reader = Reader::default();
        for path in paths {
            let path = path.as_ref();
            let bytes = fs::read(path).with_context(|| format!("reading `{}`", path.display()))?;
            reader.take(&String::from_utf8_lossy(&bytes));
        }
        Ok(reader.finish())
    }

    /// Reads every file of a directory.
    pub fn read_directory(directory: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory).with_context(|| format!("listing `{}`", directory.display()))? {
            paths.push(entry?.path());
        }
        paths.sort();
        Self::read(&paths)
    }

    pub fn parse(text: &str) -> Self {
        let mut reader = Reader::default();
        reader.take(text);
        reader.finish()
    }

    /// The view of `member`, where the log names it.
    pub fn member(&self, member: Member) -> Option<&LoggedCommunicator> {
        self.communicators.iter().find(|communicator| communicator.member() == Some(member))
    }

    /// The view of `member`, or one that must be like it: where the log has no name for the communicator, all
    /// that could be it have to have the same rings and trees.
    pub fn member_or_alike(&self, member: Member, n_ranks: i32) -> Option<&LoggedCommunicator> {
        if let Some(named) = self.member(member) {
            return Some(named);
        }
        let mut alike =
            self.communicators.iter().filter(|other| (other.rank, other.n_ranks) == (member.rank, n_ranks));
        let first = alike.next()?;
        alike.all(|other| (&other.rings, &other.trees) == (&first.rings, &first.trees)).then_some(first)
    }
}

/// By channel.
#[derive(Default)]
struct Graphs {
    rings: BTreeMap<u32, Ring>,
    trees: BTreeMap<u32, Tree>,
}

#[derive(Default)]
struct Reader {
    log: DebugLog,
    /// The live communicator behind an address.
    by_address: HashMap<(u32, u64), usize>,
    /// The communicator that a thread is initializing.
    by_thread: HashMap<(u32, u32), usize>,
    /// Rings and trees of a thread's communicator that has not been named yet: up to 2.17 only the end of an
    /// initialization has a line.
    unnamed: HashMap<(u32, u32), Graphs>,
    /// Connections that were made outside of an initialization.
    late: Vec<(u32, Connection)>,
}

impl Reader {
    fn take(&mut self, text: &str) {
        for record in text.lines().flat_map(record::records) {
            if let Some(message) = Message::parse(&record.message) {
                self.apply(&record, message);
            }
        }
    }

    fn apply(&mut self, record: &Record, message: Message) {
        let thread = (record.pid, record.tid);
        match message {
            Message::Init(init) => {
                let index = self.communicator(record.pid, init.comm, init.rank, init.n_ranks, !init.complete);
                let communicator = &mut self.log.communicators[index];
                communicator.comm_hash = communicator.comm_hash.or(init.comm_hash);
                if init.complete {
                    communicator.complete = true;
                    if let Some(graphs) = self.unnamed.remove(&thread) {
                        communicator.rings.extend(graphs.rings);
                        communicator.trees.extend(graphs.trees);
                    }
                    self.by_thread.remove(&thread);
                } else {
                    self.by_thread.insert(thread, index);
                }
            }
            Message::Topology(topology) => {
                let index =
                    self.communicator(record.pid, topology.comm, topology.rank, topology.n_ranks, false);
                self.log.communicators[index].n_nodes = Some(topology.n_nodes);
                self.by_thread.insert(thread, index);
            }
            Message::Destroyed { comm } => {
                if let Some(index) = self.by_address.remove(&(record.pid, comm)) {
                    self.log.communicators[index].destroyed = true;
                }
            }
            Message::Call(call) => {
                if let Some(index) = self.by_address.get(&(record.pid, call.comm)) {
                    self.log.communicators[*index].calls.push(LoggedCall { tid: record.tid, call });
                }
            }
            Message::Tuning(tuning) => self.log.tunings.push(tuning),
            Message::Ring(ring) => {
                let (rings, _) = self.graphs(thread);
                rings.insert(ring.channel, ring);
            }
            Message::Trees { trees, cut } => {
                self.log.cut_tree_lines += usize::from(cut);
                let (_, known) = self.graphs(thread);
                known.extend(trees.into_iter().map(|tree| (tree.channel, tree)));
            }
            Message::RingOrder { channel, ranks } => self.with_current(thread, |current| {
                current.ring_orders.insert(channel, ranks);
            }),
            Message::Connection(connection) => match self.by_thread.get(&thread) {
                Some(index) => self.log.communicators[*index].connections.push(connection),
                None => self.late.push((record.pid, connection)),
            },
        }
    }

    /// Finds the communicator at an address, or makes one: at its start, or where the log begins later.
    fn communicator(&mut self, pid: u32, comm: u64, rank: i32, n_ranks: i32, starts: bool) -> usize {
        if let Some(index) = self.by_address.get(&(pid, comm))
            && !starts
        {
            return *index;
        }
        let index = self.log.communicators.len();
        self.log.communicators.push(LoggedCommunicator {
            pid,
            comm,
            rank,
            n_ranks,
            n_nodes: None,
            comm_hash: None,
            complete: false,
            destroyed: false,
            rings: BTreeMap::new(),
            trees: BTreeMap::new(),
            ring_orders: BTreeMap::new(),
            connections: Vec::new(),
            calls: Vec::new(),
        });
        self.by_address.insert((pid, comm), index);
        index
    }

    /// The rings and trees of the communicator that a thread initializes.
    fn graphs(&mut self, thread: (u32, u32)) -> (&mut BTreeMap<u32, Ring>, &mut BTreeMap<u32, Tree>) {
        if let Some(index) = self.by_thread.get(&thread) {
            let current = &mut self.log.communicators[*index];
            return (&mut current.rings, &mut current.trees);
        }
        let graphs = self.unnamed.entry(thread).or_default();
        (&mut graphs.rings, &mut graphs.trees)
    }

    fn with_current(&mut self, thread: (u32, u32), change: impl FnOnce(&mut LoggedCommunicator)) {
        if let Some(index) = self.by_thread.get(&thread) {
            change(&mut self.log.communicators[*index]);
        }
    }

    fn finish(mut self) -> DebugLog {
        for (pid, connection) in self.late {
            let speaker = connection.speaker();
            let mut candidates = self
                .log
                .communicators
                .iter_mut()
                .filter(|communicator| communicator.pid == pid && communicator.rank == speaker);
            match (candidates.next(), candidates.next()) {
                (Some(only), None) => only.connections.push(connection),
                _ => self.log.unattributed.push(connection),
            }
        }
        self.log
    }
}

#[cfg(test)]
mod tests;
