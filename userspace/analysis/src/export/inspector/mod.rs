//! JSON as NCCL Inspector writes it: format v4.3 or v4.0, a file for each process.
//!
//! <https://github.com/NVIDIA/nccl/tree/master/plugins/profiler/inspector> (README.md of September 2026). A
//! marker (`dump_stats`) names the rank of the records after it, and says how many they are; then come
//! collectives (`coll_perf`), sends and receives (`p2p_perf`), and the network proxy's messages
//! (`proxy_trace`).
//!
//! Inspector times kernels on the GPU, which nobody can see from outside: there is no `kernel_gpu` here.
//! Where all messages of an op were measured, its time is that from the first to the last of them, and its
//! `…_timing_source` is `proxy_cpu`. Otherwise it has no time and no bandwidth.
//!
//! In v4.0 there are no markers: each record has header and metadata. There are only collectives, and only
//! those with a bandwidth: NVIDIA's exporter (NCCL 2.28 to 2.30) takes no other lines, and fails where a
//! bandwidth is unknown.

mod records;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::Write as _,
};

use anyhow::{Context as _, Result, ensure};
use flow::schema::{Op, RankKey};

use self::records::{OpRecord, ProxyStep, rank_header};
use super::{
    bounded::get_or_make,
    run::Exported,
    view::{InspectorVersion, Row, View, ensure_ops},
};
use crate::sources::{Source, Who};
use recording::sinks::{NewFile, OutputDir, host_in_names};

/// Most processes with files.
const MAX_PROCESSES: usize = 4096;

/// Most bytes of records that wait for their marker: of a rank, and of all.
const MAX_BATCH: usize = 256 << 10;
const MAX_WAITING: usize = 64 << 20;

/// Most ops of a rank whose channels may not all have come.
const MAX_OPEN_OPS: usize = 512;

/// Most ops of all ranks whose channels may not all have come.
const MAX_ALL_OPEN: usize = 1 << 17;

/// Most ranks of communicators.
const MAX_RANKS: usize = 65_536;

/// Context of all errors.
const WRITING: &str = "writing Inspector's records";

/// Records of a rank that wait for their marker.
#[derive(Debug, Default)]
struct RankRecords {
    version: InspectorVersion,
    process: (String, u32),
    header: serde_json::Value,
    lines: Vec<u8>,
    coll: u64,
    p2p: u64,
    proxy: u64,
    /// Unix time of the latest record.
    last_us: u64,
    /// Sequence numbers of its latest records.
    record_sn: u64,
    proxy_op_sn: u64,
    /// Ops of which further channels may come, by `seq`.
    open: BTreeMap<u64, OpRecord>,
    /// Numbers of these ops, in the order in which they came.
    order: VecDeque<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    collectives: u64,
    p2p: u64,
    steps: u64,
    without_time: u64,
    left_out: u64,
    without_nodes: u64,
}

#[derive(Debug)]
pub(super) struct Inspector {
    dir: OutputDir,
    version: InspectorVersion,
    host: String,
    offset_ns: u64,
    who: Who,
    files: BTreeMap<(String, u32), NewFile>,
    /// Names of these files.
    names: BTreeSet<String>,
    ranks: BTreeMap<(String, RankKey), RankRecords>,
    waiting: usize,
    /// Number of open ops of all ranks.
    open: usize,
    /// The last op, and its messages.
    last: Option<(Op, Vec<ProxyStep>)>,
    totals: Totals,
}

impl Inspector {
    pub(super) fn new(dir: OutputDir, version: InspectorVersion) -> Self {
        Self {
            dir,
            version,
            host: String::new(),
            offset_ns: 0,
            who: Who::default(),
            files: BTreeMap::new(),
            names: BTreeSet::new(),
            ranks: BTreeMap::new(),
            waiting: 0,
            open: 0,
            last: None,
            totals: Totals::default(),
        }
    }

    /// Adds the last op, as all its messages have come.
    fn finish_last(&mut self) -> Result<()> {
        let Some((op, steps)) = self.last.take() else { return Ok(()) };
        let (offset_ns, totals) = (self.offset_ns, &mut self.totals);
        let key = (self.host.clone(), op.rank);
        let refusal = format_args!("there are more than {MAX_RANKS} ranks of communicators");
        let rank = get_or_make(&mut self.ranks, key, MAX_RANKS, refusal, |(host, rank)| {
            let facts = self.who.rank(*rank);
            totals.without_nodes += u64::from(facts.is_none_or(|facts| facts.n_nodes.is_none()));
            Ok(RankRecords {
                version: self.version,
                process: (host.clone(), rank.pid),
                header: rank_header(&op, facts),
                ..RankRecords::default()
            })
        })?;
        let (before, were_open) = (rank.lines.len(), rank.open.len());
        if op.row.graph_launch.is_some() {
            // It is whole, and has the number of the captured op.
            let mut record = OpRecord::new(&op);
            record.add(&op, &steps);
            write(rank, &record, offset_ns, totals)?;
        } else {
            let record = rank.open.entry(op.row.seq).or_insert_with(|| {
                rank.order.push_back(op.row.seq);
                OpRecord::new(&op)
            });
            record.add(&op, &steps);
        }
        if rank.version == InspectorVersion::V4_3 {
            totals.steps += records::write_proxy(rank, &op, &steps, offset_ns)?;
        }
        while rank.open.len() > MAX_OPEN_OPS {
            close_oldest(rank, offset_ns, totals)?;
        }
        self.open = (self.open + rank.open.len()).saturating_sub(were_open);
        self.waiting += rank.lines.len() - before;
        if rank.lines.len() >= MAX_BATCH {
            self.write_batch(&(self.host.clone(), op.rank))?;
        }
        if self.waiting >= MAX_WAITING || self.open >= MAX_ALL_OPEN {
            return self.close_all();
        }
        Ok(())
    }

