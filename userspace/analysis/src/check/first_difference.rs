//! The first collective at which the ranks of a communicator differ, and the source lines that called it.

use std::collections::BTreeMap;

use flow::{
    schema::FrameRow,
    text::{joined, name_ranks},
};
use serde::Serialize;

use crate::code_lines::{place, users_line};

use super::{
    call::Call,
    call_lines::Lines,
    collectives::Difference,
    communicator_check::{Finding, FindingKind},
};

/// The first collective at which ranks differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FirstDifference {
    /// Number as in `proxy_flow`: twice the collective's number.
    pub seq: u64,
    /// Description in one sentence.
    pub text: String,
    /// Ranks that did the same at the same line, the smallest group first.
    pub groups: Vec<DifferingRanks>,
}

/// Ranks that did the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DifferingRanks {
    pub ranks: Vec<i32>,
    /// `function`, `count`, `datatype`, `redop`, `root`; null: they did not call it.
    call: Option<Call>,
    /// Number (`seq`) of the last collective before it, for ranks that did not call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seq: Option<u64>,
    /// Program line that called it, or the last collective before it; left out where no stack was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<FrameRow>,
    /// The whole stack, outermost first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<Vec<FrameRow>>,
}

/// Returns the first collective about which ranks differ by the findings, and ranks that have not called it.
pub(super) fn first(findings: &[Finding]) -> Option<(u64, Vec<i32>)> {
    let is_about_ranks = |finding: &&Finding| {
        matches!(
            finding.kind,
            FindingKind::CollectiveMismatch
                | FindingKind::OrderMismatch
                | FindingKind::MissingOp
                | FindingKind::MissingJoin
        )
    };
    let seq = findings.iter().filter(is_about_ranks).filter_map(|finding| finding.seq).min()?;
    let is_absent = |finding: &&Finding| {
        finding.seq == Some(seq) && matches!(finding.kind, FindingKind::MissingOp | FindingKind::MissingJoin)
    };
    let absent = findings.iter().filter(is_absent).flat_map(|finding| finding.ranks.clone()).collect();
    Some((seq / 2, absent))
}

/// Last collective of a rank that did not call the wanted one, and stack of its call, where known.
type WhereCalled = (Option<u64>, Option<Vec<FrameRow>>);

impl FirstDifference {
    /// Groups ranks by what they ran under this number, and by their known lines.
    pub(super) fn new(communicator: &str, difference: Difference, lines: &Lines) -> Self {
        let Difference { number, groups: called, .. } = difference;
        let mut groups: Vec<DifferingRanks> = Vec::new();
        for (call, ranks) in called {
            // Ranks by what their calls have in common: last collective (if they did not call this one), and
            // line.
            let mut alike: BTreeMap<WhereCalled, Vec<i32>> = BTreeMap::new();
            for rank in ranks {
                let line = lines.of(communicator, rank, call.is_some());
                let last = line.filter(|_| call.is_none()).map(|line| line.number * 2);
                let frames = line.and_then(|line| line.frames.clone());
                alike.entry((last, frames)).or_default().push(rank);
            }
            groups.extend(alike.into_iter().map(|((last_seq, frames), ranks)| DifferingRanks {
                ranks,
                call: call.clone(),
                last_seq,
                line: frames.as_deref().and_then(users_line).cloned(),
                frames,
            }));
        }
        groups.sort_by_key(|group| (group.ranks.len(), group.ranks.first().copied()));
        let text = sentence(number, &groups);
        Self { seq: number * 2, text, groups }
    }
}

/// `collective 5: rank 3 called AllGather at model.py:88, ranks 0-2 AllReduce at model.py:91`
fn sentence(number: u64, groups: &[DifferingRanks]) -> String {
    let calls: Vec<&Call> = groups.iter().filter_map(|group| group.call.as_ref()).collect();
    // Only the first has the verb.
    let mut verb = "called ";
    let parts = groups.iter().map(|group| {
        let what = match &group.call {
            Some(call) => std::mem::take(&mut verb).to_owned() + &words(call, &calls),
            None => "did not call it".to_owned(),
        };
        let at = group.line.as_ref().map_or_else(String::new, |line| format!(" at {}", place(line)));
        let whereabouts = match group.last_seq {
            Some(last) => format!(" (last called collective {}{at})", last / 2),
            None => at,
        };
        format!("{} {what}{whereabouts}", name_ranks(&group.ranks))
    });
    format!("collective {number}: {}", joined(parts, ", "))
}

