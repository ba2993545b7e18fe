//! The files of the NCCL Flow Extractor, for tools that read them: its keys and no others, a line for each
//! FIFO step, the slots' capacity in `bytes`, numbers for data types and reductions, and its layout of
//! `flow_rank`.
//!
//! The extractor knows only ops that need a proxy. It calls the first half of an all-reduce's steps
//! `reduce-scatter` (of a tree's `tree-up`) and the other half `allgather` (`tree-down`), however many loops
//! there are. Our own files are right; these have what the extractor's readers expect.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, BufWriter, Write as _},
};

use anyhow::{Context as _, Result};
use flow::{
    schema::{Op, PeerRow, RankKey},
    text::counts,
};
use nccl_library::nccl::{Direction, Pattern, Protocol};
use serde::Serialize;

use super::{
    bounded::get_or_make,
    run::Exported,
    view::{Row, View, ViewOptions, ensure_ops},
};
use crate::sources::Source;
use recording::sinks::{JsonLinesFile, OutputDir, Share};

/// Most ranks with files: two open files each.
const MAX_RANKS: usize = 4096;

/// Most steps of an op with one peer that are written: as many as messages in `flow_steps`.
const MAX_STEPS: u64 = 131_072;

#[derive(Debug)]
pub(super) struct Compat {
    dir: OutputDir,
    is_flat: bool,
    /// Files by folder and rank; the folder is empty where all files are in one.
    ranks: BTreeMap<(String, i32), RankFiles>,
    /// Set if a rank's lines are of more than one communicator.
    is_mixed: bool,
    steps_left_out: u64,
    /// Number of data types and reductions for which the extractor has no numbers.
    unknown_numbers: u64,
    ops_without_proxy: u64,
}

#[derive(Debug)]
struct RankFiles {
    first: RankKey,
    proxy_flow: JsonLinesFile,
    flow_steps: JsonLinesFile,
    /// The first line of `proxy_flow`.
    meta: String,
}

/// A line of `proxy_flow`, with the extractor's keys in its order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxyFlow<'a> {
    op_count: u64,
    rank: i32,
    channel: u32,
    nsteps: u64,
    nbytes: i64,
    chunk_size: u64,
    slice_steps: u64,
    chunk_steps: u64,
    dtype: u32,
    red_op: u32,
    pattern: Pattern,
    protocol: &'a Protocol,
    ring_prev: i32,
    ring_next: i32,
}

/// A line of `flow_steps`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FlowStep<'a> {
    op_count: u64,
    rank: i32,
    channel: u32,
    step: u64,
    op: Direction,
    peer: i32,
    bytes: i64,
    pattern: Pattern,
    protocol: &'a Protocol,
    stage: &'static str,
}

impl Compat {
    pub(super) fn new(dir: OutputDir, options: &ViewOptions) -> Self {
        Self {
            dir,
            is_flat: options.flat,
            ranks: BTreeMap::new(),
            is_mixed: false,
            steps_left_out: 0,
            unknown_numbers: 0,
            ops_without_proxy: 0,
        }
    }

    fn write(&mut self, op: &Op) -> Result<()> {
        let row = &op.row;
        let numbers = (data_type(row.dtype.as_deref()), reduction(row.red_op.as_deref()));
        self.unknown_numbers += u64::from(numbers.0.is_none()) + u64::from(numbers.1.is_none());
        let line = ProxyFlow {
            op_count: row.op_count,
            rank: row.rank,
            channel: row.channel,
            nsteps: row.nsteps,
            nbytes: row.nbytes,
            chunk_size: row.chunk_size,
            slice_steps: row.slice_steps,
            chunk_steps: row.chunk_steps,
            dtype: numbers.0.unwrap_or(UNKNOWN),
            red_op: numbers.1.unwrap_or(UNKNOWN),
            pattern: row.pattern,
            protocol: &row.protocol,
            ring_prev: row.ring_prev,
            ring_next: row.ring_next,
        };
        let line = serde_json::to_string(&line)?;
        let folder = if self.is_flat { String::new() } else { op.rank.comm_name() };
        let refusal = format_args!("there are files of {MAX_RANKS} ranks already");
        let files =
            get_or_make(&mut self.ranks, (folder, op.rank.rank), MAX_RANKS, refusal, |(folder, _)| {
                Ok(RankFiles::create(&folder_of(&self.dir, folder)?, op.rank, &line)?)
            })?;
        self.is_mixed |= (files.first.hash, files.first.instance) != (op.rank.hash, op.rank.instance);
        files.proxy_flow.push_text(&line)?;
        for peer in row.peers.iter().filter(|peer| peer.proxy && peer.peer >= 0) {
            self.steps_left_out += write_steps(op, peer, &mut files.flow_steps)?;
        }
        Ok(())
    }
}

/// Opens the folder of a rank's files.
fn folder_of(dir: &OutputDir, folder: &str) -> io::Result<OutputDir> {
    if folder.is_empty() { dir.try_clone() } else { dir.subfolder(folder) }
}

impl RankFiles {
    fn create(folder: &OutputDir, first: RankKey, meta: &str) -> io::Result<Self> {
        let file = |kind: &str| folder.create_file(&format!("{kind}_rank{}.jsonl", first.rank));
        Ok(Self {
            first,
            proxy_flow: JsonLinesFile::new(file("proxy_flow")?),
            flow_steps: JsonLinesFile::new(file("flow_steps")?),
            meta: meta.to_owned(),
        })
    }
}

