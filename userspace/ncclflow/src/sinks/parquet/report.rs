//! What a recording says of itself, in its `session.json`.

use flow::schema::{ClockReport, LossReport};
use serde::Deserialize;

/// Of what is in it, what tables need. Another version may have written it: what is not there is not known.
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
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Window {
    number: u32,
    opened_unix_ms: u64,
}

impl Report {
    /// Nothing is known from what is no report.
    pub(super) fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// From CLOCK_MONOTONIC to Unix time; before the clocks were read it was 0.
    pub(super) fn offset_ns(&self) -> Option<u64> {
        self.clock.as_ref().map(|clock| clock.offset_ns).filter(|offset| *offset != 0)
    }

    /// A name that no other recording of the host has: when it began, and which window of it this is.
    pub(super) fn recording(&self) -> String {
        let began = self.clock.as_ref().map_or(0, |clock| clock.started_realtime_ns);
        match &self.window {
            None => format!("{began:020}"),
            Some(Window { number, opened_unix_ms }) => format!("{began:020}-w{number}-{opened_unix_ms}"),
        }
    }
}
