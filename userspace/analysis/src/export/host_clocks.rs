//! Clocks of the hosts of several recordings: a first reading of measured messages tells how far they are
//! ahead of each other, as for [`check`](crate::check::check).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Result;
use flow::{
    schema::{MessageRow, Op, RankKey},
    text::joined,
};
use recording::sinks::Sink;

use crate::sources::Source;
use crate::{
    check::{Claims, FolderFacts, Gather, ReadingProgress, read_sources},
    not_recorded::how_to_measure,
    slow::{self, Gathered, HostClock, Offset},
};

/// What is known of the clocks of the hosts.
#[derive(Clone, Debug, Default)]
pub(super) struct HostClocks {
    /// Clocks whose times are set right: of several recordings of a host, with the largest error.
    pub(super) known: Vec<HostClock>,
    /// Hosts whose clocks are not known against that of the first in some of their recordings, or in all: how many,
    /// and how many there are.
    unknown: BTreeMap<String, [usize; 2]>,
    first: String,
    /// Number of bytes that were read for it.
    pub(super) bytes: u64,
}

impl HostClocks {
    /// Makes the wall times of all sources those of one clock, as far as messages tell it.
    pub(super) fn set(sources: &mut [Source], progress: ReadingProgress<'_>) -> Result<Self> {
        let hosts: BTreeSet<&str> = sources.iter().map(Source::host).collect();
        let Some(first) = sources.first().filter(|_| hosts.len() > 1).map(|first| first.host().to_owned())
        else {
            return Ok(Self::default());
        };
        let (mut bytes, mut offsets) = (0, Vec::new());
        let is_measured = |source: &Source| how_to_measure(source.session()).is_none();
        if sources.iter().filter(|source| is_measured(source)).count() > 1 {
            bytes = sources.iter().map(|source| source.bytes).sum();
            let (ends, _) = read_sources(sources, Ends::default(), progress)?;
            offsets = slow::clock_offsets(&ends.0);
        }
        let names: Vec<String> = sources.iter().map(|source| source.host().to_owned()).collect();
        let mut ahead = Vec::new();
        for (at, source) in sources.iter_mut().enumerate() {
            let offset = offsets.get(at).copied();
            let against = offset.and_then(|offset| Some((names.get(offset.against)?.clone(), offset.ahead)));
            let against = against.filter(|(against, _)| against != source.host());
            source.clock = against.clone().map(|(against, ahead)| (against, to_take_off(ahead)));
            ahead.push((source.host().to_owned(), against));
        }
        Ok(Self { bytes, ..Self::of(first, &ahead) })
    }

    /// Takes the host of each recording, and the host against which its clock is known, with how far it is ahead.
    fn of(first: String, recordings: &[(String, Option<(String, Offset)>)]) -> Self {
        let mut known: BTreeMap<&str, HostClock> = BTreeMap::new();
        let mut counts: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
        for (host, against) in recordings.iter().filter(|(host, _)| *host != first) {
            let [unknown, all] = counts.entry(host).or_default();
            let is_known = against.as_ref().is_some_and(|(against, _)| *against == first);
            (*unknown, *all) = (*unknown + usize::from(!is_known), *all + 1);
        }
        for (host, against) in recordings {
            let Some((against, ahead)) = against else { continue };
            let clock = HostClock::new(host, against, *ahead);
            let widest = known.entry(host).or_insert_with(|| clock.clone());
            if clock.error_ms > widest.error_ms {
                *widest = clock;
            }
        }
        let unknown = counts.into_iter().filter(|(_, [unknown, _])| *unknown > 0);
        Self {
            known: known.into_values().collect(),
            unknown: unknown.map(|(host, counts)| (host.to_owned(), counts)).collect(),
            first,
            bytes: 0,
        }
    }

