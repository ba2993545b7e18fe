//! The files that `record` writes.

use std::io::Write as _;

use anyhow::{Context as _, Result, bail};
use flow::schema::{ApiCall, GpuRow, MessageRow, Op, OtherCallRow, StackRow};

use super::{
    format::{View, ViewOptions},
    run::Exported,
    source::Source,
};
use crate::sinks::{
    Layout, MAX_AGGREGATED, OutputDir, SessionFiles, Share, Sink, Written, aggregate_directory,
};

#[derive(Debug)]
pub(super) struct JsonLines {
    files: SessionFiles,
    /// Host of the last rows.
    host: Option<String>,
    /// Number of errors of the files that were handed on.
    told: usize,
}

impl JsonLines {
    pub(super) fn new(dir: OutputDir, options: &ViewOptions) -> Self {
        Self { files: SessionFiles::new(dir, options.api, Layout::ByCommunicator), host: None, told: 0 }
    }
}

impl View for JsonLines {
    fn begin(&mut self, source: &Source) -> Result<()> {
        let host = Some(source.host().to_owned());
        // From here on process IDs are those of another host.
        if self.host.is_some() && self.host != host {
            self.files.close();
        }
        self.host = host;
        Ok(())
    }

    fn finish(&mut self, exported: &Exported) -> Result<()> {
        self.files.flush();
        let report = match exported.sources.as_slice() {
            [source] => source.read.report.clone(),
            sources => {
                let sessions: Vec<serde_json::Value> = sources
                    .iter()
                    .map(|source| serde_json::from_str(&source.read.report).unwrap_or_default())
                    .collect();
                serde_json::to_string_pretty(&serde_json::json!({ "sessions": sessions }))? + "\n"
            }
        };
        complete(&self.files, &report)
    }
}

/// Writes the files that are made from complete lines, and `session.json`.
pub(super) fn complete(files: &SessionFiles, report: &str) -> Result<()> {
    let dir = files.dir().context("lines are written to a folder")?;
    dir.replace_file(Share::Free, "session.json", |file| file.write_all(report.as_bytes()))
        .context("writing `session.json`")?;
    if !files.has_no_flows() {
        aggregate_directory(dir, MAX_AGGREGATED)?;
    }
    if let Some(error) = files.errors().first() {
        bail!("{error}");
    }
    Ok(())
}

impl Sink for JsonLines {
    fn op(&mut self, op: &Op) {
        self.files.op(op);
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        self.files.messages(op, messages);
    }

    fn call(&mut self, call: &ApiCall) {
        self.files.call(call);
    }

    fn stack(&mut self, stack: &StackRow) {
        self.files.stack(stack);
    }

    fn gpu(&mut self, row: &GpuRow) {
        self.files.gpu(row);
    }

    fn other_call(&mut self, row: &OtherCallRow) {
        self.files.other_call(row);
    }

    fn flush(&mut self) {
        self.files.flush();
    }

    fn close_process(&mut self, pid: u32) {
        self.files.close_process(pid);
    }

    fn take_errors(&mut self) -> Vec<String> {
        let new = self.files.errors().get(self.told..).unwrap_or_default().to_vec();
        self.told += new.len();
        new
    }

    fn written(&self) -> Written {
        let mut written = Written::default();
        (written.ranks, written.lost) = (self.files.ranks(), self.files.lost_lines());
        written
    }
}