    /// Writes the marker, and the records that wait for it.
    fn write_batch(&mut self, key: &(String, RankKey)) -> Result<()> {
        let Some(rank) = self.ranks.get_mut(key) else { return Ok(()) };
        if rank.lines.is_empty() {
            return Ok(());
        }
        self.waiting = self.waiting.saturating_sub(rank.lines.len());
        let marker = match rank.version {
            InspectorVersion::V4_0 => Vec::new(),
            InspectorVersion::V4_3 => records::marker(rank)?,
        };
        let made = self.files.len();
        let refusal = format_args!("there are files of {MAX_PROCESSES} processes already");
        let file =
            get_or_make(&mut self.files, rank.process.clone(), MAX_PROCESSES, refusal, |(host, pid)| {
                let host = host_in_names(host);
                let mut name = format!("{host}-pid{pid}.log");
                // Two hosts' names can be the same in file names.
                if !self.names.insert(name.clone()) {
                    name = format!("{host}-{made}-pid{pid}.log");
                    self.names.insert(name.clone());
                }
                Ok(NewFile::within(&self.dir, name)?)
            })?;
        file.write_all(&marker)?;
        file.write_all(&rank.lines)?;
        rank.lines.clear();
        (rank.coll, rank.p2p, rank.proxy) = (0, 0, 0);
        Ok(())
    }

    fn close_all(&mut self) -> Result<()> {
        self.finish_last()?;
        for rank in self.ranks.values_mut() {
            let before = rank.lines.len();
            while !rank.open.is_empty() {
                close_oldest(rank, self.offset_ns, &mut self.totals)?;
            }
            self.waiting += rank.lines.len() - before;
        }
        self.open = 0;
        let keys: Vec<_> = self.ranks.keys().cloned().collect();
        keys.iter().try_for_each(|key| self.write_batch(key))
    }
}

/// Writes the record of the oldest op.
fn close_oldest(rank: &mut RankRecords, offset_ns: u64, totals: &mut Totals) -> Result<()> {
    let record = rank.order.pop_front().and_then(|seq| rank.open.remove(&seq));
    record.map_or(Ok(()), |record| write(rank, &record, offset_ns, totals))
}

fn write(rank: &mut RankRecords, record: &OpRecord, offset_ns: u64, totals: &mut Totals) -> Result<()> {
    if rank.version == InspectorVersion::V4_0 && !record.is_complete_collective() {
        totals.left_out += 1;
        return Ok(());
    }
    totals.without_time += u64::from(record.span_ns().is_none());
    *if record.is_p2p() { &mut totals.p2p } else { &mut totals.collectives } += 1;
    records::write_op(rank, record, offset_ns)
}

impl View for Inspector {
    fn begin(&mut self, source: &Source) -> Result<()> {
        // Records that wait have the clock of the source before.
        self.close_all().context(WRITING)?;
        source.host().clone_into(&mut self.host);
        self.offset_ns = source.offset_ns();
        self.who = Who::of(source.session());
        Ok(())
    }

    fn row(&mut self, row: Row<'_>) -> Result<()> {
        match row {
            Row::Op(op) => {
                self.finish_last().context(WRITING)?;
                self.last = Some((op.clone(), Vec::new()));
            }
            Row::Messages(_, messages) => {
                if let Some((_, steps)) = &mut self.last {
                    steps.extend(messages.iter().map(ProxyStep::of));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, exported: &Exported) -> Result<Vec<String>> {
        self.close_all().context(WRITING)?;
        ensure_ops(exported, "NCCL Inspector's records")?;
        ensure!(
            self.totals.left_out == 0 || !self.files.is_empty(),
            "none of the {} operations has a place in v4.0, which has only collectives of which all messages were \
             measured: `record --level steps` measures those that go over the network, and nothing those over NVLink; \
             --inspector-version v4.3 takes all",
            self.totals.left_out
        );
        for file in self.files.values_mut() {
            file.publish().context("naming Inspector's files")?;
        }
        let Totals { collectives, p2p, steps, without_time, left_out, without_nodes } = self.totals;
        let mut notes = vec![format!(
            "{collectives} collectives, {p2p} sends and receives and {steps} proxy steps in {} files",
            self.files.len()
        )];
        if left_out > 0 {
            notes.push(format!(
                "{left_out} operations are left out, as v4.0 has no place for them: sends and receives, and \
                 collectives of which not all messages were measured, as over NVLink, or without `record --level steps`"
            ));
        }
        if without_time > 0 {
            notes.push(format!(
                "{without_time} of these ops have no time and no bandwidth: not all of their messages were measured, as over NVLink, or without `record --level steps`"
            ));
        }
        if without_nodes > 0 {
            notes.push(format!(
                "for {without_nodes} of {} ranks the recording does not say how many nodes their \
                 communicator has: their headers lack `nnodes`, and NVIDIA's exporter leaves such files out",
                self.ranks.len()
            ));
        }
        Ok(notes)
    }
}

#[cfg(test)]
mod tests;
