//! `ncclflow summary`: the links of every rank of these folders.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Result;
use serde::Serialize;

use flow::{
    schema::{LinkRow, MessageRow, MessageSums, OpRow, OpTimesRow},
    statistics::RankLinks,
};

use super::{
    parts::parts,
    rank_reader::FolderClock,
    row_source::{Gather, ReadingProgress, TakeRows, read_rows},
};

#[derive(Clone, Debug, Serialize)]
pub struct RankReport {
    /// The window, if a folder with windows was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    pub communicator: String,
    pub rank: i32,
    pub links: Vec<LinkRow>,
    /// Those with messages that were measured.
    pub ops: Vec<OpTimesRow>,
}

#[derive(Clone, Debug, Serialize)]
pub struct SummaryReport {
    pub ranks: Vec<RankReport>,
    /// What could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Links of all folders, while they are gathered.
#[derive(Debug, Default)]
struct Summary {
    ranks: Vec<RankReport>,
}

impl Gather for Summary {
    type Folder = Folder;

    fn folder(&self, _clock: Option<FolderClock>) -> Folder {
        Folder::default()
    }

    fn add(&mut self, mut folder: Folder) -> bool {
        for ((communicator, rank), at) in folder.ranks {
            let Some(links) = folder.links.get_mut(at) else { continue };
            let ops = links.ops();
            self.ranks.push(RankReport { window: None, communicator, rank, links: links.rows(), ops });
        }
        true
    }
}

/// Links of a folder, by rank.
#[derive(Debug, Default)]
struct Folder {
    ranks: BTreeMap<(String, i32), usize>,
    links: Vec<RankLinks>,
}

impl TakeRows for Folder {
    fn rank(&mut self, communicator: &str, rank: i32) -> Option<usize> {
        self.ranks.insert((communicator.to_owned(), rank), self.links.len());
        self.links.push(RankLinks::default());
        Some(self.links.len() - 1)
    }

    fn op(&mut self, _rank: usize, _row: &OpRow) {}

    fn wants_messages(&self, _rank: usize, row: &OpRow) -> bool {
        row.has_measured_messages()
    }

    fn wants_message_sums(&self, _rank: usize, row: &OpRow) -> bool {
        !row.has_measured_messages()
    }

    fn message_sums(&mut self, rank: usize, sums: &MessageSums) {
        if let Some(links) = self.links.get_mut(rank) {
            links.add_sums(sums);
        }
    }

    fn message(&mut self, rank: usize, row: &MessageRow) {
        if let Some(links) = self.links.get_mut(rank) {
            links.add(row);
        }
    }
}

/// The links of all ranks of these folders, in the order of the folders.
///
/// # Errors
/// If a folder has no recording and no files of lines, or cannot be read.
pub fn summarize(dirs: &[PathBuf], progress: ReadingProgress<'_>) -> Result<SummaryReport> {
    let (mut ranks, mut notes) = (Vec::new(), Vec::new());
    for part in parts(dirs)? {
        let (summary, said) = read_rows(&part, Summary::default(), &mut *progress)?;
        notes.extend(said);
        ranks.extend(
            summary.ranks.into_iter().map(|rank| RankReport { window: part.windows.clone(), ..rank }),
        );
    }
    Ok(SummaryReport { ranks, notes })
}
