//! Events, as `--json` writes them and as `--exec` gets them (docs/WATCH.md).

use flow::text::PlainWriter;
use serde::Serialize;

use crate::phase::Phase;

/// Version of the schema. Fields may be added within one version; none changes its meaning.
pub const SCHEMA: u32 = 1;

/// Kind of what is the matter with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AlertKind {
    /// A communicator stands, and a rank waits in it.
    Hang,
    /// The process of a rank has ended, and others wait for it.
    Gone,
    /// A rank makes the others wait: its GPU computes longer, or its host gets too little of the processor.
    Slow,
    /// Iterations take longer than this job's own did before.
    Slower,
    /// NCCL reports a failure, or the driver an error of a GPU.
    Error,
    /// ncclflow itself does not see all: no job is to blame.
    Blind,
    /// Ranks wait for one that is busy with something else. No alert: a hang only after `--waiting-limit`.
    Waiting,
}

impl AlertKind {
    pub const ALL: [Self; 7] =
        [Self::Hang, Self::Gone, Self::Slow, Self::Slower, Self::Error, Self::Blind, Self::Waiting];

    pub fn name(self) -> &'static str {
        match self {
            Self::Hang => "hang",
            Self::Gone => "gone",
            Self::Slow => "slow",
            Self::Slower => "slower",
            Self::Error => "error",
            Self::Blind => "blind",
            Self::Waiting => "waiting",
        }
    }

    /// Tells whether somebody is to be woken: `--exec` is run, and a dump is kept.
    pub fn is_alert(self) -> bool {
        self != Self::Waiting
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum EventType {
    Begin,
    End,
    /// State of a job, once a minute.
    Status,
    /// ncclflow itself cannot see, or has lost something.
    Notice,
}

/// A rank that is waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Culprit {
    /// Rank in the communicator.
    pub rank: u32,
    /// Rank in the job, by the process's initial environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_rank: Option<u32>,
    /// Null if the process is on another host, or not known.
    pub pid: Option<u32>,
    pub gpu: Option<u32>,
    /// Place of its main thread in its program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whereabouts: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobOfEvent {
    /// Number that this run of ncclflow gave the job.
    pub number: u64,
    pub name: String,
    pub user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// UID of the Kubernetes pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The tenant.
    #[serde(skip)]
    pub whose: String,
    /// Processes of this host.
    pub pids: Vec<u32>,
    pub communicators: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommOfEvent {
    pub comm_hash: String,
    pub name: Option<String>,
    pub n_ranks: u32,
}

/// Rates of a job since its last status.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRates {
    pub seconds: f64,
    /// Collectives a second over all communicators, each counted once.
    pub collectives_per_second: f64,
    /// Usual time of an iteration, by the rhythm of the counts; null where it is shorter than about two
    /// readings.
    pub iteration_seconds: Option<f64>,
    /// Seconds since any communicator moved.
    pub still_seconds: f64,
    /// The process that was behind all others at most readings, and at which part of them.
    pub last_pid: Option<u32>,
    pub last_share: f64,
}

/// An event without what only the running program knows: [`Event`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventBody {
    pub event: EventType,
    /// Kind of the alert; null for others.
    pub kind: Option<AlertKind>,
    /// Number of the alert in this run: its beginning and end have the same.
    pub alert: Option<u64>,
    pub job: Option<JobOfEvent>,
    pub communicator: Option<CommOfEvent>,
    /// Kind of the verdict of `ncclflow dump`; null where counters alone told.
    pub verdict: Option<dump::Kind>,
    pub culprits: Vec<Culprit>,
    /// Ranks of the communicator that wait.
    pub waiting: Vec<u32>,
    /// Seconds for which the communicator stood; of an end, seconds since the beginning.
    pub seconds: Option<f64>,
    pub sentence: String,
    /// Advice: what to do, or where to look next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<JobRates>,
}

impl EventBody {
    pub(crate) fn new(event: EventType, sentence: String) -> Self {
        Self {
            event,
            kind: None,
            alert: None,
            job: None,
            communicator: None,
            verdict: None,
            culprits: Vec::new(),
            waiting: Vec::new(),
            seconds: None,
            sentence,
            next: None,
            rates: None,
        }
    }
}

/// A line of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Version of ncclflow.
    pub ncclflow: &'static str,
    pub schema: u32,
    pub unix_time_ns: u64,
    pub host: String,
    #[serde(flatten)]
    pub body: EventBody,
    /// Folder of the dump, with `--dump-to`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dump: Option<String>,
}

impl Event {
    /// Returns a line of JSON. What a terminal would obey in tenants' names is escaped.
    pub(crate) fn line(&self) -> serde_json::Result<Vec<u8>> {
        let mut line = Vec::new();
        serde_json::to_writer(PlainWriter::of_json(&mut line), self)?;
        line.push(b'\n');
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_the_same_and_has_nothing_that_a_terminal_obeys() {
        let body = EventBody::new(EventType::Begin, "a\u{202e}b\u{9b}31m\n".to_owned());
        let host = "n1".to_owned();
        let event = Event { ncclflow: "1", schema: SCHEMA, unix_time_ns: 1, host, body, dump: None };
        let line = String::from_utf8(event.line().unwrap()).unwrap();
        assert!(!line.trim_end().contains(flow::text::is_obeyed), "{line:?}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["sentence"], event.body.sentence);
    }
}
