//! The verdict's sentences.

use std::io;

use flow::text::{joined, name_ranks, spaced_seconds};

use super::{
    activity::Mean,
    evidence::{Evidence, MeasuredLink, RankEvidence},
    hosts::{HostClock, HostClocks},
    late_ranks::{Iteration, LateLine},
    pauses::Pauses,
    verdict::{Kind, RankName, Slow, milliseconds},
};

impl RankName {
    /// `rank 2 (node17, process 4031, GPU 2)`; without a host, it is this one.
    fn shown(&self) -> String {
        let gpu = self.gpu.map(|gpu| format!(", GPU {gpu}")).unwrap_or_default();
        let host = if self.host.is_empty() { String::new() } else { format!("{}, ", self.host) };
        format!("rank {} ({host}process {}{gpu})", self.rank, self.pid)
    }
}

/// `0.58 ms of each iteration of 8.13 ms (7.1 %)`.
fn of_iteration(iteration: Option<Iteration>, percent: f64) -> String {
    match iteration {
        Some(Iteration { mean_ns, .. }) => {
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a part of a time, for people"
            )]
            let cost = (mean_ns as f64 * percent.clamp(0.0, 100.0) / 100.0) as u64;
            format!(
                "{} of each iteration of {} ({percent:.1} %)",
                spaced_seconds(cost),
                spaced_seconds(mean_ns)
            )
        }
        None => format!("{percent:.1} % of the time"),
    }
}

pub(super) fn gpu(name: &RankName, iteration: Option<Iteration>, percent: f64, is_note: bool) -> String {
    let size = of_iteration(iteration, percent);
    let name = name.shown();
    if is_note {
        return format!(
            "the GPU of {name} computes a little longer than those of its peers: {size}, as chips of one kind do"
        );
    }
    format!("the others wait for {name}: its GPU computes longer than those of ranks with equal work, {size}")
}

/// A measure of a rank.
type OfRank = fn(&RankEvidence) -> Option<Mean>;

pub(super) fn gpu_evidence(evidence: &Evidence, group: &[usize], at: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let measures: [(&str, OfRank); 3] = [
        ("multiprocessors are busy", |rank| rank.multiprocessors),
        ("tensor cores are busy", |rank| rank.tensor),
        ("memory is busy", |rank| rank.memory),
    ];
    for (what, measure) in measures {
        let of = |at: usize| evidence.ranks.get(at).and_then(measure).map(|mean| mean.percent);
        let others: Vec<f64> = group.iter().filter(|other| **other != at).filter_map(|at| of(*at)).collect();
        if let (Some(own), false) = (of(at), others.is_empty()) {
            lines.push(format!("its {what} {own:.1} % of the time, those of its peers {}", range(&others)));
        }
    }
    lines
}

pub(super) fn stage(ranks: &[i32], iteration: Option<Iteration>, percent: f64) -> String {
    format!(
        "{} {} most work by the job's design, and the other stages wait: {}",
        name_ranks(ranks),
        if ranks.len() == 1 { "does" } else { "do" },
        of_iteration(iteration, percent)
    )
}

pub(super) fn stage_evidence(evidence: &Evidence, groups: &[Vec<usize>], most: usize) -> Vec<String> {
    let busy = |group: &Vec<usize>| -> Vec<f64> {
        let ranks = group.iter().filter_map(|at| evidence.ranks.get(*at));
        ranks.filter_map(|rank| Some(rank.multiprocessors?.percent)).collect()
    };
    let own = groups.get(most).map(busy).unwrap_or_default();
    let others = groups.iter().enumerate().filter(|(at, _)| *at != most);
    let others: Vec<f64> = others.flat_map(|(_, group)| busy(group)).collect();
    vec![format!(
        "its multiprocessors are busy {} of the time, those of the other stages {}",
        range(&own),
        range(&others)
    )]
}

/// `63.6 to 64.0 %`.
pub(super) fn range(values: &[f64]) -> String {
    let (least, most) = (values.iter().copied().reduce(f64::min), values.iter().copied().reduce(f64::max));
    match (least, most) {
        (Some(least), Some(most)) if most - least >= 0.1 => format!("{least:.1} to {most:.1} %"),
        (Some(least), _) => format!("{least:.1} %"),
        _ => "unknown".to_owned(),
    }
}

