//! What `tests/patterns` says of each op that it passed to the real `ncclProxySaveOp`: the calls that follow
//! from the graph that it made up, and that the library queued.

use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use crate::direction::Direction;
use crate::json_lines;

/// One op.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PatternOp {
    pub pattern: String,
    /// `None` where the version's ops do not say.
    pub coll: Option<String>,
    pub coll_api: Option<String>,
    pub channel: u32,
    pub root: i32,
    /// Final if it was posted.
    pub op_count: u64,
    pub posted: bool,
    pub slice_steps: u64,
    pub chunk_steps: u64,
    pub ranks: i32,
    pub calls: Vec<PatternCall>,
}

/// One call of `SaveProxy`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PatternCall {
    pub sends: bool,
    pub peer: i32,
    pub conn_index: i32,
    pub nsteps: Option<u64>,
    pub proxy: bool,
    /// `None`: each message has its own.
    pub stage: Option<String>,
}

impl PatternCall {
    pub fn direction(&self) -> Direction {
        if self.sends { Direction::Send } else { Direction::Recv }
    }
}

/// Every op, in the order of the calls.
pub fn read(path: &Path) -> Result<Vec<PatternOp>> {
    json_lines::read(path)
}
