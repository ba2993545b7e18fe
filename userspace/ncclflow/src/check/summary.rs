//! `ncclflow summary`: the links of every rank of these folders.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Result;
use serde::Serialize;

use flow::{
    schema::{ClockReport, LinkRow, MessageRow, OpRow, OpTimesRow},
    statistics::RankLinks,
};

use super::{
    parts::parts,
    row_source::{TakeRows, read_rows},
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

/// Links by rank, while they are gathered.
#[derive(Debug, Default)]
struct Summary {
    /// Which folder is read.
    folder: usize,
    ranks: BTreeMap<(usize, String, i32), usize>,
    links: Vec<RankLinks>,
}

impl TakeRows for Summary {
    fn begin(&mut self, _clock: Option<ClockReport>) {
        self.folder += 1;
    }

    fn rank(&mut self, communicator: &str, rank: i32) -> Option<usize> {
        self.ranks.insert((self.folder, communicator.to_owned(), rank), self.links.len());
        self.links.push(RankLinks::default());
        Some(self.links.len() - 1)
    }

    fn op(&mut self, _rank: usize, _row: &OpRow) {}

    fn message(&mut self, rank: usize, row: &MessageRow) {
        if let Some(links) = self.links.get_mut(rank) {
            links.add(row);
        }
    }
}

pub fn summarize(dirs: &[PathBuf]) -> Result<SummaryReport> {
    let (mut ranks, mut notes) = (Vec::new(), Vec::new());
    for part in parts(dirs)? {
        let (mut summary, said) = read_rows(&part, Summary::default())?;
        notes.extend(said);
        for ((_, communicator, rank), at) in summary.ranks {
            let Some(links) = summary.links.get_mut(at) else { continue };
            let (window, ops) = (part.windows.clone(), links.ops());
            ranks.push(RankReport { window, communicator, rank, links: links.rows(), ops });
        }
    }
    Ok(SummaryReport { ranks, notes })
}
