//! A capture's rows as Parquet tables: what it takes of time, memory and disk.

use std::{fs::File, io::BufReader, path::Path};

use anyhow::{Context as _, Result};
use flate2::bufread::GzDecoder;
use ncclflow::{
    capture::{CaptureReader, Item},
    record::Pipeline,
    sinks::{OutputDir, ParquetInput, ParquetOptions, ParquetTables, SessionFiles},
};
use serde::Serialize;

use crate::stages::timed;

#[derive(Debug, Serialize)]
pub(crate) struct Tables {
    records: u64,
    rows: u64,
    files: u64,
    bytes: u64,
    seconds: f64,
}

pub(crate) fn run(capture: &Path, output: &Path) -> Result<Tables> {
    let file = BufReader::new(File::open(capture)?);
    let (mut reader, header) = CaptureReader::new(BufReader::new(GzDecoder::new(file)))?;
    let tables =
        ParquetTables::new(OutputDir::create(output)?, ParquetOptions::default(), &header.report)?;
    let mut pipeline = Pipeline::new(header.bindings, SessionFiles::of(vec![Box::new(tables.clone())]));
    let (mut records, mut done) = (0, None);
    let time = timed(|| {
        done = Some((|| {
            let (report, is_cut) = loop {
                match reader.next_item()? {
                    Item::Record(record) => pipeline.record(record),
                    Item::Report(report) => break (report, false),
                    Item::Cut => break (header.report.clone(), true),
                }
                records += 1;
            };
            pipeline.finish();
            tables.finish(&ParquetInput { report: &report, is_cut, records, ..ParquetInput::default() })
        })());
    });
    let totals = done.context("nothing was done")??;
    Ok(Tables {
        records,
        rows: totals.rows,
        files: totals.files,
        bytes: totals.bytes,
        seconds: time.as_secs_f64(),
    })
}
