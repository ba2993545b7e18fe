//! Each kind so many times, each time on the next library, with one dump after the job has come to rest.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use ncclflow_e2e::harness::hangs::{Expected, Kind, Outcome, Trial, Tried, judge, summary, try_each};

use super::Kept;

/// Of a hundred trials whose kind can be told, so many have to name the culprit and the kind.
const RIGHT: usize = 95;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    times: usize,
    right_culprit: usize,
    right_kind: usize,
    cannot_tell: usize,
    wrong_culprit: usize,
    missed: usize,
}

impl Counts {
    fn of(kind: &Kind, outcomes: &[Outcome]) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            counts.add(kind.expected, *outcome);
        }
        counts
    }

    fn add(&mut self, expected: Expected, outcome: Outcome) {
        self.times += 1;
        match outcome {
            Outcome::Right if expected == Expected::CannotTell => self.cannot_tell += 1,
            Outcome::Right => {
                self.right_culprit += 1;
                self.right_kind += 1;
            }
            Outcome::OtherKind => self.right_culprit += 1,
            Outcome::CannotTell => self.cannot_tell += 1,
            Outcome::Missed => self.missed += 1,
            Outcome::WrongCulprit => self.wrong_culprit += 1,
        }
    }
}

pub(super) fn run(kinds: &[&'static Kind], times: usize, at_once: usize, kept: &Kept) -> bool {
    let Tried { by_kind, failures } =
        try_each(kinds, times, at_once, |kind, version| try_one(kind, version, kept));
    let passed = table(kinds, &by_kind);
    for failure in &failures {
        println!("could not be made: {failure}");
    }
    passed && failures.is_empty()
}

fn try_one(kind: &'static Kind, version: &str, kept: &Kept) -> Result<Outcome> {
    let Some(trial) = Trial::start(kind, version)? else { bail!("something is missing; see above") };
    trial.settle()?;
    let dump = trial.dump(&[])?;
    let outcome = judge(kind.expected, &dump);
    if outcome != Outcome::Right {
        let path = kept.keep(&format!("{}.{version}", kind.name), &dump)?;
        let said = summary(&dump.communicators);
        println!("{}, {version}: {outcome:?}: {said}; {}", kind.name, path.display());
    } else if !dump.text.contains(kind.says) {
        println!("{}, {version}: right, but it does not say `{}`", kind.name, kind.says);
    }
    Ok(outcome)
}

fn table(kinds: &[&'static Kind], outcomes: &BTreeMap<&str, Vec<Outcome>>) -> bool {
    println!("\n{:<22} {:<14} times  right culprit  right kind  cannot tell  wrong culprit", "kind", "over");
    let (mut told, mut right, mut wrong, mut unexplained) = (0, 0, 0, Vec::new());
    for kind in kinds {
        let count = Counts::of(kind, outcomes.get(kind.name).map_or(&[], Vec::as_slice));
        let is_told = kind.expected != Expected::CannotTell;
        println!(
            "{:<22} {:<14} {:>5}  {:>13}  {:>10}  {:>11}  {:>13}",
            kind.name,
            kind.over.name(),
            count.times,
            if is_told { count.right_culprit.to_string() } else { "-".to_owned() },
            if is_told { count.right_kind.to_string() } else { "-".to_owned() },
            count.cannot_tell,
            count.wrong_culprit,
        );
        wrong += count.wrong_culprit;
        if is_told {
            told += count.times;
            right += count.right_kind;
            if count.cannot_tell + count.missed > 0 {
                unexplained.push(kind.name);
            }
        }
    }
    println!(
        "\n{} kinds; culprit and kind are right in {right} of {told} (at least {RIGHT} of 100 must be); wrong culprits: \
         {wrong} (none may be)",
        kinds.len()
    );
    if !unexplained.is_empty() {
        println!(
            "cannot tell, or nothing seen, of kinds that can be told: {} (at most {} of 100 may be)",
            unexplained.join(", "),
            100 - RIGHT
        );
    }
    wrong == 0 && right * 100 >= told * RIGHT
}
