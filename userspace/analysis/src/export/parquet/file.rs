//! A Parquet file of a table.

use std::{io, sync::Arc};

use flow::schema::{CellType, Column};
use parquet::{
    basic::{Compression, Encoding, LogicalType, Repetition, Type as PhysicalType},
    data_type::{BoolType, ByteArrayType, DataType, DoubleType, Int64Type},
    errors::{ParquetError, Result},
    file::{
        metadata::{KeyValue, SortingColumn},
        properties::{EnabledStatistics, WriterProperties},
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::types::{ColumnPath, Type},
};
use serde_json::json;

use super::{
    rows::{TableRows, Values},
    table::Layout,
};
use recording::sinks::OutputFile;

/// Rows gathered at a time for a column: memory that writing takes besides the rows.
const BATCH: usize = 8192;

/// Limits at which a file is completed and the next one begun: a footer lists all row groups, and is read
/// whole.
const MAX_ROW_GROUPS: usize = 64;
const MAX_BYTES: usize = 512 << 20;

/// Schema and writer properties of a table's files.
#[derive(Clone, Debug)]
pub(super) struct Format {
    schema: Arc<Type>,
    properties: Arc<WriterProperties>,
}

impl Format {
    pub(super) fn of(layout: &Layout) -> Result<Self> {
        let fields =
            layout.columns.iter().map(|column| field(column).map(Arc::new)).collect::<Result<_>>()?;
        let schema = Type::group_type_builder(layout.table.name()).with_fields(fields).build()?;
        Ok(Self { schema: Arc::new(schema), properties: Arc::new(properties(layout)) })
    }
}

fn field(column: &Column) -> Result<Type> {
    let (physical, logical) = match column.cells {
        CellType::Flag => (PhysicalType::BOOLEAN, None),
        CellType::Integer => (PhysicalType::INT64, None),
        CellType::Float => (PhysicalType::DOUBLE, None),
        // JSON as well: not every reader knows the type of that name.
        CellType::Text | CellType::Json => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
    };
    Type::primitive_type_builder(column.key, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .build()
}

fn properties(layout: &Layout) -> WriterProperties {
    let sorting = layout.sorted_by.iter().filter_map(|column| {
        Some(SortingColumn { column_idx: i32::try_from(*column).ok()?, descending: false, nulls_first: true })
    });
    let about: Vec<_> = layout
        .columns
        .iter()
        .map(|column| {
            let value = format!("{:?}", column.kind).to_lowercase();
            json!({"key": column.key, "value": value, "unit": column.unit, "meaning": column.about})
        })
        .collect();
    let metadata = vec![KeyValue::new("ncclflow.columns".to_owned(), json!(about).to_string())];
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("ncclflow ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_sorting_columns(Some(sorting.collect()))
        .set_key_value_metadata(Some(metadata));
    for column in &layout.columns {
        if column.cells == CellType::Integer {
            let path = ColumnPath::from(column.key);
            // Times hardly ever repeat; other numbers do, or else follow one another.
            let repeats = column.unit != "ns" || column.key == "clock_offset_ns";
            properties = properties
                .set_column_dictionary_enabled(path.clone(), repeats)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
    }
    properties.build()
}

pub(super) struct TableFile(SerializedFileWriter<OutputFile>);

impl std::fmt::Debug for TableFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TableFile({} row groups)", self.0.flushed_row_groups().len())
    }
}

impl TableFile {
    pub(super) fn new(file: OutputFile, format: &Format) -> Result<Self> {
        SerializedFileWriter::new(file, Arc::clone(&format.schema), Arc::clone(&format.properties)).map(Self)
    }

    /// Writes the rows as a row group, sorted.
    pub(super) fn write(&mut self, rows: &TableRows, sorted_by: &[usize]) -> Result<()> {
        let order = rows.order(sorted_by);
        let mut group = self.0.next_row_group()?;
        for column in &rows.columns {
            let is_known = |row: u32| column.is_known(row as usize);
            match &column.values {
                Values::Flags(values) => {
                    write_column::<BoolType>(&mut group, &order, is_known, |row| of_row(values, row))?;
                }
                Values::Integers(values) => {
                    write_column::<Int64Type>(&mut group, &order, is_known, |row| of_row(values, row))?;
                }
                Values::Floats(values) => {
                    write_column::<DoubleType>(&mut group, &order, is_known, |row| of_row(values, row))?;
                }
                Values::Texts(values) => {
                    let value = |row| rows.text(of_row(values, row));
                    write_column::<ByteArrayType>(&mut group, &order, is_known, value)?;
                }
            }
        }
        group.close().map(drop)
    }

    /// Tells whether the next rows go to another file.
    pub(super) fn is_full(&self) -> bool {
        self.0.flushed_row_groups().len() >= MAX_ROW_GROUPS || self.0.bytes_written() >= MAX_BYTES
    }

    /// Writes the footer. Returns the size of the file.
    pub(super) fn finish(mut self) -> Result<u64> {
        self.0.finish()?;
        Ok(self.0.bytes_written() as u64)
    }
}

fn of_row<T: Copy + Default>(values: &[T], row: u32) -> T {
    values.get(row as usize).copied().unwrap_or_default()
}

fn write_column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, OutputFile>,
    order: &[u32],
    is_known: impl Fn(u32) -> bool,
    value: impl Fn(u32) -> T::T,
) -> Result<()> {
    let missing = || ParquetError::General("a column without a writer".to_owned());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    for batch in order.chunks(BATCH) {
        let known: Vec<i16> = batch.iter().map(|row| i16::from(is_known(*row))).collect();
        let values: Vec<T::T> = batch.iter().filter(|row| is_known(**row)).map(|row| value(*row)).collect();
        column.typed::<T>().write_batch(&values, Some(&known), None)?;
    }
    column.close()
}

/// Returns the file system's error behind it, if there is one.
pub(super) fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}