/// Writes a line for each FIFO step. Returns the number of those that are too many.
fn write_steps(op: &Op, peer: &PeerRow, file: &mut JsonLinesFile) -> io::Result<u64> {
    let row = &op.row;
    let nsteps = peer.nsteps.unwrap_or(row.nsteps);
    for step in 0..nsteps.min(MAX_STEPS) {
        let line = FlowStep {
            op_count: row.op_count,
            rank: row.rank,
            channel: row.channel,
            step,
            op: peer.op,
            peer: peer.peer,
            bytes: row.nbytes,
            pattern: row.pattern,
            protocol: &row.protocol,
            stage: stage(row.pattern, step, nsteps),
        };
        file.push(|batch| serde_json::to_writer(batch, &line))?;
    }
    Ok(nsteps.saturating_sub(MAX_STEPS))
}

/// Returns the name of a stage, as the extractor has it.
fn stage(pattern: Pattern, step: u64, nsteps: u64) -> &'static str {
    let is_first_half = step < nsteps / 2;
    match pattern {
        Pattern::Ring => "ring",
        Pattern::RingTwice if is_first_half => "reduce-scatter",
        Pattern::RingTwice => "allgather",
        Pattern::PipelineFrom => "pipeline-from",
        Pattern::PipelineTo => "pipeline-to",
        Pattern::TreeUpDown if is_first_half => "tree-up",
        Pattern::TreeUp => "tree-up",
        Pattern::TreeUpDown | Pattern::TreeDown => "tree-down",
        Pattern::CollnetChain => "collnet-chain",
        Pattern::CollnetDirect => "collnet-direct",
        Pattern::Nvls => "nvls",
        Pattern::NvlsTree => "nvls-tree",
        _ => "generic",
    }
}

/// Number of a name that has none; in `ncclProxyOp` it is a byte, so no number is as large.
const UNKNOWN: u32 = 255;

/// Returns the number in `ncclDataType_t` of nccl.h, which has not moved since 2.10 (bfloat16) and was added
/// to in 2.24 (float8).
fn data_type(name: Option<&str>) -> Option<u32> {
    Some(match name? {
        "int8" | "char" => 0,
        "uint8" => 1,
        "int32" | "int" => 2,
        "uint32" => 3,
        "int64" => 4,
        "uint64" => 5,
        "float16" | "half" => 6,
        "float32" | "float" => 7,
        "float64" | "double" => 8,
        "bfloat16" => 9,
        "float8e4m3" => 10,
        "float8e5m2" => 11,
        _ => return None,
    })
}

/// Names by their numbers in `ncclRedOp_t` of nccl.h.
const REDUCTIONS: [&str; 5] = ["sum", "prod", "max", "min", "avg"];

fn reduction(name: Option<&str>) -> Option<u32> {
    let at = REDUCTIONS.iter().position(|known| Some(*known) == name)?;
    u32::try_from(at).ok()
}

impl View for Compat {
    fn begin(&mut self, _source: &Source) -> Result<()> {
        Ok(())
    }

    fn row(&mut self, row: Row<'_>) -> Result<()> {
        let Row::Op(op) = row else { return Ok(()) };
        if !op.row.needed {
            self.ops_without_proxy += 1;
            return Ok(());
        }
        if op.row.pattern.has_no_ops() {
            return Ok(()); // `SaveProxy` does not see it, and neither did the extractor
        }
        self.write(op).with_context(|| format!("writing rank {}", op.row.rank))
    }

    fn finish(&mut self, exported: &Exported) -> Result<Vec<String>> {
        ensure_ops(exported, "the NCCL Flow Extractor's files")?;
        for ((folder, rank), files) in &mut self.ranks {
            let context = || format!("writing the files of rank {rank}");
            files.proxy_flow.flush().with_context(context)?;
            files.flow_steps.flush().with_context(context)?;
            let dir = folder_of(&self.dir, folder)?;
            write_flow_rank(&dir, *rank, &files.meta).with_context(context)?;
        }
        let mixed = "files have lines of several communicators, as the extractor's do; --comm chooses one, without --flat each has a folder";
        let steps = format!("steps are left out: beyond {MAX_STEPS} of an op");
        let unknown = format!("data types or reductions have no number in nccl.h: {UNKNOWN} stands for them");
        let no_proxy = "ops need no proxy (NVLink, shared memory): the extractor does not know them, and they are left out";
        let left_out = [(self.steps_left_out, &*steps), (self.unknown_numbers, &*unknown)];
        let mixed = self.is_mixed.then(|| mixed.to_owned());
        Ok(counts([(self.ops_without_proxy, no_proxy)]).chain(mixed).chain(counts(left_out)).collect())
    }
}

/// Writes `flow_rank<r>.json` in the extractor's own layout: its readers can be line by line.
fn write_flow_rank(dir: &OutputDir, rank: i32, meta: &str) -> Result<()> {
    let steps = BufReader::new(dir.open_file(&format!("flow_steps_rank{rank}.jsonl"))?);
    let name = format!("flow_rank{rank}.json");
    dir.replace_file(Share::Free, &name, |file| {
        let mut out = BufWriter::new(file);
        write!(out, "{{\n  \"rank\": {rank},\n  \"meta\": {meta}\n  ,\n  \"steps\": [\n")?;
        for (number, line) in steps.lines().enumerate() {
            let line = line?;
            write!(out, "{}    {line}", if number == 0 { "" } else { ",\n" })?;
        }
        write!(out, "\n  ]\n}}\n")?;
        out.flush()
    })?;
    Ok(())
}
