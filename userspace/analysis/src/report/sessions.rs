//! Sessions of recordings: what was traced, on what, and what was not seen.

use std::collections::BTreeMap;

use flow::{
    schema::LossReport,
    session::{ChangedLibrary, LibraryReport, SessionReport},
};

use super::data::SourceData;
use crate::{not_recorded::sampled, sources::Source};

/// Most gaps and sentences of one recording that are kept.
const MAX_GAPS: usize = 256;
const MAX_NOTES: usize = 50;

impl SourceData {
    /// Returns what is known of a recording before its rows come.
    pub(super) fn of(source: &Source) -> Self {
        let session = source.session();
        let offset_ns = source.offset_ns();
        let us = |ns: u64| if ns == 0 { 0 } else { ns.saturating_add(offset_ns) / 1000 };
        let versions = session.libraries.iter().filter_map(|library| library.nccl_version);
        let mut nccl: Vec<String> = versions.map(|version| version.to_string()).collect();
        nccl.sort_unstable();
        nccl.dedup();
        let span_ms = source.wall_span_ns().map(|(first, last)| (first / 1_000_000, last / 1_000_000));
        let gaps = session.gaps.iter().take(MAX_GAPS);
        Self {
            path: source.path.display().to_string(),
            host: source.host().to_owned(),
            state: if source.is_over { session.state.name().to_owned() } else { "no end".to_owned() },
            ncclflow: session.ncclflow.to_string(),
            nccl,
            from_unix_ms: span_ms.map(|(first, _)| first),
            until_unix_ms: span_ms.map(|(_, last)| last),
            processes: session.targets.len(),
            loss: losses(&session.loss),
            gaps: gaps.map(|gap| (us(gap.from_ns), us(gap.to_ns), gap.records)).collect(),
            notes: notes(session),
            level: session.level_name().to_owned(),
            records: 0,
        }
    }
}

/// Returns the losses by key.
fn losses(loss: &LossReport) -> Vec<(String, u64)> {
    let by_key: BTreeMap<String, u64> =
        serde_json::to_value(loss).and_then(serde_json::from_value).unwrap_or_default();
    by_key.into_iter().collect()
}

/// Returns what was not seen, in sentences.
fn notes(session: &SessionReport) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(ns) = session.clock_moved_ns {
        notes.push(format!(
            "its wall clock moved by {} ms while it was recorded: times of this host can be wrong by so much",
            ns / 1_000_000
        ));
    }
    for target in session.targets.iter() {
        if let Some(why) = &target.untraced {
            notes.push(format!("process {} was not traced: {why}", target.pid));
        }
    }
    for LibraryReport { path, missing_probes, .. } in &session.libraries {
        let missing = missing_probes.iter().map(|probe| format!("not seen in `{path}`: {}", probe.lost));
        notes.extend(missing);
    }
    if let Some(options) = sampled(session) {
        notes.push(format!("messages of chosen ops only were measured: {options}"));
    }
    notes.extend(session.passed_over.iter().map(|library| format!("not traced: {library}")));
    for ChangedLibrary { path, .. } in &session.changed_libraries {
        notes.push(format!("`{path}` was changed while it was traced: its processes were left alone then"));
    }
    notes.extend(session.errors.shown());
    let more = notes.len().saturating_sub(MAX_NOTES);
    notes.truncate(MAX_NOTES);
    if more > 0 {
        notes.push(format!("and {more} more of these"));
    }
    notes
}
