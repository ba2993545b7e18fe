//! `flow_rank<r>.json` out of the two JSON-lines files of a rank.
//!
//! A day's files do not fit into memory: only where each op's lines are is kept, and the lines are copied.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write},
};

use super::{
    budget::{Share, is_over_max_size},
    output_dir::OutputDir,
    output_file::OutputFile,
    read_lines::{each_line, for_each_line, for_each_rank, open_seekable},
};
use anyhow::{Context as _, Result};
use flow::{
    schema::{MessageRow, OpRow},
    statistics::RankLinks,
};

/// Larger `flow_steps` files are not aggregated when a recording ends: the aggregate has three times their
/// size, and few readers take a JSON document of gigabytes. `ncclflow aggregate` does it on request.
pub const MAX_AGGREGATED: u64 = 256 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aggregated {
    pub ranks: u64,
    pub ops: u64,
    pub steps: u64,
    /// Ranks left out because their `flow_steps` is larger than the caller wants.
    pub left_out: u64,
    /// Ranks left out because there is no room under the limit of the folder.
    pub over_max_size: u64,
    /// Last lines without an end, left out: the recording was killed, or still goes on.
    pub cut_lines: u64,
}

#[derive(Debug, Default)]
struct Op {
    /// Of its first channel.
    head: Option<OpRow>,
    channels: u64,
    /// Byte ranges of its lines in `flow_steps`; neighbours are one range.
    ranges: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Index {
    ops: Vec<Op>,
    by_seq: HashMap<u64, usize>,
    meta: Option<String>,
    links: RankLinks,
    steps: u64,
    steps_end: u64,
    cut_lines: u64,
}

impl Index {
    fn op(&mut self, seq: u64) -> &mut Op {
        let at = *self.by_seq.entry(seq).or_insert_with(|| {
            self.ops.push(Op::default());
            self.ops.len() - 1
        });
        &mut self.ops[at]
    }
}

/// Writes `flow_rank<r>.json` for every rank of every communicator folder in `dir` whose `flow_steps` has at
/// most `max_bytes`.
pub fn aggregate_directory(dir: &OutputDir, max_bytes: u64) -> Result<Aggregated> {
    let (mut total, mut failed) = (Aggregated::default(), None);
    for_each_rank(dir, |_, folder, rank| {
        let context = || format!("aggregating rank {rank} of `{}`", folder.path().display());
        match aggregate_rank(folder, rank, max_bytes).with_context(context) {
            Ok(Some(index)) => {
                total.ranks += 1;
                total.ops += index.ops.len() as u64;
                total.steps += index.steps;
                total.cut_lines += index.cut_lines;
            }
            Ok(None) => total.left_out += 1,
            Err(error) if is_for_the_limit(&error) => total.over_max_size += 1,
            // The others are none the worse.
            Err(error) => failed = failed.take().or(Some(error)),
        }
        Ok(())
    })?;
    failed.map_or(Ok(total), Err)
}

fn is_for_the_limit(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(is_over_max_size)
}

/// `None` if the rank's `flow_steps` is larger than `max_bytes`.
fn aggregate_rank(dir: &OutputDir, rank: i32, max_bytes: u64) -> Result<Option<Index>> {
    let flow_steps = format!("flow_steps_rank{rank}.jsonl");
    let mut steps = open_seekable(dir, &flow_steps).with_context(|| format!("opening `{flow_steps}`"))?;
    if steps.metadata().with_context(|| format!("reading `{flow_steps}`"))?.len() > max_bytes {
        return Ok(None);
    }
    let mut index = Index::default();
    let proxy_flow = format!("proxy_flow_rank{rank}.jsonl");
    let mut cut = 0;
    for_each_line(dir, &proxy_flow, &mut cut, |_, line| {
        let head: OpRow = serde_json::from_str(line)?;
        index.meta.get_or_insert_with(|| line.to_owned());
        let op = index.op(head.seq);
        op.channels += 1;
        op.head.get_or_insert(head);
        Ok(())
    })?;
    steps.rewind().with_context(|| format!("reading `{flow_steps}`"))?;
    each_line(BufReader::new(&steps), &flow_steps, &mut cut, |at, line| {
        let step: MessageRow = serde_json::from_str(line)?;
        let seq = step.seq;
        index.links.add(&step);
        let end = at + line.len() as u64 + 1;
        index.steps += 1;
        index.steps_end = end;
        let ranges = &mut index.op(seq).ranges;
        match ranges.last_mut() {
            Some((_, last_end)) if *last_end == at => *last_end = end,
            _ => ranges.push((at, end)),
        }
        Ok(())
    })?;
    index.cut_lines = cut;
    let write = |file: &mut OutputFile| write_rank(file, rank, &mut index, &mut steps);
    dir.replace_file(Share::Aggregates, &format!("flow_rank{rank}.json"), write)
        .with_context(|| format!("writing `flow_rank{rank}.json`"))?;
    Ok(Some(index))
}

fn write_rank(file: &mut OutputFile, rank: i32, index: &mut Index, steps: &mut File) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    write!(out, "{{\"rank\":{rank},\"meta\":{},\n\"steps\":[", index.meta.as_deref().unwrap_or("null"))?;
    copy_lines(&mut out, steps, &[(0, index.steps_end)])?;
    out.write_all(b"],\n\"ops\":[")?;
    for (number, op) in index.ops.iter().enumerate() {
        out.write_all(if number == 0 { b"\n{" } else { b",\n{" })?;
        write_op_head(&mut out, op)?;
        // Only where messages were measured.
        if let Some(times) = op.head.as_ref().and_then(|head| index.links.op(head.seq)) {
            write!(out, "\"times\":{},", serde_json::to_string(&times)?)?;
        }
        out.write_all(b"\"steps\":[")?;
        copy_lines(&mut out, steps, &op.ranges)?;
        out.write_all(b"]}")?;
    }
    write!(out, "],\n\"links\":{}}}", serde_json::to_string(&index.links.rows())?)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn write_op_head(out: &mut impl Write, op: &Op) -> io::Result<()> {
    let Some(head) = &op.head else { return Ok(()) };
    let OpRow { seq, op_count, pattern, protocol, algorithm, coll, coll_api, posted, api_call, .. } = head;
    let fields = [
        ("seq", serde_json::json!(seq)),
        ("opCount", serde_json::json!(op_count)),
        ("coll", serde_json::json!(coll)),
        ("collApi", serde_json::json!(coll_api)),
        ("pattern", serde_json::json!(pattern)),
        ("protocol", serde_json::json!(protocol)),
        ("algorithm", serde_json::json!(algorithm)),
        ("posted", serde_json::json!(posted)),
        ("channels", serde_json::json!(op.channels)),
    ];
    fields.iter().try_for_each(|(key, value)| write!(out, "\"{key}\":{value},"))?;
    // Only where calls were recorded, too.
    if !api_call.is_absent() {
        write!(out, "\"apiCall\":{},", serde_json::json!(api_call))?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of the first version.
    const HEAD: &str = r#""opCount":0,"rank":3,"channel":0,"nsteps":8,"nbytes":10,"chunkSize":20,"sliceSteps":2,
        "chunkSteps":4,"dtype":"int8","redOp":"sum","pattern":"RING","protocol":"SIMPLE","ringPrev":1,"ringNext":1,
        "algorithm":"RING","coll":"AllGather","collApi":"AllGather","root":0,"nRanks":4,"commHash":"0x1","posted":true,
        "needed":true,"planned":true,"ts_ns":5,"post_ts_ns":null,"pid":1,"tid":1,"host":"here","count":10,"bytes":null,
        "channelSize":null,"loopOffset":null,"registered":false,"ringIndex":0,"treeUp":-1,"treeDown":[-1,-1,-1],
        "capturedSeq":null,"peers":[{"op":"SEND","peer":1,"pseudo":false,"nsteps":8,"transport":"NET","proxy":true,
        "connIndex":0}]"#;

    const STEP: &str = r#""opCount":0,"rank":3,"channel":0,"op":"SEND","peer":1,"bytes":10,"pattern":"RING",
        "protocol":"SIMPLE","stage":"ring","slots":2,"bytes_kind":"exact","loop":0,"ringStep":0,"slice":0,"chunk":null,
        "transport":"NET","commHash":"0x1","posted":true"#;

    fn recording(proxy_flow: &str, flow_steps: &str) -> (tempfile::TempDir, OutputDir) {
        let parent = tempfile::tempdir().unwrap();
        let dir = OutputDir::create(&parent.path().join("out")).unwrap();
        let comm = dir.subfolder("0x1").unwrap();
        comm.create_file("proxy_flow_rank3.jsonl").unwrap().write_all(proxy_flow.as_bytes()).unwrap();
        comm.create_file("flow_steps_rank3.jsonl").unwrap().write_all(flow_steps.as_bytes()).unwrap();
        (parent, dir)
    }

    #[test]
    fn steps_are_grouped_by_op_even_where_ops_interleave() {
        let one_line = |keys: &str| keys.replace('\n', "");
        let (head, step_keys) = (one_line(HEAD), one_line(STEP));
        let proxy_flow = [2, 4, 2].map(|seq| format!("{{{head},\"seq\":{seq}}}\n")).concat();
        let line = |(seq, step): (u64, u64)| format!("{{\"seq\":{seq},\"step\":{step},{step_keys}}}\n");
        let steps = [(2, 0), (2, 2), (4, 0), (2, 4)].map(line).concat() + "{\"seq\":";
        let (_parent, dir) = recording(&proxy_flow, &steps);
        let done = aggregate_directory(&dir, u64::MAX).unwrap();
        assert_eq!(done, Aggregated { ranks: 1, ops: 2, steps: 4, cut_lines: 1, ..Aggregated::default() });
        let text = std::fs::read_to_string(dir.path().join("0x1/flow_rank3.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["rank"], 3);
        assert_eq!(json["meta"]["seq"], 2);
        assert_eq!(json["steps"].as_array().unwrap().len(), 4);
        assert_eq!(json["ops"][0]["channels"], 2);
        let first: Vec<_> =
            json["ops"][0]["steps"].as_array().unwrap().iter().map(|step| &step["step"]).collect();
        assert_eq!(first, [0, 2, 4]);
        assert_eq!(json["ops"][1]["seq"], 4);
        assert_eq!((&json["links"][0]["messages"], &json["links"][0]["bytes"]), (&4.into(), &40.into()));
        // Again, over the file that is there.
        assert_eq!(aggregate_directory(&dir, u64::MAX).unwrap(), done);
    }

    #[test]
    fn foreign_folders_and_lines_are_named_in_the_error() {
        let (_parent, dir) = recording("not json\n", "");
        let error = format!("{:#}", aggregate_directory(&dir, u64::MAX).unwrap_err());
        assert!(error.contains("line 1") && error.contains("proxy_flow_rank3"), "{error}");
        let empty = tempfile::tempdir().unwrap();
        let error =
            aggregate_directory(&OutputDir::open(empty.path()).unwrap(), u64::MAX).unwrap_err().to_string();
        assert!(error.contains("is it the folder of a recording?"), "{error}");
    }
}
