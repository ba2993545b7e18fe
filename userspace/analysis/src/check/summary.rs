//! `ncclflow summary`: the links of every rank of these folders.

use std::{collections::HashMap, path::PathBuf};

use anyhow::Result;
use serde::Serialize;

use flow::{
    schema::{ApiCall, LinkRow, MessageRow, MessageSums, Op, OpTimesRow, RankKey},
    statistics::RankLinks,
};

use super::{
    ownership::Claims,
    parts::parts,
    row_source::{FolderFacts, Gather, ReadingProgress, read_rows},
};
use crate::not_recorded::{how_to_measure, sampled};
use recording::sinks::Sink;

#[derive(Clone, Debug, Serialize)]
pub struct RankReport {
    /// The window, if a folder with windows was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// The folder of its recording.
    pub recording: String,
    pub communicator: String,
    pub rank: i32,
    pub links: Vec<LinkRow>,
    /// Ops with messages that were measured.
    pub ops: Vec<OpTimesRow>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct SummaryReport {
    pub ranks: Vec<RankReport>,
    /// Notes on what could not be read, or was not measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// How to measure messages that were not, if they can be.
    #[serde(skip)]
    pub(super) how_to_measure: Option<String>,
    /// A recording has calls of the API, and no ops.
    #[serde(skip)]
    pub(super) has_calls_only: bool,
}

/// Links of all folders of a part, while they are gathered.
#[derive(Debug)]
struct Summary {
    window: Option<String>,
    report: SummaryReport,
}

impl Gather for Summary {
    type Folder = FolderLinks;

    fn folder(&self, facts: FolderFacts) -> FolderLinks {
        let FolderFacts { path, claims, session, takes_calls, .. } = facts;
        FolderLinks {
            recording: path.display().to_string(),
            claims,
            sampled: sampled(&session),
            how_to_measure: how_to_measure(&session),
            takes_calls,
            has_calls_only: false,
            ranks: HashMap::new(),
        }
    }

    fn add(&mut self, folder: FolderLinks) -> bool {
        let FolderLinks { recording, claims, sampled, how_to_measure, has_calls_only, ranks, .. } = folder;
        let of_rank = |(key, mut links): (RankKey, RankLinks)| {
            let ops = links.ops();
            let window = self.window.clone();
            let (recording, communicator, links) = (recording.clone(), claims.name(key), links.rows());
            RankReport { window, recording, communicator, rank: key.rank, links, ops }
        };
        let mut ranks: Vec<RankReport> = ranks.into_iter().map(of_rank).collect();
        ranks.sort_by(|a, b| (&a.communicator, a.rank).cmp(&(&b.communicator, b.rank)));
        let report = &mut self.report;
        if let Some(options) = sampled {
            let links = || ranks.iter().flat_map(|rank| &rank.links);
            let messages: u64 = links().map(|link| link.messages).sum();
            let measured: u64 = links().map(|link| link.messages_measured).sum();
            let mut note = format!("{recording}: {options} measured {measured} of {messages} messages");
            if measured > 0 {
                note += ": bandwidth, times and waits are those of these, MESSAGES and BYTES those of all";
            }
            report.notes.push(note);
        }
        report.how_to_measure = report.how_to_measure.take().or(how_to_measure);
        report.has_calls_only |= has_calls_only;
        report.ranks.append(&mut ranks);
        true
    }
}

/// Links of a folder, by rank.
#[derive(Debug)]
struct FolderLinks {
    recording: String,
    claims: Claims,
    /// Options that chose the ops that were measured.
    sampled: Option<String>,
    how_to_measure: Option<String>,
    takes_calls: bool,
    has_calls_only: bool,
    ranks: HashMap<RankKey, RankLinks>,
}

impl Sink for FolderLinks {
    fn call(&mut self, _call: &ApiCall) {
        self.has_calls_only = self.takes_calls;
    }

    fn op(&mut self, op: &Op) {
        self.ranks.entry(op.rank).or_default();
    }

    fn wants_messages(&self, op: &Op) -> bool {
        op.row.has_measured_messages()
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        let links = self.ranks.entry(op.rank).or_default();
        for message in messages {
            links.add(message);
        }
    }

    fn wants_message_sums(&self, op: &Op) -> bool {
        !op.row.has_measured_messages()
    }

    fn message_sums(&mut self, op: &Op, sums: &[MessageSums]) {
        let links = self.ranks.entry(op.rank).or_default();
        for sums in sums {
            links.add_sums(sums);
        }
    }
}

/// Returns the links of all ranks of these folders, in the order of the folders.
///
/// # Errors
/// If a folder has no recording, or cannot be read.
pub fn summarize(dirs: &[PathBuf], progress: ReadingProgress<'_>) -> Result<SummaryReport> {
    let mut report = SummaryReport::default();
    for part in parts(dirs)? {
        let summary = Summary { window: part.windows.clone(), report };
        let said;
        (Summary { report, .. }, said) = read_rows(&part, summary, &mut *progress)?;
        report.notes.extend(said);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use flow::{made::rows::message_rows, model::Sampling, schema::Observed, session::SessionReport};

    use super::*;

    /// Of a recording in which some ops were measured, it is said of how many messages the times are.
    #[test]
    fn what_sampling_left_out_is_said() {
        let sampling = Some(Sampling { every: 10, ..Sampling::default() });
        let session = SessionReport { sampling, ..SessionReport::default() };
        let mut summary = Summary { window: None, report: SummaryReport::default() };
        let mut folder = summary.folder(FolderFacts::made("flows", session));
        let key = RankKey { hash: Some(7), instance: 0, rank: 0, pid: 1 };
        let mut rows = message_rows();
        rows.truncate(2);
        // One was measured to its end.
        (rows[0].t_slot_free_ns, rows[0].t_end_ns) = (Observed::Known(1000), Observed::Known(2000));
        rows[1].t_end_ns = Observed::Unknown;
        let links = folder.ranks.entry(key).or_default();
        for row in &rows {
            links.add(row);
        }
        assert!(summary.add(folder));
        let expected = "flows: --steps-every 10 measured 1 of 2 messages: bandwidth, times and waits are those of \
                        these, MESSAGES and BYTES those of all";
        assert_eq!(summary.report.notes, [expected]);
    }
}