    /// Returns what is said of them.
    pub(super) fn notes(&self) -> Vec<String> {
        let worst = self.known.iter().max_by(|one, other| one.error_ms.total_cmp(&other.error_ms));
        let known = worst.map(|worst| {
            format!(
                "times of several hosts are by one clock, which messages in both directions tell to {:.2} ms ({}) \
                 and better; {}",
                worst.error_ms,
                worst.host,
                joined(self.known.iter().filter_map(HostClock::text).take(MAX_NAMED), "; ")
            )
        });
        let known = known.map(|note| note.trim_end_matches("; ").to_owned());
        let unknown = (!self.unknown.is_empty()).then(|| {
            let more = self.unknown.len().saturating_sub(MAX_NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let name = |(host, [unknown, all]): (&String, &[usize; 2])| {
                if unknown == all { host.clone() } else { format!("{host} ({unknown} of {all} recordings)") }
            };
            format!(
                "clocks are not known against that of {}: of {}{more}; no messages between them were measured in \
                 both directions (record --level steps), so their times are as good as their hosts' clocks",
                self.first,
                joined(self.unknown.iter().take(MAX_NAMED).map(name), ", ")
            )
        });
        known.into_iter().chain(unknown).collect()
    }
}

/// Returns what is taken off times: nothing, where messages do not contradict the host's own clock.
fn to_take_off(ahead: Offset) -> Offset {
    let is_wrong = ahead.ahead_ns.unsigned_abs() > ahead.error_ns;
    if is_wrong { ahead } else { Offset { ahead_ns: 0, ..ahead } }
}

/// Most hosts that are named.
const MAX_NAMED: usize = 8;

/// Ends of messages of all folders.
#[derive(Debug, Default)]
struct Ends(Vec<Gathered>);

/// Ends of messages of a folder.
#[derive(Debug)]
struct FolderEnds {
    claims: Claims,
    /// Names of communicators.
    names: HashMap<RankKey, String>,
    ends: Gathered,
}

impl Gather for Ends {
    type Folder = FolderEnds;

    fn folder(&self, facts: FolderFacts) -> FolderEnds {
        let ends = Gathered::new(&facts.session, BTreeMap::new());
        FolderEnds { claims: facts.claims, names: HashMap::new(), ends }
    }

    fn add(&mut self, mut folder: FolderEnds) -> bool {
        folder.ends.end();
        self.0.push(folder.ends);
        slow::bound(&mut self.0);
        true
    }
}

impl Sink for FolderEnds {
    fn wants_messages(&self, op: &Op) -> bool {
        !op.row.pattern.is_p2p() && op.row.has_measured_messages()
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        let name = self.names.entry(op.rank).or_insert_with(|| self.claims.name(op.rank));
        for row in messages {
            self.ends.message(name, row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_recordings_of_a_host_the_largest_error_and_those_without_a_clock_are_told() {
        let of = |host: &str, against: Option<(&str, i64, u64)>| {
            let against = against.map(|(against, ahead_ms, error_ms)| {
                let ahead = Offset { ahead_ns: ahead_ms * 1_000_000, error_ns: error_ms * 1_000_000 };
                (against.to_owned(), ahead)
            });
            (host.to_owned(), against)
        };
        let all = [
            of("a", None),
            of("a", None),
            of("b", Some(("a", 37_000, 1))),
            of("b", Some(("a", 37_001, 9))),
            of("b", None),
            of("c", Some(("b", 20, 2))),
        ];
        let clocks = HostClocks::of("a".to_owned(), &all);
        let known: Vec<_> = clocks.known.iter().map(|clock| (&*clock.host, clock.error_ms)).collect();
        assert_eq!(known, [("b", 9.0), ("c", 2.0)]);
        let [first, second] = &clocks.notes()[..] else { panic!("{:?}", clocks.notes()) };
        assert!(first.contains("to 9.00 ms (b) and better; "), "{first}");
        assert!(
            second.contains("not known against that of a: of b (1 of 3 recordings), c; no messages"),
            "{second}"
        );
        assert_eq!(HostClocks::of("a".to_owned(), &all[..4]).notes().len(), 1);
    }
}
