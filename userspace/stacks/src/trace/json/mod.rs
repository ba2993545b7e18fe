//! Chrome's JSON, as Kineto writes it: read as a stream, an event at a time.
//!
//! The format is that of "Trace Event Format" (Chromium, 2016): an object with `traceEvents`, or an array of
//! events, which need not be closed. Times are in µs. Slices (`X`, or `B` and `E`), flows (`s`, `t`, `f`),
//! and slices with flows (`bind_id`) are read; other events do not tell who launched a kernel.

mod mended;
mod raw_event;
mod time;

use std::{
    cell::Cell,
    fmt,
    hash::BuildHasher as _,
    io::{self, BufReader, Read},
    rc::Rc,
};

use anyhow::{Result, anyhow};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{
    event::{
        About, Consumer, FlowEnd, FlowId, Kind, LeftOut, MAX_TRACKS, Slice, TrackId, TrackIds, explained,
    },
    open_slices::OpenSlices,
};
use mended::Mended;
use raw_event::{RawEvent, Scalar};
use serde_json::value::RawValue;

const BLOCK: usize = 256 << 10;

/// Most bytes of an event, and of anything else: Chrome's own traces have kernel logs of some 10 MB.
const MAX_EVENT: u64 = 16 << 20;
const MAX_OTHER: u64 = 256 << 20;

/// Tells the events of a trace to `consumer`.
pub(super) fn read(bytes: impl Read, consumer: &mut dyn Consumer) -> Result<LeftOut> {
    let left = Rc::new(Cell::new(MAX_OTHER));
    let bytes =
        BufReader::with_capacity(BLOCK, Bounded { bytes: Mended::new(bytes), left: Rc::clone(&left) });
    let mut events = Events {
        consumer,
        left,
        raw: RawEvent::default(),
        tracks: TrackIds::default(),
        open: OpenSlices::default(),
        hasher: foldhash::quality::RandomState::default(),
        left_out: LeftOut::default(),
        failed: None,
        count: 0,
        is_between: false,
        is_trace: false,
    };
    let mut json = serde_json::Deserializer::from_reader(bytes);
    let parsed = json.deserialize_any(Document(&mut events)).and_then(|()| json.end());
    if let Some(failed) = events.failed {
        return Err(failed.context(format!("event {}", events.count)));
    }
    if let Err(error) = parsed {
        // An array may end without its bracket: its writer may have been killed.
        if !(error.is_eof() && events.is_between) {
            return Err(if error.is_eof() || error.is_io() {
                explained(error.into(), events.count, "events")
            } else {
                anyhow!("after {} events, what follows is not the JSON of a trace: {error}", events.count)
            });
        }
    } else if !events.is_trace {
        return Err(anyhow!("not a trace: this JSON has no `traceEvents`"));
    }
    events.open.finish(events.consumer)?;
    Ok(events.left_out)
}

/// Reader that fails where one item is longer than the limit, as the item would be kept in memory.
struct Bounded<R> {
    bytes: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(buffer)?;
        let left = self.left.get().checked_sub(read as u64).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "an event is longer than {} MiB, or something else is longer than {} MiB",
                    MAX_EVENT >> 20,
                    MAX_OTHER >> 20
                ),
            )
        })?;
        self.left.set(left);
        Ok(read)
    }
}

struct Events<'c> {
    consumer: &'c mut dyn Consumer,
    /// Bytes that may still come of the item that is being read.
    left: Rc<Cell<u64>>,
    raw: RawEvent,
    /// Threads and streams, by their `pid` and `tid`.
    tracks: TrackIds<(Scalar, Scalar)>,
    open: OpenSlices,
    hasher: foldhash::quality::RandomState,
    left_out: LeftOut,
    /// Error that ended reading, if it was not of the JSON.
    failed: Option<anyhow::Error>,
    count: u64,
    /// Set between two events of an array that is the whole trace.
    is_between: bool,
    is_trace: bool,
}

