//! The view: tables of each recording, in one folder.

use anyhow::Result;
use flow::schema::{ApiCall, MessageRow, MessageSums, Op, OtherCallRow};

use recording::sinks::{OutputDir, Sink};

use super::{
    super::{format::View, run::Exported, source::Source},
    tables::{ParquetFormats, ParquetInput, ParquetTables, ParquetTotals},
};

#[derive(Debug)]
pub(in crate::export) struct Parquet {
    dir: OutputDir,
    formats: ParquetFormats,
    /// Set if messages that were only planned have rows, too.
    planned_messages: bool,
    /// Tables of each source; the last ones take rows.
    tables: Vec<ParquetTables>,
    totals: ParquetTotals,
}

impl Parquet {
    pub(in crate::export) fn new(dir: OutputDir, planned_messages: bool) -> Result<Self> {
        Ok(Self {
            dir,
            planned_messages,
            formats: ParquetFormats::new()?,
            tables: Vec::new(),
            totals: ParquetTotals::default(),
        })
    }

    fn complete_last(&mut self) -> Result<()> {
        self.tables.last_mut().map_or(Ok(()), ParquetTables::complete)
    }

    fn last(&mut self, put: impl FnOnce(&mut ParquetTables)) {
        if let Some(tables) = self.tables.last_mut() {
            put(tables);
        }
    }
}

impl View for Parquet {
    fn begin(&mut self, source: &Source) -> Result<()> {
        self.complete_last()?;
        self.tables.push(ParquetTables::new(self.dir.try_clone()?, &self.formats, source.session()));
        Ok(())
    }

    fn finish(&mut self, exported: &Exported) -> Result<()> {
        self.complete_last()?;
        for (tables, source) in self.tables.iter_mut().zip(&exported.sources) {
            tables.finish(&ParquetInput {
                is_cut: source.is_cut,
                records: source.records,
                undecodable: source.undecodable,
                blocks_left_out: source.damaged_blocks.saturating_add(source.unknown_blocks),
            })?;
        }
        // Readers see all or nothing of an export.
        for tables in &mut self.tables {
            let ParquetTotals { rows, files, bytes } = tables.publish()?;
            self.totals.rows += rows;
            self.totals.files += files;
            self.totals.bytes += bytes;
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let ParquetTotals { rows, files, bytes } = self.totals;
        vec![format!("{rows} rows in {files} Parquet files, {bytes} bytes")]
    }
}

impl Sink for Parquet {
    fn op(&mut self, op: &Op) {
        self.last(|tables| tables.op(op));
    }

    fn wants_messages(&self, op: &Op) -> bool {
        self.planned_messages || op.row.has_measured_messages()
    }

    fn wants_message_sums(&self, op: &Op) -> bool {
        !self.wants_messages(op)
    }

    fn message_sums(&mut self, op: &Op, sums: &[MessageSums]) {
        self.last(|tables| tables.message_sums(op, sums));
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        self.last(|tables| tables.messages(op, messages));
    }

    fn call(&mut self, call: &ApiCall) {
        self.last(|tables| tables.call(call));
    }

    fn other_call(&mut self, row: &OtherCallRow) {
        self.last(|tables| tables.other_call(row));
    }

    fn take_errors(&mut self) -> Vec<String> {
        self.tables.last_mut().map(Sink::take_errors).unwrap_or_default()
    }
}
