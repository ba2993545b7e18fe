//! Evidence on the ranks of each job, of all folders, side by side.

use std::collections::BTreeMap;

use flow::{schema::NicRow, text};

use super::{
    activity::{Activity, Mean, Measure},
    change::Slowdown,
    clocks::{Between, Clocks, between},
    gathered::{CommunicatorRows, Gathered, Member, ProcessorTime},
    hosts::{HostClocks, Hosts, Part},
    late_ranks::{Iteration, LateRanks},
    launches::{Launches, median},
    longest_waits::RankWaits,
    sets::Sets,
    shares::Shares,
    transits::Link,
    verdict::RankName,
};

/// Evidence on a job: on ranks that share communicators.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    /// Name of the job.
    pub(super) job: Option<String>,
    pub(super) ranks: Vec<RankEvidence>,
    /// Groups of ranks with equal work, of two or more.
    pub(super) groups: Vec<Vec<usize>>,
    pub(super) iteration: Option<Iteration>,
    /// All iterations that were seen whole: wall time of the begin, and length.
    pub(super) lengths: Vec<(u64, u64)>,
    /// Since when iterations are longer. All else here is of the time after it.
    pub(super) slowdown: Option<Slowdown>,
    /// Lateness by communicator and host; first where iterations are longest: those of the job.
    pub(super) late: Vec<LateRanks>,
    /// Waits for messages, by communicator.
    pub(super) waits: Vec<Vec<WaitingRank>>,
    /// Links of which both ends were measured on one host, by communicator.
    pub(super) links: Vec<Vec<MeasuredLink>>,
    /// Messages go through proxies: they can be measured.
    pub(super) has_proxy: bool,
    /// How to measure messages that were not; `None`: all were.
    pub(super) how_to_measure: Option<String>,
    /// Clocks of its hosts against each other.
    pub(super) clocks: HostClocks,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RankEvidence {
    pub(super) name: RankName,
    pub(super) graphics: Option<Mean>,
    pub(super) multiprocessors: Option<Mean>,
    pub(super) tensor: Option<Mean>,
    pub(super) memory: Option<Mean>,
    pub(super) utilization: Option<Mean>,
    /// Of its launching thread.
    pub(super) processor: Option<ProcessorTime>,
    /// Of its proxy's thread.
    pub(super) proxy: Option<ProcessorTime>,
}

/// Share of the time of a rank's connections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimeShare {
    pub(super) mean: Option<Mean>,
    /// Number of half seconds of which it is the larger part.
    pub(super) halves: u64,
    pub(super) connections: usize,
}

/// What a rank of a communicator waited for.
#[derive(Clone, Debug)]
pub(super) struct WaitingRank {
    /// Index into [`Evidence::ranks`].
    pub(super) rank: usize,
    pub(super) waits: RankWaits,
    pub(super) own: TimeShare,
    pub(super) waiting: TimeShare,
    /// Part of `waiting` in which the data was in the network, in percent of the same time; `None`: both ends
    /// of its messages were not measured.
    pub(super) in_network_percent: Option<f64>,
}

/// Messages from a rank to another; ranks by index into [`Evidence::ranks`].
#[derive(Clone, Debug)]
pub(super) struct MeasuredLink {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Time in which the receiver waited for what was in the network.
    pub(super) in_network: TimeShare,
    /// Usual time of a message in the network.
    pub(super) typical_ns: u64,
    /// Error of that, by the clocks of two hosts; 0 on one host.
    pub(super) error_ns: u64,
    /// Network devices that it goes over, as far as they are known: `mlx5_0 of node3 → mlx5_3 of node17`.
    pub(super) nics: Option<String>,
}

/// A member of a folder.
type Of = (usize, Member);

/// A communicator of all folders.
#[derive(Default)]
struct Joined<'a> {
    n_ranks: i32,
    members: BTreeMap<i32, Of>,
    parts: Vec<Part<'a>>,
    /// Parts on several hosts whose clocks are known against each other.
    hosts: Vec<Hosts<'a>>,
    /// Messages between hosts.
    between: &'a [Between],
}

