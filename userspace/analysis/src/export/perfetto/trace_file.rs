//! A `.pftrace` file while it is written: packets one after the other, each repeated text once.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use foldhash::HashMap;
use prost::Message as _;

use super::{
    messages::{
        CHILDREN_BY_RANK, Clock, ClockSnapshot, DebugAnnotation, Defaults, INCREMENTAL_STATE_CLEARED,
        Interned, InternedData, MONOTONIC, NEEDS_INCREMENTAL_STATE, PROCESSES_BY_RANK, REALTIME, TracePacket,
        TrackDescriptor, TrackEvent,
    },
    output::TraceOutput,
};

/// Bytes that are gathered before they are written.
const BATCH: usize = 1 << 20;

/// Most texts of a kind that get a number. Further ones stand in each event.
const MAX_TEXTS: usize = 65_536;

/// Number of the only writer of packets.
const SEQUENCE: u32 = 1;

/// Key of `packet`, field 1 of `Trace`, which has a length.
const PACKET_KEY: u8 = 1 << 3 | 2;

/// Texts that have a number, and those that got one since the last packet.
#[derive(Debug, Default)]
struct Texts {
    numbers: HashMap<String, u64>,
    new: Vec<Interned>,
}

impl Texts {
    /// Returns the number of a text; `None` if there are too many.
    fn number(&mut self, text: &str) -> Option<u64> {
        if let Some(number) = self.numbers.get(text) {
            return Some(*number);
        }
        if self.numbers.len() >= MAX_TEXTS {
            return None;
        }
        // Numbers begin at 1.
        let number = self.numbers.len() as u64 + 1;
        self.numbers.insert(text.to_owned(), number);
        self.new.push(Interned { iid: number, text: text.to_owned() });
        Some(number)
    }
}

/// A value that an event has besides its name and time.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Flag(bool),
    Unsigned(u64),
    Signed(i64),
    Text(&'a str),
}

/// A file that gets its name when it is complete. If this is dropped before, the file is removed.
#[derive(Debug)]
pub(super) struct TraceFile {
    file: TraceOutput,
    batch: Vec<u8>,
    categories: Texts,
    names: Texts,
    keys: Texts,
    values: Texts,
    pub(super) bytes: u64,
}

impl TraceFile {
    /// Creates the file. One that exists, or a link, is refused. With traces of torch's profiler, it is an
    /// archive with them.
    pub(super) fn create(path: &Path, beside: &[PathBuf]) -> Result<Self> {
        Ok(Self {
            file: TraceOutput::create(path, beside)?,
            batch: Vec::with_capacity(BATCH + (BATCH >> 3)),
            categories: Texts::default(),
            names: Texts::default(),
            keys: Texts::default(),
            values: Texts::default(),
            bytes: 0,
        })
    }

    /// Writes the first packets. All times of the trace are Unix times. `monotonic_ns` is the time `at_ns` by
    /// the other clock, where all rows are of one host.
    pub(super) fn begin(&mut self, at_ns: u64, monotonic_ns: Option<u64>) -> io::Result<()> {
        let clock = |id, timestamp| Clock { id, timestamp, ..Clock::default() };
        let clocks = [Some(clock(REALTIME, at_ns)), monotonic_ns.map(|at| clock(MONOTONIC, at))];
        self.push(&TracePacket {
            sequence: SEQUENCE,
            is_first_on_sequence: true,
            sequence_flags: INCREMENTAL_STATE_CLEARED,
            defaults: Some(Defaults { timestamp_clock_id: Some(REALTIME), ..Defaults::default() }),
            clock_snapshot: Some(ClockSnapshot {
                clocks: clocks.into_iter().flatten().collect(),
                primary_trace_clock: Some(REALTIME),
            }),
            ..TracePacket::default()
        })?;
        // The root of all tracks says how processes are ordered.
        self.describe(TrackDescriptor {
            uuid: Some(0),
            process_ordering: PROCESSES_BY_RANK,
            child_ordering: CHILDREN_BY_RANK,
            ..TrackDescriptor::default()
        })
    }

    /// Writes a track, which must come before its events.
    pub(super) fn describe(&mut self, track: TrackDescriptor) -> io::Result<()> {
        self.push(&TracePacket {
            sequence: SEQUENCE,
            track_descriptor: Some(track),
            ..TracePacket::default()
        })
    }

    /// Writes an event, with the number of its name if it has one.
    pub(super) fn event(&mut self, at_ns: u64, name: Option<&str>, mut event: TrackEvent) -> io::Result<()> {
        if let Some(name) = name {
            // A state's end has an empty name.
            event.name_iid = if name.is_empty() { None } else { self.names.number(name) };
            event.name = event.name_iid.is_none().then(|| name.to_owned());
        }
        let texts = [&mut self.categories, &mut self.names, &mut self.keys, &mut self.values];
        let interned_data = texts.iter().any(|texts| !texts.new.is_empty()).then(|| {
            let [event_categories, event_names, debug_annotation_names, debug_annotation_string_values] =
                texts.map(|texts| std::mem::take(&mut texts.new));
            InternedData {
                event_categories,
                event_names,
                debug_annotation_names,
                debug_annotation_string_values,
            }
        });
        self.push(&TracePacket {
            timestamp: Some(at_ns),
            sequence: SEQUENCE,
            sequence_flags: NEEDS_INCREMENTAL_STATE,
            track_event: Some(event),
            interned_data,
            ..TracePacket::default()
        })
    }

    /// Returns the number of a category.
    pub(super) fn category(&mut self, name: &'static str) -> Vec<u64> {
        self.categories.number(name).into_iter().collect()
    }

    /// Makes the values of an event, in their order; unknown values are left out.
    pub(super) fn values<'a>(
        &mut self,
        values: impl IntoIterator<Item = (&'static str, Option<Value<'a>>)>,
    ) -> Vec<DebugAnnotation> {
        let mut annotations = Vec::new();
        for (key, value) in values {
            let (Some(value), Some(name_iid)) = (value, self.keys.number(key)) else { continue };
            let mut annotation = DebugAnnotation { name_iid, ..DebugAnnotation::default() };
            match value {
                Value::Flag(flag) => annotation.flag = Some(flag),
                Value::Unsigned(number) => annotation.unsigned = Some(number),
                Value::Signed(number) => annotation.signed = Some(number),
                Value::Text(text) => {
                    annotation.text_iid = self.values.number(text);
                    annotation.text = annotation.text_iid.is_none().then(|| text.to_owned());
                }
            }
            annotations.push(annotation);
        }
        annotations
    }

    fn push(&mut self, packet: &TracePacket) -> io::Result<()> {
        self.batch.push(PACKET_KEY);
        // A vector grows as needed.
        packet.encode_length_delimited(&mut self.batch).map_err(io::Error::other)?;
        if self.batch.len() >= BATCH { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.write_all(&self.batch)?;
        self.bytes += self.batch.len() as u64;
        self.batch.clear();
        Ok(())
    }

    pub(super) fn output(&self) -> &TraceOutput {
        &self.file
    }

    /// Gives the file its name.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.write().context("writing the trace")?;
        self.file.finish()
    }
}
