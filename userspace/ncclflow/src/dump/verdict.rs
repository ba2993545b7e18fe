//! What is the matter with a communicator, from what its ranks say. Pure: no process, no clock.
//!
//! Nothing is called stuck unless it stood still over all readings. Then each rank with ops in flight is followed to the
//! ranks that it waits for ([`super::waits`]); where the waiting ends is the cause: a rank that has not joined, is stopped,
//! was not read, or does not go on by itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    disagreement, pipelines,
    report::{OpDirection, ProcessReport, ProcessState, ProxyListState, RankReport},
    waits::{self, Waits},
};

/// Most sentences of one kind in a verdict: a thousand ranks that wait for one are not all listed.
pub(super) const MAX_SENTENCES: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It moves, or NCCL has nothing to do.
    Healthy,
    /// Nothing tells.
    #[default]
    Unknown,
    /// Ops are in flight, or ranks apart, and nothing moved over all readings.
    Stuck,
}

/// The verdict on one communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub state: State,
    /// Ranks for which the others wait, and which wait for nobody.
    pub culprits: Vec<u32>,
    /// Ranks that wait.
    pub victims: Vec<u32>,
    /// Sentences, each with the numbers that it rests on.
    pub evidence: Vec<String>,
}

impl Verdict {
    fn new(state: State, evidence: impl Into<String>) -> Self {
        Self { state, evidence: vec![evidence.into()], ..Self::default() }
    }
}

/// Judges one communicator. All of `ranks` are of it; `processes` are all that were to be read.
pub fn judge(ranks: &[RankReport], processes: &[ProcessReport]) -> Verdict {
    let Some(first) = ranks.first() else { return Verdict::default() };
    let case = Case::new(ranks, first.n_ranks, processes);
    if case.ranks.len() < ranks.len() {
        let why = "cannot tell, because a rank is there twice: two communicators have one hash (possible before 2.24), or \
                   one dump was merged twice";
        return Verdict::new(State::Unknown, why);
    }
    let early = case.before_any_op().or_else(|| case.failed(false)).or_else(|| case.moves());
    if let Some(verdict) = early.or_else(|| case.failed(true)) {
        return verdict;
    }
    if case.anything_in_flight() { case.stuck_in_flight() } else { case.nothing_in_flight() }
}

pub(super) struct Case<'a> {
    pub(super) ranks: BTreeMap<u32, &'a RankReport>,
    n_ranks: u32,
    pub(super) seconds: f64,
    /// All that were to be read, and of them those that have exited.
    pub(super) processes: &'a [ProcessReport],
    gone: Vec<&'a ProcessReport>,
}

impl<'a> Case<'a> {
    fn new(ranks: &'a [RankReport], n_ranks: u32, processes: &'a [ProcessReport]) -> Self {
        let seconds = ranks.iter().map(|rank| rank.motion.seconds).fold(f64::INFINITY, f64::min);
        let gone = processes.iter().filter(|process| process.state == ProcessState::Exited).collect();
        let ranks = ranks.iter().map(|rank| (rank.rank, rank)).collect();
        Self { ranks, n_ranks, seconds, processes, gone }
    }

    /// Ranks that no process that was read has, at most as many as are worth listing.
    pub(super) fn is_missing(&self, rank: u32) -> bool {
        rank < self.n_ranks && !self.ranks.contains_key(&rank)
    }

    pub(super) fn missing(&self) -> usize {
        (self.n_ranks as usize).saturating_sub(self.ranks.len())
    }

    fn anything_in_flight(&self) -> bool {
        self.ranks.values().any(|rank| !rank.proxy.ops.is_empty())
    }

    fn before_any_op(&self) -> Option<Verdict> {
        let readings = self.ranks.values().map(|rank| rank.motion.readings).min().unwrap_or(0);
        if readings < 2 {
            return Some(Verdict::new(State::Unknown, "cannot tell, because it was read only once"));
        }
        let setting_up: Vec<u32> = self
            .ranks_where(|rank| rank.status.init.as_deref().is_some_and(|state| state == "ncclInProgress"));
        (!setting_up.is_empty()).then(|| {
            let sentence =
                format!("cannot tell, because {} still set the communicator up", named(&setting_up));
            Verdict::new(State::Unknown, sentence)
        })
    }

    fn moves(&self) -> Option<Verdict> {
        let stepping = self.ranks_where(|rank| rank.motion.steps_moved);
        let counting = self.ranks_where(|rank| rank.motion.counters_moved);
        let seconds = self.seconds;
        if !stepping.is_empty() {
            let sentence =
                format!("it moves: ops in flight of {} went on within {seconds:.1} s", named(&stepping));
            return Some(Verdict::new(State::Healthy, sentence));
        }
        if counting.is_empty() {
            return None;
        }
        if self.anything_in_flight() {
            let sentence = format!(
                "cannot tell, because {} launched more while no op in flight moved for {seconds:.1} s: read again with a \
                 longer --interval",
                named(&counting)
            );
            return Some(Verdict::new(State::Unknown, sentence));
        }
        let sentence = format!("it moves: {} launched more within {seconds:.1} s", named(&counting));
        Some(Verdict::new(State::Healthy, sentence))
    }

