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
    /// Clocks whose times are set right.
    pub(super) known: Vec<HostClock>,
    /// Hosts whose clocks are not known against that of the first.
    unknown: BTreeSet<String>,
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
        let mut clocks = Self { first, ..Self::default() };
        let mut offsets = Vec::new();
        let is_measured = |source: &Source| how_to_measure(source.session()).is_none();
        if sources.iter().filter(|source| is_measured(source)).count() > 1 {
            clocks.bytes = sources.iter().map(|source| source.bytes).sum();
            let (ends, _) = read_sources(sources, Ends::default(), progress)?;
            offsets = slow::clock_offsets(&ends.0);
        }
        let names: Vec<String> = sources.iter().map(|source| source.host().to_owned()).collect();
        let mut known = BTreeMap::new();
        for (at, source) in sources.iter_mut().enumerate() {
            let Some(offset) = offsets.get(at).copied() else { continue };
            let Some(against) = names.get(offset.against).filter(|against| *against != source.host()) else {
                continue;
            };
            let clock = HostClock::new(source.host(), against, offset.ahead);
            source.clock = Some((against.clone(), to_take_off(offset.ahead)));
            known.entry(source.host().to_owned()).or_insert(clock);
        }
        let set_right = |host: &&str| known.get(*host).is_some_and(|clock| clock.against == clocks.first);
        let unknown =
            names.iter().map(String::as_str).filter(|host| !set_right(host) && *host != clocks.first);
        clocks.unknown = unknown.map(str::to_owned).collect();
        clocks.known = known.into_values().collect();
        Ok(clocks)
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
            format!(
                "clocks are not known against that of {}: of {}{more}; no messages between them were measured in \
                 both directions (record --level steps), so their times are as good as their hosts' clocks",
                self.first,
                joined(self.unknown.iter().take(MAX_NAMED), ", ")
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