impl Joined<'_> {
    /// Names the network devices at both ends of a link, as far as they are known, with their hosts.
    fn nics(&self, (from, to): (i32, i32)) -> Option<String> {
        let end = |rank: i32, peer: i32, channels: fn(&NicRow) -> &BTreeMap<i32, Vec<u32>>| {
            let (host, nics) = self.parts.iter().find_map(|(_, rows)| rows.nics.get(&rank))?;
            let used = nics.iter().filter(|nic| channels(nic).contains_key(&peer)).map(NicRow::label);
            let names = text::joined(used, ", ");
            (!names.is_empty()).then(|| format!("{names} of {host}"))
        };
        let ends = [end(from, to, |nic| &nic.sends), end(to, from, |nic| &nic.receives)];
        let known = text::joined(ends.into_iter().flatten(), " \u{2192} ");
        (!known.is_empty()).then_some(known)
    }
}

/// Returns the evidence on each job.
pub(super) fn of_jobs(folders: &[Gathered]) -> Vec<Evidence> {
    let between = between(folders);
    let clocks = Clocks::of(&between, folders.len());
    let mut joined: BTreeMap<&str, Joined<'_>> = BTreeMap::new();
    for (folder, gathered) in folders.iter().enumerate() {
        for (name, rows) in &gathered.communicators {
            let communicator = joined.entry(name).or_default();
            communicator.n_ranks = communicator.n_ranks.max(rows.n_ranks);
            for (rank, member) in &rows.members {
                communicator.members.entry(*rank).or_insert((folder, *member));
            }
            communicator.parts.push((folder, rows));
        }
    }
    for (name, communicator) in &mut joined {
        communicator.hosts = Hosts::of(&communicator.parts, &clocks);
        communicator.between = between.get(name).map_or(&[], Vec::as_slice);
    }
    let mut sets = Sets::default();
    for communicator in joined.values() {
        let mut members = communicator.members.values();
        let first = members.next().copied();
        for (one, other) in members.filter_map(|other| Some((first?, *other))) {
            sets.join(one, other);
        }
        if let Some(first) = first {
            sets.join(first, first);
        }
    }
    let jobs = sets.sets();
    jobs.into_iter().map(|members| of_job(folders, &joined, members, &clocks)).collect()
}

