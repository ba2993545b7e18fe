//! What is the matter with a communicator, from what its ranks say. Pure: no process, no clock.
//!
//! Nothing is called stuck unless it stood still over all readings. Then each rank with ops in flight is followed to the
//! ranks that it waits for ([`super::waits`]); where the waiting ends is the cause: a rank that has not joined, is stopped,
//! was not read, or does not go on by itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    report::{ProcessState, ProxyListState, RankReport},
    waits::{self, Waits},
};

/// Most sentences of one kind in a verdict: a thousand ranks that wait for one are not all listed.
const MAX_SENTENCES: usize = 8;

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

/// Judges one communicator. All of `ranks` are of it.
pub fn judge(ranks: &[RankReport]) -> Verdict {
    let Some(first) = ranks.first() else { return Verdict::default() };
    let case = Case::new(ranks, first.n_ranks);
    if case.ranks.len() < ranks.len() {
        let why = "cannot tell, because a rank is there twice: two communicators have one hash (possible before 2.24), or \
                   one dump was merged twice";
        return Verdict::new(State::Unknown, why);
    }
    if let Some(verdict) = case.before_any_op() {
        return verdict;
    }
    if let Some(verdict) = case.moves() {
        return verdict;
    }
    if case.anything_in_flight() { case.stuck_in_flight() } else { case.nothing_in_flight() }
}

struct Case<'a> {
    ranks: BTreeMap<u32, &'a RankReport>,
    n_ranks: u32,
    seconds: f64,
}

impl<'a> Case<'a> {
    fn new(ranks: &'a [RankReport], n_ranks: u32) -> Self {
        let seconds = ranks.iter().map(|rank| rank.motion.seconds).fold(f64::INFINITY, f64::min);
        Self { ranks: ranks.iter().map(|rank| (rank.rank, rank)).collect(), n_ranks, seconds }
    }

    /// Ranks that no process that was read has, at most as many as are worth listing.
    fn is_missing(&self, rank: u32) -> bool {
        rank < self.n_ranks && !self.ranks.contains_key(&rank)
    }

