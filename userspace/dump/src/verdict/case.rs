//! Facts about one communicator that rules share, and sentences that several of them use.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    Kind, State, Verdict,
    common_calls::CommonCall,
    left::{has_left, was_searched_to_the_end},
};
use crate::{
    AbsentRank, Place, ProcessReport, ProcessState, ProxyListState, RankReport, rank_report::Counting,
};
use flow::text::joined;

/// Maximum number of sentences of one kind in a verdict: a thousand ranks that wait for one are not all
/// listed.
pub(super) const MAX_SENTENCES: usize = 8;

/// One communicator: its ranks, as far as they were read, and the processes that the dump was asked to read.
pub(super) struct Case<'a> {
    pub(super) ranks: BTreeMap<u32, &'a RankReport>,
    /// All reports of ranks; more than [`Self::ranks`] if one rank appears twice.
    pub(super) reports: &'a [RankReport],
    pub(super) n_ranks: u32,
    /// Seconds from the first reading to the last, of the rank for which they are fewest.
    pub(super) seconds: f64,
    pub(super) processes: &'a [ProcessReport],
    exited: Vec<&'a ProcessReport>,
    /// Processes (host and PID) that wait in another communicator.
    explained: &'a BTreeSet<(String, u32)>,
    /// A call in which ranks wait for others.
    pub(super) common_call: Option<&'a CommonCall>,
}

impl<'a> Case<'a> {
    /// Puts the facts together; `None` without a rank.
    pub(super) fn new(
        reports: &'a [RankReport],
        processes: &'a [ProcessReport],
        explained: &'a BTreeSet<(String, u32)>,
        common_call: Option<&'a CommonCall>,
    ) -> Option<Self> {
        Some(Self {
            ranks: reports.iter().map(|rank| (rank.rank, rank)).collect(),
            reports,
            n_ranks: reports.first()?.n_ranks,
            seconds: reports.iter().map(|rank| rank.motion.seconds).fold(f64::INFINITY, f64::min),
            processes,
            exited: processes.iter().filter(|process| process.state == ProcessState::Exited).collect(),
            explained,
            common_call,
        })
    }

    /// Returns the verdict that all other ranks wait for the culprits.
    pub(super) fn stuck(
        &self,
        kind: Kind,
        culprits: impl IntoIterator<Item = u32>,
        evidence: Vec<String>,
    ) -> Verdict {
        let culprits: Vec<u32> = culprits.into_iter().collect();
        let victims = self.ranks_where(|rank| !culprits.contains(&rank.rank));
        Verdict::stuck(kind, culprits, victims, evidence)
    }