fn of_job(
    folders: &[Gathered],
    joined: &BTreeMap<&str, Joined<'_>>,
    mut members: Vec<Of>,
    clocks: &Clocks,
) -> Evidence {
    let is_of =
        |communicator: &&Joined<'_>| communicator.members.values().any(|member| members.contains(member));
    let communicators: Vec<&Joined<'_>> = joined.values().filter(is_of).collect();
    // Where nobody names ranks, those of the largest communicator do.
    let largest = communicators.iter().max_by_key(|communicator| communicator.n_ranks);
    let in_largest: BTreeMap<Of, i32> = largest
        .map(|communicator| communicator.members.iter().map(|(rank, of)| (*of, *rank)).collect())
        .unwrap_or_default();
    let facts = |(folder, member): Of| folders.get(folder)?.facts(member);
    let all_named = members.iter().all(|of| facts(*of).is_some_and(|facts| facts.job_rank.is_some()));
    let number = |of: &Of| {
        let named = facts(*of).and_then(|facts| facts.job_rank).filter(|_| all_named).map(i64::from);
        named.or_else(|| in_largest.get(of).map(|rank| i64::from(*rank)))
    };
    members.sort_by_key(|of| (number(of).unwrap_or(i64::MAX), *of));
    let index: BTreeMap<Of, usize> = members.iter().enumerate().map(|(at, of)| (*of, at)).collect();
    let mean_ns = sequence_ns(folders, &members);
    let at = |of: &Of| index.get(of).copied();
    let mut late = Vec::new();
    let line = |communicator: &Joined<'_>, rank: i32, stack| {
        let (folder, member) = communicator.members.get(&rank)?;
        let gathered = folders.get(*folder)?;
        gathered.line(gathered.facts(*member)?.pid, stack)
    };
    for communicator in &communicators {
        let mut add = |launches: &Launches, error_ns: u64| {
            let Some((count, first, last)) = launches.span() else { return };
            let found = launches.late(collectives_in(mean_ns, count, last.saturating_sub(first)), error_ns);
            let of = |rank: &i32| at(communicator.members.get(rank)?);
            let ranks: Vec<usize> = found.ranks.iter().filter_map(of).collect();
            if ranks.len() == found.ranks.len() && !found.iterations.is_empty() {
                let numbers = found.ranks.clone();
                let mut found = LateRanks::new(ranks, found);
                found.note_lines(&|at, stack| line(communicator, *numbers.get(at)?, stack));
                late.push(found);
            }
        };
        for (folder, rows) in &communicator.parts {
            if clocks.is_compared(*folder) {
                add(&rows.launches.by(|wall_ns| clocks.common_ns(*folder, wall_ns)), 0);
            } else {
                add(&rows.launches, 0);
            }
        }
        for hosts in &communicator.hosts {
            add(&hosts.launches(clocks), hosts.error_ns);
        }
    }
    late.sort_by_key(|late| std::cmp::Reverse(late.iteration.map(|iteration| iteration.typical_ns)));
    let lengths = late.first().map(LateRanks::lengths).unwrap_or_default();
    let slowdown = Slowdown::find(&lengths);
    // What was before it says nothing of its cause.
    let since_ns = slowdown.map_or(0, |slowdown| slowdown.since_ns);
    for late in late.iter_mut().filter(|_| since_ns > 0) {
        late.since(since_ns);
    }
    let span = |folder: usize| {
        let (first, last) = folders.get(folder)?.span_ns?;
        Some((first.max(clocks.own_ns(folder, since_ns)), last))
    };
    let ranks = members.iter().map(|of| {
        let Some(facts) = facts(*of) else { return RankEvidence::default() };
        let name = RankName {
            rank: number(of).and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1),
            host: facts.host.clone(),
            pid: facts.pid,
            gpu: facts.gpu,
        };
        let activity = folders.get(of.0).and_then(|gathered| gathered.activity(facts));
        let times = folders.get(of.0).map(|gathered| gathered.processor_times(facts.pid));
        let [processor, proxy] = times.unwrap_or_default();
        RankEvidence { processor, proxy, ..RankEvidence::new(name, activity, span(of.0)) }
    });
    let ranks = ranks.collect();
    let has_proxy = communicators.iter().any(|one| one.parts.iter().any(|(_, rows)| rows.has_proxy));
    let iteration = late.first().and_then(|late| late.iteration);
    let host = |of: &Of| Some((of.0, facts(*of)?.host.clone()));
    let clocks_of = HostClocks::of(&members.iter().filter_map(host).collect(), clocks);
    let job = members.iter().find_map(|of| facts(*of)?.job.clone());
    let mut evidence = Evidence {
        job,
        ranks,
        iteration,
        lengths,
        slowdown,
        late,
        has_proxy,
        how_to_measure: members.iter().find_map(|of| folders.get(of.0)?.how_to_measure.clone()),
        clocks: clocks_of,
        ..Evidence::default()
    };
    for communicator in &communicators {
        let since = |folder: usize| {
            folders.get(folder).map_or(0, |of| of.monotonic_ns(clocks.own_ns(folder, since_ns)))
        };
        let of_part = |(folder, rows): &(usize, &CommunicatorRows)| {
            let span = span_of(rows.waits.iter().map(|(_, shares)| shares), since(*folder));
            rows.waits
                .iter()
                .map(move |(waits, shares)| (waits.clone(), shares.clone(), span))
                .collect::<Vec<_>>()
        };
        let waits = communicator.parts.iter().flat_map(of_part);
        let of_rank = |(waits, shares, span): (RankWaits, Shares, Option<(u64, u64)>)| {
            let rank = at(communicator.members.get(&waits.rank)?)?;
            let (means, halves) = (span.and_then(|span| shares.means(span)), shares.most());
            let share = |mean, halves| TimeShare { mean, halves, connections: shares.connections() };
            Some(WaitingRank {
                rank,
                waits,
                own: share(means.map(|means| means.0), halves.0),
                waiting: share(means.map(|means| means.1), halves.1),
                in_network_percent: None,
            })
        };
        let mut waits: Vec<WaitingRank> = waits.filter_map(of_rank).collect();
        let links = communicator
            .parts
            .iter()
            .flat_map(|(folder, rows)| shares_of(&rows.transits.links, since(*folder), 1));
        let of_link = |(ranks, in_network, typical_ns): ((i32, i32), TimeShare, u64), error_ns| {
            let [from, to] = [ranks.0, ranks.1].map(|rank| at(communicator.members.get(&rank)?));
            let nics = communicator.nics(ranks);
            Some(MeasuredLink { from: from?, to: to?, in_network, typical_ns, error_ns, nics })
        };
        let mut links: Vec<MeasuredLink> = links.filter_map(|link| of_link(link, 0)).collect();
        for hosts in &communicator.hosts {
            let (measured, stride) = hosts.links(communicator.between, clocks);
            let measured = shares_of(&measured, since_ns, stride);
            links.extend(measured.into_iter().filter_map(|link| of_link(link, hosts.error_ns)));
        }
        for rank in &mut waits {
            rank.in_network_percent = rank.in_network(&links);
        }
        if links.len() > 1 {
            evidence.links.push(links);
        }
        if waits.len() > 1 {
            evidence.waits.push(waits);
        }
    }
    evidence.groups = groups(&communicators, &index);
    evidence
}

