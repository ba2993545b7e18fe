//! Slices whose begin and end are two events.

use std::collections::HashMap;

use anyhow::{Result, bail};

use super::event::{Consumer, FlowId, Kind, Slice, TrackId};

/// Deepest nesting of slices on a track. CPython's own limit is a thousand frames, but it can be raised.
pub(super) const MAX_DEPTH: usize = 10_000;

/// Most slices that are open at the same time, and bytes of their names.
const MAX_OPEN: usize = 1 << 20;
const MAX_BYTES: usize = 256 << 20;

#[derive(Debug)]
struct Open {
    name: Box<str>,
    kind: Kind,
    begin: i64,
    correlation: Option<u64>,
    flows: Box<[FlowId]>,
}

/// The slices that have begun and not ended, by track.
#[derive(Debug, Default)]
pub(super) struct OpenSlices {
    tracks: HashMap<TrackId, Vec<Open>, foldhash::quality::RandomState>,
    count: usize,
    bytes: usize,
}

impl OpenSlices {
    /// Notes that `slice` begins; its end is not looked at.
    pub(super) fn begin(&mut self, slice: &Slice<'_>) -> Result<()> {
        let open = self.tracks.entry(slice.track).or_default();
        self.count += 1;
        self.bytes += slice.name.len() + std::mem::size_of_val(slice.flows);
        if open.len() >= MAX_DEPTH || self.count > MAX_OPEN || self.bytes > MAX_BYTES {
            bail!(
                "more than {MAX_DEPTH} slices are nested, or {MAX_OPEN} are open at once: not a profiler's trace"
            );
        }
        open.push(Open {
            name: slice.name.into(),
            kind: slice.kind,
            begin: slice.begin,
            correlation: slice.correlation,
            flows: slice.flows.into(),
        });
        Ok(())
    }

    /// Ends the innermost slice of this track, and tells it to `consumer`. Returns `false` if none is open
    /// there.
    pub(super) fn end(&mut self, track: TrackId, at: i64, consumer: &mut dyn Consumer) -> Result<bool> {
        let Some(open) = self.tracks.get_mut(&track).and_then(Vec::pop) else { return Ok(false) };
        self.count -= 1;
        self.bytes -= open.name.len() + std::mem::size_of_val(&*open.flows);
        let slice = Slice { is_after_inner: true, ..open.slice(track, at.max(open.begin)) };
        consumer.slice(&slice)?;
        Ok(true)
    }

    /// Ends all slices, as the trace is over.
    pub(super) fn finish(self, consumer: &mut dyn Consumer) -> Result<()> {
        for (track, open) in self.tracks {
            open.iter().try_for_each(|open| consumer.slice(&open.slice(track, i64::MAX)))?;
        }
        Ok(())
    }
}

impl Open {
    fn slice(&self, track: TrackId, end: i64) -> Slice<'_> {
        let Self { name, kind, begin, correlation, flows } = self;
        Slice {
            track,
            kind: *kind,
            name,
            begin: *begin,
            end,
            correlation: *correlation,
            flows,
            is_after_inner: false,
        }
    }
}
