//! Makes files out of recordings: all of them, or a part by time, communicator and process, of one or several
//! hosts and windows.
//!
//! A new format is a file here with a type that implements [`View`], and in this file its `mod` line, and a
//! variant of [`Format`] with its line in [`Format::open`].
//!
//! Rows come from each source in turn ([`Source`]), through the same pipeline as live records. Rows that are
//! not asked for are left out ([`choice`]); where two sources have the same rank, the second gets a place of
//! its own ([`ranks`]); the rest goes to the view.

mod bounded;
mod chakra;
mod choice;
mod chosen_rows;
mod compat;
mod flight_recorder;
mod host_clocks;
mod inspector;
mod job;
mod job_ranks;
mod json_lines;
#[cfg(test)]
mod made;
mod megatrace;
mod moment;
mod parquet;
mod perfetto;
mod ranks;
mod recorded;
mod run;
mod torch_traces;
mod view;

pub use crate::sources::{Source, recordings_in, sources};
pub use choice::{Choice, RankRange, words};
pub use chosen_rows::RowCounts;
pub use flight_recorder::RankFiles;
pub use moment::{Moment, duration, utc_minute};
pub use ranks::TwiceReport;
pub(crate) use run::Chosen;
pub use run::{ExportOptions, Exported, SourceReport, export};
pub use stacks::trace::Progress as ExportProgress;
pub use view::{InspectorVersion, ViewOptions};
pub(crate) use view::{Row, View, Wanted};

use std::path::Path;

use anyhow::Result;

use self::{
    chakra::Chakra, compat::Compat, flight_recorder::FlightRecorder, inspector::Inspector,
    json_lines::JsonLines, megatrace::Megatrace, parquet::Parquet, perfetto::Perfetto,
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
    fn is_folder(self) -> bool {
        !matches!(self, Self::Perfetto | Self::FlightRecorder)
    }

    /// Tells whether the names of its files, or what is in them, are ranks of one job.
    fn is_by_job(self) -> bool {
        matches!(self, Self::Megatrace | Self::Chakra | Self::FlightRecorder)
    }

    /// Tells whether its times of several hosts are by one clock. The others write what other programs would
    /// have: times of the host's own clock.
    fn has_one_clock(self) -> bool {
        matches!(self, Self::Perfetto | Self::Parquet)
    }

    /// Opens a view that writes to the new folder `path`, or to new files whose names begin so.
    fn open(self, path: &Path, options: &ViewOptions) -> Result<Box<dyn View>> {
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
