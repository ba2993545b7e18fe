//! Every file of a session's records, whatever its level.

use super::{
    api_files::{ApiFiles, ApiOutputOptions},
    flow_files::{FlowFileSummary, FlowFiles},
    lines::HostInfo,
    output_dir::OutputDir,
};
use crate::model::{ApiOutput, FlowRecord};

/// The flow files and the files of API calls in one output folder.
#[derive(Debug)]
pub struct SessionFiles {
    flow: FlowFiles,
    api: ApiFiles,
}

impl SessionFiles {
    pub fn new(dir: OutputDir, api: ApiOutputOptions) -> Self {
        Self { flow: FlowFiles::new(dir), api: ApiFiles::new(api) }
    }

    pub fn dir(&self) -> &OutputDir {
        self.flow.dir()
    }

    /// Writes an op's line and the lines of its messages.
    pub fn push(&mut self, record: &FlowRecord, host: &HostInfo) {
        self.flow.push(record, host);
    }

    /// Writes an API call's line.
    pub fn push_api(&mut self, output: &ApiOutput, host: &HostInfo) {
        if let Err(error) = self.api.push(self.flow.dir(), output, host) {
            self.flow.add_error(error);
        }
    }

    /// Writes what has gathered, so that a reader sees it.
    pub fn flush(&mut self) {
        self.flow.flush();
        for error in self.api.flush() {
            self.flow.add_error(error);
        }
    }

    /// Completes the files of a process (as ncclflow numbers it), and closes them.
    pub fn close_process(&mut self, pid: u32) {
        self.flow.close_process(pid);
        for error in self.api.close_process(pid) {
            self.flow.add_error(error);
        }
    }

    /// No op has come: there is nothing to aggregate.
    pub fn has_no_flows(&self) -> bool {
        self.flow.is_empty()
    }

    /// What went wrong so far; each failure once.
    pub fn errors(&self) -> &[String] {
        self.flow.errors()
    }

    /// Lines that could not be written, all files together.
    pub fn lost_lines(&self) -> u64 {
        self.flow.lost_lines() + self.api.lost_lines()
    }

    /// What was written, by communicator and rank.
    pub fn summaries(&self) -> Vec<FlowFileSummary> {
        let mut summaries = self.flow.summaries();
        summaries.extend(self.api.summaries());
        summaries
    }
}
