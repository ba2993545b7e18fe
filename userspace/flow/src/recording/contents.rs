//! Types in the JSON blocks of a recording.

use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer, de::IgnoredAny};

use crate::{
    decode::Decoder,
    identity::{CommunicatorFacts, ProcessFacts},
    model::Sampling,
    schema::{GpuRow, HostInfo, LaunchThreadRow, StackRow},
    wire::ProbeKind,
};

/// What the records of one cookie mean, and whose they are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Binding {
    pub kind: ProbeKind,
    /// Decoder of its library.
    pub decoder: Arc<Decoder>,
    /// Process of its records; nothing for parts of a walk, which serve all processes of a library, and for
    /// probes that several processes share.
    pub host: Option<HostInfo>,
}

/// Target, place and form of a recording: all that reading needs besides bindings and records.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Version of the ncclflow that wrote the recording.
    pub ncclflow: String,
    /// [`ncclflow_common::WIRE_VERSION`] of the records.
    pub wire_version: u32,
    /// `session.json` as it was when the recording began.
    pub report: String,
    /// Name of the host whose process IDs (of its initial PID namespace) the records carry, with `--all`.
    pub host: Option<String>,
    /// Set if messages are measured (`--level steps`).
    pub steps: bool,
    /// Set if returns of the API's functions are recorded.
    pub returns: bool,
    /// Choice of the ops whose messages are measured.
    pub sampling: Sampling,
    /// Key that readers of before 1.6 ask for: calls are written as JSON.
    #[serde(skip_deserializing, serialize_with = "former_api")]
    pub api: (),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn former_api<S: Serializer>(_: &(), serializer: S) -> Result<S::Ok, S::Error> {
    serde_json::json!({ "format": "json", "realtime_offset_ns": 0 }).serialize(serializer)
}

/// An event between the records before and those after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A process was seen to have ended.
    ProcessEnded {
        /// Process number, as records carry it.
        tgid: u32,
        /// Time at which the end was seen, by the records' clock.
        at_ns: u64,
    },
    /// First hits that were meant to be recorded. Earlier ones were not.
    HitsBegin { hits: Vec<FirstHit> },
    /// Records before those that follow are missing: they could not be written.
    RecordsLost { lost: Vec<LostRecords> },
    /// Records of the segments before this one were removed, and this segment has what lasts of them. The
    /// event comes before and after that. Since 1.2.
    RecordsRemoved(RemovedRecords),
    /// A process became known whose records come, or may come. Since 1.1. Each segment repeats those that
    /// have not ended.
    Process(Box<ProcessFacts>),
    /// A rank of a communicator became known. Since 1.1, and repeated as processes are.
    Communicator(Box<CommunicatorFacts>),
    /// Call stacks became known that records name. Since 1.3, and repeated as processes are.
    Stacks { stacks: Vec<StackRow> },
    /// Activity of the host's GPUs until now, in the order in which the driver was asked. Since 1.4.
    Gpus { rows: Vec<GpuRow> },
    /// Processor time of threads that launch until now, in the order in which they were looked at. Since 1.7.
    LaunchThreads { rows: Vec<LaunchThreadRow> },
    /// An event that a newer version writes.
    #[serde(other)]
    Unknown,
}

/// The first hit of a probe on a CPU that was meant to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstHit {
    pub probe: u16,
    pub cpu: u32,
    pub hit: u64,
}

/// Number of records of a process that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRecords {
    /// Process number, as records carry it.
    pub tgid: u32,
    pub records: u64,
}

/// Records that were removed from a recording, to make room or for their age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedRecords {
    /// Records of all segments that were removed.
    pub records: u64,
    /// Number of the removed records that are kept, in the blocks that follow in this segment.
    pub kept: u64,
    /// Number of the removed records that were in blocks that last and for which there was no room: later
    /// records may not be understood without them. Since 1.5.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub lasting: u64,
}

/// Bindings of further cookies. Decoders are large, and the same for all cookies of a library.
#[derive(Debug, Serialize, Deserialize)]
pub struct NewBindings {
    /// Cookie of the first binding; the others follow.
    first: usize,
    decoders: Vec<Arc<Decoder>>,
    bindings: Vec<NewBinding>,
}

#[derive(Debug, Serialize, Deserialize)]
struct NewBinding {
    kind: ProbeKind,
    /// Index in `decoders`.
    decoder: usize,
    host: Option<HostInfo>,
    /// Set for [`ProbeKind::Stack`]; `kind` is then one of which no records come. A reader from before 1.3
    /// cannot read these records, and reads all others.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    is_stack: bool,
}

/// The cookies that [`NewBindings`] bind.
#[derive(Debug, Deserialize)]
pub struct BoundCookies {
    first: usize,
    bindings: Vec<IgnoredAny>,
}

impl BoundCookies {
    /// Returns the cookie behind the last.
    pub fn end(&self) -> usize {
        self.first.saturating_add(self.bindings.len())
    }
}

impl NewBindings {
    /// Makes the bindings from the cookie `first` on, at most `count`.
    pub fn of(bindings: &[Binding], first: usize, count: usize) -> Self {
        let (mut decoders, mut new) = (Vec::<Arc<Decoder>>::new(), Vec::new());
        for Binding { kind, decoder, host } in bindings.iter().skip(first).take(count) {
            let known = decoders.iter().position(|known| Arc::ptr_eq(known, decoder));
            let number = known.unwrap_or_else(|| {
                decoders.push(Arc::clone(decoder));
                decoders.len() - 1
            });
            let is_stack = matches!(kind, ProbeKind::Stack);
            let kind = if is_stack { ProbeKind::Head } else { kind.clone() };
            new.push(NewBinding { kind, decoder: number, host: host.clone(), is_stack });
        }
        Self { first, decoders, bindings: new }
    }

    /// Adds those that are not among `known` yet. Returns `false` if some are missing before them, they
    /// contradict themselves, or they are more than there are cookies.
    pub fn add_to(self, known: &mut Vec<Binding>) -> bool {
        let Some(to_skip) = known.len().checked_sub(self.first) else { return false };
        for NewBinding { kind, decoder, host, is_stack } in self.bindings.into_iter().skip(to_skip) {
            let kind = if is_stack { ProbeKind::Stack } else { kind };
            let decoder = self.decoders.get(decoder).filter(|_| u16::try_from(known.len()).is_ok());
            let Some(decoder) = decoder else { return false };
            known.push(Binding { kind, decoder: Arc::clone(decoder), host });
        }
        true
    }
}
