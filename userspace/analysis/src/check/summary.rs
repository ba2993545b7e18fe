//! `ncclflow summary`: the links of every rank of these folders.

use std::{collections::HashMap, path::PathBuf};

use anyhow::Result;
use serde::Serialize;

use flow::{
    schema::{LinkRow, MessageRow, MessageSums, Op, OpTimesRow, RankKey},
    statistics::RankLinks,
};

use super::{
    ownership::Claims,
    parts::parts,
    row_source::{FolderFacts, Gather, ReadingProgress, read_rows},
};
use recording::sinks::Sink;

#[derive(Clone, Debug, Serialize)]
pub struct RankReport {
    /// The window, if a folder with windows was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    pub communicator: String,
    pub rank: i32,
    pub links: Vec<LinkRow>,
    /// Ops with messages that were measured.
    pub ops: Vec<OpTimesRow>,
}

#[derive(Clone, Debug, Serialize)]
pub struct SummaryReport {
    pub ranks: Vec<RankReport>,
    /// Notes on what could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Links of all folders of a part, while they are gathered.
#[derive(Debug)]
struct Summary {
    window: Option<String>,
    ranks: Vec<RankReport>,
}

impl Gather for Summary {
    type Folder = FolderLinks;

    fn folder(&self, facts: FolderFacts) -> FolderLinks {
        FolderLinks { claims: facts.claims, ranks: HashMap::new() }
    }

    fn add(&mut self, folder: FolderLinks) -> bool {
        let FolderLinks { claims, ranks } = folder;
        let of_rank = |(key, mut links): (RankKey, RankLinks)| {
            let ops = links.ops();
            let window = self.window.clone();
            RankReport { window, communicator: claims.name(key), rank: key.rank, links: links.rows(), ops }
        };
        let mut ranks: Vec<RankReport> = ranks.into_iter().map(of_rank).collect();
        ranks.sort_by(|a, b| (&a.communicator, a.rank).cmp(&(&b.communicator, b.rank)));
        self.ranks.append(&mut ranks);
        true
    }
}

/// Links of a folder, by rank.
#[derive(Debug)]
struct FolderLinks {
    claims: Claims,
    ranks: HashMap<RankKey, RankLinks>,
}

impl Sink for FolderLinks {
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
    let (mut ranks, mut notes) = (Vec::new(), Vec::new());
    for part in parts(dirs)? {
        let summary = Summary { window: part.windows.clone(), ranks };
        let said;
        (Summary { ranks, .. }, said) = read_rows(&part, summary, &mut *progress)?;
        notes.extend(said);
    }
    Ok(SummaryReport { ranks, notes })
}
