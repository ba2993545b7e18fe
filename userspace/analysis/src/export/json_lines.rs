//! The files that `record` writes.

use std::io::Write as _;

use anyhow::{Context as _, Result, bail};
use flow::schema::{ApiCall, GpuRow, MessageRow, Op, OtherCallRow, StackRow};

use super::{format::View, run::Exported, source::Source};
use recording::sinks::{Layout, OutputDir, SessionFiles, Share, Sink, Written};

#[derive(Debug)]
pub(super) struct JsonLines {
    dir: OutputDir,
    files: SessionFiles,
    /// Host of the last rows.
    host: Option<String>,
    /// Number of errors of the files that were handed on.
    told: usize,
}

impl JsonLines {
    pub(super) fn new(dir: OutputDir) -> Self {
        Self { dir, files: SessionFiles::nowhere(), host: None, told: 0 }
    }
}

impl View for JsonLines {
    fn look_at(&mut self, sources: &[Source]) -> Result<()> {
        // Rows of several sources lie side by side; those of one as `record` puts them.
        let layout = match sources {
            [source] => Layout::of(source.session()),
            _ => Layout::ByCommunicator,
        };
        self.files = SessionFiles::new(self.dir.try_clone()?, layout);
        Ok(())
    }

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
        self.files.close();
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
        self.dir
            .replace_file(Share::Free, "session.json", |file| file.write_all(report.as_bytes()))
            .context("writing `session.json`")?;
        match self.files.errors().first() {
            Some(error) => bail!("{error}"),
            None => Ok(()),
        }
    }

    fn notes(&self) -> Vec<String> {
        let left_out = self.files.flow_ranks().left_out;
        let note = format!(
            "flow_rank*.json was not written for {left_out} ranks with very many messages; a part of them has one (--last, --rank)"
        );
        (left_out > 0).then_some(note).into_iter().collect()
    }
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
