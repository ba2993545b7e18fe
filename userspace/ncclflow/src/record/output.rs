//! What the model gives out, on its way to the files; with a limit where one is set.

use crate::sinks::{LiveStatistics, SessionFiles, Sink};
use flow::{
    model::{ApiOutput, FlowRecord, Rows, other_call_row},
    schema::HostInfo,
};

/// The files, and how much may go into them.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) files: SessionFiles,
    rows: Rows,
    /// Ops, or calls, that may still be written.
    room: Option<u64>,
    left_out: u64,
    /// Statistics of what passes, whether there is room for it or not.
    pub(super) live: Option<LiveStatistics>,
}

impl Output {
    /// `limit`: most ops on a channel, or calls of the API, that are written.
    pub(super) fn new(files: SessionFiles, limit: Option<u64>) -> Self {
        Self { files, rows: Rows::default(), room: limit, left_out: 0, live: None }
    }

    /// An op is laid out to rows once, for all sinks.
    pub(super) fn push(&mut self, host: Option<&HostInfo>, record: &FlowRecord) {
        // A record of the model always stems from one of the kernel, whose process is known.
        let Some(host) = host else { return };
        let has_room = self.has_room();
        let Self { files, live, rows, .. } = self;
        let mut sinks = sinks(live, files, has_room);
        let op = rows.op(record, host);
        sinks.iter_mut().flatten().for_each(|sink| sink.op(&op));
        rows.messages(record, &op, |messages| {
            sinks.iter_mut().flatten().for_each(|sink| sink.messages(&op, messages));
        });
    }

    pub(super) fn push_api(&mut self, host: Option<&HostInfo>, output: &ApiOutput) {
        let Some(host) = host else { return };
        let has_room = self.has_room();
        let Self { files, live, rows, .. } = self;
        let mut sinks = sinks(live, files, has_room);
        match output {
            ApiOutput::Call(record) => {
                let call = rows.call(record, host);
                sinks.iter_mut().flatten().for_each(|sink| sink.call(&call));
            }
            ApiOutput::Other(call) => {
                let row = other_call_row(call, host);
                sinks.iter_mut().flatten().for_each(|sink| sink.other_call(&row));
            }
        }
    }

    /// Nothing more is written.
    pub(super) fn is_full(&self) -> bool {
        self.room == Some(0)
    }

    /// What came when it was full.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    fn has_room(&mut self) -> bool {
        match &mut self.room {
            Some(0) => {
                self.left_out += 1;
                false
            }
            Some(room) => {
                *room -= 1;
                true
            }
            None => true,
        }
    }
}

/// Statistics take everything, files only what there is room for.
fn sinks<'a>(
    live: &'a mut Option<LiveStatistics>,
    files: &'a mut SessionFiles,
    has_room: bool,
) -> [Option<&'a mut dyn Sink>; 2] {
    let live = live.as_mut().map(|live| live as &mut dyn Sink);
    [live, has_room.then_some(files as &mut dyn Sink)]
}
