//! torch's notes of one rank's collectives of a process group, in a form that can be compared with that of a
//! process on another host.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::names;
use flow::text::joined;
use torch::flight_recorder::Entry;

/// Collectives of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Noted {
    /// Name and description of the group: `"tensor_parallel" (3)`.
    pub group: String,
    /// Unix time in ns at which the notes had been read.
    pub read_ns: i64,
    /// Unix time in ns of the latest start or completion that torch's watchdog has noticed, of any group of
    /// the process.
    pub noticed_ns: Option<i64>,
    /// The notes have all that a comparison of ranks needs.
    pub is_whole: bool,
    /// Kinds of the calls: text and what has to be the same on all ranks.
    pub kinds: Vec<NotedKind>,
    /// The latest collectives, oldest first.
    pub calls: Vec<NotedCall>,
    /// Sends and receives with each peer; none where the notes do not reach back to the first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<NotedMessages>,
}

/// Sends and receives of a rank with a peer, as the group numbers its ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotedMessages {
    pub peer: u32,
    pub sends: NotedWay,
    pub receives: NotedWay,
}

/// Sends, or receives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotedWay {
    /// Number of calls.
    pub called: u64,
    /// The oldest call that torch has not seen to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<NotedMessage>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotedMessage {
    /// Description: `recv 0<-1 [1024] Float (train.py:52)`.
    pub what: String,
    /// Unix time in ns.
    pub called_ns: i64,
}

/// Properties that several collectives share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotedKind {
    /// Description: `all_reduce [1024] Float (train.py:52)`.
    pub what: String,
    /// Text that must be the same on all ranks: function, element types, and sizes where they may not differ.
    pub must_match: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotedCall {
    /// torch's number of the collective in its group.
    pub seq: u64,
    /// Index of the call's kind in [`Noted::kinds`].
    pub kind: usize,
    /// Unix times in ns.
    pub called_ns: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_ns: Option<i64>,
}

/// Puts the entries of collectives together by their number. There are several of one number where calls were
/// put together (`_coalescing_manager`). Sends and receives are left out: each pair numbers them for itself.
pub fn by_collective<'a>(entries: impl Iterator<Item = &'a Entry>) -> BTreeMap<u64, Vec<&'a Entry>> {
    let mut collectives: BTreeMap<u64, Vec<&Entry>> = BTreeMap::new();
    for entry in entries.filter(|entry| !entry.is_p2p) {
        collectives.entry(entry.collective_seq_id).or_default().push(entry);
    }
    collectives
}

impl Noted {
    /// Takes the latest `most` collectives of a group's entries, which were read at `read_ns`.
    pub fn of(entries: &[&Entry], read_ns: i64, most: usize) -> Self {
        let collectives = by_collective(entries.iter().copied());
        let (mut noted, mut known) = (Self { read_ns, ..Self::default() }, HashMap::new());
        let before = collectives.len().saturating_sub(most);
        for (seq, entries) in collectives.into_iter().skip(before) {
            let signatures: Vec<Signature<'_>> = entries.iter().map(|entry| signature(entry)).collect();
            let kind = NotedKind { what: what(&entries), must_match: format!("{signatures:?}") };
            let kind = *known.entry(kind).or_insert_with_key(|kind| {
                noted.kinds.push(kind.clone());
                noted.kinds.len() - 1
            });
            let called_ns = entries.iter().map(|entry| entry.time_created_ns).min().unwrap_or_default();
            let completed_ns = entries.iter().filter_map(|entry| entry.time_discovered_completed_ns).max();
            noted.calls.push(NotedCall { seq, kind, called_ns, completed_ns });
        }
        noted.messages = messages(entries);
        noted
    }

    pub fn first_seq(&self) -> Option<u64> {
        self.calls.first().map(|call| call.seq)
    }

    pub fn last_seq(&self) -> Option<u64> {
        self.calls.last().map(|call| call.seq)
    }

    /// Returns the number of the latest collective with a completed entry. The collectives before it are
    /// completed, too: those of a group run one after the other. Parts of one that were put together are
    /// never marked themselves.
    pub fn completed_seq(&self) -> Option<u64> {
        self.calls.iter().rev().find(|call| call.completed_ns.is_some()).map(|call| call.seq)
    }

    pub fn call(&self, seq: u64) -> Option<(&NotedCall, &NotedKind)> {
        let at = self.calls.binary_search_by_key(&seq, |call| call.seq).ok()?;
        let call = self.calls.get(at)?;
        Some((call, self.kinds.get(call.kind)?))
    }

    /// Describes a collective: `all_reduce [1024] Float (train.py:52)`.
    pub(super) fn what(&self, seq: u64) -> &str {
        self.call(seq).map_or("nothing", |(_, kind)| &kind.what)
    }

    pub(super) fn called_ns(&self, seq: u64) -> Option<i64> {
        Some(self.call(seq)?.0.called_ns)
    }

    /// Returns the first call after a number. Numbers may have gaps, and a ring may not reach back so far.
    pub fn next_after(&self, seq: Option<u64>) -> Option<&NotedCall> {
        self.calls.iter().find(|call| seq.is_none_or(|seq| call.seq > seq))
    }
}

/// Ranks that called the same.
type Side<'a, W> = (&'a NotedKind, Vec<W>);