/// Returns the time in which messages were measured, after a moment, by the host's clock.
fn span_of<'a>(shares: impl Iterator<Item = &'a Shares>, since_ns: u64) -> Option<(u64, u64)> {
    let spans = shares.filter_map(Shares::span_ns);
    let (first, last) = spans.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))?;
    Some((first.max(since_ns), last))
}

/// Returns how long messages of each link were in the network: share, and usual time. `stride`: one of so
/// many messages was taken.
fn shares_of(
    links: &BTreeMap<(i32, i32), Link>,
    since_ns: u64,
    stride: u64,
) -> Vec<((i32, i32), TimeShare, u64)> {
    let Some(span) = span_of(links.values().map(|link| &link.shares), since_ns) else { return Vec::new() };
    let share = |link: &Link| TimeShare {
        mean: link.shares.means(span).map(|means| means.1.times(stride)),
        halves: if stride == 1 { link.shares.most().1 } else { 0 },
        connections: link.shares.connections(),
    };
    links.iter().map(|(ranks, link)| (*ranks, share(link), link.typical_ns())).collect()
}

/// Returns the number of a communicator's collectives, `count` in `span_ns`, within so long a time.
fn collectives_in(ns: u64, count: usize, span_ns: u64) -> u64 {
    if span_ns == 0 {
        return 1;
    }
    let all = u128::try_from(count).unwrap_or(0) * u128::from(ns);
    let rounded = (all + u128::from(span_ns) / 2) / u128::from(span_ns);
    u64::try_from(rounded).unwrap_or(1).max(1)
}

/// Returns the mean length of the sequence of collectives that recurs in the processes of a job, by that in
/// the middle; 0, where none does.
fn sequence_ns(folders: &[Gathered], members: &[Of]) -> u64 {
    let of_member = |(folder, member): &Of| {
        let gathered = folders.get(*folder)?;
        gathered.sequences.get(&gathered.facts(*member)?.pid).copied()
    };
    median(members.iter().filter_map(of_member).collect())
}

