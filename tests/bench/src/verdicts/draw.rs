//! Jobs and their faults, drawn from a seed.

use std::{collections::BTreeSet, fmt, time::Duration};

use ncclflow_e2e::harness::namespaces::BURST;
use test_support::damage::Random;

/// What is wrong with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum FaultKind {
    /// Nothing
    None,
    /// The GPU of a rank computes longer
    Gpu,
    /// The host of a rank launches each iteration late
    Host,
    /// The host of a rank pauses before each n-th iteration
    Pause,
    /// The process of a rank is stopped again and again
    Stopped,
    /// A rank gets too little of the processor
    Processor,
    /// A host sends too slowly
    Link,
    /// A stage of a pipeline has more to compute
    Stage,
    /// What a host sends takes its time, at any rate; only where it is asked for
    Delay,
    /// The GPU of a rank computes longer, and the host of another launches late, by half as much; only where it is
    /// asked for
    Two,
}

const FAULTS: [FaultKind; 7] = [
    FaultKind::Gpu,
    FaultKind::Host,
    FaultKind::Pause,
    FaultKind::Stopped,
    FaultKind::Processor,
    FaultKind::Link,
    FaultKind::Stage,
];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    /// The rank that is slow, or the first of a slow stage.
    pub(super) rank: u32,
    /// Percent of an iteration, put in.
    pub(super) percent: f64,
    /// Iterations from one pause to the next.
    pub(super) every: u32,
}

/// The verdict that is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Truth {
    pub(super) kind: &'static str,
    pub(super) ranks: BTreeSet<i64>,
    /// The other end of a link.
    pub(super) peer: Option<i64>,
    /// Kind and ranks of a smaller fault, which may be named, too: what it costs is hidden behind the larger one.
    pub(super) also: Option<(&'static str, BTreeSet<i64>)>,
}

/// What the messages of a job go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    SharedMemory,
    Sockets,
    /// Hosts with a network of their own.
    Hosts,
}

/// A job, its fault, and the recording that is made of it.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) ranks: u32,
    pub(super) way: Way,
    pub(super) compute_ms: f64,
    /// All-reduces of an iteration.
    pub(super) collectives: u32,
    pub(super) bytes: u32,
    /// Hosts wait for the end of each iteration; else they launch ahead.
    pub(super) syncs: bool,
    pub(super) stages: Option<u32>,
    pub(super) level: &'static str,
    /// The recording begins before the fault does.
    pub(super) sees_begin: bool,
    /// Seconds from the begin of one of the two to that of the other.
    pub(super) between: f64,
    pub(super) fault: Fault,
}

impl Fault {
    /// The rank after the slow one: the other end of its link, or the one that is slow, too.
    fn after(&self, ranks: u32) -> u32 {
        (self.rank + 1) % ranks
    }

    /// The verdict that is right, in a job of so many ranks.
    pub(super) fn truth(&self, ranks: u32) -> Truth {
        let rank = i64::from(self.rank);
        let after = i64::from(self.after(ranks));
        let (kind, ranks, peer) = match self.kind {
            FaultKind::None => ("nobody", BTreeSet::new(), None),
            FaultKind::Gpu | FaultKind::Two => ("gpu", BTreeSet::from([rank]), None),
            FaultKind::Host | FaultKind::Pause | FaultKind::Stopped | FaultKind::Processor => {
                ("host", BTreeSet::from([rank]), None)
            }
            FaultKind::Link | FaultKind::Delay => ("link", BTreeSet::from([rank]), Some(after)),
            FaultKind::Stage => ("stage", (rank..i64::from(ranks)).collect(), None),
        };
        let also = (self.kind == FaultKind::Two).then(|| ("host", BTreeSet::from([after])));
        Truth { kind, ranks, peer, also }
    }
}

