//! `flow_rank<r>.json`: the messages of a rank, and the same grouped by op.
//!
//! A rank's messages do not fit into memory: only the places of each op's lines in `flow_steps` are kept; the
//! lines are copied at the end.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write},
    ops::AddAssign,
};

use super::{
    budget::{Share, is_over_max_size},
    output_dir::OutputDir,
};
use flow::{
    schema::{MessageRow, Observed, OpRow},
    statistics::RankLinks,
};
use nccl_library::nccl::{Algorithm, Name, Pattern, Protocol};
use serde::Serialize;

/// Bytes of the largest `flow_steps` that a `flow_rank` is made of: it becomes more than twice as large, and
/// few readers take a JSON document of gigabytes.
pub(super) const MAX_FLOW_STEPS: u64 = 256 << 20;

/// Most ops of all ranks that are kept at a time. Ranks beyond that get no `flow_rank`.
const MAX_OPS: usize = 4 << 20;

/// Result of writing the `flow_rank` files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowRanks {
    pub written: u64,
    /// Ranks with too many messages.
    pub left_out: u64,
    /// Ranks whose file found no room under the limit of the folder.
    pub over_max_size: u64,
}

impl AddAssign for FlowRanks {
    fn add_assign(&mut self, other: Self) {
        let Self { written, left_out, over_max_size } = other;
        self.written += written;
        self.left_out += left_out;
        self.over_max_size += over_max_size;
    }
}

/// Head of an op, as its first channel has it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    seq: u64,
    op_count: u64,
    coll: Option<Name>,
    coll_api: Option<Name>,
    pattern: Pattern,
    protocol: Protocol,
    algorithm: Option<Algorithm>,
    posted: bool,
    channels: u64,
    /// Only where calls were recorded, too.
    #[serde(skip_serializing_if = "Observed::is_absent")]
    api_call: Observed<u64>,
}

#[derive(Debug)]
struct Op {
    head: Head,
    /// Byte ranges of the op's lines in `flow_steps`; adjacent ones are merged.
    ranges: Vec<(u64, u64)>,
}

/// Facts about a rank's lines, gathered while they are written.
#[derive(Debug, Default)]
pub(super) struct FlowRank {
    ops: Vec<Op>,
    by_seq: HashMap<u64, usize>,
    /// First line of `proxy_flow`.
    meta: Vec<u8>,
    links: RankLinks,
    /// Bytes of `flow_steps`.
    end: u64,
}

impl FlowRank {
    /// Returns the number of ops.
    pub(super) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Tells whether another op would be too much, where all ranks keep `ops_of_all`.
    pub(super) fn is_too_large(&self, ops_of_all: usize) -> bool {
        self.end > MAX_FLOW_STEPS || ops_of_all > MAX_OPS
    }

    /// Adds an op on a channel, whose line is in `proxy_flow`.
    pub(super) fn add_op(&mut self, row: &OpRow) -> serde_json::Result<()> {
        if self.meta.is_empty() {
            row.write_json(&mut self.meta)?;
        }
        if row.graph_launch.is_some() {
            // It has no steps, and the number of the captured op, whose channel it is not.
            return Ok(());
        }
        let Self { ops, by_seq, .. } = self;
        let at = *by_seq.entry(row.seq).or_insert_with(|| {
            let head = Head {
                seq: row.seq,
                op_count: row.op_count,
                coll: row.coll.clone(),
                coll_api: row.coll_api.clone(),
                pattern: row.pattern,
                protocol: row.protocol,
                algorithm: row.algorithm,
                posted: row.posted,
                channels: 0,
                api_call: row.api_call,
            };
            ops.push(Op { head, ranges: Vec::new() });
            ops.len() - 1
        });
        if let Some(op) = ops.get_mut(at) {
            op.head.channels += 1;
        }
        Ok(())
    }

    /// Adds a message, whose line is in `flow_steps` up to this byte.
    pub(super) fn add_message(&mut self, row: &MessageRow, end: u64) {
        let begin = std::mem::replace(&mut self.end, end);
        self.links.add(row);
        let op = self.by_seq.get(&row.seq).and_then(|at| self.ops.get_mut(*at));
        let Some(Op { ranges, .. }) = op else { return };
        match ranges.last_mut() {
            Some((_, last_end)) if *last_end == begin => *last_end = end,
            _ => ranges.push((begin, end)),
        }
    }

    /// Writes the file into the rank's folder. All lines are in `flow_steps`.
    pub(super) fn write(mut self, dir: &OutputDir, rank: i32) -> io::Result<FlowRanks> {
        let mut steps = dir.open_file(&format!("flow_steps_rank{rank}.jsonl"))?;
        let name = format!("flow_rank{rank}.json");
        match dir.replace_file(Share::Aggregates, &name, |file| self.write_to(file, rank, &mut steps)) {
            Ok(()) => Ok(FlowRanks { written: 1, ..FlowRanks::default() }),
            Err(error) if is_over_max_size(&error) => {
                Ok(FlowRanks { over_max_size: 1, ..FlowRanks::default() })
            }
            Err(error) => Err(error),
        }
    }

    fn write_to(&mut self, file: &mut impl Write, rank: i32, steps: &mut File) -> io::Result<()> {
        let mut out = BufWriter::new(file);
        write!(out, "{{\"rank\":{rank},\"meta\":")?;
        out.write_all(if self.meta.is_empty() { b"null" } else { &self.meta })?;
        out.write_all(b",\n\"steps\":[")?;
        copy_lines(&mut out, steps, &[(0, self.end)])?;
        out.write_all(b"],\n\"ops\":[")?;
        for (number, op) in self.ops.iter().enumerate() {
            out.write_all(if number == 0 { b"\n" } else { b",\n" })?;
            let head = serde_json::to_string(&op.head)?;
            write!(out, "{},", head.trim_end_matches('}'))?;
            // Only where messages were measured.
            if let Some(times) = self.links.op(op.head.seq) {
                write!(out, "\"times\":{},", serde_json::to_string(&times)?)?;
            }
            out.write_all(b"\"steps\":[")?;
            copy_lines(&mut out, steps, &op.ranges)?;
            out.write_all(b"]}")?;
        }
        write!(out, "],\n\"links\":{}}}", serde_json::to_string(&self.links.rows())?)?;
        out.write_all(b"\n")?;
        out.flush()
    }
}

/// Copies lines, with commas between them.
fn copy_lines(out: &mut impl Write, file: &mut File, ranges: &[(u64, u64)]) -> io::Result<()> {
    let mut first = true;
    for &(begin, end) in ranges {
        file.seek(SeekFrom::Start(begin))?;
        for line in BufReader::new((&mut *file).take(end - begin)).split(b'\n') {
            out.write_all(if first { b"\n" } else { b",\n" })?;
            out.write_all(&line?)?;
            first = false;
        }
    }
    Ok(())
}
