//! Perfetto's protobuf: packets, read one at a time.
//!
//! Track events are read: slices (begin and end, or Chrome's old complete ones) with their flows. Tracks of
//! the same thread are one.

mod clocks;
pub mod messages;
mod sequence;

use std::{
    io::{BufRead, ErrorKind, Read},
    rc::Rc,
};

use anyhow::{Context as _, Result, anyhow, bail};
use flate2::read::ZlibDecoder;
use prost::Message as _;

use super::{
    event::{Consumer, FlowId, Kind, LeftOut, MAX_TRACKS, Slice, TrackId, TrackIds},
    open_slices::OpenSlices,
};
use clocks::Clocks;
use messages::{
    INCREMENTAL_STATE_CLEARED, NEEDS_INCREMENTAL_STATE, SLICE_BEGIN, SLICE_END, TracePacket, TrackDescriptor,
    TrackEvent,
};
use sequence::Sequences;

/// Longest packet; Perfetto's own end at some 100 KB, or, compressed, some MB.
const MAX_PACKET: u64 = 16 << 20;

/// Most bytes of one packet after decompression.
const MAX_UNPACKED: u64 = 256 << 20;

/// Tells the slices of a trace to `consumer`.
pub(super) fn read(mut bytes: impl BufRead, consumer: &mut dyn Consumer) -> Result<LeftOut> {
    let mut trace = Trace {
        consumer,
        clocks: Clocks::default(),
        sequences: Sequences::default(),
        tracks: Tracks::default(),
        open: OpenSlices::default(),
        left_out: LeftOut::default(),
        packets: 0,
    };
    trace.read_packets(&mut bytes, true)?;
    trace.open.finish(trace.consumer)?;
    Ok(trace.left_out)
}

/// Key of a track that slices can be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Track {
    Uuid(u64),
    Thread(i32, i64),
    /// Events of a writer that names no track.
    OfSequence(u32),
}

type Tracks = TrackIds<Track>;

impl Tracks {
    fn number(&mut self, track: Track) -> Result<TrackId> {
        let id = self.id(track);
        id.ok_or_else(|| anyhow!("it has more than {MAX_TRACKS} tracks: not a profiler's trace"))
    }

    /// Notes which thread a track is of, unless slices have been on it already.
    fn describe(&mut self, descriptor: &TrackDescriptor) -> Result<()> {
        if let (Some(uuid), Some(thread)) = (descriptor.uuid, descriptor.thread)
            && !self.0.contains_key(&Track::Uuid(uuid))
        {
            let id = self.number(Track::Thread(thread.pid, thread.tid))?;
            self.0.insert(Track::Uuid(uuid), id);
        }
        Ok(())
    }
}

struct Trace<'c> {
    consumer: &'c mut dyn Consumer,
    clocks: Clocks,
    sequences: Sequences,
    tracks: Tracks,
    open: OpenSlices,
    left_out: LeftOut,
    packets: u64,
}