impl Case {
    /// Draws the case of a run.
    pub(super) fn draw(seed: u64, run: u64, only: Option<FaultKind>) -> Self {
        let mut random = random(seed, run);
        let is_healthy = random.below(4) == 0;
        let drawn = if is_healthy { FaultKind::None } else { pick(&mut random, &FAULTS) };
        let kind = only.unwrap_or(drawn);
        // Half of the pipelines have stages of equal work.
        let is_pipeline = kind == FaultKind::Stage
            || (matches!(kind, FaultKind::None | FaultKind::Gpu) && random.below(4) == 0);
        let drawn = pick(&mut random, &[2, 3, 3, 4, 4, 6, 8]);
        // A rank without a proxy needs next to nothing of the processor here.
        let ranks = match kind {
            _ if is_pipeline => 4,
            FaultKind::Processor => drawn.min(4),
            FaultKind::Two => drawn.max(3),
            _ => drawn,
        };
        let way = match kind {
            FaultKind::Link | FaultKind::Delay => Way::Hosts,
            FaultKind::Processor => pick(&mut random, &[Way::Sockets, Way::Hosts]),
            _ if ranks > 4 => Way::SharedMemory,
            _ => pick(&mut random, &[Way::SharedMemory, Way::SharedMemory, Way::Sockets, Way::Hosts]),
        };
        // A host that comes late holds nobody up while its GPU has work that was launched before, and a
        // process of the bed that does not run is a GPU that does not run.
        let is_of_host =
            matches!(kind, FaultKind::Host | FaultKind::Pause | FaultKind::Stopped | FaultKind::Processor);
        let syncs = is_of_host || kind == FaultKind::Two || random.below(2) == 0;
        let compute_ms = 30.0 + 10.0 * f64::from(below(&mut random, 6));
        let fault = Fault {
            kind,
            rank: if is_pipeline && kind == FaultKind::Stage { 2 } else { below(&mut random, ranks) },
            percent: match kind {
                FaultKind::None => 0.0,
                // Shorter moments than the kernel's time slices cannot be taken away.
                FaultKind::Stopped | FaultKind::Processor => percent(&mut random, 10.0),
                _ => percent(&mut random, 2.0),
            },
            every: pick(&mut random, &[3, 5, 10]),
        };
        Self {
            ranks,
            way,
            compute_ms,
            collectives: 1 + below(&mut random, 4),
            bytes: if kind == FaultKind::Link { 16_384 } else { pick(&mut random, &[1024, 4096]) },
            syncs,
            stages: is_pipeline.then_some(2),
            // A slow link can be seen in measured messages only.
            level: match (way, kind) {
                (Way::SharedMemory, _) => "flow",
                (_, FaultKind::Link | FaultKind::Delay) => "steps",
                _ => pick(&mut random, &["flow", "steps"]),
            },
            sees_begin: random.below(2) == 0,
            between: 0.5 + 0.25 * f64::from(below(&mut random, 9)),
            fault,
        }
    }

    pub(super) fn truth(&self) -> Truth {
        self.fault.truth(self.ranks)
    }

    /// What the fault adds to an iteration that takes so long without it, in percent. What a limit on the
    /// processor costs is not known, nor how many messages wait for a delayed one.
    pub(super) fn put_in(&self, healthy_ms: f64) -> Option<f64> {
        let is_known = !matches!(self.fault.kind, FaultKind::Processor | FaultKind::Delay);
        is_known.then(|| self.fault.percent * self.compute_ms / healthy_ms)
    }

    /// The job in a few words.
    pub(super) fn job(&self) -> String {
        let way = match self.way {
            Way::SharedMemory => "shm",
            Way::Sockets => "sockets",
            Way::Hosts => "hosts",
        };
        let launches = if self.syncs { "sync" } else { "ahead" };
        let stages = if self.stages.is_some() { " pp" } else { "" };
        let attached = if self.sees_begin { "before" } else { "after" };
        format!("{} {way} {launches}{stages} {} {attached}", self.ranks, self.level)
    }

    /// The bed's options, without files.
    pub(super) fn options(&self) -> String {
        let mut ops = vec!["allreduce"; self.collectives as usize];
        if self.stages.is_some() {
            ops.splice(0..0, ["sendstage", "returnstage"]);
        }
        let Self { ranks, compute_ms, bytes, .. } = self;
        let mut options = vec![
            format!("--mode processes --ranks {ranks} --channels 1 --iters 1000000"),
            format!("--compute-ms {compute_ms} --bytes {bytes} --ops {}", ops.join(",")),
        ];
        if self.syncs {
            options.push("--sync-iterations".to_owned());
        }
        options.extend(self.stages.map(|stages| format!("--stages {stages}")));
        if self.way == Way::SharedMemory {
            options.push("--env NCCL_SHM_DISABLE=0".to_owned());
        }
        options.join(" ")
    }

