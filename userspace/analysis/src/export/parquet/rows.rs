//! Rows that wait to be written, by columns.

use std::cmp::Ordering;

use flow::schema::{CellType, Cells, Row};
use foldhash::HashMap;
use parquet::data_type::ByteArray;

use super::table::Layout;

/// Values of one column. Rows after the last known value take no memory.
#[derive(Debug)]
pub(super) struct ColumnRows {
    pub(super) values: Values,
    /// Bits of the rows whose values are known.
    known: Vec<u64>,
}

#[derive(Debug)]
pub(super) enum Values {
    Flags(Vec<bool>),
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    /// Numbers of texts.
    Texts(Vec<u32>),
}

impl ColumnRows {
    fn new(cells: CellType) -> Self {
        let values = match cells {
            CellType::Flag => Values::Flags(Vec::new()),
            CellType::Integer => Values::Integers(Vec::new()),
            CellType::Float => Values::Floats(Vec::new()),
            CellType::Text | CellType::Json => Values::Texts(Vec::new()),
        };
        Self { values, known: Vec::new() }
    }

    pub(super) fn is_known(&self, row: usize) -> bool {
        self.known.get(row / 64).is_some_and(|bits| bits >> (row % 64) & 1 == 1)
    }

    fn set_known(&mut self, row: usize) {
        if self.known.len() <= row / 64 {
            self.known.resize(row / 64 + 1, 0);
        }
        if let Some(bits) = self.known.get_mut(row / 64) {
            *bits |= 1 << (row % 64);
        }
    }

    fn bytes(&self) -> usize {
        self.known.capacity() * 8
            + match &self.values {
                Values::Flags(values) => values.capacity(),
                Values::Integers(values) => values.capacity() * 8,
                Values::Floats(values) => values.capacity() * 8,
                Values::Texts(values) => values.capacity() * 4,
            }
    }
}

/// Sets the value of a row, and defaults for missing rows before it.
fn set<T: Copy + Default>(values: &mut Vec<T>, row: usize, value: T) {
    values.resize(row, T::default());
    values.push(value);
}

/// Numbered texts, each stored once.
#[derive(Debug, Default)]
struct Texts {
    numbers: HashMap<Box<str>, u32>,
    by_number: Vec<ByteArray>,
    bytes: usize,
}

impl Texts {
    /// Memory of a text besides its bytes, which are stored twice.
    const ENTRY: usize = 96;

    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        // There are fewer texts than values in a row group: rows times columns.
        let number = u32::try_from(self.by_number.len()).unwrap_or(u32::MAX);
        self.numbers.insert(text.into(), number);
        self.by_number.push(ByteArray::from(text));
        self.bytes += 2 * text.len() + Self::ENTRY;
        number
    }

    /// Returns each text's place in the order of their bytes.
    fn places(&self) -> Vec<i64> {
        let mut order: Vec<usize> = (0..self.by_number.len()).collect();
        order.sort_unstable_by_key(|number| self.by_number.get(*number).map(ByteArray::data));
        let mut places = vec![0; order.len()];
        for (place, number) in order.into_iter().enumerate() {
            if let Some(of_text) = places.get_mut(number) {
                *of_text = i64::try_from(place).unwrap_or(i64::MAX);
            }
        }
        places
    }
}

/// Rows for one row group.
#[derive(Debug)]
pub(super) struct TableRows {
    pub(super) columns: Vec<ColumnRows>,
    texts: Texts,
    rows: usize,
    /// Numbers that no column can hold.
    pub(super) too_large: u64,
}

impl TableRows {
    pub(super) fn new(layout: &Layout) -> Self {
        let columns = layout.columns.iter().map(|column| ColumnRows::new(column.cells)).collect();
        Self { columns, texts: Texts::default(), rows: 0, too_large: 0 }
    }

    /// Puts a part's values into the row that is being made.
    pub(super) fn put(&mut self, layout: &Layout, part: usize, row: &impl Row) {
        let places = layout.parts.get(part).map(Vec::as_slice).unwrap_or_default();
        row.put(&mut PartCells { rows: self, places: places.iter() });
    }

    /// Completes the row.
    pub(super) fn end_row(&mut self) {
        self.rows += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.rows
    }

    pub(super) fn bytes(&self) -> usize {
        self.texts.bytes + self.columns.iter().map(ColumnRows::bytes).sum::<usize>()
    }

    pub(super) fn text(&self, number: u32) -> ByteArray {
        self.texts.by_number.get(number as usize).cloned().unwrap_or_default()
    }

    /// Returns the rows in the order of the columns `by`; missing values come first.
    pub(super) fn order(&self, by: &[usize]) -> Vec<u32> {
        let places = self.texts.places();
        let keys: Vec<Vec<i64>> = by
            .iter()
            .filter_map(|column| self.columns.get(*column))
            .map(|column| (0..self.rows).map(|row| sort_key(column, row, &places)).collect())
            .collect();
        let mut order: Vec<u32> = (0..u32::try_from(self.rows).unwrap_or(u32::MAX)).collect();
        order.sort_by(|a, b| {
            let of = |row: &u32| *row as usize;
            keys.iter()
                .map(|key| key.get(of(a)).cmp(&key.get(of(b))))
                .find(|ordering| ordering.is_ne())
                .unwrap_or(Ordering::Equal)
        });
        order
    }
}

fn sort_key(column: &ColumnRows, row: usize, places: &[i64]) -> i64 {
    if !column.is_known(row) {
        return i64::MIN;
    }
    match &column.values {
        Values::Flags(values) => values.get(row).copied().map(i64::from),
        Values::Integers(values) => values.get(row).copied(),
        // No table is sorted by a float.
        Values::Floats(_) => None,
        Values::Texts(values) => values.get(row).and_then(|number| places.get(*number as usize)).copied(),
    }
    .unwrap_or(i64::MIN)
}

/// Takes the values of a part of a row.
struct PartCells<'a> {
    rows: &'a mut TableRows,
    places: std::slice::Iter<'a, Option<usize>>,
}

impl PartCells<'_> {
    fn next(&mut self) -> Option<(usize, &mut ColumnRows, &mut Texts)> {
        let place = (*self.places.next()?)?;
        let TableRows { columns, texts, rows, .. } = self.rows;
        Some((*rows, columns.get_mut(place)?, texts))
    }
}

impl Cells for PartCells<'_> {
    fn nothing(&mut self) {
        self.places.next();
    }

    fn flag(&mut self, value: bool) {
        if let Some((row, column, _)) = self.next()
            && let Values::Flags(values) = &mut column.values
        {
            set(values, row, value);
            column.set_known(row);
        }
    }

    fn integer(&mut self, value: i64) {
        if let Some((row, column, _)) = self.next()
            && let Values::Integers(values) = &mut column.values
        {
            set(values, row, value);
            column.set_known(row);
        }
    }

    fn float(&mut self, value: f64) {
        if let Some((row, column, _)) = self.next()
            && let Values::Floats(values) = &mut column.values
        {
            set(values, row, value);
            column.set_known(row);
        }
    }

    fn too_large(&mut self) {
        self.places.next();
        self.rows.too_large += 1;
    }

    fn text(&mut self, value: &str) {
        if let Some((row, column, texts)) = self.next()
            && let Values::Texts(values) = &mut column.values
        {
            set(values, row, texts.number(value));
            column.set_known(row);
        }
    }
}
