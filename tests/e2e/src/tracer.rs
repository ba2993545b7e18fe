//! What ncclflow wrote: `DIR/<commHash>/proxy_flow_rank<r>.jsonl` and `flow_steps_rank<r>.jsonl`, or the same
//! compressed.
//!
//! Declared from the format's description, not from the writer's types. Keys that the checks do not need are
//! not read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Deserializer};

use crate::communicator::{CommHash, Member};
use crate::direction::Direction;
use crate::json_lines;

/// A line of `proxy_flow`: one op on one channel.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyFlow {
    pub op_count: u64,
    pub rank: i32,
    pub channel: u32,
    pub nsteps: u64,
    pub slice_steps: u32,
    pub pattern: String,
    pub protocol: String,
    pub ring_prev: i32,
    pub ring_next: i32,
    pub coll: Option<String>,
    pub root: i32,
    pub n_ranks: i32,
    #[serde(deserialize_with = "comm_hash")]
    pub comm_hash: CommHash,
    pub seq: u64,
    pub posted: bool,
    /// Elements that the user gave, where the tracer knows.
    pub count: Option<u64>,
    /// The function that was called.
    #[serde(default)]
    pub coll_api: Option<String>,
    /// A peer has a proxy.
    #[serde(default)]
    pub needed: Option<bool>,
    /// With `--level steps`: how what was measured compares with what was planned.
    #[serde(default)]
    pub measured: Option<String>,
    /// The calls of `SaveProxy`, in their order.
    #[serde(default)]
    pub peers: Vec<FlowPeer>,
}

/// One of the `peers` of a `proxy_flow` line.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowPeer {
    #[serde(rename = "op")]
    pub direction: Direction,
    pub peer: i32,
    /// No rank, but the network's or the switch's own reduction.
    pub pseudo: bool,
    pub nsteps: Option<u64>,
    pub transport: String,
    pub proxy: bool,
    pub conn_index: i32,
    /// Of an op that another process's proxy executes.
    #[serde(default)]
    pub proxy_rank: Option<i32>,
    #[serde(default)]
    pub proxy_pid: Option<u32>,
}

/// A line of `flow_steps`: one message with one peer.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowStep {
    pub op_count: u64,
    pub rank: i32,
    pub channel: u32,
    pub step: u64,
    #[serde(rename = "op")]
    pub direction: Direction,
    pub peer: i32,
    pub bytes: u64,
    pub pattern: String,
    pub protocol: String,
    pub slots: u64,
    #[serde(default)]
    pub stage: String,
    #[serde(rename = "bytes_kind")]
    pub bytes_kind: BytesKind,
    #[serde(deserialize_with = "comm_hash")]
    pub comm_hash: CommHash,
    pub seq: u64,
    pub posted: bool,
    /// With `--level steps`, of messages that were posted.
    #[serde(flatten)]
    pub measured: Measured,
}

/// The measured part of a `flow_steps` line; nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Measured {
    #[serde(rename = "t_start_ns")]
    pub start: Option<u64>,
    #[serde(rename = "t_posted_ns")]
    pub posted: Option<u64>,
    #[serde(rename = "t_ready_ns")]
    pub ready: Option<u64>,
    #[serde(rename = "t_sent_ns")]
    pub sent: Option<u64>,
    #[serde(rename = "t_arrived_ns")]
    pub arrived: Option<u64>,
    #[serde(rename = "t_handed_ns")]
    pub handed: Option<u64>,
    #[serde(rename = "t_end_ns")]
    pub end: Option<u64>,
    /// Derived: since when the message's slot was free.
    #[serde(rename = "t_slot_free_ns")]
    pub slot_free: Option<u64>,
    #[serde(rename = "bytes_measured")]
    pub bytes: Option<u64>,
    /// Whose proxy it was, if another process's.
    pub proxy_pid: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BytesKind {
    /// What the message takes in its slot.
    Exact,
    /// An upper bound.
    Capacity,
}

/// Whether a pattern is that of a send or receive call.
pub fn is_p2p(pattern: &str) -> bool {
    matches!(pattern, "SEND" | "RECV")
}

/// NCCL has no hashes before 2.18; such communicators are told apart by their folders alone.
fn comm_hash<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CommHash, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == "no-hash" {
        return Ok(CommHash(0));
    }
    text.parse().map_err(serde::de::Error::custom)
}

/// The files of one rank of one communicator, in their order.
#[derive(Debug, Clone, Default)]
pub struct RankTrace {
    pub flows: Vec<ProxyFlow>,
    pub steps: Vec<FlowStep>,
}

#[derive(Debug, Clone, Default)]
pub struct Trace {
    pub ranks: BTreeMap<Member, RankTrace>,
}