/// Returns groups of ranks with equal work: those that run collectives together, and are no stages of a
/// pipeline to each other.
fn groups(communicators: &[&Joined<'_>], index: &BTreeMap<Of, usize>) -> Vec<Vec<usize>> {
    let mut stages: Vec<(usize, usize)> = Vec::new();
    for communicator in communicators {
        let at = |rank: i32| communicator.members.get(&rank).and_then(|of| index.get(of)).copied();
        let pairs = || communicator.parts.iter().flat_map(|(_, rows)| rows.pairs.iter().copied());
        let to_all = |rank: i32| {
            let peers = pairs().filter(|(from, _)| *from == rank).count();
            communicator.n_ranks > 2
                && i32::try_from(peers + 1).is_ok_and(|peers| peers >= communicator.n_ranks)
        };
        stages.extend(
            pairs().filter(|(from, _)| !to_all(*from)).filter_map(|(from, to)| Some((at(from)?, at(to)?))),
        );
    }
    let mut sets = Sets::default();
    for communicator in communicators {
        let has_collectives = communicator.parts.iter().any(|(_, rows)| rows.launches.span().is_some());
        let members: Vec<usize> =
            communicator.members.values().filter_map(|of| index.get(of)).copied().collect();
        let has_stages = stages.iter().any(|(from, to)| members.contains(from) && members.contains(to));
        if let Some(first) = members.first().filter(|_| has_collectives && !has_stages) {
            for other in &members {
                sets.join(*first, *other);
            }
        }
    }
    sets.sets().into_iter().filter(|set| set.len() > 1).collect()
}

impl RankEvidence {
    pub(super) fn new(name: RankName, activity: Option<&Activity>, span_ns: Option<(u64, u64)>) -> Self {
        let mean = |measure| activity.zip(span_ns).and_then(|(activity, span)| activity.mean(measure, span));
        Self {
            name,
            graphics: mean(Measure::Graphics),
            multiprocessors: mean(Measure::Multiprocessors),
            tensor: mean(Measure::Tensor),
            memory: mean(Measure::Memory),
            utilization: mean(Measure::Utilization),
            processor: None,
            proxy: None,
        }
    }
}

/// Share of the time in which a proxy waits for a processor, from which on its messages are late by that.
const STARVED_PERCENT: f64 = 5.0;

impl RankEvidence {
    /// Returns the share of the time in which its proxy waited for a processor.
    pub(super) fn starved_percent(&self) -> f64 {
        self.proxy.and_then(|proxy| proxy.percents()).map_or(0.0, |(_, waited)| waited)
    }

    /// Tells whether its proxy gets too little of the processor to tell how long messages take.
    pub(super) fn is_starved(&self) -> bool {
        self.starved_percent() >= STARVED_PERCENT
    }

    /// Returns the share of the time in which its launching thread, or its proxy, waited for a processor.
    pub(super) fn waited_percent(&self) -> f64 {
        let launching = self.processor.and_then(|time| time.percents()).map_or(0.0, |(_, waited)| waited);
        launching.max(self.starved_percent())
    }

    /// Returns the share of periods in which the limit of its cgroup stopped its process, in percent.
    #[expect(clippy::cast_precision_loss, reason = "numbers of periods")]
    pub(super) fn throttled_percent(&self) -> f64 {
        self.processor.map_or(0.0, |time| time.throttled as f64 * 100.0 / time.periods.max(1) as f64)
    }
}

impl WaitingRank {
    /// Returns for how much of the time of its connections the data was in the network that it waited for.
    #[expect(clippy::cast_precision_loss, reason = "numbers of connections")]
    pub(super) fn in_network(&self, links: &[MeasuredLink]) -> Option<f64> {
        let to_it = links.iter().filter(|link| link.to == self.rank);
        let of_link =
            |link: &MeasuredLink| Some(link.in_network.mean?.percent * link.in_network.connections as f64);
        let sum = to_it.filter_map(of_link).reduce(|one, other| one + other)?;
        Some(sum / self.waiting.connections.max(1) as f64)
    }
}
