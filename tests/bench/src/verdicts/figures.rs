//! Verdicts beside the truth: how often they are right, with the range in which that can lie by chance.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{answer::accuses, draw::Truth, trial::Trial};
use crate::table::Table;

/// Faults below are beneath what a verdict is asked for: how large a fault is, and its name.
const SIZES: [(f64, &str); 4] =
    [(2.0, "< 2 %"), (5.0, "2 to 5 %"), (20.0, "5 to 20 %"), (f64::MAX, "> 20 %")];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Right,
    /// Nobody is accused, and a note has the right ranks and kind.
    Noted,
    /// The right ranks for a wrong reason.
    OtherKind,
    /// Others than those who are slow.
    OtherRanks,
    /// Nobody is named, and somebody is slow.
    Missed,
    FalselyAccused,
}

/// A run, judged.
#[derive(Debug)]
pub(super) struct Judged {
    truth: &'static str,
    /// What the fault adds to an iteration, in percent of one without it: put in, or as it was measured.
    percent: f64,
    measured_percent: f64,
    size: &'static str,
    pub(super) outcome: Outcome,
    trial: Trial,
}

impl Judged {
    /// `put_in`: what the fault adds to an iteration, in percent of one without it, where that is known.
    pub(super) fn new(truth: &Truth, put_in: Option<f64>, trial: Trial) -> Self {
        let Truth { kind: truth, ranks, peer, also } = truth;
        let answer = &trial.answer;
        let is_true = |(kind, named): &(String, BTreeSet<i64>)| {
            kind == truth && named == ranks
                || also.as_ref().is_some_and(|also| kind == also.0 && *named == also.1)
        };
        let is_stray = answer.others.iter().any(|other| accuses(&other.0) && !is_true(other));
        let outcome = match (answer.accuses(), *truth) {
            (false, "nobody") if !is_stray => Outcome::Right,
            (_, "nobody") => Outcome::FalselyAccused,
            _ if is_stray => Outcome::OtherRanks,
            (false, kind) if answer.notes.iter().any(|note| note.0 == kind && note.1 == *ranks) => {
                Outcome::Noted
            }
            (false, _) => Outcome::Missed,
            _ if answer.ranks != *ranks => Outcome::OtherRanks,
            _ if answer.kind != *truth || answer.peer != *peer => Outcome::OtherKind,
            _ => Outcome::Right,
        };
        let measured_percent = 100.0 * (trial.iteration_ms / trial.healthy_ms - 1.0);
        let percent = put_in.unwrap_or(measured_percent);
        let size = SIZES.iter().find(|(below, _)| percent < *below).map_or("> 20 %", |(_, name)| name);
        Self { truth: *truth, percent, measured_percent, size, outcome, trial }
    }

