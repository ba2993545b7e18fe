//! Sessions of recordings: what was traced, on what, and what was not seen.

use flow::schema::{CommunicatorReport, Gap};
use serde::Deserialize;
use serde_json::Value;

use super::data::SourceData;
use crate::export::Source;

/// Most ranks, gaps and sentences of one recording that are kept.
const MAX_RANKS: usize = 65_536;
const MAX_GAPS: usize = 256;
const MAX_NOTES: usize = 50;

/// The parts of `session.json` that are shown. It can be of any version, and of anybody's making.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Session {
    ncclflow: String,
    state: String,
    level: String,
    clock_moved_ns: Option<i64>,
    targets: Vec<Value>,
    libraries: Vec<Value>,
    communicators: Vec<Value>,
    loss: serde_json::Map<String, Value>,
    gaps: Vec<Value>,
    sampling: Option<Value>,
    passed_over: Vec<String>,
    changed_libraries: Vec<Value>,
    errors: Value,
}

/// A recording, and the ranks of communicators that its report has.
#[derive(Debug)]
pub(super) struct SessionFacts {
    pub(super) data: SourceData,
    pub(super) ranks: Vec<CommunicatorReport>,
    /// Set if only calls of the API were recorded.
    pub(super) has_calls_only: bool,
}

impl SessionFacts {
    pub(super) fn of(source: &Source) -> Self {
        let session: Session = serde_json::from_str(source.report()).unwrap_or_default();
        let offset_ns = source.offset_ns();
        let notes = session.notes();
        let loss = |(key, value): (&String, &Value)| Some((key.clone(), value.as_u64()?));
        let gap = |gap: &Value| serde_json::from_value::<Gap>(gap.clone()).ok();
        let us = |ns: u64| if ns == 0 { 0 } else { ns.saturating_add(offset_ns) / 1000 };
        let gaps = session.gaps.iter().take(MAX_GAPS).filter_map(gap);
        let mut nccl: Vec<String> = session.libraries.iter().filter_map(version).collect();
        nccl.sort_unstable();
        nccl.dedup();
        let span_ms = source.wall_span_ns().map(|(first, last)| (first / 1_000_000, last / 1_000_000));
        let ranks = session.communicators.iter().take(MAX_RANKS);
        Self {
            data: SourceData {
                path: source.path.display().to_string(),
                host: source.host().to_owned(),
                state: if source.is_over { session.state.clone() } else { "no end".to_owned() },
                ncclflow: session.ncclflow.clone(),
                nccl,
                from_unix_ms: span_ms.map(|(first, _)| first),
                until_unix_ms: span_ms.map(|(_, last)| last),
                processes: session.targets.len(),
                loss: session.loss.iter().filter_map(loss).collect(),
                gaps: gaps.map(|gap| (us(gap.from_ns), us(gap.to_ns), gap.records)).collect(),
                notes,
                level: session.level.clone(),
                records: 0,
            },
            ranks: ranks.filter_map(|rank| serde_json::from_value(rank.clone()).ok()).collect(),
            has_calls_only: session.level == "api",
        }
    }
}

impl Session {
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(ns) = self.clock_moved_ns {
            notes.push(format!(
                "its wall clock moved by {} ms while it was recorded: times of this host can be wrong by so much",
                ns / 1_000_000
            ));
        }
        for target in &self.targets {
            if let (Some(pid), Some(why)) = (target["pid"].as_u64(), target["untraced"].as_str()) {
                notes.push(format!("process {pid} was not traced: {why}"));
            }
        }
        for library in &self.libraries {
            let path = library["path"].as_str().unwrap_or("?");
            for probe in library["missing_probes"].as_array().into_iter().flatten() {
                let what = probe["lost"].as_str().or(probe["function"].as_str()).unwrap_or("a probe");
                notes.push(format!("not seen in `{path}`: {what}"));
            }
        }
        if let Some(sampling) = self.sampling.as_ref().filter(|sampling| !sampling.is_null()) {
            notes.push(format!("messages of chosen ops only were measured: {sampling}"));
        }
        notes.extend(self.passed_over.iter().map(|library| format!("not traced: {library}")));
        for library in &self.changed_libraries {
            let path = library["path"].as_str().unwrap_or("?");
            notes.push(format!(
                "`{path}` was changed while it was traced: its processes were left alone then"
            ));
        }
        let errors = self.errors.as_array().or(self.errors["messages"].as_array());
        notes.extend(errors.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
        let more = notes.len().saturating_sub(MAX_NOTES);
        notes.truncate(MAX_NOTES);
        if more > 0 {
            notes.push(format!("and {more} more of these"));
        }
        notes
    }
}

/// Formats a version as `2.27.5`.
fn version(library: &Value) -> Option<String> {
    let version = &library["nccl_version"];
    let part = |key: &str| version[key].as_u64();
    Some(format!("{}.{}.{}", part("major")?, part("minor")?, part("patch")?))
}
