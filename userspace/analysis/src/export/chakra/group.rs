//! Communicators, and how nodes name them and their ranks.

use anyhow::{Result, bail};

use super::{
    Work,
    job_rank_trace::Lane,
    messages::{Attribute, AttributeValue},
    parts::Part,
};

/// Added to the number of a communicator, the tag of the messages that its collectives are made of: they do
/// not meet the program's own sends.
const COLLECTIVE_TAGS: i32 = 1 << 24;

/// A communicator.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Number, written as `pg_name`. 0 would be all ranks of the job.
    pub(super) number: i32,
    /// Ranks in the job, in the order of the communicator's ranks.
    pub(super) ranks: Vec<i32>,
}

/// Returns the attributes of all nodes of a call or an op.
pub(super) fn attributes(work: &Work, group: &Group, size: Option<u64>) -> Vec<Attribute> {
    let mut attributes = vec![Attribute::new("is_cpu_op", AttributeValue::Flag(false))];
    let mut put = |name: &str, value| attributes.push(Attribute::new(name, value));
    if let Some(size) = size {
        put("comm_size", AttributeValue::Int64(i64::try_from(size).unwrap_or(i64::MAX)));
    }
    put("pg_name", AttributeValue::Text(group.number.to_string()));
    if let Some(root) = work.root.and_then(|root| group.rank(root)) {
        put("root", AttributeValue::Int32(root));
    }
    put("comm_hash", AttributeValue::Text(format!("0x{:016x}", work.key.hash.unwrap_or_default())));
    if let Some(seq) = work.seq {
        put("seq", AttributeValue::Uint64(seq));
    }
    if let Some(launched) = work.launched {
        put("launched", AttributeValue::Uint64(launched));
    }
    if let Some(Lane::Stream(stream, _)) = work.lane {
        put("stream", AttributeValue::Uint64(stream));
    }
    attributes
}

impl Group {
    /// Returns the rank in the job of a rank of the communicator.
    pub(super) fn rank(&self, rank: i32) -> Option<i32> {
        usize::try_from(rank).ok().and_then(|rank| self.ranks.get(rank)).copied()
    }

    /// Returns the attributes of a node of its own. `own` is the rank in the job; `of_collective`: the node
    /// is a part of a collective, whose messages are not those of the program's sends.
    pub(super) fn attributes(&self, part: Part, own: i32, of_collective: bool) -> Result<Vec<Attribute>> {
        let (src, dst) = match part {
            Part::Collective(comm_type) => {
                return Ok(vec![Attribute::new("comm_type", AttributeValue::Int64(comm_type))]);
            }
            Part::SendTo(peer) => (Some(own), self.rank(peer)),
            Part::ReceiveFrom(peer) => (self.rank(peer), Some(own)),
        };
        let (Some(src), Some(dst)) = (src, dst) else {
            bail!("a peer of rank {own} of the job is not in its communicator");
        };
        let tag = if of_collective { self.number + COLLECTIVE_TAGS } else { self.number };
        let put = |name, value| Attribute::new(name, AttributeValue::Int32(value));
        Ok(vec![put("comm_src", src), put("comm_dst", dst), put("comm_tag", tag)])
    }
}
