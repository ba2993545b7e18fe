//! Statistics of a recording, when it is over or while it is written.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::{pipeline::Pipeline, recorded_session::RecordedSession};
use crate::{
    format::{Damage, Item, Progress, RecordingReader, Selection},
    sinks::{LiveStatistics, SessionFiles},
};
use flow::{identity::ProcessFacts, recording::Event};

/// A recording that is read into statistics.
#[derive(Debug)]
pub struct WatchedRecording {
    reader: RecordingReader,
    pipeline: Pipeline,
    from_ns: u64,
    is_over: bool,
}

impl WatchedRecording {
    /// Opens the recording of a session or a window. Records from before `from_ns`, by their clock, are left
    /// out, unless later ones need them.
    pub fn open(path: &Path, from_ns: u64, live: LiveStatistics) -> Result<Self> {
        let context = || format!("in `{}`", path.display());
        let reader = RecordedSession::open(path).with_context(context)?.into_reader();
        let mut pipeline = Pipeline::reading(reader.session(), SessionFiles::nowhere());
        pipeline.output.live = Some(live);
        Ok(Self { reader, pipeline, from_ns, is_over: false })
    }

    /// Reads the next block. A process that becomes known is given to `process`.
    pub fn read_next(&mut self, process: &mut dyn FnMut(&ProcessFacts)) -> Result<Progress> {
        let Self { reader, pipeline, is_over, .. } = self;
        let selection = Selection { from_ns: self.from_ns, ..Selection::ALL };
        let progress = reader.read_next(&selection, &mut |item| match item {
            Item::End(_) => *is_over = true,
            Item::Event(Event::Process(facts)) => process(&facts),
            item => pipeline.take(item),
        })?;
        self.pipeline.close_ended();
        Ok(progress)
    }

    /// Tells whether the session has ended: no more records come.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the latest record's time, in nanoseconds of the recording host's `CLOCK_MONOTONIC`; 0 before
    /// the first.
    pub fn last_ns(&self) -> u64 {
        self.pipeline.last_ns
    }

    /// Returns the bytes that were read or skipped.
    pub fn position(&self) -> u64 {
        self.reader.position()
    }

    /// Returns what could not be read.
    pub fn damage(&self) -> Damage {
        self.reader.damage()
    }
}