    pub(super) fn ranks_where(&self, holds: impl Fn(&RankReport) -> bool) -> Vec<u32> {
        self.ranks.iter().filter(|(_, rank)| holds(rank)).map(|(number, _)| *number).collect()
    }

    /// Ranks that launched fewer collectives than the one that launched most, with the sentence that says so.
    fn behind(&self) -> (Vec<u32>, u64) {
        let launched = |rank: &RankReport| rank.counters.launched();
        let most = self.ranks.values().filter_map(|rank| launched(rank)).max().unwrap_or(0);
        (self.ranks_where(|rank| launched(rank).is_some_and(|count| count < most)), most)
    }

    /// `rank 1 has not joined: AllReduce 3 of 5`.
    pub(super) fn not_joined(&self, rank: u32, most: u64) -> String {
        let Some(report) = self.ranks.get(&rank) else { return format!("rank {rank} was not read") };
        let ours = &report.counters.seq_number;
        let by_function = ours.iter().filter_map(|(function, count)| {
            let theirs =
                self.ranks.values().filter_map(|other| other.counters.seq_number.get(function)).max()?;
            (theirs > count).then(|| format!("{function} {count} of {theirs}"))
        });
        let by_function: Vec<String> = by_function.collect();
        if by_function.is_empty() {
            let count = report.counters.launched().unwrap_or(0);
            return format!("rank {rank} has not joined: {count} of {most} collectives launched");
        }
        format!("rank {rank} has not joined: {} launched", by_function.join(", "))
    }

    fn nothing_in_flight(&self) -> Verdict {
        let seconds = self.seconds;
        let unread = self.ranks_where(is_unread);
        if !unread.is_empty() {
            let sentence =
                format!("cannot tell, because the ops in flight of {} could not be read", named(&unread));
            return Verdict::new(State::Unknown, sentence);
        }
        let (behind, most) = self.behind();
        if !behind.is_empty() {
            let mut verdict = Verdict::new(State::Stuck, format!("nothing moved for {seconds:.1} s"));
            verdict
                .evidence
                .extend(behind.iter().take(MAX_SENTENCES).map(|rank| self.not_joined(*rank, most)));
            self.add_stopped(&mut verdict);
            verdict.victims = self.ranks_where(|rank| !behind.contains(&rank.rank));
            verdict.culprits = behind;
            return verdict;
        }
        let idle =
            format!("no NCCL op in flight on {} for {seconds:.1} s: the job waits elsewhere", self.all());
        let unseen = self.ranks_where(|rank| rank.proxy.carries_rings == Some(false));
        if self.ranks.values().any(|rank| rank.process_state == ProcessState::Stopped) {
            let mut verdict = Verdict::new(State::Unknown, idle);
            self.add_stopped(&mut verdict);
            return verdict;
        }
        if let Some(verdict) = self.inside_calls() {
            return verdict;
        }
        if !unseen.is_empty() && most > 0 {
            let sentence = format!(
                "cannot tell, because the data of {} go over NVLink or shared memory, where only the GPU knows what is in \
                 flight; all launched equally much, and nothing more for {seconds:.1} s",
                named(&unseen)
            );
            return Verdict::new(State::Unknown, sentence);
        }
        Verdict::new(State::Healthy, idle)
    }

    pub(super) fn missing_ranks(&self) -> Vec<u32> {
        (0..self.n_ranks).filter(|rank| self.is_missing(*rank)).take(MAX_SENTENCES).collect()
    }

    /// Processes that were given and are gone; `None` if there is none.
    pub(super) fn gone_sentence(&self) -> Option<String> {
        let first = self.gone.first()?;
        let pids: Vec<String> = self.gone.iter().take(8).map(|process| process.pid.to_string()).collect();
        if self.gone.len() == 1 && self.missing() == 1 {
            return Some(format!(
                "process {} has exited, and {} is the only one that was not read: inferred that it was its process",
                first.pid,
                named(&self.missing_ranks())
            ));
        }
        let has = if pids.len() == 1 { "process" } else { "processes" };
        let verb = if pids.len() == 1 { "has" } else { "have" };
        Some(format!(
            "{has} {}, which {} given, {verb} exited",
            pids.join(", "),
            if pids.len() == 1 { "was" } else { "were" }
        ))
    }

    pub(super) fn missing_sentence(&self) -> Option<String> {
        let count = self.missing();
        (count > 0).then(|| {
            let ranks = if count <= MAX_SENTENCES {
                format!(" ({})", named(&self.missing_ranks()))
            } else {
                String::new()
            };
            format!(
                "{count} of {} ranks were not read{ranks}: give their PIDs, or --merge their hosts' dumps",
                self.n_ranks
            )
        })
    }

    fn add_stopped(&self, verdict: &mut Verdict) {
        let stopped = self.ranks.values().filter(|rank| rank.process_state == ProcessState::Stopped);
        verdict.evidence.extend(stopped.take(MAX_SENTENCES).map(|rank| {
            format!(
                "rank {} is stopped: process {} is in state T (SIGSTOP or a debugger)",
                rank.rank, rank.pid
            )
        }));
    }

