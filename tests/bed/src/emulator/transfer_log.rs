//! What went through the slots, as a truth for tests that is independent of NCCL's own log.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;

use serde::Serialize;

use super::connection::Direction;
use crate::runtime::lock;

/// As many sizes are listed.
const MAX_SIZES: usize = 4096;

/// What one operation moved through one direction of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Transfer {
    peer: usize,
    conn_index: usize,
    direction: Direction,
    messages: u64,
    bytes: u64,
    wire_bytes: u64,
    sizes: Vec<usize>,
}

impl Transfer {
    pub(crate) fn new(peer: usize, conn_index: usize, direction: Direction) -> Self {
        Self { peer, conn_index, direction, messages: 0, bytes: 0, wire_bytes: 0, sizes: Vec::new() }
    }

    /// An empty transfer on the same connection.
    pub(crate) fn like(&self) -> Self {
        Self::new(self.peer, self.conn_index, self.direction)
    }

    /// Something went through.
    pub(crate) fn is_used(&self) -> bool {
        self.messages > 0
    }

    /// A message of `bytes` payload that takes `wire_bytes` of its slot.
    pub(crate) fn message(&mut self, bytes: usize, wire_bytes: usize) {
        self.messages += 1;
        self.bytes += bytes as u64;
        self.wire_bytes += wire_bytes as u64;
        if self.sizes.len() <= MAX_SIZES {
            self.sizes.push(bytes);
        }
    }
}

/// A line of the log.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line {
    comm_hash: String,
    rank: i32,
    /// Number of the kernel launch on this communicator and rank.
    launch: u64,
    /// Number of the operation in the launch.
    op: usize,
    func: String,
    algo: &'static str,
    proto: &'static str,
    channel: usize,
    peer: usize,
    direction: &'static str,
    conn_index: usize,
    messages: u64,
    /// Payload.
    bytes: u64,
    /// With the flags of LL and LL128.
    wire_bytes: u64,
    /// Payload of each message in order, where there are not too many.
    #[serde(skip_serializing_if = "Option::is_none")]
    sizes: Option<Vec<usize>>,
}

/// An operation of a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpName {
    pub(crate) op: usize,
    pub(crate) channel: usize,
    pub(crate) func: &'static str,
    pub(crate) algo: &'static str,
    pub(crate) proto: &'static str,
}

/// A launch, for the lines that it makes.
#[derive(Debug, Clone)]
pub(crate) struct LaunchName {
    pub(crate) comm_hash: String,
    pub(crate) rank: i32,
    pub(crate) launch: u64,
}

impl LaunchName {
    pub(crate) fn line(&self, name: OpName, transfer: Transfer) -> Line {
        let listed = transfer.sizes.len() <= MAX_SIZES;
        Line {
            comm_hash: self.comm_hash.clone(),
            rank: self.rank,
            launch: self.launch,
            op: name.op,
            func: name.func.to_owned(),
            algo: name.algo,
            proto: name.proto,
            channel: name.channel,
            peer: transfer.peer,
            direction: match transfer.direction {
                Direction::Send => "send",
                Direction::Recv => "recv",
            },
            conn_index: transfer.conn_index,
            messages: transfer.messages,
            bytes: transfer.bytes,
            wire_bytes: transfer.wire_bytes,
            sizes: listed.then_some(transfer.sizes),
        }
    }
}

/// The files, one for each rank.
#[derive(Debug)]
pub(crate) struct TransferLog {
    path: Option<PathBuf>,
    files: Mutex<HashMap<i32, File>>,
}

impl TransferLog {
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        Self { path, files: Mutex::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.path.is_some()
    }

    /// Writes the lines of a kernel that has ended.
    pub(crate) fn write(&self, rank: i32, lines: &[Line]) {
        let Some(path) = &self.path else { return };
        let mut text = String::new();
        for line in lines {
            match serde_json::to_string(line) {
                Ok(line) => {
                    text.push_str(&line);
                    text.push('\n');
                }
                Err(error) => crate::say(&format!("transfer log: {error}")),
            }
        }
        let mut files = lock(&self.files);
        let result = match files.entry(rank) {
            std::collections::hash_map::Entry::Occupied(file) => file.into_mut().write_all(text.as_bytes()),
            std::collections::hash_map::Entry::Vacant(place) => {
                let mut name = path.clone().into_os_string();
                name.push(format!(".rank{rank}"));
                File::create(name).and_then(|file| place.insert(file).write_all(text.as_bytes()))
            }
        };
        if let Err(error) = result {
            crate::say(&format!("transfer log: {error}"));
        }
    }
}
