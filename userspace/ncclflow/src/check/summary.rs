//! `ncclflow summary`: the links of every rank of these folders.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

use flow::{
    schema::{LinkRow, OpTimesRow},
    statistics::RankLinks,
};

use super::rank_reader::recordings;

#[derive(Clone, Debug, Serialize)]
pub struct RankReport {
    pub communicator: String,
    pub rank: i32,
    pub links: Vec<LinkRow>,
    /// Those with messages that were measured.
    pub ops: Vec<OpTimesRow>,
}

#[derive(Clone, Debug, Serialize)]
pub struct SummaryReport {
    pub ranks: Vec<RankReport>,
}

pub fn summarize(dirs: &[PathBuf]) -> Result<SummaryReport> {
    let mut ranks = Vec::new();
    for recording in recordings(dirs)? {
        for file in &recording.ranks {
            let mut links = RankLinks::default();
            file.steps(|line| links.add(&line))?;
            let ops = links.ops();
            ranks.push(RankReport {
                communicator: file.folder.clone(),
                rank: file.rank,
                links: links.rows(),
                ops,
            });
        }
    }
    Ok(SummaryReport { ranks })
}
