//! Every file of a session's records, whatever its level.

use super::{
    api_files::{ApiFiles, ApiOutputOptions},
    flow_files::{FlowFileSummary, FlowFiles},
    json_lines::LostLines,
    output_dir::OutputDir,
};
use flow::model::{ApiOutput, FlowRecord};
use flow::schema::HostInfo;

/// The flow files and the files of API calls in one output folder; or none.
#[derive(Debug)]
pub struct SessionFiles(Option<Files>);

#[derive(Debug)]
struct Files {
    flow: FlowFiles,
    api: ApiFiles,
}

impl SessionFiles {
    pub fn new(dir: OutputDir, api: ApiOutputOptions) -> Self {
        Self(Some(Files { flow: FlowFiles::new(dir), api: ApiFiles::new(api) }))
    }

    /// Writes nothing: for sessions that are only watched.
    pub fn nowhere() -> Self {
        Self(None)
    }

    /// Where the files are, if there are any.
    pub fn dir(&self) -> Option<&OutputDir> {
        self.0.as_ref().map(|files| files.flow.dir())
    }

    /// Writes an op's line and the lines of its messages.
    pub fn push(&mut self, record: &FlowRecord, host: &HostInfo) {
        if let Some(files) = &mut self.0 {
            files.flow.push(record, host);
        }
    }

    /// Writes an API call's line.
    pub fn push_api(&mut self, output: &ApiOutput, host: &HostInfo) {
        let Some(Files { flow, api }) = &mut self.0 else { return };
        if let Err(error) = api.push(flow.dir(), output, host) {
            flow.add_error(error);
        }
    }

    /// Writes what has gathered, so that a reader sees it.
    pub fn flush(&mut self) {
        let Some(Files { flow, api }) = &mut self.0 else { return };
        flow.flush();
        for error in api.flush() {
            flow.add_error(error);
        }
    }

    /// Completes the files of a process (as ncclflow numbers it), and closes them.
    pub fn close_process(&mut self, pid: u32) {
        let Some(Files { flow, api }) = &mut self.0 else { return };
        flow.close_process(pid);
        for error in api.close_process(pid) {
            flow.add_error(error);
        }
    }

    /// Completes all files, and closes them: what is removed then takes no room any more.
    pub fn close(&mut self) {
        let Some(Files { flow, api }) = &mut self.0 else { return };
        flow.close();
        for error in api.close() {
            flow.add_error(error);
        }
    }

    /// No op has come: there is nothing to aggregate.
    pub fn has_no_flows(&self) -> bool {
        self.0.as_ref().is_none_or(|files| files.flow.is_empty())
    }

    /// What went wrong so far; each failure once.
    pub fn errors(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |files| files.flow.errors())
    }

    /// Lines that could not be written, all files together.
    pub fn lost_lines(&self) -> LostLines {
        let lost = self.0.iter().flat_map(|files| [files.flow.lost_lines(), files.api.lost_lines()]);
        lost.sum()
    }

    /// Files of JSON lines that were made: folder and name.
    pub(super) fn files(&self) -> Vec<(String, String)> {
        let Some(Files { flow, api }) = &self.0 else { return Vec::new() };
        flow.files().into_iter().chain(api.files()).collect()
    }

    /// What was written, by communicator and rank.
    pub fn summaries(&self) -> Vec<FlowFileSummary> {
        let Some(Files { flow, api }) = &self.0 else { return Vec::new() };
        let mut summaries = flow.summaries();
        summaries.extend(api.summaries());
        summaries
    }
}
