//! Places of all events: processes, communicators in them, and tracks for channels and peers.
//!
//! Slices of one track must not overlap, and messages of one connection do: as many are on their way as its
//! FIFO has room for. So a track has lanes, which have one name and which Perfetto draws as one.

use flow::schema::{CommunicatorReport, RankKey};
use std::io;

use foldhash::{HashMap, HashSet};

use super::{
    messages::{
        CHILDREN_BY_RANK, CounterDescriptor, ProcessDescriptor, StateDescriptor, TrackDescriptor,
        UNIT_SIZE_BYTES,
    },
    trace_file::TraceFile,
};
use crate::sources::Who;

/// Most tracks of a trace. A job of thousands of ranks has some 100,000; a viewer shows nothing beyond that.
const MAX_TRACKS: usize = 1 << 18;

/// Most lanes of a track: a connection has 8 or 16 slots.
const MAX_LANES: usize = 64;

/// Largest process ID of Linux (`PID_MAX_LIMIT`).
const MAX_PID: i32 = 1 << 22;

/// Track of a rank of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RankId(pub(super) u64);

/// Content of a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Content {
    /// Ops that were measured, and instants of the others.
    Ops,
    /// Messages to this rank.
    Sends(i32),
    /// Messages from this rank.
    Receives(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Channel(RankId, u32, Content),
    /// Track of the API calls of a thread.
    Thread(u32, u32),
}

/// Place at which slices are drawn, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) track: u64,
    /// Track of the waits in this lane.
    pub(super) states: Option<u64>,
    free_from_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Tracks {
    /// Number of the last track; there are as many.
    pub(super) last: u64,
    hosts: Vec<String>,
    /// Place of the present source's host among the hosts.
    host: usize,
    /// Tracks of processes, by host and process ID: windows go on in the same tracks.
    processes: HashMap<(usize, u32), u64>,
    /// Process IDs that the trace has: two hosts can have the same.
    pids: HashSet<i32>,
    /// Last of the IDs that no process has, for processes whose own is taken.
    made_pids: i32,
    ranks: HashMap<(usize, RankKey), RankId>,
    /// Lanes by host, which is 0 for a channel, and place.
    lanes: HashMap<(usize, Place), Vec<Lane>>,
    who: Who,
}

impl Tracks {
    /// Begins this source.
    pub(super) fn begin(&mut self, host: &str, who: Who) {
        self.host = self.hosts.iter().position(|known| known == host).unwrap_or(self.hosts.len());
        if self.host == self.hosts.len() {
            self.hosts.push(host.to_owned());
        }
        self.who = who;
    }

    fn next(&mut self) -> io::Result<u64> {
        if self.last >= MAX_TRACKS as u64 {
            return Err(io::Error::other(format!(
                "the trace would have more than {MAX_TRACKS} tracks, which no viewer shows: choose a part with --comm, --rank or --pid"
            )));
        }
        self.last += 1;
        Ok(self.last)
    }

    /// Returns the track of a process.
    fn process(&mut self, pid: u32, file: &mut TraceFile) -> io::Result<u64> {
        if let Some(track) = self.processes.get(&(self.host, pid)) {
            return Ok(*track);
        }
        let track = self.next()?;
        let host = self.hosts.get(self.host).map_or("", String::as_str);
        let own = i32::try_from(pid).ok().filter(|own| !self.pids.contains(own));
        let shown = own.unwrap_or_else(|| {
            self.made_pids = self.made_pids.saturating_add(1);
            MAX_PID.saturating_add(self.made_pids)
        });
        self.pids.insert(shown);
        let ranks = self.who.job_ranks(pid);
        let described = process_name(&ranks, host, pid, self.who.ranks_of(pid));
        file.describe(TrackDescriptor {
            uuid: Some(track),
            process: Some(ProcessDescriptor { pid: shown, name: described }),
            description: self.who.command(pid).map(|command| format!("process {pid} ({command}) on {host}")),
            sibling_order_rank: Some(
                ranks.first().and_then(|rank| i32::try_from(*rank).ok()).unwrap_or(i32::MAX),
            ),
            child_ordering: CHILDREN_BY_RANK,
            ..TrackDescriptor::default()
        })?;
        self.processes.insert((self.host, pid), track);
        Ok(track)
    }

    /// Returns the track of a rank, which is made if it is new.
    pub(super) fn rank(&mut self, key: RankKey, file: &mut TraceFile) -> io::Result<RankId> {
        if let Some(id) = self.ranks.get(&(self.host, key)) {
            return Ok(*id);
        }
        let (parent, track) = (self.process(key.pid, file)?, self.next()?);
        file.describe(TrackDescriptor {
            uuid: Some(track),
            parent_uuid: Some(parent),
            name: Some(rank_name(key, self.who.rank(key))),
            sibling_order_rank: i32::try_from(self.ranks.len()).ok(),
            child_ordering: CHILDREN_BY_RANK,
            ..TrackDescriptor::default()
        })?;
        self.ranks.insert((self.host, key), RankId(track));
        Ok(RankId(track))
    }

    /// Returns the track of instants: they take no time, and no lane.
    pub(super) fn channel_track(&mut self, place: Place, file: &mut TraceFile) -> io::Result<u64> {
        let key = (0, place);
        if let Some(lane) = self.lanes.get(&key).and_then(|lanes| lanes.first()) {
            return Ok(lane.track);
        }
        let lane = self.new_lane(place, file)?;
        self.lanes.insert(key, vec![lane]);
        Ok(lane.track)
    }