    fn all(&self) -> String {
        if self.missing() == 0 {
            format!("all {} ranks", self.n_ranks)
        } else {
            format!("the {} of {} ranks that were read", self.ranks.len(), self.n_ranks)
        }
    }

    fn stuck_in_flight(&self) -> Verdict {
        let (dropped, none) = (pipelines::dropped_receives(&self.ranks), BTreeSet::new());
        let of_rank = |number, rank| waits::of_rank(rank, dropped.get(number).unwrap_or(&none));
        let waits: BTreeMap<u32, Waits> =
            self.ranks.iter().map(|(number, rank)| (*number, of_rank(number, rank))).collect();
        let (behind, most) = self.behind();
        let mut verdict = Verdict::new(
            State::Stuck,
            format!("ops are in flight, and nothing moved for {:.1} s", self.seconds),
        );
        let mut disagreement = disagreement::find(&self.ranks, named);
        let (mut causes, mut victims) = self.follow(&waits, &behind, most, false).named();
        if causes.is_empty() && disagreement.is_empty() {
            disagreement = disagreement::circle(&self.ranks, named);
        }
        if causes.is_empty() && disagreement.is_empty() {
            (causes, victims) = self.follow(&waits, &behind, most, true).named();
        }
        if causes.is_empty() && disagreement.is_empty() {
            causes = broken_links(&waits);
        }
        if !disagreement.is_empty() {
            // It explains the waiting, and where the waiting ends may be one of those that are right.
            verdict.evidence.extend(disagreement.evidence);
            causes.retain(|rank, _| disagreement.ranks.contains(rank));
            for rank in disagreement.ranks {
                causes.entry(rank).or_default();
            }
            victims = self.ranks_where(|rank| !rank.proxy.ops.is_empty()).into_iter().collect();
        }
        let reasons = causes.values().filter(|why| !why.is_empty());
        verdict.evidence.extend(reasons.take(MAX_SENTENCES).cloned());
        verdict.evidence.extend(Self::waiting(&waits, &victims));
        if causes.keys().any(|rank| self.is_missing(*rank)) {
            verdict.evidence.extend(self.gone_sentence());
            verdict.evidence.extend(self.missing_sentence());
        }
        verdict.culprits = causes.into_keys().collect();
        verdict.victims = victims.into_iter().filter(|rank| !verdict.culprits.contains(rank)).collect();
        if verdict.culprits.is_empty() {
            Self::no_culprit(&waits, &mut verdict);
        }
        if verdict.culprits.iter().any(|rank| self.ranks.get(rank).is_some_and(|rank| is_unread(rank))) {
            verdict.state = State::Unknown;
        }
        verdict
    }

    /// What these ranks wait for: a sentence each.
    fn waiting<'w>(
        waits: &'w BTreeMap<u32, Waits>,
        victims: &'w BTreeSet<u32>,
    ) -> impl Iterator<Item = String> + 'w {
        let sentences = victims.iter().filter_map(|victim| {
            let (peer, why) = waits.get(victim)?.peers.first_key_value()?;
            Some(format!("rank {victim} waits for rank {peer}: {why}"))
        });
        sentences.take(MAX_SENTENCES)
    }

    fn no_culprit(waits: &BTreeMap<u32, Waits>, verdict: &mut Verdict) {
        if waits.values().any(|waits| waits.unknown_peer) {
            verdict.state = State::Unknown;
            verdict
                .evidence
                .push("cannot tell who is waited for, because the peers of ops are not known".to_owned());
        } else {
            verdict.evidence.push("the ranks wait for each other in a circle".to_owned());
        }
    }
}

/// Both ends of each connection that seems to have broken: which of them is to blame, NCCL has not kept.
fn broken_links(waits: &BTreeMap<u32, Waits>) -> BTreeMap<u32, String> {
    let mut ends = BTreeMap::new();
    for (rank, waits) in waits {
        for (peer, direction) in &waits.broken {
            let why = waits.peers.get(peer).map_or("", String::as_str);
            let (from, to) = match direction {
                OpDirection::Send => (rank, peer),
                OpDirection::Recv => (peer, rank),
            };
            ends.insert(*rank, format!("the link from rank {from} to rank {to} is down: rank {rank}, {why}"));
            ends.entry(*peer).or_default();
        }
    }
    ends
}

pub(super) fn is_unread(rank: &RankReport) -> bool {
    matches!(rank.proxy.state, ProxyListState::Torn | ProxyListState::Unreadable)
}

/// `rank 3`, `ranks 1, 2, 5`, `ranks 0, 1, 2 and 61 more`.
pub(super) fn named(ranks: &[u32]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = ranks.iter().take(SHOWN).map(u32::to_string).collect();
    let more = match ranks.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} {}{more}", if ranks.len() == 1 { "rank" } else { "ranks" }, shown.join(", "))
}

#[cfg(test)]
mod tests;