    /// What a run's line says besides the case.
    pub(super) fn cells(&self) -> [(&'static str, Value); 6] {
        [
            ("iteration_ms", json!(self.trial.iteration_ms)),
            ("percent", json!(self.percent)),
            ("measured", json!(self.measured_percent)),
            ("said", json!(self.trial.answer.words())),
            ("outcome", json!(format!("{:?}", self.outcome))),
            ("confidence", json!(self.trial.answer.confidence)),
        ]
    }

    /// The same of a run that came to nothing.
    pub(super) fn no_cells(why: &str) -> [(&'static str, Value); 6] {
        [
            ("iteration_ms", Value::Null),
            ("percent", Value::Null),
            ("measured", Value::Null),
            ("said", Value::Null),
            ("outcome", json!(why)),
            ("confidence", Value::Null),
        ]
    }
}

/// Number of runs without a fault.
pub(super) fn healthy(judged: &[Judged]) -> usize {
    judged.iter().filter(|one| one.truth == "nobody").count()
}

/// Of those who were named, how many were it.
pub(super) fn precision(judged: &[Judged]) -> Value {
    let accused: Vec<&Judged> = judged.iter().filter(|one| one.trial.answer.accuses()).collect();
    let mut table = Table::default();
    for kind in ["gpu", "host", "link", "stage", "all"] {
        let of_kind = || accused.iter().filter(|one| kind == "all" || one.trial.answer.kind == kind);
        let right = of_kind().filter(|one| one.outcome == Outcome::Right).count();
        table.add(row("precision", kind, "", right, of_kind().count()));
    }
    table.into_json()
}

/// Of those who were named with a confidence, how many were it.
pub(super) fn calibration(judged: &[Judged]) -> Value {
    let mut by_confidence: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for one in judged.iter().filter(|one| one.trial.answer.accuses()) {
        let Some(confidence) = one.trial.answer.confidence else { continue };
        let (right, of) = by_confidence.entry(percent_of(confidence)).or_default();
        *right += usize::from(one.outcome == Outcome::Right);
        *of += 1;
    }
    let mut table = Table::default();
    for (percent, (right, of)) in by_confidence {
        table.add(row("confidence", &format!("{percent} %"), "", right, of));
    }
    table.into_json()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100")]
fn percent_of(part: f64) -> u64 {
    (part.clamp(0.0, 1.0) * 100.0).round() as u64
}

/// Of the faults, how many were named.
pub(super) fn recall(judged: &[Judged]) -> Value {
    let mut table = Table::default();
    for kind in ["gpu", "host", "link", "stage", "nobody", "all"] {
        for (_, size) in SIZES {
            let is_all = |one: &&Judged| kind == "all" && one.truth != "nobody";
            let of_kind =
                || judged.iter().filter(|one| (one.truth == kind || is_all(one)) && one.size == size);
            let right =
                of_kind().filter(|one| matches!(one.outcome, Outcome::Right | Outcome::Noted)).count();
            if of_kind().count() > 0 {
                table.add(row("recall", kind, size, right, of_kind().count()));
            }
        }
    }
    table.into_json()
}

fn row<'a>(what: &'a str, kind: &str, size: &str, right: usize, of: usize) -> [(&'a str, Value); 6] {
    let (least, most) = wilson(right, of);
    [
        (what, json!(kind)),
        ("size", json!(size)),
        ("runs", json!(of)),
        ("right", json!(right)),
        ("from_percent", json!(100.0 * least)),
        ("to_percent", json!(100.0 * most)),
    ]
}

/// How often each kind of fault was answered with each kind of verdict.
pub(super) fn confusion(judged: &[Judged]) -> Value {
    let mut by_truth: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for one in judged {
        *by_truth.entry(one.truth).or_default().entry(&one.trial.answer.kind).or_default() += 1;
    }
    let mut table = Table::default();
    for (truth, said) in &by_truth {
        let kinds = ["gpu", "host", "link", "stage", "all", "outside", "nobody", "unknown"];
        let counts = kinds.map(|kind| (kind, json!(said.get(kind).copied().unwrap_or(0))));
        table.add([("truth", json!(truth))].into_iter().chain(counts));
    }
    table.into_json()
}

/// Wilson's interval of 95 % for the share of which `right` of `of` were seen.
#[expect(clippy::cast_precision_loss, reason = "numbers of runs")]
fn wilson(right: usize, of: usize) -> (f64, f64) {
    const Z: f64 = 1.96;
    if of == 0 {
        return (0.0, 1.0);
    }
    let (n, share) = (of as f64, right as f64 / of as f64);
    let middle = share + Z * Z / (2.0 * n);
    let half = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    (((middle - half) / scale).max(0.0), ((middle + half) / scale).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            answer::Answer,
            draw::{Case, FaultKind},
        },
        *,
    };

    #[test]
    fn intervals_are_those_of_the_textbook() {
        let percent = |right, of| {
            let (least, most) = wilson(right, of);
            format!("{:.1} {:.1}", 100.0 * least, 100.0 * most)
        };
        assert_eq!(percent(0, 10), "0.0 27.8");
        assert_eq!(percent(97, 100), "91.5 99.0");
        assert_eq!(percent(10, 10), "72.2 100.0");
        assert_eq!(percent(0, 0), "0.0 100.0");
    }

    fn run(kind: FaultKind, said: &str) -> Judged {
        let mut case = Case::draw(1, 0, Some(kind));
        (case.ranks, case.fault.rank) = (4, 2);
        let slow: Value = serde_json::from_str(said).unwrap();
        let answer = Answer::read(&json!({ "slow": slow }));
        Judged::new(&case.truth(), None, Trial { answer, healthy_ms: 20.0, iteration_ms: 21.0 })
    }

    fn judged(kind: FaultKind, said: &str) -> Outcome {
        run(kind, said).outcome
    }

    #[test]
    fn stated_confidence_stands_beside_what_came_of_it() {
        let said = |rank, confidence| {
            format!(r#"{{ "kind": "gpu", "ranks": [{rank}], "confidence": {confidence} }}"#)
        };
        let runs = [
            run(FaultKind::Gpu, &said(2, 0.95)),
            run(FaultKind::Gpu, &said(1, 0.95)),
            run(FaultKind::Gpu, &said(2, 0.7)),
            run(FaultKind::None, r#"{ "kind": "nobody", "ranks": [] }"#),
        ];
        let table = calibration(&runs);
        let rows: Vec<_> = table.as_array().unwrap().iter().collect();
        let of = |at: usize| (&rows[at]["confidence"], &rows[at]["right"], &rows[at]["runs"]);
        assert_eq!(of(0), (&json!("70 %"), &json!(1), &json!(1)));
        assert_eq!(of(1), (&json!("95 %"), &json!(1), &json!(2)));
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn a_verdict_is_right_if_kind_and_ranks_are() {
        let gpu = r#"{ "kind": "gpu", "ranks": [2] }"#;
        assert_eq!(judged(FaultKind::Gpu, gpu), Outcome::Right);
        assert_eq!(judged(FaultKind::Host, gpu), Outcome::OtherKind);
        assert_eq!(judged(FaultKind::Stage, gpu), Outcome::OtherRanks);
        assert_eq!(judged(FaultKind::None, gpu), Outcome::FalselyAccused);
        assert_eq!(judged(FaultKind::Gpu, r#"{ "kind": "nobody", "ranks": [] }"#), Outcome::Missed);
        let note = r#"{ "kind": "nobody", "ranks": [], "others": [{ "kind": "gpu", "ranks": [2], "isNote": true }] }"#;
        let also = |rank| {
            format!(
                r#"{{ "kind": "gpu", "ranks": [2], "others": [{{ "kind": "host", "ranks": [{rank}] }}] }}"#
            )
        };
        assert_eq!(judged(FaultKind::Two, gpu), Outcome::Right);
        assert_eq!(judged(FaultKind::Two, &also(3)), Outcome::Right);
        assert_eq!(judged(FaultKind::Two, &also(1)), Outcome::OtherRanks);
        assert_eq!(judged(FaultKind::Gpu, &also(3)), Outcome::OtherRanks);
        assert_eq!(judged(FaultKind::Gpu, note), Outcome::Noted);
        assert_eq!(judged(FaultKind::Host, note), Outcome::Missed);
        assert_eq!(judged(FaultKind::None, note), Outcome::Right);
        assert_eq!(judged(FaultKind::None, r#"{ "kind": "unknown", "ranks": [] }"#), Outcome::Right);
        assert_eq!(judged(FaultKind::Stage, r#"{ "kind": "stage", "ranks": [3, 2] }"#), Outcome::Right);
        assert_eq!(judged(FaultKind::Link, r#"{ "kind": "link", "ranks": [2], "peer": 3 }"#), Outcome::Right);
        assert_eq!(
            judged(FaultKind::Link, r#"{ "kind": "link", "ranks": [2], "peer": 1 }"#),
            Outcome::OtherKind
        );
    }
}
