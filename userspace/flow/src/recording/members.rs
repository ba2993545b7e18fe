//! Members of a block: the processes whose records it has, and the ranks of communicators that they have.
//!
//! The list stands before the body and is not compressed, so that a reader who wants one communicator passes
//! over the blocks that have nothing of it.

use std::collections::BTreeSet;

use super::columns::{Input, push, unzigzag, zigzag};
use crate::{
    decode::RecordView,
    wire::{CommunicatorSpans, ProbeKind},
};

/// Members that can be listed. A block with more has no list, and every reader reads it.
const MAX_MEMBERS: usize = 2048;

/// A process with one of the ranks that it has, or without a rank: records that do not name their
/// communicator can be of any of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Process ID as records carry it: of the initial PID namespace.
    pub tgid: u32,
    pub communicator: Option<MemberRank>,
}

/// A rank of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberRank {
    /// `commHash`; before NCCL 2.18 there is none.
    pub hash: Option<u64>,
    pub rank: i32,
}

/// The members of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    listed: BTreeSet<Member>,
    /// There are more members than can be listed.
    is_more: bool,
    last: Option<Member>,
}

impl Members {
    /// Notes that a record is in the block. `kind`: that of its probe, if it is known.
    pub fn note(&mut self, kind: Option<&ProbeKind>, record: &RecordView<'_>) {
        let spans = kind.and_then(communicator_spans);
        let communicator = spans.and_then(|spans| member_rank(spans, record));
        let member = Member { tgid: record.header.tgid, communicator };
        if self.last == Some(member) {
            return;
        }
        self.last = Some(member);
        self.list(member);
    }

    /// Adds the members of `other`, whose records are in the block, too.
    pub fn add(&mut self, other: Self) {
        self.is_more |= other.is_more;
        for member in other.listed {
            self.list(member);
        }
    }

    fn list(&mut self, member: Member) {
        if self.listed.len() < MAX_MEMBERS {
            self.listed.insert(member);
        } else {
            self.is_more |= !self.listed.contains(&member);
        }
    }

    /// Tells whether the block can have something that is asked for.
    pub fn may_have(&self, mut is_asked_for: impl FnMut(&Member) -> bool) -> bool {
        self.is_more || self.listed.iter().any(&mut is_asked_for)
    }

    /// Writes the list as it stands in a block: each member once, each hash once.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.is_more {
            return bytes;
        }
        let ranks = || self.listed.iter().filter_map(|member| member.communicator);
        let hashes: BTreeSet<u64> = ranks().filter_map(|rank| rank.hash).collect();
        push(&mut bytes, hashes.len() as u64);
        bytes.extend(hashes.iter().flat_map(|hash| hash.to_le_bytes()));
        push(&mut bytes, self.listed.len() as u64);
        let mut before = 0;
        for Member { tgid, communicator } in &self.listed {
            push(&mut bytes, u64::from(tgid - before));
            before = *tgid;
            let Some(MemberRank { hash, rank }) = communicator else {
                push(&mut bytes, 0);
                continue;
            };
            let place = hash.map_or(0, |hash| hashes.range(..hash).count() as u64 + 1);
            push(&mut bytes, place + 1);
            push(&mut bytes, zigzag(i64::from(*rank).cast_unsigned()));
        }
        bytes
    }

    /// Reads what [`Members::to_bytes`] wrote. Other bytes are read as a list that excludes no member.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        read(&mut Input(bytes)).unwrap_or(Self { is_more: true, ..Self::default() })
    }
}

fn read(input: &mut Input<'_>) -> Option<Members> {
    let count = input.count(MAX_MEMBERS)?;
    let hashes: Option<Vec<u64>> =
        (0..count).map(|_| Some(u64::from_le_bytes(*input.take(8)?.first_chunk()?))).collect();
    let hashes = hashes?;
    let (mut listed, mut tgid) = (BTreeSet::new(), 0u32);
    for _ in 0..input.count(MAX_MEMBERS)? {
        tgid = tgid.checked_add(u32::try_from(input.varint()?).ok()?)?;
        let communicator = match input.count(hashes.len() + 1)?.checked_sub(1) {
            None => None,
            Some(place) => {
                let hash = place.checked_sub(1).map(|place| hashes.get(place).copied());
                let rank = i32::try_from(unzigzag(input.varint()?).cast_signed()).ok()?;
                Some(MemberRank { hash: hash.flatten(), rank })
            }
        };
        listed.insert(Member { tgid, communicator });
    }
    Some(Members { listed, ..Members::default() })
}

/// Returns the place where records of this kind name their communicator, if they do.
pub fn communicator_spans(kind: &ProbeKind) -> Option<&CommunicatorSpans> {
    match kind {
        ProbeKind::Plan(spans) => Some(&spans.comm),
        ProbeKind::ProxyOp(spans) => Some(&spans.comm),
        ProbeKind::ApiCall(spans) => Some(&spans.comm),
        ProbeKind::ApiLine(spans) => Some(&spans.comm),
        _ => None,
    }
}

fn member_rank(spans: &CommunicatorSpans, record: &RecordView<'_>) -> Option<MemberRank> {
    let hash = spans.hash.as_ref().and_then(|hash| record.unsigned(hash).ok());
    Some(MemberRank { hash, rank: record.int(&spans.rank).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Members {
        let ranks = |tgid, hash, ranks: std::ops::Range<i32>| {
            ranks.map(move |rank| Member { tgid, communicator: Some(MemberRank { hash, rank }) })
        };
        let listed = ranks(7, Some(1 << 60), 0..2)
            .chain(ranks(7, None, 3..4))
            .chain(ranks(4_000_000, Some(5), -1..2))
            .chain([Member { tgid: 7, communicator: None }])
            .collect();
        Members { listed, ..Members::default() }
    }

    #[test]
    fn the_list_comes_back() {
        let members = members();
        let bytes = members.to_bytes();
        assert_eq!(Members::from_bytes(&bytes), members);
        assert!(bytes.len() < 45, "{}", bytes.len());
        assert_eq!(Members::from_bytes(&Members::default().to_bytes()), Members::default());
        assert!(!Members::default().may_have(|_| true));
    }

    #[test]
    fn a_list_that_is_damaged_or_too_long_excludes_nothing() {
        let bytes = members().to_bytes();
        for len in 0..bytes.len() {
            assert!(Members::from_bytes(&bytes[..len]).may_have(|_| false), "cut at {len}");
        }
        let long = Members { is_more: true, ..members() };
        assert!(Members::from_bytes(&long.to_bytes()).may_have(|_| false));
        assert!(Members::from_bytes(&[0xff; 100]).may_have(|_| false));
    }
}