pub(super) fn host(
    name: &RankName,
    pauses: &Pauses,
    is_cause: bool,
    iteration: Option<Iteration>,
    percent: f64,
) -> String {
    let name = name.shown();
    let how = if is_cause {
        let rhythm = match (pauses.every, pauses.every_ns) {
            (Some(every), _) => format!("in every {} iteration", ordinal(every)),
            (None, Some(ns)) => format!("every {}", spaced_seconds(ns)),
            _ => format!("in {} of {} iterations", pauses.count, pauses.iterations),
        };
        format!("its host pauses for {} {rhythm}", spaced_seconds(pauses.pause_ns))
    } else if pauses.is_late() {
        format!("its host launches {} late in each iteration", spaced_seconds(pauses.typical_ns))
    } else {
        "its host launches too late to keep its GPU busy".to_owned()
    };
    format!("the others wait for {name}: {how}, {}", of_iteration(iteration, percent))
}

pub(super) fn host_evidence(
    rank: &RankEvidence,
    pauses: &Pauses,
    idle: Option<f64>,
    is_coarse: bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    // Who pauses now and then launches no later than the others in most iterations.
    if pauses.iterations > 0 && pauses.typical_ns > 0 {
        lines.push(format!(
            "it launches last, by {} in the median, in {:.0} % of {} iterations",
            spaced_seconds(pauses.typical_ns),
            pauses.late_percent,
            pauses.iterations
        ));
    }
    let launching = ("the thread that launches", rank.processor);
    for (name, time) in [launching, ("its proxy's thread", rank.proxy)] {
        if let Some((ran, waited)) = time.and_then(|time| time.percents()) {
            lines
                .push(format!("{name} ran {ran:.0} % of the time, and waited for a processor {waited:.0} %"));
        }
    }
    let throttled = rank.throttled_percent();
    if throttled > 0.0 {
        lines.push(format!("the limit of its cgroup stopped its process in {throttled:.0} % of the periods"));
    }
    if let Some(idle) = idle {
        let mean = if is_coarse { rank.utilization } else { rank.graphics };
        let busy = mean.map_or(0.0, |mean| mean.percent);
        lines.push(format!(
            "its GPU has something to run {busy:.1} % of the time, {idle:.1} points less than the others', whose \
             kernels wait meanwhile"
        ));
    }
    lines
}

/// Says at which line of code a rank launches late, where stacks were recorded.
pub(super) fn late_line(evidence: &Evidence, at: usize) -> Vec<String> {
    let line = evidence.late.iter().find_map(|late| late.line(at));
    let sentence = |LateLine { line, count, of }: &LateLine| {
        format!(
            "what comes before {line} takes it longer: there it is late first, in {count} of {of} iterations"
        )
    };
    line.map(sentence).into_iter().collect()
}

pub(super) fn link(from: &RankName, to: i32, iteration: Option<Iteration>, percent: f64) -> String {
    format!("slowest link: {} → rank {to}: it costs {}", from.shown(), of_iteration(iteration, percent))
}

/// `others_ns`: usual time of a message on the other links.
pub(super) fn link_evidence(link: &MeasuredLink, others_ns: u64) -> String {
    let clock = match link.error_ns {
        0 => "the clock of their host".to_owned(),
        error_ns => format!("the clocks of both hosts, known to {}", spaced_seconds(error_ns)),
    };
    let over = link.nics.as_ref().map(|nics| format!("; it goes over {nics}")).unwrap_or_default();
    format!(
        "a message is in the network for {}, on the other links for {}, by {clock}{over}",
        spaced_seconds(link.typical_ns),
        spaced_seconds(others_ns)
    )
}

/// `throttled`: percent of the periods in which a limit stopped its process.
pub(super) fn starved(
    name: &RankName,
    throttled: Option<f64>,
    iteration: Option<Iteration>,
    cost: Option<f64>,
) -> String {
    let name = name.shown();
    let how = match throttled {
        Some(percent) => format!(
            "the limit of its cgroup stops its process in {percent:.0} % of the periods (cpu.max, Kubernetes' CPU limit)"
        ),
        None => "its threads wait for a processor".to_owned(),
    };
    match cost {
        Some(percent) => format!("the others wait for {name}: {how}, {}", of_iteration(iteration, percent)),
        None => format!("{name}: {how}; what that costs the job is not known"),
    }
}

pub(super) fn not_recorded(rank: i32, iteration: Option<Iteration>, percent: f64) -> String {
    format!("ranks wait for rank {rank}, which was not recorded: {}", of_iteration(iteration, percent))
}

