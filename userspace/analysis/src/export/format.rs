//! Formats that recordings can be exported to.

use std::{
    fmt::{Debug, Display},
    path::{Path, PathBuf},
};

use anyhow::Result;
use flow::{
    schema::{ApiCall, GpuRow, MessageRow, MessageSums, Op, OtherCallRow, StackRow},
    text::joined,
};

use super::parquet::Parquet;
use super::{
    chakra::Chakra, compat::Compat, flight_recorder::FlightRecorder, inspector::Inspector,
    json_lines::JsonLines, megatrace::Megatrace, perfetto::Perfetto, run::Exported, source::Source,
};
use recording::sinks::OutputDir;

/// Formats of `ncclflow export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The files that record writes: proxy_flow, flow_steps and flow_rank, or api
    Jsonl,
    /// Those of the NCCL Flow Extractor: its keys, a line for each FIFO step, a slot's capacity as its size
    Compat,
    /// rank_<job rank>.log, the lines of the Megatrace interceptor, of API calls (record --level api)
    Megatrace,
    /// Tables for DuckDB, Spark and others, in folders by job and host: ops, messages, calls, communicators,
    /// hosts, links by seconds
    Parquet,
    /// One trace for ui.perfetto.dev, of all ranks and hosts: PATH is the new file, as job.pftrace
    Perfetto,
    /// Execution traces for ASTRA-sim and other readers of Chakra: ncclflow.<job rank>.et,
    /// ncclflow.groups.json
    Chakra,
    /// JSON as NCCL Inspector writes it (--inspector-version): <host>-pid<pid>.log
    Inspector,
    /// What torch's flight recorder would have written, for torchfrtrace and others: PATH<job rank>, or
    /// nccl_trace_rank_<job rank> where PATH is a folder
    FlightRecorder,
}

impl Format {
    /// Tells whether the format makes a folder of its own, which can have a summary.
    pub(super) fn is_folder(self) -> bool {
        !matches!(self, Self::Perfetto | Self::FlightRecorder)
    }
}

/// Forms of NCCL Inspector's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum InspectorVersion {
    /// As the exporter reads it that comes with NCCL 2.28 to 2.30: only collectives whose time was measured,
    /// each with all that is said of its rank; no sends and receives, no messages
    #[value(name = "v4.0")]
    V4_0,
    /// Everything, with what is said of a rank in a line before its records
    #[default]
    #[value(name = "v4.3")]
    V4_3,
}

/// Options of the files, besides their format.
#[derive(Clone, Debug, Default)]
pub struct ViewOptions {
    /// Set if all files go into one folder.
    pub flat: bool,
    /// Set if messages that were only planned have rows, too, with [`Format::Parquet`].
    pub planned_messages: bool,
    /// Set if sends and receives are left out, with [`Format::FlightRecorder`].
    pub collectives_only: bool,
    /// Traces of torch's profiler that are laid beside ours in one archive, with [`Format::Perfetto`].
    pub manifest: Vec<PathBuf>,
    /// Traces of torch's profiler whose kernels become nodes, with [`Format::Chakra`].
    pub kineto: Vec<PathBuf>,
    /// Form of the records, with [`Format::Inspector`].
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

/// Lists the first of some things.
pub(super) fn listed<T: Display>(things: impl ExactSizeIterator<Item = T>, most: usize) -> String {
    let more = if things.len() > most { ", …" } else { "" };
    joined(things.take(most), ", ") + more
}

/// Makes the notes that begin with a number, of those whose number is not 0.
pub(super) fn counted<const N: usize>(notes: [(u64, &str); N]) -> impl Iterator<Item = String> {
    notes.into_iter().filter(|(count, _)| *count > 0).map(|(count, text)| format!("{count} {text}"))
}

impl Format {
    /// Opens a view that writes to the new folder `path`, or to new files whose names begin so.
    pub(super) fn open(self, path: &Path, options: &ViewOptions) -> Result<Box<dyn View>> {
        let dir = || OutputDir::create(path);
        Ok(match self {
            Self::Jsonl => Box::new(JsonLines::new(dir()?)),
            Self::Compat => Box::new(Compat::new(dir()?, options)),
            Self::Megatrace => Box::new(Megatrace::new(dir()?)),
            Self::Parquet => Box::new(Parquet::new(dir()?, options.planned_messages)?),
            Self::Perfetto => Box::new(Perfetto::create(path, &options.manifest)?),
            Self::Chakra => Box::new(Chakra::new(dir()?, &options.kineto)?),
            Self::Inspector => Box::new(Inspector::new(dir()?, options.inspector)),
            Self::FlightRecorder => Box::new(FlightRecorder::create(path, options.collectives_only)?),
        })
    }
}