    /// Returns a lane that is free from the span's begin to its end; `None` if there are too many at once.
    pub(super) fn slot(
        &mut self,
        place: Place,
        (begin_ns, end_ns): (u64, u64),
        file: &mut TraceFile,
    ) -> io::Result<Option<Lane>> {
        // A rank's track identifies its host, a thread's number does not.
        let key = (if matches!(place, Place::Thread(..)) { self.host } else { 0 }, place);
        let lanes = self.lanes.entry(key).or_default();
        let free_from_ns = end_ns.max(begin_ns);
        if let Some(lane) = lanes.iter_mut().find(|lane| lane.free_from_ns <= begin_ns) {
            lane.free_from_ns = free_from_ns;
            return Ok(Some(*lane));
        }
        if lanes.len() >= MAX_LANES {
            return Ok(None);
        }
        let lane = Lane { free_from_ns, ..self.new_lane(place, file)? };
        self.lanes.entry(key).or_default().push(lane);
        Ok(Some(lane))
    }

    fn new_lane(&mut self, place: Place, file: &mut TraceFile) -> io::Result<Lane> {
        let (parent, name, order, has_states) = match place {
            Place::Channel(rank, channel, content) => {
                let (name, kind, has_states) = match content {
                    Content::Ops => (format!("channel {channel}"), 0, false),
                    Content::Sends(peer) => (format!("channel {channel} to rank {peer}"), 1, true),
                    Content::Receives(peer) => (format!("channel {channel} from rank {peer}"), 3, true),
                };
                (rank.0, name, i32::try_from(channel).unwrap_or(1 << 20).saturating_mul(5) + kind, has_states)
            }
            Place::Thread(pid, tid) => {
                (self.process(pid, file)?, format!("calls of thread {tid}"), -1, false)
            }
        };
        let track = self.next()?;
        let mut describe = |uuid, name: String, order, state| {
            file.describe(TrackDescriptor {
                uuid: Some(uuid),
                parent_uuid: Some(parent),
                name: Some(name),
                sibling_order_rank: Some(order),
                state,
                ..TrackDescriptor::default()
            })
        };
        describe(track, name.clone(), order, None)?;
        let mut states = None;
        if has_states {
            let uuid = self.next()?;
            describe(uuid, format!("{name}: waits"), order.saturating_add(1), Some(StateDescriptor {}))?;
            states = Some(uuid);
        }
        Ok(Lane { track, states, free_from_ns: 0 })
    }

    /// Makes a counter of bytes of a rank.
    pub(super) fn counter(&mut self, rank: RankId, name: String, file: &mut TraceFile) -> io::Result<u64> {
        let track = self.next()?;
        file.describe(TrackDescriptor {
            uuid: Some(track),
            parent_uuid: Some(rank.0),
            name: Some(name),
            counter: Some(CounterDescriptor { unit: UNIT_SIZE_BYTES }),
            sibling_order_rank: Some(-1),
            ..TrackDescriptor::default()
        })?;
        Ok(track)
    }
}

/// Makes a name such as `rank 3 on node-7, GPU 0000:3b:00.0`.
fn process_name(job_ranks: &[u32], host: &str, pid: u32, ranks: &[CommunicatorReport]) -> String {
    let listed = |numbers: &[String], one: &str, several: &str| match numbers {
        [] => None,
        [only] => Some(format!("{one} {only}")),
        all => Some(format!("{several} {}", all.join(", "))),
    };
    let job: Vec<String> = job_ranks.iter().take(16).map(u32::to_string).collect();
    let named = listed(&job, "rank", "ranks").unwrap_or_else(|| format!("process {pid}"));
    let mut gpus: Vec<String> = ranks.iter().filter_map(gpu).collect();
    gpus.sort();
    gpus.dedup();
    gpus.truncate(16);
    let gpus = listed(&gpus, ", GPU", ", GPUs").unwrap_or_default();
    format!("{named} on {host}{gpus}")
}

fn gpu(facts: &CommunicatorReport) -> Option<String> {
    facts.bus_id.clone().or_else(|| facts.cuda_dev.map(|device| device.to_string()))
}

/// Makes a name such as `dp, rank 3 of 8 (0x8f2c…)`.
fn rank_name(key: RankKey, facts: Option<&CommunicatorReport>) -> String {
    let rank = match facts.map(|facts| facts.n_ranks).filter(|n| *n > 0) {
        Some(n_ranks) => format!("rank {} of {n_ranks}", key.rank),
        None => format!("rank {}", key.rank),
    };
    match facts.and_then(|facts| facts.comm_name.as_deref()).filter(|name| !name.is_empty()) {
        Some(name) => format!("{name}, {rank} ({})", key.comm_name()),
        None => format!("{}, {rank}", key.comm_name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_rank_host_and_gpu() {
        let facts = |bus: &str| CommunicatorReport {
            bus_id: Some(bus.to_owned()),
            n_ranks: 8,
            ..CommunicatorReport::default()
        };
        let two = [facts("0000:3b:00.0"), facts("0000:3b:00.0")];
        assert_eq!(process_name(&[3], "node-7", 9, &two), "rank 3 on node-7, GPU 0000:3b:00.0");
        let two = [facts("a"), facts("b")];
        assert_eq!(process_name(&[3, 4], "node-7", 9, &two), "ranks 3, 4 on node-7, GPUs a, b");
        assert_eq!(process_name(&[], "node-7", 9, &[]), "process 9 on node-7");
        let key = RankKey { hash: Some(0x8f), instance: 1, rank: 3, pid: 9 };
        assert_eq!(rank_name(key, None), "0x000000000000008f-1, rank 3");
        let named = CommunicatorReport { comm_name: Some("dp".to_owned()), ..facts("a") };
        assert_eq!(rank_name(key, Some(&named)), "dp, rank 3 of 8 (0x000000000000008f-1)");
    }
}