pub(super) fn slower(before_ns: u64, after_ns: u64, since_ns: u64) -> String {
    format!(
        "all ranks became slower together at {}: iterations of {} take {}",
        clock_time(since_ns),
        spaced_seconds(before_ns),
        spaced_seconds(after_ns)
    )
}

pub(super) fn pause_together(usual_ns: u64, count: usize, iterations: usize, percent: f64) -> String {
    format!(
        "all ranks pause together, for {} in {count} of {iterations} iterations: for no rank, as in a checkpoint, an \
         evaluation or for data that all wait for ({percent:.1} % of the time)",
        spaced_seconds(usual_ns)
    )
}

pub(super) fn all_idle(percent: f64) -> String {
    format!(
        "all GPUs have nothing to run for {percent:.0} % of the time: the job waits for its hosts, all alike"
    )
}

/// UTC time of the day.
fn clock_time(wall_ns: u64) -> String {
    let seconds = wall_ns / 1_000_000_000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// `2nd`, `10th`.
fn ordinal(number: u64) -> String {
    let end = match (number % 10, number % 100) {
        (1, tens) if tens != 11 => "st",
        (2, tens) if tens != 12 => "nd",
        (3, tens) if tens != 13 => "rd",
        _ => "th",
    };
    format!("{number}{end}")
}

impl Slow {
    /// Returns what is said where there is no fault, in one sentence.
    pub fn summary(&self) -> String {
        let iteration = match self.iteration_ms {
            Some(ms) if self.first.kind == Kind::Nobody => format!(" (an iteration takes {ms:.2} ms)"),
            _ => String::new(),
        };
        format!("{}{iteration}", self.first.text)
    }

    /// Writes causes and evidence. `said`: the headline, which is not said again.
    pub fn write(&self, said: &str, out: &mut dyn io::Write) -> io::Result<()> {
        let is_named = !matches!(self.first.kind, Kind::Nobody | Kind::Unknown);
        for cause in std::iter::once(&self.first).filter(|_| is_named).chain(&self.others) {
            if !said.contains(&cause.text) {
                writeln!(out, "{} {}", if cause.is_note { "note:" } else { "!" }, cause.text)?;
            }
            cause.evidence.iter().try_for_each(|line| writeln!(out, "    {line}"))?;
        }
        Ok(())
    }

    /// Returns notes on the clocks of hosts.
    pub(crate) fn clock_notes(&self) -> impl Iterator<Item = String> {
        self.clocks.iter().filter_map(HostClock::text).map(|text| format!("note: {text}"))
    }

    /// Returns what was not seen.
    pub(crate) fn lines_not_seen(&self) -> impl Iterator<Item = String> {
        self.not_seen.iter().map(|what| format!("not seen: {what}"))
    }
}

/// Returns the sentence where nobody is named, which says no more than was seen.
pub(super) fn nobody(kind: Kind, evidence: &Evidence, not_seen: &[String]) -> String {
    if kind != Kind::Nobody {
        return "who holds the job back is not known".to_owned();
    }
    let seen = [
        (evidence.has_counters(), "the GPUs' counters"),
        (evidence.has_launches(), "launches"),
        (!evidence.waits.is_empty(), "messages"),
    ];
    let seen: Vec<&str> = seen.into_iter().filter(|(is_seen, _)| *is_seen).map(|(_, what)| what).collect();
    match &seen[..] {
        [others @ .., last] if !not_seen.is_empty() => {
            let others = joined(others, ", ");
            let and = if others.is_empty() { "" } else { " and " };
            format!("as far as {others}{and}{last} show, nobody holds the job back")
        }
        _ => "no rank, no GPU and no host holds the job back".to_owned(),
    }
}

/// Returns what could not be seen. `names_link`: a link is known to be slow.
pub(super) fn not_seen(evidence: &Evidence, names_link: bool) -> Vec<String> {
    let ranks = &evidence.ranks;
    let of = |has: fn(&RankEvidence) -> bool| -> Vec<i32> {
        ranks.iter().filter(|rank| !has(rank)).map(|rank| rank.name.rank).collect()
    };
    let mut notes = Vec::new();
    let without = of(|rank| rank.multiprocessors.is_some());
    if without.len() == ranks.len() {
        notes.push(
            "how much each GPU computes: the recording has no GPM counters (NVIDIA Hopper and later, with NVML)"
                .to_owned(),
        );
    } else if !without.is_empty() {
        notes.push(format!("how much the GPUs of ranks {} compute", joined(&without, ", ")));
    }
    if !evidence.has_launches() && ranks.len() > 1 {
        notes.push("who launches late: no host has two ranks of one communicator".to_owned());
    }
    notes.extend(clocks_not_seen(evidence));
    if evidence.waits.is_empty() && evidence.has_proxy {
        notes.push(match &evidence.how_to_measure {
            Some(how) => format!("what messages waited for: they were not measured ({how})"),
            None => "what messages waited for: too few were measured that tell it".to_owned(),
        });
    }
    let starved = of(|rank| !rank.is_starved());
    if !starved.is_empty() && !evidence.links.is_empty() && !names_link {
        let names = name_ranks(&starved);
        notes.push(format!("whether links are slow: the proxies of {names} wait for a processor"));
    }
    if evidence.iteration.is_none() {
        notes.push("the job's iterations: no sequence of collectives recurs".to_owned());
    }
    notes
}

/// Error of clocks, in parts of an iteration, from which on they do not tell who launches late.
const CLOCK_PARTS: f64 = 50.0;

fn clocks_not_seen(evidence: &Evidence) -> Option<String> {
    let why = match &evidence.clocks {
        HostClocks::OneHost => return None,
        HostClocks::Unknown => {
            let how = evidence.how_to_measure.as_ref().map(|how| format!(" ({how})")).unwrap_or_default();
            format!(
                "are not known against each other: no messages between all of them were measured in both \
                 directions{how}"
            )
        }
        HostClocks::Known(clocks) => {
            let worst = clocks.iter().map(|clock| clock.error_ms).fold(0.0, f64::max);
            let iteration_ms = milliseconds(evidence.iteration?.typical_ns);
            if worst * CLOCK_PARTS <= iteration_ms {
                return None;
            }
            format!("are not known to better than {worst:.2} ms")
        }
    };
    Some(format!("who launches late across hosts: their clocks {why}"))
}

impl HostClock {
    /// Returns what is said of it, if wall times of its host's recording are not those of the others.
    pub(crate) fn text(&self) -> Option<String> {
        let Self { host, against, ahead_ms, error_ms } = self;
        (ahead_ms.abs() > error_ms.max(1.0)).then(|| {
            let how = if *ahead_ms > 0.0 { "ahead of" } else { "behind" };
            format!(
                "the clock of {host} is {:.2} ms {how} that of {against} (± {error_ms:.2} ms)",
                ahead_ms.abs()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slow::{evidence::RankEvidence, late_ranks::LateRanks};

    /// Two ranks whose messages were to be measured, and whose launches are known.
    fn evidence(how_to_measure: Option<&str>) -> Evidence {
        let ranks = vec![RankEvidence::default(); 2];
        let late = vec![LateRanks { ranks: vec![0, 1], ..LateRanks::default() }];
        let how_to_measure = how_to_measure.map(str::to_owned);
        Evidence { ranks, late, has_proxy: true, how_to_measure, ..Evidence::default() }
    }

    #[test]
    fn nobody_is_cleared_by_what_was_not_seen() {
        let evidence = Evidence { waits: vec![Vec::new()], ..evidence(None) };
        let said = |not_seen: &[String]| nobody(Kind::Nobody, &evidence, not_seen);
        assert_eq!(said(&[]), "no rank, no GPU and no host holds the job back");
        let expected = "as far as launches and messages show, nobody holds the job back";
        assert_eq!(said(&not_seen(&evidence, false)), expected);
    }

    /// A recording of --level steps is not told to be one.
    #[test]
    fn how_to_measure_messages_depends_on_the_recording() {
        let what =
            |how| not_seen(&evidence(how), false).into_iter().find(|what| what.starts_with("what messages"));
        let of = |why: &str| Some(format!("what messages waited for: {why}"));
        let left_out = "record without --min-bytes 1048576";
        assert_eq!(what(Some(left_out)), of(&format!("they were not measured ({left_out})")));
        assert_eq!(what(None), of("too few were measured that tell it"));
    }

    /// The reasons stand on lines of their own.
    #[test]
    fn the_verdict_has_no_reason_in_it() {
        let slow = Slow::of(&evidence(None));
        assert_eq!(slow.summary(), "who holds the job back is not known");
        let lines: Vec<String> = slow.lines_not_seen().collect();
        assert!(lines.len() > 1 && lines.iter().all(|line| line.starts_with("not seen: ")), "{lines:?}");
    }
}
