//! Do the messages of a ring all-reduce add up to what the algorithm moves?
//!
//! Of a vector of S bytes on N ranks, each rank sends every chunk twice but for two chunks that it skips,
//! together over all ranks 2(N−1)·S, to the byte. For one rank that is 2(N−1)/N·S exactly where the chunks
//! are equal. They are not always: in the last loop of a channel chunks are rounded up (to 16 bytes from 2.22
//! on) and the last ones take what is left, so a rank may be off by twice what N roundings make, per channel.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

use super::Findings;
use crate::communicator::{CommHash, Member};
use crate::direction::Direction;
use crate::tracer::{BytesKind, RankTrace, Trace};
use crate::truth::plugin::RankTruth;

/// Counts all-reduces and their ranks. `grain`: bytes that chunks are rounded up to. `vector_bytes` gives the
/// size of the vector of an op; those of which it knows nothing are left out, and so are LL and LL128, whose
/// slots carry flags too. Every rank must have been traced.
pub fn check(trace: &Trace, grain: u64, vector_bytes: &dyn Fn(CommHash, u64) -> Option<u64>) -> Findings {
    let mut findings = Findings::default();
    for ((comm_hash, seq), op) in all_reduces(trace) {
        let Some(vector) = vector_bytes(comm_hash, seq) else { continue };
        let name = format!("comm {comm_hash} seq {seq}");
        if op.inexact > 0 {
            findings.complain(format!("{name}: {} messages without an exact size", op.inexact));
            continue;
        }
        if op.sent.len() as u64 != op.n_ranks {
            findings.complain(format!("{name}: {} of {} ranks recorded", op.sent.len(), op.n_ranks));
            continue;
        }
        let all: u64 = op.sent.values().sum();
        let expected = 2 * (op.n_ranks - 1) * vector;
        findings.compare(all == expected, || {
            format!("{name}: {all} bytes sent by all ranks, {expected} are due for a vector of {vector}")
        });
        let equal_chunks = op.channels.len() == 1 && vector.is_multiple_of(grain * op.n_ranks);
        let slack = if equal_chunks { 0 } else { 2 * grain * op.n_ranks * op.channels.len() as u64 };
        for (rank, sent) in &op.sent {
            findings.compare((sent * op.n_ranks).abs_diff(expected) <= slack * op.n_ranks, || {
                let due = expected / op.n_ranks;
                format!("{name}: {sent} bytes sent by rank {rank}, {due} ± {slack} are due for a vector of {vector}")
            });
        }
    }
    findings
}

#[derive(Default)]
struct AllReduce {
    n_ranks: u64,
    channels: BTreeSet<u32>,
    sent: BTreeMap<i32, u64>,
    inexact: u64,
}

fn all_reduces(trace: &Trace) -> BTreeMap<(CommHash, u64), AllReduce> {
    let mut ops: BTreeMap<(CommHash, u64), AllReduce> = BTreeMap::new();
    for (member, rank) in &trace.ranks {
        let Some(n_ranks) = rank.flows.first().and_then(|flow| u64::try_from(flow.n_ranks).ok()) else {
            continue;
        };
        for step in &rank.steps {
            let wanted = step.pattern == "RING_TWICE" && step.protocol == "SIMPLE";
            if !wanted || step.direction != Direction::Send {
                continue;
            }
            let op = ops.entry((member.comm_hash, step.seq)).or_default();
            op.n_ranks = n_ranks;
            op.channels.insert(step.channel);
            op.inexact += u64::from(step.bytes_kind != BytesKind::Exact);
            *op.sent.entry(member.rank).or_default() += step.bytes;
        }
    }
    ops
}

/// The vector sizes of a rank's collectives by `seq`, from the plugin: NCCL names them to it in the order in
/// which it launches them, which is not the order of the calls where a group holds several. Some it does not
/// name (`RankTruth::sees`).
pub fn vector_bytes(
    member: &Member,
    rank: &RankTrace,
    truth: &RankTruth,
) -> Result<BTreeMap<(CommHash, u64), u64>> {
    let collectives =
        rank.flows.iter().filter(|flow| flow.seq & 1 == 0 && flow.coll.as_deref() != Some("AllGatherV"));
    let seqs: BTreeSet<u64> = collectives.map(|flow| flow.seq).collect();
    if seqs.len() != truth.colls.len() {
        bail!("{member}: {} collectives traced, {} ran", seqs.len(), truth.colls.len());
    }
    let sized = truth.colls.iter().map(|coll| coll.count.checked_mul(datatype_bytes(&coll.datatype)?));
    Ok(seqs
        .into_iter()
        .zip(sized)
        .filter_map(|(seq, bytes)| Some(((member.comm_hash, seq), bytes?)))
        .collect())
}

fn datatype_bytes(name: &str) -> Option<u64> {
    Some(match name {
        "ncclInt8" | "ncclUint8" | "ncclFloat8e4m3" | "ncclFloat8e5m2" => 1,
        "ncclFloat16" | "ncclBfloat16" => 2,
        "ncclInt32" | "ncclUint32" | "ncclFloat32" => 4,
        "ncclInt64" | "ncclUint64" | "ncclFloat64" => 8,
        _ => return None,
    })
}