impl Events<'_> {
    /// Tells the event that was read last.
    fn tell(&mut self) -> Result<()> {
        self.count += 1;
        let [phase] = self.raw.phase.as_bytes() else { return Ok(()) };
        if !matches!(phase, b'X' | b'B' | b'E' | b's' | b't' | b'f') {
            return Ok(());
        }
        let Some(at) = self.raw.begin else {
            self.left_out.without_time += 1;
            return Ok(());
        };
        let track = self.tracks.id((self.raw.pid.clone(), self.raw.tid.clone()));
        let track =
            track.ok_or_else(|| anyhow!("it has more than {MAX_TRACKS} threads: not a profiler's trace"))?;
        match phase {
            b'E' => {
                let was_open = self.open.end(track, at, self.consumer)?;
                self.left_out.ends_alone += u64::from(!was_open);
                Ok(())
            }
            b's' | b't' | b'f' if !self.consumer.takes_flows() => Ok(()),
            b's' | b't' | b'f' => {
                let raw = &self.raw;
                let flow = FlowId(self.hasher.hash_one((&raw.id, &raw.category, &raw.name)));
                self.consumer.flow(FlowEnd { flow, track, at, is_incoming: *phase != b's' })
            }
            _ => self.slice(track, at, *phase == b'B'),
        }
    }

    fn slice(&mut self, track: TrackId, begin: i64, is_open: bool) -> Result<()> {
        let Self { raw, hasher, .. } = self;
        let flow = raw.bind.is_some().then(|| FlowId(hasher.hash_one(&raw.bind)));
        let slice = Slice {
            track,
            kind: Kind::of(&raw.category),
            name: &raw.name,
            begin,
            end: begin.saturating_add(raw.duration.unwrap_or(0).max(0)),
            correlation: raw.correlation,
            flows: flow.as_slice(),
            is_after_inner: false,
        };
        if is_open { self.open.begin(&slice) } else { self.consumer.slice(&slice) }
    }
}

/// Visitor of the whole trace.
struct Document<'e, 'c>(&'e mut Events<'c>);

impl<'de> Visitor<'de> for Document<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with `traceEvents`, or an array of events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key()? {
            match key {
                Key::TraceEvents => {
                    if std::mem::replace(&mut self.0.is_trace, true) {
                        return Err(A::Error::custom(
                            "`traceEvents` is there twice: which is meant is not known",
                        ));
                    }
                    map.next_value_seed(EventList { events: self.0, is_whole: false })?;
                }
                Key::BaseTimeNanoseconds => {
                    self.0.left.set(MAX_EVENT);
                    // A value of another type counts as missing.
                    let base_ns = map.next_value::<Box<RawValue>>()?.get().parse().ok();
                    self.0.consumer.about(About { base_ns, ..About::default() });
                }
                Key::DistributedInfo => {
                    self.0.left.set(MAX_EVENT);
                    let raw = map.next_value::<Box<RawValue>>()?;
                    let of: Distributed = serde_json::from_str(raw.get()).unwrap_or_default();
                    let Distributed { rank, world_size } = of;
                    self.0.consumer.about(About { base_ns: None, rank, world_size });
                }
                Key::Other => {
                    self.0.left.set(MAX_OTHER);
                    map.next_value::<IgnoredAny>()?;
                }
            }
            self.0.left.set(MAX_OTHER);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        self.0.is_trace = true;
        EventList { events: self.0, is_whole: true }.visit_seq(seq)
    }
}

/// Keys of a trace that are read.
#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Key {
    TraceEvents,
    BaseTimeNanoseconds,
    DistributedInfo,
    #[serde(other)]
    Other,
}

/// `distributedInfo`, as Kineto writes it where torch.distributed is initialised.
#[derive(Default, serde::Deserialize)]
struct Distributed {
    rank: Option<i32>,
    world_size: Option<i32>,
}

struct EventList<'e, 'c> {
    events: &'e mut Events<'c>,
    is_whole: bool,
}

impl<'de> DeserializeSeed<'de> for EventList<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for EventList<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let events = self.events;
        loop {
            events.is_between = self.is_whole;
            events.left.set(MAX_EVENT);
            if seq.next_element_seed(OneEvent(events))?.is_none() {
                events.is_between = false;
                return Ok(());
            }
        }
    }
}

struct OneEvent<'e, 'c>(&'e mut Events<'c>);

impl<'de> DeserializeSeed<'de> for OneEvent<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.0.is_between = false;
        self.0.raw.read(deserializer)?;
        self.0.tell().map_err(|error| {
            self.0.failed = Some(error);
            D::Error::custom("not read further")
        })
    }
}

#[cfg(test)]
mod tests;