    pub(super) fn process_of(&self, rank: &RankReport) -> Option<&'a ProcessReport> {
        ProcessReport::of(rank, self.processes)
    }

    /// Tells whether the rank's process waits in another communicator.
    pub(super) fn is_explained(&self, rank: u32) -> bool {
        let process = self.ranks.get(&rank).map(|rank| (rank.host.clone(), rank.pid));
        process.is_some_and(|process| self.explained.contains(&process))
    }

    /// Returns the ranks that no process that was read has, with their places.
    pub(super) fn absent(&self) -> impl Iterator<Item = &'a AbsentRank> {
        let known: BTreeSet<u32> = self.ranks.keys().copied().collect();
        let mut seen = BTreeSet::new();
        let all = self.ranks.values().flat_map(|rank| &rank.absent);
        // A rank that is on the host of one dump is elsewhere for the others.
        let (near, far): (Vec<_>, Vec<_>) = all.partition(|absent| absent.place != Place::Elsewhere);
        let all = near.into_iter().chain(far);
        all.filter(move |absent| !known.contains(&absent.rank) && seen.insert(absent.rank))
    }

    /// Returns the ranks whose processes are gone ([`Kind::Gone`]): all processes of the host can be seen,
    /// and none has the rank; or a process that was given has exited, and no other rank is missing; or NCCL's
    /// reliability service has found it dead. After them come those whose processes live, were read, and have
    /// no such communicator ([`Kind::Left`]).
    pub(super) fn vanished(&self) -> Vec<(u32, Kind)> {
        let is_only = self.n_missing() == 1 && !self.exited.is_empty();
        let kind_of = |absent: &AbsentRank| match absent.place {
            Place::Gone => Some(Kind::Gone),
            Place::Unseen if is_only => Some(Kind::Gone),
            Place::Unseen | Place::Elsewhere => absent.is_dead().then_some(Kind::Gone),
            Place::Here => {
                self.process_of_absent(absent).filter(|p| was_searched_to_the_end(p)).map(|_| Kind::Left)
            }
        };
        let vanished = self.absent().filter_map(|absent| Some((absent.rank, kind_of(absent)?)));
        let mut vanished: Vec<(u32, Kind)> = vanished.collect();
        vanished.sort_by_key(|(_, kind)| *kind != Kind::Gone);
        vanished
    }

    /// Tells where a rank is: `rank 3 is process 77, which was not read`; `None` where it is not known.
    pub(super) fn absent_sentence(&self, rank: u32) -> Option<String> {
        Some(format!("rank {rank} {}", self.absent_words(rank)?))
    }

    /// Says what is known of a rank that was not read: `is process 7, which was not read`.
    pub(super) fn absent_words(&self, rank: u32) -> Option<String> {
        let absent = self.absent().find(|absent| absent.rank == rank)?;
        let who = absent.peer.as_ref().map(|peer| {
            let s = if peer.gpus.len() == 1 { "" } else { "s" };
            let gpus = format!(" (GPU{s} {})", joined(&peer.gpus, ", "));
            let gpus = if peer.gpus.is_empty() { "" } else { &gpus };
            format!("process {} of host {}{gpus}", peer.pid, peer.host)
        });
        Some(match (absent.place, who, absent.pid) {
            (Place::Elsewhere | Place::Unseen, Some(who), _) if absent.is_dead() => {
                format!("was {who}, which NCCL's own reliability service has found to be dead")
            }
            (Place::Gone, who, _) => {
                let was = who.map(|who| format!("; it was {who}")).unwrap_or_default();
                let left = self.left_over_sentence(rank);
                format!("was on this host, and no live process is that rank: its process is gone{was}{left}")
            }
            (Place::Elsewhere, Some(who), _) => format!("is {who}, which was not read"),
            (Place::Unseen, ..) => {
                "was on this host, and no process that can be seen from here is that rank: it is gone, \
                                    or in another container"
                    .to_owned()
            }
            (Place::Here, _, Some(pid)) => match self.process_of_absent(absent) {
                None => format!("is process {pid}, which was not read"),
                Some(ProcessReport { error: Some(error), .. }) => {
                    format!("is process {pid}, which could not be read: {error}")
                }
                Some(process) => has_left(process),
            },
            (Place::Here, _, None) => "is a process of this host that was not read".to_owned(),
            (Place::Elsewhere, None, _) => "is on another host, or in another container".to_owned(),
        })
    }

    pub(super) fn absent_sentences(&self) -> Vec<String> {
        let known = |absent: &&AbsentRank| absent.place != Place::Elsewhere || absent.peer.is_some();
        let mut known: Vec<&AbsentRank> = self.absent().filter(known).collect();
        // Ranks that are gone come before those that are only elsewhere.
        known.sort_by_key(|absent| absent.place == Place::Elsewhere && !absent.is_dead());
        known.into_iter().take(MAX_SENTENCES).filter_map(|absent| self.absent_sentence(absent.rank)).collect()
    }

    /// Infers the process that is this rank, which no process that was read has: a process of the other
    /// ranks' user, job and program that is in no such communicator, if there is only one such process, and
    /// only one such rank.
    pub(super) fn stand_in(&self, rank: u32) -> Option<&'a ProcessReport> {
        if self.n_missing() != 1 || !self.is_missing(rank) {
            return None;
        }
        let first = self.process_of(self.ranks.values().next()?)?;
        let is_like = |process: &&ProcessReport| {
            let is_there = process.state == ProcessState::Running || process.state.is_halted();
            is_there
                && process.is_like(first)
                && process.error.is_none()
                && process.forked_from.is_none()
                && !process.libraries.is_empty()
                && !self.ranks.values().any(|rank| process.is_of(rank))
        };
        let mut like = self.processes.iter().filter(is_like);
        let found = like.next()?;
        like.next().is_none().then_some(found)
    }

    /// Describes the GPUs of ranks: `GPU of rank 0: 99 % busy, 0 % memory, NVLink still`.
    pub(super) fn gpu_sentences(&self) -> Vec<String> {
        let sentence = |(rank, report): (&u32, &&RankReport)| {
            let gpu = report.gpu.as_ref().filter(|gpu| gpu.sm_percent.is_some())?;
            Some(format!("GPU of rank {rank}: {}", gpu.describe()))
        };
        self.ranks.iter().filter_map(sentence).take(MAX_SENTENCES).collect()
    }

    /// Describes what the kernels take of each rank's GPU.
    pub(super) fn residency_sentences(&self) -> impl Iterator<Item = String> {
        let of_rank = |(number, rank): (&u32, &&RankReport)| {
            Some(format!("the kernels of rank {number} take {}", rank.gpu.as_ref()?.describe_residency()?))
        };
        self.ranks.iter().filter_map(of_rank).take(MAX_SENTENCES)
    }

    pub(super) fn ranks_where(&self, holds: impl Fn(&RankReport) -> bool) -> Vec<u32> {
        self.ranks.iter().filter(|(_, rank)| holds(rank)).map(|(number, _)| *number).collect()
    }

    pub(super) fn has_ops_in_flight(&self) -> bool {
        self.ranks.values().any(|rank| !rank.proxy.ops.is_empty())
    }

    /// Tells whether no process that was read has this rank.
    pub(super) fn is_missing(&self, rank: u32) -> bool {
        rank < self.n_ranks && !self.ranks.contains_key(&rank)
    }

    pub(super) fn n_missing(&self) -> usize {
        (self.n_ranks as usize).saturating_sub(self.ranks.len())
    }

    /// Returns the ranks that no process that was read has, at most as many as are listed.
    pub(super) fn missing_ranks(&self) -> Vec<u32> {
        (0..self.n_ranks).filter(|rank| self.is_missing(*rank)).take(MAX_SENTENCES).collect()
    }

    /// Returns the ranks that launched fewer collectives than the one that launched most of those that NCCL
    /// counts alike, and the largest such number.
    pub(super) fn behind(&self) -> (Vec<u32>, u64) {
        let most = |rank: &RankReport| self.most_launched(rank.counting());
        let is_behind = |rank: &&RankReport| rank.counters.launched().is_some_and(|count| count < most(rank));
        let behind: Vec<&RankReport> = self.ranks.values().copied().filter(is_behind).collect();
        let most = match behind.iter().map(|rank| most(rank)).max() {
            Some(most) => most,
            None => self.ranks.values().filter_map(|rank| rank.counters.launched()).max().unwrap_or(0),
        };
        (behind.into_iter().map(|rank| rank.rank).collect(), most)
    }

    fn most_launched(&self, counting: Counting) -> u64 {
        let alike = self.ranks.values().filter(|rank| rank.counting() == counting);
        alike.filter_map(|rank| rank.counters.launched()).max().unwrap_or(0)
    }

    /// Says that nobody is behind.
    pub(super) fn launched_alike(&self) -> &'static str {
        let counts: BTreeSet<u64> = self.ranks.values().filter_map(|rank| rank.counters.launched()).collect();
        if counts.len() > 1 {
            "ranks whose launches NCCL counts alike launched the same number of collectives"
        } else {
            "all ranks launched the same number of collectives"
        }
    }

    /// Names all ranks: `all 4 ranks`, `the 2 of 4 ranks that were read`.
    pub(super) fn all_ranks(&self) -> String {
        if self.n_missing() == 0 {
            format!("all {} ranks", self.n_ranks)
        } else {
            format!("the {} of {} ranks that were read", self.ranks.len(), self.n_ranks)
        }
    }

    /// Tells what a rank has not launched: `rank 1 has not joined: AllReduce 3 of 5 launched`. `most` is the
    /// largest number that a rank launched, of all functions.
    pub(super) fn not_joined_sentence(&self, rank: u32, most: u64) -> String {
        let Some(report) = self.ranks.get(&rank) else { return format!("rank {rank} was not read") };
        let ours = &report.counters.seq_number;
        let by_function = ours.iter().filter_map(|(function, count)| {
            let theirs =
                self.ranks.values().filter_map(|other| other.counters.seq_number.get(function)).max()?;
            (theirs > count).then(|| format!("{function} {count} of {theirs}"))
        });
        let mut launched = joined(by_function, ", ");
        if launched.is_empty() {
            launched = format!("{} of {most} collectives", report.counters.launched().unwrap_or(0));
        }
        let called = report.pending.as_ref().filter(|pending| pending.in_group == Some(true));
        let called = called.map_or(0, |pending| pending.collectives);
        let open = match called {
            0 => String::new(),
            called => format!("; {called} more called, in a group that it has not ended (ncclGroupEnd)"),
        };
        format!("rank {rank} has not joined: {launched} launched{open}")
    }

    pub(super) fn exited_sentence(&self) -> Option<String> {
        let first = self.exited.first()?;
        if self.exited.len() == 1 && self.n_missing() == 1 {
            return Some(format!(
                "process {} has exited, and {} is the only one that was not read: inferred that it was its \
                 process",
                first.pid,
                named(self.missing_ranks())
            ));
        }
        let pids = joined(self.exited.iter().take(8).map(|process| process.pid), ", ");
        Some(match self.exited.len() {
            1 => format!("process {pids}, which was given, has exited"),
            _ => format!("processes {pids}, which were given, have exited"),
        })
    }

    pub(super) fn missing_sentence(&self) -> Option<String> {
        let vanished = self.vanished();
        let count = self.n_missing().saturating_sub(vanished.len());
        (count > 0).then(|| {
            let ranks = if self.n_missing() <= MAX_SENTENCES {
                let has_not = |rank: &u32| vanished.iter().all(|(other, _)| other != rank);
                format!(" ({})", named(self.missing_ranks().into_iter().filter(has_not)))
            } else {
                String::new()
            };
            format!(
                "{count} of {} ranks were not read{ranks}: give their PIDs, or --merge their hosts' dumps",
                self.n_ranks
            )
        })
    }

    /// Returns the kind of the first of these ranks whose process runs no code of its own.
    pub(super) fn kind_of_halted(&self, ranks: &[u32]) -> Option<Kind> {
        ranks.iter().find_map(|rank| Kind::of_halted(self.ranks.get(rank)?.process_state))
    }

    /// Says of culprits whose processes run no code of their own that this is why.
    pub(super) fn explain_halted(&self, verdict: &mut Verdict) {
        let Some(kind) = self.kind_of_halted(&verdict.culprits).filter(|_| verdict.state == State::Stuck)
        else {
            return;
        };
        if verdict.kind == Some(Kind::NotJoined) {
            // A rank that has not come to the operation either can wait for them in the one before.
            let is_halted = |rank: &u32| self.kind_of_halted(&[*rank]).is_some();
            let (halted, others): (Vec<u32>, Vec<u32>) =
                verdict.culprits.iter().partition(|rank| is_halted(rank));
            verdict.culprits = halted;
            verdict.victims.extend(others);
            verdict.victims.sort_unstable();
        }
        verdict.kind = Some(kind);
        let halted = verdict.culprits.iter().filter_map(|rank| self.ranks.get(rank)?.halted_sentence());
        let new: Vec<String> = halted.filter(|sentence| !verdict.evidence.contains(sentence)).collect();
        verdict.evidence.splice(0..0, new.into_iter().take(MAX_SENTENCES));
    }

    /// Returns the verdict that the ranks whose processes run no code of their own hold up the victims.
    pub(super) fn held_up(&self, what: String, halted: Vec<u32>, victims: Vec<u32>) -> Verdict {
        let mut verdict = Verdict::new(State::Stuck, what);
        self.add_halted(&mut verdict);
        Verdict { kind: self.kind_of_halted(&halted), culprits: halted, victims, ..verdict }
    }

    pub(super) fn add_halted(&self, verdict: &mut Verdict) {
        let halted = self.ranks.values().filter_map(|rank| rank.halted_sentence());
        verdict.evidence.extend(halted.take(MAX_SENTENCES));
    }
}

