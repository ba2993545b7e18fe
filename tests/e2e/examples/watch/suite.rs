//! Each kind so many times, each time on the next library, with `ncclflow watch` beside it from before the fault on.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, bail};
use ncclflow_e2e::harness::{
    hangs::{Expected, Given, Kind, Trial, Tried, try_each},
    watcher::Watcher,
};
use serde_json::Value;
use test_support::eventually;

/// Of a hundred trials, so many have to be right.
const RIGHT: usize = 97;
/// Time from the moment at which the job stands, and is watched, to the alert: ten seconds, as iterations are shorter than
/// two, and three more.
const IN_TIME: Duration = Duration::from_secs(13);
/// Time after which there is no alert: machines that are busy are late.
const PATIENCE: Duration = Duration::from_secs(90);
/// Time for which nothing may be said where nothing is wrong, or nothing tells what.
const QUIET: Duration = Duration::from_secs(30);
/// Kinds that may go on, once in some seconds: a rank with a thousandth of a processor. What moves is no `hang`, and `slower`
/// tells of it where it knows five minutes of the job's past.
const MAY_MOVE: [&str; 2] = ["starved", "starved-sockets"];
/// Time for which no second alert may begin.
const NO_SECOND: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Right,
    /// Right, and later than it should be.
    Late,
    /// No alert of one that is to be seen.
    Missed,
    /// An alert where there is none, or a second one.
    False,
    WrongCulprit,
    /// It began, and did not end when the job did.
    NoEnd,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    times: usize,
    right: usize,
    late: usize,
    missed: usize,
    wrong: usize,
    /// Seconds until each alert that was right.
    seconds: Vec<f64>,
}