impl Trace<'_> {
    /// Reads a message `Trace`: packets with their lengths.
    fn read_packets(&mut self, bytes: &mut dyn BufRead, may_be_compressed: bool) -> Result<()> {
        const PACKET: u64 = 1 << 3 | LENGTH;
        let mut packet = Vec::new();
        while let Some(tag) = varint(bytes).map_err(|error| self.explained(error))? {
            if tag != PACKET {
                let packets = self.packets;
                bail!(
                    "after {packets} packets, what follows is none: not a trace of Perfetto's, or a damaged one"
                );
            }
            let length = varint(bytes).map_err(|error| self.explained(error))?;
            let length = length.ok_or_else(|| self.is_cut())?;
            if length > MAX_PACKET {
                let packets = self.packets;
                bail!(
                    "after {packets} packets there is one of {length} bytes, and at most {MAX_PACKET} are read: not a \
                     trace of Perfetto's, or a damaged one"
                );
            }
            packet.clear();
            let read = Read::take(&mut *bytes, length).read_to_end(&mut packet);
            let read = read.map_err(|error| self.explained(error))?;
            if (read as u64) < length {
                return Err(self.is_cut());
            }
            self.packets += 1;
            let decoded =
                TracePacket::decode(&*packet).with_context(|| format!("packet {}", self.packets))?;
            self.packet(decoded, may_be_compressed).with_context(|| format!("packet {}", self.packets))?;
        }
        Ok(())
    }

    fn is_cut(&self) -> anyhow::Error {
        let packets = self.packets;
        anyhow!("the trace is cut: it ends in the middle, after {packets} packets; write or copy it again")
    }

    fn explained(&self, error: std::io::Error) -> anyhow::Error {
        match error.kind() {
            ErrorKind::UnexpectedEof => self.is_cut(),
            _ => anyhow::Error::from(error).context(format!("after {} packets", self.packets)),
        }
    }

    fn packet(&mut self, packet: TracePacket, may_be_compressed: bool) -> Result<()> {
        if let Some(compressed) = &packet.compressed_packets {
            if !may_be_compressed {
                bail!("packets are compressed twice");
            }
            let unpacked = ZlibDecoder::new(&**compressed).take(MAX_UNPACKED);
            return self.read_packets(&mut std::io::BufReader::new(unpacked), false);
        }
        let number = packet.sequence;
        if packet.incremental_state_cleared || packet.sequence_flags & INCREMENTAL_STATE_CLEARED != 0 {
            self.sequences.clear(number)?;
        } else if packet.previous_packet_dropped {
            self.sequences.get(number)?.is_whole = false;
        }
        if packet.sequence_flags & NEEDS_INCREMENTAL_STATE != 0 && !self.sequences.get(number)?.is_whole {
            self.left_out.without_state += 1;
            return Ok(());
        }
        if packet.defaults.is_some() {
            self.sequences.get(number)?.defaults = packet.defaults;
        }
        if let Some(data) = &packet.interned_data {
            self.sequences.intern(number, data)?;
        }
        if let Some(snapshot) = &packet.clock_snapshot {
            self.clocks.snapshot(number, snapshot);
        }
        if let Some(descriptor) = &packet.track_descriptor {
            self.tracks.describe(descriptor)?;
        }
        // Each packet's time is read, also where it is not used: on an incremental clock the next one is
        // counted from it.
        let clock = packet.timestamp_clock_id.or_else(|| {
            self.sequences.get(number).ok()?.defaults.and_then(|defaults| defaults.timestamp_clock_id)
        });
        let at = packet.timestamp.and_then(|timestamp| self.clocks.time(number, clock, timestamp));
        match packet.track_event {
            Some(event) => self.track_event(number, &event, at),
            None => Ok(()),
        }
    }

    fn track_event(&mut self, number: u32, event: &TrackEvent, at: Option<i64>) -> Result<()> {
        const COMPLETE: i32 = b'X' as i32;
        const BEGIN: i32 = b'B' as i32;
        const END: i32 = b'E' as i32;
        let phase = event.legacy.map_or(0, |legacy| legacy.phase);
        let is_end = event.kind == SLICE_END || phase == END;
        let is_complete = phase == COMPLETE;
        if !(is_end || is_complete || event.kind == SLICE_BEGIN || phase == BEGIN) {
            return Ok(());
        }
        let Some(at) = at else {
            self.left_out.without_time += 1;
            return Ok(());
        };
        let sequence = self.sequences.get(number)?;
        let default_track = sequence.defaults.and_then(|defaults| defaults.track_event?.track_uuid);
        let track = event.track_uuid.or(default_track).map_or(Track::OfSequence(number), Track::Uuid);
        let track = self.tracks.number(track)?;
        if is_end {
            let was_open = self.open.end(track, at, self.consumer)?;
            self.left_out.ends_alone += u64::from(!was_open);
            return Ok(());
        }
        let name: Rc<str> = match &event.name {
            Some(name) => String::from_utf8_lossy(name).into(),
            None => sequence.name(event.name_iid).unwrap_or_default(),
        };
        let interned = event.category_iids.iter().filter_map(|iid| sequence.category(*iid));
        let categories = event.categories.iter().filter_map(|name| std::str::from_utf8(name).ok());
        let kind =
            interned.chain(categories).map(Kind::of).find(|kind| *kind != Kind::Cpu).unwrap_or(Kind::Cpu);
        let flows: Vec<_> = [
            &event.flow_ids,
            &event.terminating_flow_ids,
            &event.flow_ids_old,
            &event.terminating_flow_ids_old,
        ]
        .into_iter()
        .flatten()
        .map(|id| FlowId(*id))
        .collect();
        let duration = event.legacy.map_or(0, |legacy| legacy.duration_us.max(0)).saturating_mul(1000);
        let slice = Slice {
            track,
            kind,
            name: &name,
            begin: at,
            end: at.saturating_add(duration),
            correlation: None,
            flows: &flows,
            is_after_inner: false,
        };
        if is_complete { self.consumer.slice(&slice) } else { self.open.begin(&slice) }
    }
}

/// Wire type of fields that begin with their length.
const LENGTH: u64 = 2;

/// Reads a number of protobuf; `None` at the end of the bytes.
fn varint(bytes: &mut dyn BufRead) -> std::io::Result<Option<u64>> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let Some(byte) = bytes.fill_buf()?.first().copied() else {
            return if shift == 0 { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
        };
        bytes.consume(1);
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Ok(Some(value));
        }
    }
    Err(std::io::Error::new(ErrorKind::InvalidData, "a number has more than ten bytes"))
}