impl RankReport {
    /// Tells what holds a rank, if its process runs no code of its own: `rank 1 is stopped: process 8372 is
    /// in state T (SIGSTOP or a debugger)`.
    pub(super) fn halted_sentence(&self) -> Option<String> {
        let (what, why) = self.process_state.reason()?;
        Some(format!("rank {} {what}: process {} {why}", self.rank, self.pid))
    }

    pub(super) fn has_unreadable_ops(&self) -> bool {
        matches!(self.proxy.state, ProxyListState::Torn | ProxyListState::Unreadable)
    }
}

/// Names ranks with the verb that fits their number: `rank 3 is`, `ranks 1, 2, 5 are`.
pub(super) fn subject<R: Borrow<u32>>(
    ranks: impl IntoIterator<Item = R>,
    [one, several]: [&str; 2],
) -> String {
    let ranks: Vec<u32> = ranks.into_iter().map(|rank| *rank.borrow()).collect();
    format!("{} {}", named(&ranks), if ranks.len() == 1 { one } else { several })
}

pub(super) const BE: [&str; 2] = ["is", "are"];

/// Names ranks: `rank 3`, `ranks 1, 2, 5`, `ranks 0, 1, 2 and 61 more`.
pub(crate) fn named<R: Borrow<u32>>(ranks: impl IntoIterator<Item = R>) -> String {
    const SHOWN: usize = 8;
    let ranks: Vec<u32> = ranks.into_iter().map(|rank| *rank.borrow()).collect();
    let shown = joined(ranks.iter().take(SHOWN), ", ");
    let more = match ranks.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} {shown}{more}", if ranks.len() == 1 { "rank" } else { "ranks" })
}