/// Returns the function, with those arguments in which calls of this function differ.
fn words(call: &Call, calls: &[&Call]) -> String {
    let same = calls.iter().filter(|other| other.coll == call.coll);
    let same: Vec<[Option<String>; 4]> = same.map(|other| other.arguments()).collect();
    let mut words = vec![call.coll.to_string()];
    for (at, argument) in call.arguments().into_iter().enumerate() {
        words.extend(argument.filter(|words| same.iter().any(|other| other[at].as_ref() != Some(words))));
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::{super::call_lines::CallLine, *};

    fn call(coll: &str, count: u64) -> Call {
        let (dtype, red_op) = (Some("float32".into()), Some("sum".into()));
        Call { coll: coll.into(), count: Some(count), dtype, red_op, root: None }
    }

    fn frame(file: &str, line: u32) -> FrameRow {
        FrameRow { function: "f".to_owned(), file: Some(file.to_owned()), line: Some(line), module: None }
    }

    fn at(groups: Vec<(Option<Call>, Vec<i32>)>) -> Difference {
        Difference { number: 5, groups, ..Difference::default() }
    }

    const LIBRARY: &str = "/usr/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py";

    fn lines(lines: &[(i32, u64, u32)]) -> Lines {
        let mut known = Lines::default();
        for (rank, number, line) in lines {
            let frames =
                vec![frame("/home/u/main.py", 1), frame("/home/u/model.py", *line), frame(LIBRARY, 7)];
            let line = CallLine { number: *number, pid: 0, stack: None, frames: Some(frames) };
            known.ranks.entry(("0x7".to_owned(), *rank)).or_default().note(5, line);
        }
        known
    }

    #[test]
    fn each_group_has_its_line_and_the_fewest_come_first() {
        let groups =
            || vec![(Some(call("AllReduce", 10)), vec![0, 1, 2]), (Some(call("AllGather", 10)), vec![3])];
        let lines = lines(&[(0, 5, 91), (1, 5, 91), (2, 5, 91), (3, 5, 88)]);
        let found = FirstDifference::new("0x7", at(groups()), &lines);
        assert_eq!(
            found.text,
            "collective 5: rank 3 called AllGather at model.py:88, ranks 0-2 AllReduce at model.py:91"
        );
        assert_eq!((found.seq, found.groups[0].line.as_ref().unwrap().line), (10, Some(88)));
        let found = FirstDifference::new("0x7", at(groups()), &Lines::default());
        assert_eq!(found.text, "collective 5: rank 3 called AllGather, ranks 0-2 AllReduce");
    }

    #[test]
    fn of_equal_functions_what_differs_is_said() {
        let groups = vec![(Some(call("AllReduce", 10)), vec![0, 2]), (Some(call("AllReduce", 11)), vec![1])];
        let lines = lines(&[(0, 5, 91), (1, 5, 91), (2, 5, 93)]);
        let found = FirstDifference::new("0x7", at(groups), &lines);
        assert_eq!(
            found.text,
            "collective 5: rank 0 called AllReduce of 10 at model.py:91, rank 1 AllReduce of 11 at model.py:91, rank 2 AllReduce of 10 at model.py:93"
        );
    }

    #[test]
    fn a_rank_that_did_not_come_has_the_line_of_its_last_call() {
        let groups = || vec![(None, vec![1]), (Some(call("AllReduce", 10)), vec![0, 2])];
        let lines = lines(&[(0, 5, 91), (1, 4, 40), (2, 5, 91)]);
        let found = FirstDifference::new("0x7", at(groups()), &lines);
        assert_eq!(
            found.text,
            "collective 5: rank 1 did not call it (last called collective 4 at model.py:40), ranks 0, 2 called AllReduce at model.py:91"
        );
        let found = FirstDifference::new("0x7", at(groups()), &Lines::default());
        assert_eq!(found.text, "collective 5: rank 1 did not call it, ranks 0, 2 called AllReduce");
    }

    #[test]
    fn the_first_finding_about_ranks_counts() {
        let finding =
            |kind, seq, ranks: &[i32]| Finding { kind, seq, ranks: ranks.to_vec(), text: String::new() };
        let findings = [
            finding(FindingKind::MeasuredOtherwise, None, &[3]),
            finding(FindingKind::UnmatchedSend, Some(2), &[3]),
            finding(FindingKind::CollectiveMismatch, Some(12), &[2]),
            finding(FindingKind::MissingJoin, Some(10), &[1]),
        ];
        assert_eq!(first(&findings), Some((5, vec![1])));
        assert_eq!(first(&findings[..2]), None);
    }

    #[test]
    fn ranks_are_named_in_ranges() {
        assert_eq!(name_ranks(&[2, 0, 1, 7]), "ranks 0-2, 7");
    }
}