    /// The lines of the bed's file of faults.
    pub(super) fn lines(&self) -> String {
        let Fault { kind, rank, percent, every } = self.fault;
        let ms = self.compute_ms * percent / 100.0;
        match kind {
            FaultKind::Gpu => format!("{rank} gpu {percent:.3}\n"),
            FaultKind::Host => format!("{rank} host {ms:.3}\n"),
            FaultKind::Two => {
                let after = self.fault.after(self.ranks);
                format!("{rank} gpu {percent:.3}\n{after} host {:.3}\n", ms / 2.0)
            }
            FaultKind::Pause => format!("{rank} host {:.3} {every}\n", ms * f64::from(every)),
            FaultKind::Stage => {
                let lines: Vec<String> =
                    (rank..self.ranks).map(|rank| format!("{rank} gpu {percent:.3}")).collect();
                lines.join("\n")
            }
            FaultKind::None
            | FaultKind::Stopped
            | FaultKind::Processor
            | FaultKind::Link
            | FaultKind::Delay => String::new(),
        }
    }

    /// Kilobits a second of a slow link: what a rank sends in an iteration then takes as long as the fault is
    /// large.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and some millions"
    )]
    pub(super) fn kilobits(&self) -> u64 {
        let of_ring = 2.0 * f64::from(self.ranks - 1) / f64::from(self.ranks);
        let bytes = of_ring * f64::from(self.bytes) * f64::from(self.collectives);
        let bits = 8.0 * (bytes - f64::from(BURST)).max(1.0);
        let ms = self.compute_ms * self.fault.percent / 100.0;
        (bits / ms).max(1.0) as u64
    }

    /// Delay of all that a host sends: in a ring, data goes over each link twice in an all-reduce.
    pub(super) fn delay(&self) -> Duration {
        let ms = self.compute_ms * self.fault.percent / 100.0;
        Duration::from_secs_f64(ms / 2e3 / f64::from(self.collectives))
    }
}

/// Numbers for a run. Neighbouring seeds are mixed: their first numbers have nothing in common.
pub(super) fn random(seed: u64, run: u64) -> Random {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (run + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut random = Random(mixed.max(1));
    for _ in 0..8 {
        random.number();
    }
    random
}

/// Percent of an iteration, `least` or more: as many small ones as large ones.
pub(super) fn percent(random: &mut Random, least: f64) -> f64 {
    let part = f64::from(below(random, 1001)) / 1000.0;
    least * (150.0 / least).powf(part)
}

fn below(random: &mut Random, limit: u32) -> u32 {
    u32::try_from(random.number() % u64::from(limit)).unwrap_or(0)
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len())]
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, rank, percent, every } = self;
        match kind {
            FaultKind::None => write!(f, "none"),
            FaultKind::Pause => write!(f, "pause {rank} {percent:.1} % /{every}"),
            kind => write!(f, "{} {rank} {percent:.1} %", format!("{kind:?}").to_lowercase()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_cases_and_all_kinds_of_them() {
        let draw = |seed| (0..400).map(move |run| Case::draw(seed, run, None));
        let words = |case: Case| format!("{} {} {}", case.job(), case.fault, case.options());
        assert!(draw(7).map(words).eq(draw(7).map(words)));
        assert!(!draw(7).map(words).eq(draw(8).map(words)));
        let kinds: BTreeSet<FaultKind> = draw(7).map(|case| case.fault.kind).collect();
        assert_eq!(kinds.len(), 1 + FAULTS.len());
        let healthy = draw(7).filter(|case| case.fault.kind == FaultKind::None).count();
        assert!((70..130).contains(&healthy), "a quarter: {healthy}");
        for case in draw(7) {
            assert!(
                case.truth().ranks.iter().all(|rank| (0..i64::from(case.ranks)).contains(rank)),
                "{case:?}"
            );
            let of_file = matches!(
                case.fault.kind,
                FaultKind::Gpu | FaultKind::Host | FaultKind::Pause | FaultKind::Stage
            );
            assert_eq!(case.lines().is_empty(), !of_file, "{case:?}");
            assert!((0.0..=150.0).contains(&case.fault.percent), "{case:?}");
        }
    }

    #[test]
    fn a_slow_link_takes_as_long_as_was_put_in() {
        let case = Case {
            ranks: 4,
            bytes: 16_384,
            collectives: 2,
            compute_ms: 20.0,
            fault: Fault { kind: FaultKind::Link, rank: 3, percent: 10.0, every: 3 },
            ..Case::draw(1, 0, Some(FaultKind::Link))
        };
        // 49,152 bytes in 2 ms, 4 KiB of them at once.
        assert_eq!(case.kilobits(), 180_224);
        assert_eq!(
            case.truth(),
            Truth { kind: "link", ranks: BTreeSet::from([3]), peer: Some(0), also: None }
        );
    }
}
