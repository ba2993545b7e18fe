//! Tables for fleets: Parquet files, partitioned by job and host, that DuckDB, Spark and others read as they
//! are (docs/PARQUET.md).
//!
//! The columns are those of the schema's rows. Rows are gathered in memory into a row group, which is sorted
//! and written; the memory is bounded over all tables. Files get their names at the end, so that readers
//! never see half of a recording.

mod file;
mod links;
mod names;
mod partition;
mod rows;
mod table;
mod tables;
mod view;

#[cfg(test)]
mod tests;

pub(in crate::export) use view::Parquet;
