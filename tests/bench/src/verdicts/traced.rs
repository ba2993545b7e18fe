//! Recordings of real jobs on GPUs, with what NVML's GPM counters said in the same seconds: each is cut into
//! shorter ones, whose begins and lengths the seed chooses. GPU i is that of rank i.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::{Context as _, Result, bail};
use flow::{
    recording::{Batch, Binding, Event, Session},
    schema::GpuRow,
    wire::ProbeKind,
};
use ncclflow_common::RecordHeader;
use recording::{
    format::{Item, Progress, RecordingReader, RecordingWriter, Selection},
    sinks::OutputDir,
};
use serde_json::{Value, json};
use test_support::damage::Random;

use super::draw::Truth;
use crate::bench::output;

/// Jobs by the names of their folders: what is true of each, and the same job without a fault.
const JOBS: [(&str, &str, &[i64], &str); 8] = [
    ("none", "nobody", &[], "none"),
    ("async", "nobody", &[], "async"),
    ("tppp", "nobody", &[], "tppp"),
    ("mm10", "gpu", &[2], "none"),
    ("mm10async", "gpu", &[2], "async"),
    ("host", "host", &[2], "none"),
    ("gc", "host", &[1], "none"),
    ("tppp_stage", "stage", &[2, 3], "tppp"),
];

/// Least length of a cut.
const SHORTEST_NS: u64 = 2_000_000_000;

/// A recording, read into memory.
pub(super) struct Traced {
    pub(super) name: &'static str,
    pub(super) truth: Truth,
    /// Time of an iteration, without the fault and with it.
    pub(super) iterations_ms: [f64; 2],
    session: Session,
    /// The session's report at its end.
    report: Value,
    items: Vec<Kept>,
    /// Launches with which channels and connections came, which the kernel sends once: all cuts have them.
    lasting: HashSet<(u32, u32, u64)>,
    gpus: Vec<GpuRow>,
}

enum Kept {
    Bindings(Vec<Binding>),
    Record(RecordHeader, Vec<u8>),
    Event(Event),
}

impl Traced {
    /// Reads those jobs that are in this folder.
    pub(super) fn read_all(folder: &Path) -> Result<Vec<Self>> {
        let there = JOBS.into_iter().filter(|(name, ..)| folder.join(name).is_dir());
        let all: Vec<Self> = there.map(|job| Self::read(folder, job)).collect::<Result<_>>()?;
        if all.is_empty() {
            bail!("`{}` has none of the recordings", folder.display());
        }
        Ok(all)
    }

    fn read(
        folder: &Path,
        (name, kind, ranks, healthy): (&'static str, &'static str, &[i64], &str),
    ) -> Result<Self> {
        let job = folder.join(name);
        let context = || format!("reading `{}`", job.display());
        let mut reader = OutputDir::open(&job.join("recording")).and_then(RecordingReader::open)?;
        let (mut items, mut bindings, mut end) = (Vec::new(), Vec::<Binding>::new(), None);
        let mut lasting = HashSet::new();
        let mut take = |item: Item<'_>| match item {
            Item::Bindings(new) => {
                bindings.extend_from_slice(new);
                items.push(Kept::Bindings(new.to_vec()));
            }
            Item::Record(record) => {
                let Some(header) = RecordHeader::from_bytes(record) else { return };
                let kind = bindings.get(usize::from(header.probe)).map(|binding| &binding.kind);
                if matches!(kind, Some(ProbeKind::Channel(_) | ProbeKind::Connectors(_))) {
                    lasting.insert(launch(header));
                }
                items.push(Kept::Record(header, record.to_vec()));
            }
            // What is cut off is neither lost nor removed.
            Item::Event(event @ (Event::Process(_) | Event::Communicator(_) | Event::Stacks { .. })) => {
                items.push(Kept::Event(event));
            }
            Item::Event(_) | Item::Gap => {}
            Item::End(report) => end = Some(report),
        };
        while reader.read_next(&Selection::ALL, &mut take).with_context(context)? == Progress::Read {}
        let report: Value = serde_json::from_str(&end.with_context(context)?)?;
        let gpus = gpu_rows(&job.join("gpm.json.gz"), &report, &items).with_context(context)?;
        let iterations_ms = [iteration_ms(&folder.join(healthy))?, iteration_ms(&job)?];
        let truth = Truth { kind, ranks: ranks.iter().copied().collect(), peer: None, also: None };
        Ok(Self {
            name,
            truth,
            iterations_ms,
            session: reader.session().clone(),
            report,
            items,
            lasting,
            gpus,
        })
    }

    /// Writes a part of it as a recording of its own: of two seconds or more, in which the GPUs were sampled.
    /// Returns its length in seconds.
    pub(super) fn cut(&self, random: &mut Random, to: &Path) -> Result<f64> {
        let times = || {
            self.items.iter().filter_map(|item| match item {
                Kept::Record(header, _) => Some(header.ts_ns),
                _ => None,
            })
        };
        let sampled = || self.gpus.iter().map(|row| row.ts_ns);
        let first = times().min().max(sampled().min()).context("nothing was recorded")?;
        let last = times().max().min(sampled().max()).context("nothing was recorded")?;
        let all = last.saturating_sub(first);
        let length = SHORTEST_NS.min(all) + random.number() % (all.saturating_sub(SHORTEST_NS) + 1);
        let from = first + random.number() % (all - length + 1);
        let until = from + length;

        let mut report = self.report.clone();
        report["clock"]["started_monotonic_ns"] = json!(from);
        report["clock"]["ended_monotonic_ns"] = json!(until);
        let report = serde_json::to_string(&report)?;
        let dir = OutputDir::create(to)?;
        let session = Session { report: report.clone(), ..self.session.clone() };
        let mut writer = RecordingWriter::create(&dir, session)?;
        let mut rows = self.gpus.iter().filter(|row| (from..until).contains(&row.ts_ns)).peekable();
        let mut batch = Batch::default();
        for item in &self.items {
            match item {
                Kept::Bindings(new) => writer.bind(|known| known.extend_from_slice(new)),
                Kept::Event(event) => writer.push_event(event)?,
                Kept::Record(header, _)
                    if !((from..until).contains(&header.ts_ns)
                        || self.lasting.contains(&launch(*header))) => {}
                Kept::Record(header, record) => {
                    let mut until_now = Vec::new();
                    while let Some(row) = rows.next_if(|row| row.ts_ns <= header.ts_ns) {
                        until_now.push(row.clone());
                    }
                    if batch.is_full() || !until_now.is_empty() {
                        writer.push(&Arc::new(std::mem::take(&mut batch)))?;
                    }
                    if !until_now.is_empty() {
                        writer.push_event(&Event::Gpus { rows: until_now })?;
                    }
                    batch.push(record);
                }
            }
        }
        writer.push(&Arc::new(batch))?;
        writer.push_event(&Event::Gpus { rows: rows.cloned().collect() })?;
        writer.write_end(&report)?;
        #[expect(clippy::cast_precision_loss, reason = "some seconds")]
        Ok(length as f64 / 1e9)
    }
}