/// Finds the first of the wanted numbers under which ranks called different collectives, and the sides in the
/// order of their first ranks.
pub fn first_difference<'a, W: Copy>(
    ranks: &[(W, &'a Noted)],
    is_wanted: impl Fn(u64) -> bool,
) -> Option<(u64, Vec<Side<'a, W>>)> {
    let numbers = ranks.iter().flat_map(|(_, noted)| &noted.calls).map(|call| call.seq);
    let numbers: BTreeSet<u64> = numbers.filter(|seq| is_wanted(*seq)).collect();
    numbers.into_iter().find_map(|seq| {
        let mut sides: Vec<Side<'_, W>> = Vec::new();
        for (who, noted) in ranks {
            let Some((_, kind)) = noted.call(seq) else { continue };
            match sides.iter_mut().find(|(other, _)| other.must_match == kind.must_match) {
                Some((_, side)) => side.push(*who),
                None => sides.push((kind, vec![*who])),
            }
        }
        (sides.len() > 1).then_some((seq, sides))
    })
}

/// Counts sends and receives by peer. Those of one group call have one number, and only one of them, or an entry
/// for the call, is marked when all have ended.
fn messages(entries: &[&Entry]) -> Vec<NotedMessages> {
    let mut calls: BTreeMap<u64, Vec<&Entry>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.is_p2p) {
        calls.entry(entry.p2p_seq_id).or_default().push(entry);
    }
    let mut by_peer: BTreeMap<u32, NotedMessages> = BTreeMap::new();
    for call in calls.values() {
        let has_ended = call.iter().any(|entry| entry.retired || entry.is_completed());
        for entry in call {
            let Some((is_send, peer)) = message(entry.function()) else { continue };
            let of_peer =
                by_peer.entry(peer).or_insert_with(|| NotedMessages { peer, ..NotedMessages::default() });
            let way = if is_send { &mut of_peer.sends } else { &mut of_peer.receives };
            way.called += 1;
            if !has_ended && way.open.is_none() {
                let (what, called_ns) = (what(&[entry]), entry.time_created_ns);
                way.open = Some(NotedMessage { what, called_ns });
            }
        }
    }
    by_peer.into_values().collect()
}

/// Parses `send 0->1` and `recv 0<-1`: whether it is a send, and the peer.
fn message(function: &str) -> Option<(bool, u32)> {
    let (name, ends) = function.split_once(' ')?;
    let (is_send, arrow) = match name {
        "send" => (true, "->"),
        "recv" => (false, "<-"),
        _ => return None,
    };
    Some((is_send, ends.split_once(arrow)?.1.parse().ok()?))
}

fn what(entries: &[&Entry]) -> String {
    let Some(entry) = entries.last() else { return String::new() };
    let (sizes, dtypes) = (names::sizes(&entry.input_sizes), names::dtypes(&entry.input_dtypes));
    let line = names::line(entry).map(|line| format!("({line})")).unwrap_or_default();
    let several =
        if entries.len() > 1 { format!("and {} with it", entries.len() - 1) } else { String::new() };
    let parts = [entry.function(), &sizes, &dtypes, &several, &line];
    joined(parts.into_iter().filter(|part| !part.is_empty()), " ")
}

/// Parts that must be the same on all ranks: function, element types, and sizes where they may not differ.
type Signature<'a> = (&'a str, &'a [Vec<i64>], &'a [String]);

fn signature(entry: &Entry) -> Signature<'_> {
    let function = entry.function();
    let inputs = (function, &*entry.input_sizes, &*entry.input_dtypes);
    let outputs = (function, &*entry.output_sizes, &*entry.output_dtypes);
    // Tensors that a rank gives to the others, or gets from them, may be of another size there (`all_gather`
    // of uneven parts, `all_to_all`).
    if function.contains("reduce_scatter") {
        inputs
    } else if function.contains("all_gather") || function.contains("allgather") {
        outputs
    } else if ["all_reduce", "allreduce", "broadcast", "reduce"].iter().any(|name| function.contains(name)) {
        inputs
    } else {
        (function, &[], &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p2p(seq: u64, name: &str, retired: bool) -> Entry {
        Entry {
            p2p_seq_id: seq,
            profiling_name: format!("nccl:{name}"),
            input_sizes: vec![vec![8]],
            input_dtypes: vec!["Float".to_owned()],
            time_created_ns: 10 + seq.cast_signed(),
            is_p2p: true,
            retired,
            ..Entry::default()
        }
    }

    /// As torch notes them: parts of a group call are never marked themselves, the call is.
    #[test]
    fn messages_are_counted_by_peer_and_those_of_a_group_call_end_with_it() {
        let entries = [
            p2p(1, "send 0->1", true),
            p2p(2, "send 0->1", false),
            p2p(2, "recv 0<-2", false),
            p2p(2, "coalesced", true),
            p2p(3, "recv 0<-1", false),
            p2p(4, "recv 0<-1", false),
            p2p(5, "recv 0<-x", false),
        ];
        let noted = Noted::of(&entries.each_ref(), 99, 64);
        let way = |called, open: Option<(&str, i64)>| NotedWay {
            called,
            open: open.map(|(what, called_ns)| NotedMessage { what: what.to_owned(), called_ns }),
        };
        let receives = way(2, Some(("recv 0<-1 [8] Float", 13)));
        let expected = [
            NotedMessages { peer: 1, sends: way(2, None), receives },
            NotedMessages { peer: 2, sends: way(0, None), receives: way(1, None) },
        ];
        assert_eq!(noted.messages, expected);
        assert!(noted.calls.is_empty());
    }
}