impl Trace {
    /// Reads every communicator's folder in `directory`; in a window they are in folders of processes.
    pub fn read(directory: &Path) -> Result<Self> {
        let mut trace = Self::default();
        for folder in fs::read_dir(directory).with_context(|| format!("listing `{}`", directory.display()))? {
            let folder = folder?.path();
            if !folder.is_dir() {
                continue;
            }
            trace.read_folder(&folder)?;
            for inner in fs::read_dir(&folder)? {
                let inner = inner?.path();
                if inner.is_dir() {
                    trace.read_folder(&inner)?;
                }
            }
        }
        Ok(trace)
    }

    fn read_folder(&mut self, folder: &Path) -> Result<()> {
        for entry in fs::read_dir(folder).with_context(|| format!("listing `{}`", folder.display()))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some((rank, ending)) = rank_of(&name, "proxy_flow_rank") {
                let flows: Vec<ProxyFlow> = json_lines::read(&path)?;
                let steps: Vec<FlowStep> =
                    json_lines::read(&folder.join(format!("flow_steps_rank{rank}{ending}")))?;
                self.take(rank, flows, steps).with_context(|| format!("reading `{}`", path.display()))?;
            }
        }
        Ok(())
    }

    /// Adds a rank's files; their lines must speak of one rank of one communicator.
    pub fn take(&mut self, rank: i32, flows: Vec<ProxyFlow>, steps: Vec<FlowStep>) -> Result<()> {
        let named = flows.iter().map(|flow| (flow.comm_hash, flow.rank));
        let mut named = named.chain(steps.iter().map(|step| (step.comm_hash, step.rank)));
        let Some(first @ (comm_hash, _)) = named.next() else { return Ok(()) };
        if let Some(other) = named.find(|other| *other != first) {
            bail!("one file speaks of {first:?} and of {other:?}");
        }
        if first.1 != rank {
            bail!("the file of rank {rank} speaks of {first:?}");
        }
        let member = Member { comm_hash, rank };
        if self.ranks.insert(member, RankTrace { flows, steps }).is_some() {
            bail!("two files speak of {member}");
        }
        Ok(())
    }
}

/// And how the name ends.
fn rank_of<'a>(name: &'a str, prefix: &str) -> Option<(i32, &'a str)> {
    let (rank, ending) = name.strip_prefix(prefix)?.split_at_checked(name.find('.')? - prefix.len())?;
    matches!(ending, ".jsonl" | ".jsonl.gz").then_some((rank.parse().ok()?, ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: &str = r#"{"opCount":0,"rank":0,"channel":0,"nsteps":4,"nbytes":1048576,"chunkSize":524288,"sliceSteps":2,"chunkSteps":4,"dtype":"float32","redOp":"sum","pattern":"RING_TWICE","protocol":"SIMPLE","ringPrev":1,"ringNext":1,"algorithm":"RING","coll":"AllReduce","collApi":"AllReduce","root":0,"nRanks":2,"commHash":"0x00000000000000ab","seq":2,"posted":true,"needed":true}"#;
    const STEP: &str = r#"{"opCount":0,"rank":0,"channel":0,"step":2,"op":"SEND","peer":1,"bytes":100,"pattern":"RING_TWICE","protocol":"SIMPLE","stage":"reduce-scatter","slots":2,"bytes_kind":"exact","loop":0,"seq":2,"commHash":"0x00000000000000ab","posted":true}"#;

    #[test]
    fn a_directory_becomes_ranks() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("0x00000000000000ab");
        fs::create_dir(&folder).unwrap();
        fs::write(directory.path().join("session.json"), "{}").unwrap();
        fs::write(folder.join("proxy_flow_rank0.jsonl"), format!("{FLOW}\n")).unwrap();
        fs::write(folder.join("flow_steps_rank0.jsonl"), format!("{STEP}\n{STEP}\n")).unwrap();
        let trace = Trace::read(directory.path()).unwrap();
        let rank = &trace.ranks[&Member { comm_hash: CommHash(0xab), rank: 0 }];
        assert_eq!((rank.flows.len(), rank.steps.len()), (1, 2));
        assert_eq!((rank.steps[0].direction, rank.steps[0].bytes_kind), (Direction::Send, BytesKind::Exact));
        assert_eq!(rank.flows[0].count, None);
    }

    #[test]
    fn ranks_and_communicators_do_not_share_files() {
        let flow: ProxyFlow = serde_json::from_str(FLOW).unwrap();
        let step: FlowStep = serde_json::from_str(STEP).unwrap();
        let other = FlowStep { comm_hash: CommHash(1), ..step.clone() };
        assert!(Trace::default().take(0, vec![flow.clone()], vec![step.clone(), other]).is_err());
        assert!(Trace::default().take(1, vec![flow.clone()], vec![step.clone()]).is_err());
        let mut trace = Trace::default();
        trace.take(0, vec![flow.clone()], vec![step.clone()]).unwrap();
        assert!(trace.take(0, vec![flow], vec![step]).is_err());
    }

    #[test]
    fn communicators_of_old_versions_have_no_hash() {
        let flow: ProxyFlow = serde_json::from_str(&FLOW.replace("0x00000000000000ab", "no-hash")).unwrap();
        assert_eq!(flow.comm_hash, CommHash(0));
    }
}