pub(super) fn run(kinds: &[&'static Kind], times: usize, at_once: usize, out: &Path) -> bool {
    let Tried { by_kind, failures } =
        try_each(kinds, times, at_once, |kind, version| try_one(kind, version, out));
    let passed = table(kinds, &by_kind);
    for failure in &failures {
        println!("could not be made: {failure}");
    }
    passed && failures.is_empty()
}

fn try_one(kind: &'static Kind, version: &str, out: &Path) -> Result<(Outcome, Option<f64>)> {
    let started = Trial::start_beside(kind, version, |job, gpus| {
        let pids = job.bed.ready.pids.iter().enumerate();
        // A rank that is killed was watched before.
        let given = pids.filter(|(rank, _)| kind.given != Given::Without(*rank) || kind.then.kills(*rank));
        let pids: Vec<String> = given.map(|(_, pid)| pid.to_string()).collect();
        let watcher =
            Watcher::start_with(&job.ncclflow, &format!("-p {}", pids.join(",")), &gpus.variables())?;
        Ok((watcher, now()))
    })?;
    let Some((trial, (watcher, watches))) = started else { bail!("something is missing; see above") };
    let (outcome, seconds) = judge(kind, &trial, &watcher, watches)?;
    let expects_alert = !watcher.begun_and_ended().0.is_empty();
    drop(trial);
    let has_ended = || {
        let (begun, ended) = watcher.begun_and_ended();
        begun.len() == ended.len()
    };
    let ends = !expects_alert || eventually(Duration::from_secs(60), has_ended);
    let outcome =
        if matches!(outcome, Outcome::Right | Outcome::Late) && !ends { Outcome::NoEnd } else { outcome };
    if outcome != Outcome::Right {
        let path = out.join(format!("{}.{version}.json", kind.name));
        fs::write(&path, serde_json::to_vec_pretty(&watcher.events())?)?;
        let said: Vec<String> = watcher
            .events()
            .iter()
            .map(|event| {
                format!(
                    "{} {} {} {}",
                    event["event"],
                    event["kind"],
                    ranks(event, "culprits"),
                    event["sentence"]
                )
            })
            .collect();
        let after = seconds.map_or_else(String::new, |seconds| format!(" after {seconds:.1} s"));
        println!("{}, {version}: {outcome:?}{after}: {}; {}", kind.name, said.join(" | "), path.display());
    }
    Ok((outcome, seconds))
}

fn judge(kind: &Kind, trial: &Trial, watcher: &Watcher, watches: Duration) -> Result<(Outcome, Option<f64>)> {
    let expected: Vec<&[u32]> = match kind.expected {
        Expected::Named { culprits, .. } => vec![culprits],
        Expected::Circle { first, second } => vec![first, second],
        Expected::Healthy | Expected::CannotTell => {
            thread::sleep(QUIET);
            let begun = watcher.begun_and_ended().0;
            // Counters tell that ranks wait, if not for whom.
            let is_right =
                |event: &Value| kind.expected == Expected::CannotTell && ranks(event, "culprits") == "[]";
            let outcome = if begun.iter().filter(|event| is_alert(event)).all(is_right) {
                Outcome::Right
            } else {
                Outcome::False
            };
            return Ok((outcome, None));
        }
    };
    let is_waiting = matches!(kind.expected, Expected::Named { state: "waiting", .. });
    let stands = if kind.moves { now() } else { trial.settle()? };
    let since = stands.max(watches);
    // What it does not see itself, on a machine that is too busy, is no word on the job.
    let begins = |event: &&Value| (event["kind"] == "waiting") == is_waiting && event["kind"] != "blind";
    let first = || watcher.begun_and_ended().0.iter().find(begins).cloned();
    if !eventually(PATIENCE, || first().is_some()) {
        let others = watcher.begun_and_ended().0;
        let outcome = match (others.is_empty(), MAY_MOVE.contains(&kind.name)) {
            (true, true) => Outcome::Right,
            (true, false) => Outcome::Missed,
            (false, _) => Outcome::False,
        };
        return Ok((outcome, None));
    }
    let Some(event) = first() else { bail!("an event is gone") };
    let at = Duration::from_nanos(event["unixTimeNs"].as_u64().unwrap_or_default());
    let seconds = at.saturating_sub(since);
    thread::sleep(NO_SECOND);
    let alerts = watcher.begun_and_ended().0.iter().filter(|event| is_alert(event)).count();
    let named = ranks(&event, "culprits");
    let outcome = if !expected.iter().any(|culprits| named == format!("{culprits:?}").replace(' ', "")) {
        Outcome::WrongCulprit
    } else if alerts > usize::from(!is_waiting) {
        Outcome::False
    } else if seconds > IN_TIME {
        Outcome::Late
    } else {
        Outcome::Right
    };
    Ok((outcome, Some(seconds.as_secs_f64())))
}

fn is_alert(event: &Value) -> bool {
    event["kind"] != "waiting" && event["kind"] != "blind"
}

/// The ranks of an event, `[1,2]`.
fn ranks(event: &Value, which: &str) -> String {
    let ranks = event[which].as_array().into_iter().flatten();
    let ranks: Vec<String> = ranks.map(|rank| rank["rank"].to_string()).collect();
    format!("[{}]", ranks.join(","))
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Counts {
    fn of(outcomes: &[(Outcome, Option<f64>)]) -> Self {
        let mut counts = Self::default();
        for (outcome, seconds) in outcomes {
            counts.add(*outcome, *seconds);
        }
        counts
    }

    fn add(&mut self, outcome: Outcome, seconds: Option<f64>) {
        self.times += 1;
        match outcome {
            Outcome::Right => self.right += 1,
            Outcome::Late => self.late += 1,
            Outcome::Missed => self.missed += 1,
            Outcome::False | Outcome::WrongCulprit | Outcome::NoEnd => self.wrong += 1,
        }
        self.seconds.extend(seconds);
    }
}

fn table(kinds: &[&'static Kind], outcomes: &BTreeMap<&str, Vec<(Outcome, Option<f64>)>>) -> bool {
    println!(
        "\n{:<28} {:<14} {:>5}  {:>5}  {:>4}  {:>6}  {:>5}  {:>8}",
        "kind", "over", "times", "right", "late", "missed", "wrong", "seconds"
    );
    let (mut all, mut right, mut late, mut wrong) = (0, 0, 0, 0);
    for kind in kinds {
        let count = Counts::of(outcomes.get(kind.name).map_or(&[], Vec::as_slice));
        let slowest = count.seconds.iter().copied().reduce(f64::max);
        println!(
            "{:<28} {:<14} {:>5}  {:>5}  {:>4}  {:>6}  {:>5}  {:>8}",
            kind.name,
            kind.over.name(),
            count.times,
            count.right,
            count.late,
            count.missed,
            count.wrong,
            slowest.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}")),
        );
        (all, right, late, wrong) =
            (all + count.times, right + count.right, late + count.late, wrong + count.wrong);
    }
    println!(
        "\n{} kinds; right and in time in {right} of {all} (at least {RIGHT} of 100 must be), right and later in {late}; \
         wrong: {wrong}",
        kinds.len()
    );
    right * 100 >= all * RIGHT
}
