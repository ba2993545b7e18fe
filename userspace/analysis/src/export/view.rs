//! The interface of the formats that recordings can be exported to.

use std::{
    fmt::{Debug, Display},
    path::PathBuf,
};

use anyhow::{Result, ensure};
use flow::{
    schema::{ApiCall, GpuRow, LaunchThreadRow, MessageRow, MessageSums, Op, OtherCallRow, StackRow},
    text::joined,
};

use super::run::Exported;
use crate::sources::Source;

/// Forms of NCCL Inspector's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum InspectorVersion {
    /// As the exporter reads it that comes with NCCL 2.28 to 2.30: only collectives whose time was measured,
    /// each with all that is said of its rank; no sends and receives, no messages
    #[default]
    #[value(name = "v4.0")]
    V4_0,
    /// Everything, with what is said of a rank in a line before its records: a form that is proposed
    /// (NVIDIA/nccl#2359), and in no release
    #[value(name = "v4.3")]
    V4_3,
}

/// Options of the files, besides their format.
#[derive(Clone, Debug, Default)]
pub struct ViewOptions {
    /// Set if all files go into one folder.
    pub flat: bool,
    /// Set if messages that were only planned have rows, too, with
    /// [`Format::Parquet`](super::Format::Parquet).
    pub planned_messages: bool,
    /// Set if sends and receives are left out, with
    /// [`Format::FlightRecorder`](super::Format::FlightRecorder).
    pub collectives_only: bool,
    /// Traces of torch's profiler that are laid beside ours in one archive, with
    /// [`Format::Perfetto`](super::Format::Perfetto).
    pub manifest: Vec<PathBuf>,
    /// Traces of torch's profiler whose kernels become nodes, with [`Format::Chakra`](super::Format::Chakra).
    pub kineto: Vec<PathBuf>,
    /// Form of the records, with [`Format::Inspector`](super::Format::Inspector).
    pub inspector: InspectorVersion,
}

/// Row of a source, or the end of one of its processes. They come in the order of its records.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row<'a> {
    /// An op on a channel. Its messages follow.
    Op(&'a Op),
    /// Some messages of the latest op, in the order of peers and steps.
    Messages(&'a Op, &'a [MessageRow]),
    /// The messages of the latest op, added up by peer.
    MessageSums(&'a Op, &'a [MessageSums]),
    /// A call of the API that communicates.
    Call(&'a ApiCall),
    /// A call of another function of the API.
    OtherCall(&'a OtherCallRow),
    /// A call stack that ops and calls name; before them or after.
    Stack(&'a StackRow),
    /// The activity of a GPU of the host.
    Gpu(&'a GpuRow),
    /// The processor time of a thread that launches, or moves messages.
    LaunchThread(&'a LaunchThreadRow),
    /// The end of a process: nothing more comes of it.
    ProcessEnded(u32),
}

/// Form in which a view wants the messages of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Messages,
    Sums,
    Nothing,
}

impl Wanted {
    /// Wants the messages of measured ops only: for others the sums say as much, and a large ring has
    /// thousands for each op.
    pub(crate) fn of_measured(op: &Op) -> Self {
        if op.row.has_measured_messages() { Self::Messages } else { Self::Sums }
    }
}

/// Takes the rows of one source after the other.
pub(crate) trait View: Debug + Send {
    /// Takes all sources, before the first row of the first comes.
    fn look_at(&mut self, _sources: &[Source]) -> Result<()> {
        Ok(())
    }

    /// Begins a source: the next rows are of it.
    fn begin(&mut self, source: &Source) -> Result<()>;

    /// Tells which rows are wanted for the messages of an op that was taken: others are not made.
    fn wanted(&self, _op: &Op) -> Wanted {
        Wanted::Messages
    }

    /// Takes a row of the source. After an error no more rows come.
    fn row(&mut self, row: Row<'_>) -> Result<()>;

    /// Completes the files, as all rows have come. Returns notes for the user.
    fn finish(&mut self, exported: &Exported) -> Result<Vec<String>>;
}

/// Fails where there are calls of the API and no ops. `files`: those of the format, which are of ops.
pub(super) fn ensure_ops(exported: &Exported, files: &str) -> Result<()> {
    let rows = &exported.rows;
    ensure!(
        rows.ops > 0 || rows.calls == 0,
        "there are API calls in what is asked for and no ops: {files} are of ops, which `record --level flow` and \
         `--level steps` record"
    );
    Ok(())
}

/// Lists the first of some things.
pub(super) fn listed<T: Display>(things: impl ExactSizeIterator<Item = T>, most: usize) -> String {
    let more = if things.len() > most { ", …" } else { "" };
    joined(things.take(most), ", ") + more
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::RowCounts;

    #[test]
    fn files_of_ops_are_not_made_of_calls() {
        let of = |ops, calls| {
            let rows = RowCounts { ops, calls, ..RowCounts::default() };
            let exported = Exported {
                rows,
                sources: Vec::new(),
                twice: Vec::new(),
                span_unix_ns: None,
                clocks: Vec::new(),
                notes: Vec::new(),
                recorded: None,
            };
            ensure_ops(&exported, "these files").err().map(|error| error.to_string())
        };
        assert!(of(0, 520).unwrap().contains("these files are of ops"));
        assert_eq!([of(0, 0), of(3, 520)], [None, None]);
    }
}
