//! What the model gives out, on its way to the files; with a limit where one is set.

use crate::{live_statistics::LiveStatistics, sinks::SessionFiles};
use flow::{
    model::{ApiOutput, FlowRecord},
    schema::HostInfo,
};

/// The files, and how much may go into them.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) files: SessionFiles,
    /// Ops, or calls, that may still be written.
    room: Option<u64>,
    left_out: u64,
    /// Statistics of what passes, whether there is room for it or not.
    pub(super) live: Option<LiveStatistics>,
}

impl Output {
    /// `limit`: most ops on a channel, or calls of the API, that are written.
    pub(super) fn new(files: SessionFiles, limit: Option<u64>) -> Self {
        Self { files, room: limit, left_out: 0, live: None }
    }

    pub(super) fn push(&mut self, host: Option<&HostInfo>, record: &FlowRecord) {
        // A record of the model always stems from one of the kernel, whose process is known.
        let Some(host) = host else { return };
        if let Some(live) = &self.live {
            live.lock().flow(record, host);
        }
        if self.has_room() {
            self.files.push(record, host);
        }
    }

    pub(super) fn push_api(&mut self, host: Option<&HostInfo>, output: &ApiOutput) {
        let Some(host) = host else { return };
        if let Some(live) = &self.live {
            live.lock().api(output, host);
        }
        if self.has_room() {
            self.files.push_api(output, host);
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
