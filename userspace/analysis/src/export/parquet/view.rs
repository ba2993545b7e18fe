//! The view: tables of each recording, in one folder.

use anyhow::{Context as _, Result};
use flow::{schema::Op, text::counted};

use recording::sinks::OutputDir;

use super::{
    super::{
        run::Exported,
        view::{Row, View, Wanted},
    },
    partition::Counts,
    tables::{Formats, ParquetTables, formats},
};
use crate::sources::Source;

#[derive(Debug)]
pub(in crate::export) struct Parquet {
    dir: OutputDir,
    formats: Formats,
    /// Set if messages that were only planned have rows, too.
    planned_messages: bool,
    /// Tables of each source; the last ones take rows.
    tables: Vec<ParquetTables>,
}

impl Parquet {
    pub(in crate::export) fn new(dir: OutputDir, planned_messages: bool) -> Result<Self> {
        Ok(Self { dir, planned_messages, formats: formats()?, tables: Vec::new() })
    }

    fn complete_last(&mut self) -> Result<()> {
        self.tables.last_mut().map_or(Ok(()), ParquetTables::complete)
    }
}

impl View for Parquet {
    fn begin(&mut self, source: &Source) -> Result<()> {
        self.complete_last()?;
        let report = source.session();
        let offset_ns = report.offset_ns().map(|_| source.offset_ns());
        self.tables.push(ParquetTables::new(self.dir.try_clone()?, &self.formats, report, offset_ns));
        Ok(())
    }

    fn wanted(&self, op: &Op) -> Wanted {
        if self.planned_messages { Wanted::Messages } else { Wanted::of_measured(op) }
    }

    fn row(&mut self, row: Row<'_>) -> Result<()> {
        let tables = self.tables.last_mut();
        tables.map_or(Ok(()), |tables| tables.row(row)).context("writing Parquet tables")
    }

    fn finish(&mut self, exported: &Exported) -> Result<Vec<String>> {
        self.complete_last()?;
        for (tables, source) in self.tables.iter_mut().zip(&exported.sources) {
            tables.finish(source)?;
        }
        // Readers see all or nothing of an export.
        self.tables.iter_mut().try_for_each(ParquetTables::publish)?;
        let counts = || self.tables.iter().flat_map(ParquetTables::counts);
        let sum = |value: fn(Counts) -> u64| counts().map(value).sum::<u64>();
        let (rows, files) = (sum(|counts| counts.rows), sum(|counts| counts.files));
        let (rows, files) = (counted(rows, "row"), counted(files, "Parquet file"));
        Ok(vec![format!("{rows} in {files}, {} bytes", sum(|counts| counts.bytes))])
    }
}
