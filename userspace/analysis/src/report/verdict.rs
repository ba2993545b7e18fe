//! The verdict in one sentence: the worst finding of `check`.

use flow::schema::Outcome;

use super::data::{FindingData, Level, VerdictData};
use crate::check::{CheckReport, CommunicatorCheck, Finding, FindingKind};

/// Most findings on the page.
const MAX_FINDINGS: usize = 500;

/// Returns the severity of a finding; lower numbers are worse.
fn severity(kind: FindingKind) -> (u8, Level) {
    match kind {
        FindingKind::MissingJoin => (0, Level::Fault),
        FindingKind::CollectiveMismatch => (1, Level::Fault),
        FindingKind::OrderMismatch => (2, Level::Fault),
        FindingKind::MissingOp => (3, Level::Fault),
        FindingKind::SizeMismatch => (4, Level::Fault),
        FindingKind::UnmatchedSend | FindingKind::UnmatchedRecv => (5, Level::Fault),
        FindingKind::Slowest => (6, Level::Slow),
        FindingKind::MeasuredOtherwise => (7, Level::Fault),
        FindingKind::Unfinished => (8, Level::Open),
        FindingKind::TwoRecordings => (9, Level::Open),
    }
}

/// Coverage of the recordings, which also bears on the verdict.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Number of ranks of all communicators, and of those that were recorded.
    pub(super) ranks: u64,
    pub(super) recorded: u64,
    pub(super) ops: u64,
    pub(super) calls: u64,
    /// Set if records are missing.
    pub(super) has_losses: bool,
}

/// Makes the verdict. `comm` returns the number on the page of the communicator with a name.
pub(super) fn verdict(report: &CheckReport, seen: Seen, comm: &dyn Fn(&str) -> Option<usize>) -> VerdictData {
    let mut found: Vec<(&CommunicatorCheck, &Finding)> = Vec::new();
    for check in &report.communicators {
        found.extend(check.findings.iter().map(|finding| (check, finding)));
    }
    found.sort_by_key(|(_, finding)| severity(finding.kind).0);
    let several = report.communicators.len() > 1;
    let is_fault = |kind: FindingKind| !matches!(kind, FindingKind::Unfinished | FindingKind::TwoRecordings);
    let (level, sentence, ranks) = match found.first() {
        Some((check, finding)) if is_fault(finding.kind) => {
            let mut text = capitalized(&finding.text);
            if several {
                text = format!("{text}, in communicator {}", check.communicator);
            }
            let number = comm(&check.communicator);
            let ranks = finding.ranks.iter().filter_map(|rank| Some((number?, *rank))).collect();
            (severity(finding.kind).1, text + ".", ranks)
        }
        first => {
            let (level, mut text) = nothing_found(report, seen);
            if first.is_some() {
                text.push_str(" But not everything is known: see below.");
            }
            (if first.is_some() { Level::Open } else { level }, text, Vec::new())
        }
    };
    let mut notes = report.notes.clone();
    let more = found.len().saturating_sub(MAX_FINDINGS);
    if more > 0 {
        notes.push(format!("{more} more findings are not listed here: `ncclflow check` has them"));
    }
    let finding = |(check, finding): &(&CommunicatorCheck, &Finding)| FindingData {
        comm: comm(&check.communicator),
        window: check.window.clone(),
        kind: serde_json::to_value(finding.kind).unwrap_or_default(),
        text: capitalized(&finding.text) + ".",
        ranks: finding.ranks.clone(),
    };
    let findings = found.iter().take(MAX_FINDINGS).map(finding).collect();
    VerdictData { level, sentence, ranks, findings, notes }
}

fn nothing_found(report: &CheckReport, seen: Seen) -> (Level, String) {
    let Seen { ranks, recorded, ops, calls, has_losses } = seen;
    if ops == 0 {
        let what = match calls {
            0 => "nothing of NCCL was recorded in the part that was chosen",
            _ => "only API calls were recorded, which are not compared (record with --level flow or steps)",
        };
        return (Level::Unknown, format!("No verdict: {what}."));
    }
    let collectives: u64 = report.communicators.iter().map(|check| check.collectives).sum();
    let is_measured = report.communicators.iter().any(|check| check.verdict.messages > 0);
    let is_cut = report.communicators.iter().any(|check| check.measured.contains_key(&Outcome::RecordsLost));
    let waits = if is_measured {
        "no rank and no link stands out"
    } else {
        "who waits for whom was not measured (record with --level steps)"
    };
    let whole = recorded >= ranks;
    let who = if whole {
        format!("all {recorded} ranks")
    } else {
        format!("the {recorded} of {ranks} ranks that were recorded")
    };
    let lost = if has_losses || is_cut { "; some records were lost" } else { "" };
    let level = if whole && is_measured && lost.is_empty() && report.notes.is_empty() {
        Level::Good
    } else {
        Level::Open
    };
    let comms = report.communicators.len();
    let what = match comms {
        1 => format!("{collectives} collectives"),
        _ => format!("{collectives} collectives of {comms} communicators"),
    };
    (level, format!("No fault was found: {who} agree on {what}; {waits}{lost}."))
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
