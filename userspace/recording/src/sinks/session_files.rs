//! The receiver of a session's rows: files for every level, another sink, or nothing.

use std::any::Any;

use flow::schema::CommunicatorReport;

use super::{
    flow_rank::FlowRanks, json_lines::LostLines, layout::Layout, line_files::LineFiles,
    output_dir::OutputDir, sink::Sink,
};

/// Most errors that are kept; losses of further ones are counted all the same.
const MAX_ERRORS: usize = 1000;

/// Line files in an output folder, or another sink; or none. What only line files have is empty for others.
#[derive(Debug, Default)]
pub struct SessionFiles {
    sink: Option<Box<dyn Sink>>,
    errors: Vec<String>,
}

impl SessionFiles {
    pub fn new(dir: OutputDir, layout: Layout) -> Self {
        Self::of_sink(Box::new(LineFiles::new(dir, layout)))
    }

    /// Returns files for a session that may go on for months, while processes come and go: old ended ones are
    /// forgotten. `keeps_names`: the files are to be compressed.
    pub fn of_node(dir: OutputDir, layout: Layout, keeps_names: bool) -> Self {
        Self::of_sink(Box::new(LineFiles::new(dir, layout).forgetting_ended(keeps_names)))
    }

    /// Gives the rows to this sink.
    pub fn of_sink(sink: Box<dyn Sink>) -> Self {
        Self { sink: Some(sink), ..Self::default() }
    }

    /// Returns the sink that [`Self::of_sink`] was given; `None` if it is of another type.
    pub fn into_sink<S: Sink>(self) -> Option<S> {
        let sink: Box<dyn Any> = self.sink?;
        sink.downcast().ok().map(|sink| *sink)
    }

    /// Writes nothing: for sessions that are only watched.
    pub fn nowhere() -> Self {
        Self::default()
    }

    /// Returns the receiver of the next row. Errors of earlier rows are kept.
    pub(crate) fn sink(&mut self) -> Option<&mut dyn Sink> {
        let sink = self.sink.as_deref_mut()?;
        let room = MAX_ERRORS.saturating_sub(self.errors.len());
        self.errors.extend(sink.take_errors().into_iter().take(room));
        Some(sink)
    }

    fn lines(&self) -> Option<&LineFiles> {
        let sink: &dyn Any = self.sink.as_deref()?;
        sink.downcast_ref()
    }

    /// Returns the folder of the files, if there are any.
    pub fn dir(&self) -> Option<&OutputDir> {
        self.lines().map(|lines| &lines.dir)
    }

    /// Tells whether there is room for a further op under the folder's limit.
    pub fn has_room(&self) -> bool {
        self.dir().is_none_or(OutputDir::make_some_room)
    }

    /// Completes everything. Removed files then take no room any more.
    pub fn close(&mut self) {
        let sink: Option<&mut dyn Any> = self.sink.as_deref_mut().map(|sink| sink as _);
        if let Some(lines) = sink.and_then(<dyn Any>::downcast_mut::<LineFiles>) {
            lines.close();
        }
    }

    /// Returns what became of the `flow_rank` files, once all is closed.
    pub fn flow_ranks(&self) -> FlowRanks {
        self.lines().map(|lines| lines.flow_ranks).unwrap_or_default()
    }

    /// Returns the errors until now.
    pub fn errors(&mut self) -> &[String] {
        self.sink();
        &self.errors
    }

    pub fn lost_lines(&self) -> LostLines {
        self.lines().map(LineFiles::lost).unwrap_or_default()
    }

    /// Returns lines without a file, by process: the process had most files.
    pub fn over_share(&self) -> impl Iterator<Item = (u32, u64)> {
        self.lines().into_iter().flat_map(LineFiles::over_share)
    }

    pub(super) fn files(&self) -> Vec<(String, String)> {
        self.lines().map(LineFiles::files).unwrap_or_default()
    }

    pub fn ranks(&self) -> Vec<CommunicatorReport> {
        self.lines().map(LineFiles::ranks).unwrap_or_default()
    }

    /// Returns the number of ranks of ended processes that [`Self::ranks`] does not list any more.
    pub fn forgotten_ranks(&self) -> u64 {
        self.lines().map_or(0, |lines| lines.forgotten)
    }

    /// Returns the bytes of lines until now, before they are compressed.
    pub fn bytes(&self) -> u64 {
        self.lines().map_or(0, LineFiles::bytes)
    }

    /// Returns the bytes of all files, as far as known: lines, and what will be made from them.
    pub fn bytes_in_all(&self) -> u64 {
        self.bytes() + self.lines().map_or(0, LineFiles::bytes_to_come)
    }
}
