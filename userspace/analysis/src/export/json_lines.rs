//! The files that `record` writes.

use std::io::Write as _;

use anyhow::{Context as _, Result, bail};

use super::{
    run::Exported,
    view::{Row, View},
};
use crate::sources::Source;
use recording::sinks::{Layout, LineFiles, OutputDir, Share, Sink as _};

#[derive(Debug)]
pub(super) struct JsonLines {
    files: LineFiles,
    /// Host of the last rows.
    host: Option<String>,
}

impl JsonLines {
    pub(super) fn new(dir: OutputDir) -> Self {
        Self { files: LineFiles::new(dir, Layout::default()), host: None }
    }

    /// Returns the first error of the files.
    fn check(&mut self) -> Result<()> {
        self.files.take_errors().first().map_or(Ok(()), |error| bail!("{error}"))
    }
}

impl View for JsonLines {
    fn look_at(&mut self, sources: &[Source]) -> Result<()> {
        // Rows of several sources lie side by side; those of one as `record` puts them.
        self.files.layout = match sources {
            [source] => Layout::of(source.session()),
            _ => Layout::ByCommunicator,
        };
        Ok(())
    }

    fn begin(&mut self, source: &Source) -> Result<()> {
        let host = Some(source.host().to_owned());
        // From here on process IDs are those of another host.
        if self.host.is_some() && self.host != host {
            self.files.close();
        }
        self.host = host;
        self.files.flush();
        self.check()
    }

    fn row(&mut self, row: Row<'_>) -> Result<()> {
        match row {
            Row::Op(op) => self.files.op(op),
            Row::Messages(op, messages) => self.files.messages(op, messages),
            Row::MessageSums(op, sums) => self.files.message_sums(op, sums),
            Row::Call(call) => self.files.call(call),
            Row::OtherCall(row) => self.files.other_call(row),
            Row::Stack(stack) => self.files.stack(stack),
            Row::Gpu(row) => self.files.gpu(row),
            Row::LaunchThread(row) => self.files.launch_thread(row),
            Row::ProcessEnded(pid) => self.files.close_process(pid),
        }
        self.check()
    }

    fn finish(&mut self, exported: &Exported) -> Result<Vec<String>> {
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
        self.files
            .dir
            .replace_file(Share::Free, "session.json", |file| file.write_all(report.as_bytes()))
            .context("writing `session.json`")?;
        self.check()?;
        let left_out = self.files.flow_ranks.left_out;
        let note = format!(
            "flow_rank*.json was not written for {left_out} ranks with very many messages; a part of them has one (--last, --rank)"
        );
        Ok((left_out > 0).then_some(note).into_iter().collect())
    }
}