    fn missing(&self) -> usize {
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

    fn ranks_where(&self, holds: impl Fn(&RankReport) -> bool) -> Vec<u32> {
        self.ranks.iter().filter(|(_, rank)| holds(rank)).map(|(number, _)| *number).collect()
    }

    /// Ranks that launched fewer collectives than the one that launched most, with the sentence that says so.
    fn behind(&self) -> (Vec<u32>, u64) {
        let launched = |rank: &RankReport| rank.counters.launched();
        let most = self.ranks.values().filter_map(|rank| launched(rank)).max().unwrap_or(0);
        (self.ranks_where(|rank| launched(rank).is_some_and(|count| count < most)), most)
    }

    /// `rank 1 has not joined: AllReduce 3 of 5`.
    fn not_joined(&self, rank: u32, most: u64) -> String {
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
        if let Some(verdict) = self.failed() {
            return verdict;
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

    /// Errors that NCCL itself keeps.
    fn failed(&self) -> Option<Verdict> {
        let sentences = self.failures();
        (!sentences.is_empty()).then(|| Verdict {
            state: State::Stuck,
            culprits: if self.missing() > 0 && self.missing() <= MAX_SENTENCES {
                self.missing_ranks()
            } else {
                sentences.keys().copied().collect()
            },
            victims: self.ranks_where(|rank| !sentences.contains_key(&rank.rank) || self.missing() > 0),
            evidence: sentences.into_values().take(MAX_SENTENCES).chain(self.missing_sentence()).collect(),
        })
    }

    fn failures(&self) -> BTreeMap<u32, String> {
        let bad = |result: &Option<String>| {
            result.clone().filter(|result| result != "ncclSuccess" && result != "ncclInProgress")
        };
        let mut failures = BTreeMap::new();
        for (number, rank) in &self.ranks {
            if let Some(result) = bad(&rank.status.async_result).or_else(|| bad(&rank.status.proxy_result)) {
                failures.insert(*number, format!("rank {number} has failed: {result}"));
            } else if rank.status.abort == Some(true) {
                failures.insert(*number, format!("rank {number} was aborted (abortFlag is set)"));
            }
        }
        failures
    }

    fn missing_ranks(&self) -> Vec<u32> {
        (0..self.n_ranks).filter(|rank| self.is_missing(*rank)).take(MAX_SENTENCES).collect()
    }

    fn missing_sentence(&self) -> Option<String> {
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
        let waits: BTreeMap<u32, Waits> =
            self.ranks.iter().map(|(number, rank)| (*number, waits::of_rank(rank))).collect();
        let (behind, most) = self.behind();
        let failures = self.failures();
        let mut verdict = Verdict::new(
            State::Stuck,
            format!("ops are in flight, and nothing moved for {:.1} s", self.seconds),
        );
        verdict.evidence.extend(self.different_order());

        let (mut causes, mut victims) = self.follow(&waits, &behind, most, &failures, false);
        if causes.is_empty() {
            (causes, victims) = self.follow(&waits, &behind, most, &failures, true);
        }
        verdict.evidence.extend(causes.values().take(MAX_SENTENCES).cloned());
        let waiting = victims.iter().filter_map(|victim| {
            let waits = waits.get(victim)?;
            let (peer, why) = waits.peers.first_key_value()?;
            Some(format!("rank {victim} waits for rank {peer}: {why}"))
        });
        verdict.evidence.extend(waiting.take(MAX_SENTENCES));
        if causes.keys().any(|rank| self.is_missing(*rank)) {
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

    /// From each rank that waits along the waiting to its ends: why it ends there, and who waits.
    fn follow(
        &self,
        waits: &BTreeMap<u32, Waits>,
        behind: &[u32],
        most: u64,
        failures: &BTreeMap<u32, String>,
        queued_counts: bool,
    ) -> (BTreeMap<u32, String>, BTreeSet<u32>) {
        let mut causes: BTreeMap<u32, String> = BTreeMap::new();
        let mut victims = BTreeSet::new();
        for (number, rank) in &self.ranks {
            if rank.proxy.ops.is_empty() && !behind.contains(number) && !failures.contains_key(number) {
                continue;
            }
            let mut to_visit = vec![*number];
            let mut visited = BTreeSet::new();
            while let Some(at) = to_visit.pop() {
                if !visited.insert(at) || causes.contains_key(&at) {
                    continue;
                }
                let cause = self.cause(at, behind, most, failures, at != *number).or_else(|| {
                    let waits = waits.get(&at).filter(|waits| queued_counts || !waits.own_may_be_queued)?;
                    waits.own.as_ref().map(|why| format!("rank {at} does not go on: {why}"))
                });
                if let Some(cause) = cause {
                    causes.insert(at, cause);
                } else {
                    victims.insert(at);
                    to_visit.extend(waits.get(&at).into_iter().flat_map(|waits| waits.peers.keys()));
                }
            }
        }
        (causes, victims)
    }

    /// Why the waiting ends at this rank, other than by what its ops in flight say.
    fn cause(
        &self,
        number: u32,
        behind: &[u32],
        most: u64,
        failures: &BTreeMap<u32, String>,
        is_waited_for: bool,
    ) -> Option<String> {
        let Some(rank) = self.ranks.get(&number) else {
            return Some(format!(
                "rank {number} is waited for and was not read: it is gone, or its PID was not given"
            ));
        };
        if rank.process_state == ProcessState::Stopped {
            let pid = rank.pid;
            return Some(format!(
                "rank {number} is stopped: process {pid} is in state T (SIGSTOP or a debugger)"
            ));
        }
        if let Some(failure) = failures.get(&number) {
            return Some(failure.clone());
        }
        if is_unread(rank) {
            let why = "cannot tell what it does, because its ops in flight could not be read";
            return is_waited_for.then(|| format!("rank {number} is waited for: {why}"));
        }
        if !rank.proxy.ops.is_empty() {
            return None;
        }
        if behind.contains(&number) {
            return Some(format!("{}, and it has no op in flight", self.not_joined(number, most)));
        }
        is_waited_for.then(|| format!("rank {number} is waited for and has no op in flight"))
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

    /// Ranks that run different collectives under one number.
    fn different_order(&self) -> Vec<String> {
        let mut by_count: BTreeMap<u64, BTreeMap<&str, Vec<u32>>> = BTreeMap::new();
        for (number, rank) in &self.ranks {
            for op in rank.proxy.ops.iter().filter(|op| !op.p2p) {
                let ranks = by_count.entry(op.op_count).or_default();
                let ranks = ranks.entry(op.coll.as_deref().unwrap_or("?")).or_default();
                if ranks.last() != Some(number) {
                    ranks.push(*number);
                }
            }
        }
        let differing = by_count.iter().filter(|(_, colls)| colls.len() > 1);
        let sentences = differing.map(|(count, colls)| {
            let colls = colls.iter().map(|(coll, ranks)| format!("{coll} on {}", named(ranks)));
            format!("the order differs: op {count} is {}", colls.collect::<Vec<_>>().join(", "))
        });
        sentences.take(MAX_SENTENCES).collect()
    }
}

fn is_unread(rank: &RankReport) -> bool {
    matches!(rank.proxy.state, ProxyListState::Torn | ProxyListState::Unreadable)
}

/// `rank 3`, `ranks 1, 2, 5`, `ranks 0, 1, 2 and 61 more`.
fn named(ranks: &[u32]) -> String {
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
