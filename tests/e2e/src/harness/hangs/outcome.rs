//! What a dump said, against what is so.

use super::kind::Expected;
use crate::harness::dumper::{Dump, DumpedCommunicator, Verdict};

/// How right a dump was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Culprits and kind.
    Right,
    /// The culprits, but not the kind, or the state or the exit code.
    OtherKind,
    CannotTell,
    /// It says that all is well.
    Missed,
    /// It names a rank, or a set of ranks, that is not the culprit.
    WrongCulprit,
}

/// Judges a dump. One of a job that has not come to rest can be [`Outcome::CannotTell`] or [`Outcome::Missed`], but never
/// [`Outcome::WrongCulprit`].
pub fn judge(expected: Expected, dump: &Dump) -> Outcome {
    let verdicts: Vec<&Verdict> =
        dump.communicators.iter().map(|communicator| &communicator.verdict).collect();
    let named: Vec<&Verdict> = verdicts.iter().copied().filter(|verdict| names(verdict)).collect();
    let outcome = match expected {
        Expected::Named { state, kinds, culprits } => of_named(&verdicts, &named, state, kinds, culprits),
        Expected::Circle { first, second } => {
            if named.iter().any(|verdict| verdict.culprits != first && verdict.culprits != second) {
                Outcome::WrongCulprit
            } else if named.len() < 2 {
                nobody(&verdicts)
            } else if named.iter().all(|verdict| verdict.state == "stuck")
                && named[0].culprits != named[1].culprits
            {
                Outcome::Right
            } else {
                Outcome::OtherKind
            }
        }
        Expected::Healthy => match nobody(&verdicts) {
            _ if !named.is_empty() => Outcome::WrongCulprit,
            Outcome::Missed => Outcome::Right,
            other => other,
        },
        Expected::CannotTell => match nobody(&verdicts) {
            _ if !named.is_empty() => Outcome::WrongCulprit,
            Outcome::CannotTell => Outcome::Right,
            other => other,
        },
    };
    let code = if outcome == Outcome::Right { expected.code() } else { dump.code.unwrap_or_default() };
    if dump.code == Some(code) { outcome } else { Outcome::OtherKind }
}

fn names(verdict: &Verdict) -> bool {
    verdict.state == "stuck" || verdict.state == "waiting"
}

/// Of verdicts none of which names anybody.
fn nobody(verdicts: &[&Verdict]) -> Outcome {
    let is_well = !verdicts.is_empty() && verdicts.iter().all(|verdict| verdict.state == "healthy");
    if is_well { Outcome::Missed } else { Outcome::CannotTell }
}

fn of_named(
    verdicts: &[&Verdict],
    named: &[&Verdict],
    state: &str,
    kinds: &[&str],
    culprits: &[u32],
) -> Outcome {
    if named.iter().any(|verdict| verdict.culprits != culprits) {
        return Outcome::WrongCulprit;
    }
    if named.is_empty() {
        return nobody(verdicts);
    }
    let is_it = |verdict: &&&Verdict| {
        verdict.state == state && verdict.kind.as_deref().is_some_and(|kind| kinds.contains(&kind))
    };
    // A communicator beside it can be one of which nothing is known.
    if named.iter().all(|verdict| is_it(&verdict)) { Outcome::Right } else { Outcome::OtherKind }
}

/// What was said, in a line.
pub fn summary(communicators: &[DumpedCommunicator]) -> String {
    let one = |communicator: &DumpedCommunicator| {
        let Verdict { state, kind, culprits, evidence, .. } = &communicator.verdict;
        let first = evidence.first().map_or("", String::as_str);
        format!("{state} {} {culprits:?}: {first}", kind.as_deref().unwrap_or("-"))
    };
    communicators.iter().map(one).collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected =
        Expected::Named { state: "stuck", kinds: &["notJoined", "stopped"], culprits: &[2] };

    fn dump(verdicts: &[(&str, Option<&str>, &[u32])], code: i32) -> Dump {
        let communicator = |(state, kind, culprits): &(&str, Option<&str>, &[u32])| DumpedCommunicator {
            comm_hash: String::new(),
            n_ranks: 4,
            ranks: Vec::new(),
            verdict: Verdict {
                state: (*state).to_owned(),
                kind: kind.map(str::to_owned),
                culprits: culprits.to_vec(),
                victims: Vec::new(),
                evidence: Vec::new(),
            },
        };
        Dump {
            code: Some(code),
            text: String::new(),
            communicators: verdicts.iter().map(communicator).collect(),
            job: crate::harness::dumper::DumpedJob::default(),
            said: String::new(),
        }
    }

    #[test]
    fn a_culprit_that_is_none_is_worse_than_another_kind_and_that_than_nothing() {
        let healthy = ("healthy", None, &[][..]);
        let judged = |verdicts: &[(&str, Option<&str>, &[u32])], code| judge(EXPECTED, &dump(verdicts, code));
        assert_eq!(judged(&[("stuck", Some("stopped"), &[2]), healthy], 3), Outcome::Right);
        assert_eq!(judged(&[("stuck", Some("gone"), &[2]), healthy], 3), Outcome::OtherKind);
        assert_eq!(judged(&[("waiting", Some("stopped"), &[2]), healthy], 5), Outcome::OtherKind);
        assert_eq!(judged(&[("stuck", Some("stopped"), &[2]), healthy], 4), Outcome::OtherKind, "exit code");
        assert_eq!(judged(&[("stuck", Some("stopped"), &[1, 2]), healthy], 3), Outcome::WrongCulprit);
        assert_eq!(
            judged(&[("stuck", Some("stopped"), &[2]), ("stuck", Some("stopped"), &[0])], 3),
            Outcome::WrongCulprit
        );
        assert_eq!(judged(&[("unknown", None, &[]), healthy], 4), Outcome::CannotTell);
        assert_eq!(judged(&[healthy], 0), Outcome::Missed);
        assert_eq!(judged(&[], 4), Outcome::CannotTell);
    }

    #[test]
    fn what_is_well_or_cannot_be_told_names_nobody() {
        let named = dump(&[("waiting", Some("computing"), &[1])], 5);
        let unknown = dump(&[("unknown", None, &[])], 4);
        let healthy = dump(&[("healthy", None, &[])], 0);
        for (expected, of_unknown, of_healthy) in [
            (Expected::Healthy, Outcome::CannotTell, Outcome::Right),
            (Expected::CannotTell, Outcome::Right, Outcome::Missed),
        ] {
            assert_eq!(judge(expected, &named), Outcome::WrongCulprit);
            assert_eq!(judge(expected, &unknown), of_unknown);
            assert_eq!(judge(expected, &healthy), of_healthy);
        }
    }

    #[test]
    fn a_circle_has_two_sides() {
        let expected = Expected::Circle { first: &[1], second: &[0, 2] };
        let (one, other) =
            (("stuck", Some("notJoined"), &[1][..]), ("stuck", Some("notJoined"), &[0, 2][..]));
        assert_eq!(judge(expected, &dump(&[one, other], 3)), Outcome::Right);
        assert_eq!(judge(expected, &dump(&[one, one], 3)), Outcome::OtherKind);
        assert_eq!(judge(expected, &dump(&[one, ("stuck", None, &[2])], 3)), Outcome::WrongCulprit);
    }
}
