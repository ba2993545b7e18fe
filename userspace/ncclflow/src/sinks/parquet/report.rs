//! Facts about a recording from its `session.json`.

use std::collections::HashMap;

use flow::schema::{ClockReport, CommunicatorReport, LossReport, RankKey};
use serde::Deserialize;
use serde_json::Value;

/// Contents of `session.json` that tables need. Another version may have written it: missing values are
/// unknown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Report {
    pub(super) ncclflow: Option<String>,
    pub(super) state: Option<String>,
    pub(super) host: Option<String>,
    pub(super) kernel: Option<String>,
    pub(super) level: Option<String>,
    pub(super) clock: Option<ClockReport>,
    pub(super) loss: LossReport,
    window: Option<Window>,
    targets: Vec<Value>,
    communicators: Vec<CommunicatorReport>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Window {
    number: u32,
    opened_unix_ms: u64,
}

impl Report {
    /// Parses a report; anything else gives an empty one.
    pub(super) fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Returns the offset from CLOCK_MONOTONIC to Unix time; `None` before the clocks were read.
    pub(super) fn offset_ns(&self) -> Option<u64> {
        self.clock.as_ref().map(|clock| clock.offset_ns).filter(|offset| *offset != 0)
    }

    /// Returns a name that no other recording of the host has: when it began, and which window of it this is.
    pub(super) fn recording(&self) -> String {
        let began = self.clock.as_ref().map_or(0, |clock| clock.started_realtime_ns);
        match &self.window {
            None => format!("{began:020}"),
            Some(Window { number, opened_unix_ms }) => format!("{began:020}-w{number}-{opened_unix_ms}"),
        }
    }

    /// Returns the known names of jobs, by process.
    pub(super) fn jobs(&self) -> HashMap<u32, String> {
        let job = |target: &Value| {
            let pid = u32::try_from(target.get("pid")?.as_u64()?).ok()?;
            Some((pid, target.get("job")?.get("name")?.as_str()?.to_owned()))
        };
        self.targets.iter().filter_map(job).collect()
    }

    pub(super) fn communicator(&self, rank: RankKey) -> Option<&CommunicatorReport> {
        let folder = rank.comm_name();
        self.communicators
            .iter()
            .find(|about| about.rank == rank.rank && about.pid == rank.pid && about.folder == folder)
    }
}