/// What tells the records of one launch from all others.
fn launch(header: RecordHeader) -> (u32, u32, u64) {
    (header.tgid, header.tid, header.ts_ns)
}

fn unpacked(path: &Path) -> Result<Value> {
    let text = output(Command::new("gzip").arg("-dc").arg(path))?;
    Ok(serde_json::from_slice(&text)?)
}

/// The samples as rows of a recording. Of columns that rows do not have the values are left out.
fn gpu_rows(samples: &Path, report: &Value, items: &[Kept]) -> Result<Vec<GpuRow>> {
    let targets = report["targets"].as_array().context("no targets")?;
    let pid_of = |rank: usize| {
        let target = targets.iter().find(|target| target["job"]["rank"] == rank);
        target.map(|target| target["pid"].clone()).context("a rank without a process")
    };
    // Ranks and rows of GPUs meet by the GPUs' own names.
    let gpu_of = |pid: &Value| {
        items.iter().find_map(|item| match item {
            Kept::Event(Event::Communicator(of)) if *pid == of.pid => {
                Some((of.gpu_uuid.clone(), of.bus_id.clone()))
            }
            _ => None,
        })
    };
    let mut rows = Vec::new();
    let mut before: Option<u64> = None;
    for sample in unpacked(samples)?.as_array().into_iter().flatten() {
        let ts_ns = sample["mono_ns"].as_u64().context("a sample without a time")?;
        let period_ns = before.map(|before| ts_ns.saturating_sub(before));
        before = Some(ts_ns);
        for (number, gpu) in sample["gpus"].as_array().into_iter().flatten().enumerate() {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "bytes of a quarter of a second, and milliwatts"
            )]
            let whole = |value: f64| value.max(0.0) as u64;
            let bytes = |key: &str| {
                let seconds = std::time::Duration::from_nanos(period_ns?).as_secs_f64();
                Some(whole(gpu[key].as_f64()? * f64::from(1 << 20) * seconds))
            };
            let pid = pid_of(number)?;
            let (uuid, bus_id) = gpu_of(&pid).unwrap_or_default();
            rows.push(serde_json::from_value(json!({
                "gpu_uuid": uuid,
                "bus_id": bus_id,
                "ts_ns": ts_ns,
                "period_ns": period_ns,
                "host": report["host"],
                "gpu": number,
                "sm_percent": gpu["gpu"],
                "memory_percent": gpu["memory"],
                "graphics_active_percent": gpu["graphics_util"],
                "sm_active_percent": gpu["sm_util"],
                "sm_occupancy_percent": gpu["sm_occupancy"],
                "tensor_active_percent": gpu["any_tensor_util"],
                "dram_active_percent": gpu["dram_bw_util"],
                "nvlink_sent": bytes("nvlink_total_tx_mib_s"),
                "nvlink_received": bytes("nvlink_total_rx_mib_s"),
                "sm_clock_mhz": gpu["sm_clock"],
                "power_mw": gpu["power_w"].as_f64().map(|watts| whole(1000.0 * watts)),
                "processes": [{ "pid": pid }],
            }))?);
        }
    }
    Ok(rows)
}

/// Mean time of an iteration of a job, as its own program has measured it.
pub(super) fn iteration_ms(job: &Path) -> Result<f64> {
    let path: PathBuf = job.join("truth.json");
    let text = fs::read_to_string(&path).with_context(|| format!("reading `{}`", path.display()))?;
    // One object of each rank, one behind the other.
    let mut all = Vec::new();
    for of_rank in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
        all.extend(of_rank?["ms_per_iter"].as_f64());
    }
    let ranks = u32::try_from(all.len())?;
    if ranks == 0 {
        bail!("`{}` has no times", path.display());
    }
    Ok(all.iter().sum::<f64>() / f64::from(ranks))
}
