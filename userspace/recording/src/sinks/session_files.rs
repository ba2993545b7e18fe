//! All files of a session's records, for every level.

use std::{any::Any, sync::Arc};

use flow::schema::{
    ApiCall, CommunicatorReport, GpuRow, MessageRow, MessageSums, Op, OtherCallRow, StackRow,
};

use super::{
    flow_rank::FlowRanks,
    json_lines::LostLines,
    layout::Layout,
    line_files::LineFiles,
    output_dir::OutputDir,
    side_lines::SideLines,
    sink::{Sink, Written},
};

/// Most errors that are kept; losses of further ones are counted all the same.
const MAX_ERRORS: usize = 1000;

/// The sinks that write to one output folder; or none.
#[derive(Debug, Default)]
pub struct SessionFiles {
    dir: Option<Arc<OutputDir>>,
    sinks: Vec<Box<dyn Sink>>,
    errors: Vec<String>,
}

impl SessionFiles {
    pub fn new(dir: OutputDir, layout: Layout) -> Self {
        let dir = Arc::new(dir);
        let lines = LineFiles::new(Arc::clone(&dir), layout);
        Self::of_lines(dir, lines)
    }

    /// Returns files for a session that may go on for months, while processes come and go: old ended ones are
    /// forgotten. `keeps_names`: the files are to be compressed.
    pub fn of_node(dir: OutputDir, layout: Layout, keeps_names: bool) -> Self {
        let dir = Arc::new(dir);
        let lines = LineFiles::new(Arc::clone(&dir), layout).forgetting_ended(keeps_names);
        Self::of_lines(dir, lines)
    }

    fn of_lines(dir: Arc<OutputDir>, lines: LineFiles) -> Self {
        let side = SideLines::new(&dir);
        Self { dir: Some(dir), sinks: vec![Box::new(lines), Box::new(side)], errors: Vec::new() }
    }

    /// Gives the rows to this sink.
    pub fn of_sink(sink: Box<dyn Sink>) -> Self {
        Self { sinks: vec![sink], ..Self::default() }
    }

    /// Returns the sink that [`Self::of_sink`] was given; `None` if it is of another type.
    pub fn into_sink<S: Sink>(self) -> Option<S> {
        let sink: Box<dyn Any> = self.sinks.into_iter().next()?;
        sink.downcast().ok().map(|sink| *sink)
    }

    /// Writes nothing: for sessions that are only watched.
    pub fn nowhere() -> Self {
        Self::default()
    }

    /// Returns the folder of the files, if there are any.
    pub fn dir(&self) -> Option<&OutputDir> {
        self.dir.as_deref()
    }

    /// Tells whether there is room for a further op under the folder's limit.
    pub fn has_room(&self) -> bool {
        self.dir.as_ref().is_none_or(|dir| dir.make_some_room())
    }

    /// Returns what became of the `flow_rank` files, once all is closed.
    pub fn flow_ranks(&self) -> FlowRanks {
        self.written().fold(FlowRanks::default(), |mut sum, written| {
            sum += written.flow_ranks;
            sum
        })
    }

    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    pub fn lost_lines(&self) -> LostLines {
        self.written().map(|written| written.lost).sum()
    }

    /// Returns lines without a file, by process: the process had most files.
    pub fn over_share(&self) -> impl Iterator<Item = (u32, u64)> {
        self.written().flat_map(|written| written.over_share)
    }

    pub(super) fn files(&self) -> Vec<(String, String)> {
        self.written().flat_map(|written| written.files).collect()
    }

    pub fn ranks(&self) -> Vec<CommunicatorReport> {
        self.written().flat_map(|written| written.ranks).collect()
    }

    /// Returns the number of ranks of ended processes that [`Self::ranks`] does not list any more.
    pub fn forgotten_ranks(&self) -> u64 {
        self.written().map(|written| written.forgotten_ranks).sum()
    }

    /// Returns the bytes of lines until now, before they are compressed.
    pub fn bytes(&self) -> u64 {
        self.sinks.iter().map(|sink| sink.bytes()).sum()
    }

    /// Returns the bytes of all files, as far as known: lines, and what will be made from them.
    pub fn bytes_in_all(&self) -> u64 {
        self.sinks.iter().map(|sink| sink.bytes() + sink.bytes_to_come()).sum()
    }

    fn written(&self) -> impl Iterator<Item = Written> {
        self.sinks.iter().map(|sink| sink.written())
    }

    fn each(&mut self, mut hand_on: impl FnMut(&mut dyn Sink)) {
        for sink in &mut self.sinks {
            hand_on(sink.as_mut());
            let errors = sink.take_errors();
            let room = MAX_ERRORS.saturating_sub(self.errors.len());
            self.errors.extend(errors.into_iter().take(room));
        }
    }
}

impl Sink for SessionFiles {
    fn op(&mut self, op: &Op) {
        self.each(|sink| sink.op(op));
    }

    fn wants_messages(&self, op: &Op) -> bool {
        self.sinks.iter().any(|sink| sink.wants_messages(op))
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        self.each(|sink| {
            if sink.wants_messages(op) {
                sink.messages(op, messages);
            }
        });
    }

    fn wants_message_sums(&self, op: &Op) -> bool {
        self.sinks.iter().any(|sink| sink.wants_message_sums(op))
    }

    fn message_sums(&mut self, op: &Op, sums: &[MessageSums]) {
        self.each(|sink| {
            if sink.wants_message_sums(op) {
                sink.message_sums(op, sums);
            }
        });
    }

    fn call(&mut self, call: &ApiCall) {
        self.each(|sink| sink.call(call));
    }

    fn stack(&mut self, stack: &StackRow) {
        self.each(|sink| sink.stack(stack));
    }

    fn gpu(&mut self, row: &GpuRow) {
        self.each(|sink| sink.gpu(row));
    }

    fn other_call(&mut self, row: &OtherCallRow) {
        self.each(|sink| sink.other_call(row));
    }

    fn flush(&mut self) {
        self.each(Sink::flush);
    }

    fn close_process(&mut self, pid: u32) {
        self.each(|sink| sink.close_process(pid));
    }

    fn close(&mut self) {
        self.each(Sink::close);
    }
}
