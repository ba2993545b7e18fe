//! Values of rows for tables whose columns have a type: Parquet, and whatever comes after it.
//!
//! The type of a column follows from the type of its field, so a table has the columns of a row without a
//! second list of them.

use std::{borrow::Cow, collections::BTreeMap};

use nccl_library::nccl::{Algorithm, Direction, Name, Pattern, Protocol, Transport};

use super::{
    BytesKind, FrameRow, GpuProcessRow, LaunchKind, LinkKey, NicRow, Observed, Outcome, PeerRow, SecondOf,
    StackOf, Stage, Wait, WaitRow,
};

/// Type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellType {
    Flag,
    /// Signed, of 64 bits.
    Integer,
    /// With a fraction, of 64 bits.
    Float,
    Text,
    /// JSON as text: lists and objects.
    Json,
}

/// Takes the values of a row, one for each of its columns, in their order.
pub trait Cells {
    /// Takes a value that is not known or does not exist.
    fn nothing(&mut self);

    fn flag(&mut self, value: bool);

    fn integer(&mut self, value: i64);

    fn float(&mut self, value: f64);

    /// Takes a number that an [`integer`](Self::integer) cannot hold.
    fn too_large(&mut self);

    fn text(&mut self, value: &str);
}

/// Type of a row's field, which is one value of a table.
pub trait Cell {
    const TYPE: CellType;

    fn put(&self, cells: &mut impl Cells);
}

/// A row as a sequence of values.
pub trait Row {
    /// Passes the values to `cells`, in the order of the row's columns.
    fn put(&self, cells: &mut impl Cells);
}

impl Cell for bool {
    const TYPE: CellType = CellType::Flag;

    fn put(&self, cells: &mut impl Cells) {
        cells.flag(*self);
    }
}

impl Cell for f64 {
    const TYPE: CellType = CellType::Float;

    fn put(&self, cells: &mut impl Cells) {
        cells.float(*self);
    }
}

macro_rules! integers {
    ($($integer:ty)+) => {$(
        impl Cell for $integer {
            const TYPE: CellType = CellType::Integer;

            #[allow(clippy::allow_attributes, irrefutable_let_patterns, reason = "some of them always fit")]
            fn put(&self, cells: &mut impl Cells) {
                if let Ok(value) = i64::try_from(*self) { cells.integer(value) } else { cells.too_large() }
            }
        }
    )+};
}

integers!(u8 u16 u32 u64 i32 i64);

macro_rules! texts {
    ($($text:ty: $as_str:expr;)+) => {$(
        impl Cell for $text {
            const TYPE: CellType = CellType::Text;

            fn put(&self, cells: &mut impl Cells) {
                let as_str: fn(&Self) -> &str = $as_str;
                cells.text(as_str(self));
            }
        }
    )+};
}

texts! {
    String: |text| text;
    Cow<'static, str>: |text| text;
    Name: |name| name.as_str();
    Transport: |name| name.as_str();
    Direction: |value| value.name();
    Pattern: |value| value.name();
    Protocol: |value| value.name();
    Algorithm: |value| value.name();
    Stage: |value| value.name();
    BytesKind: |value| value.name();
    Outcome: |value| value.name();
    LaunchKind: |value| value.name();
    SecondOf: |value| value.name();
    StackOf: |value| value.name();
}

macro_rules! json {
    ($($value:ty)+) => {$(
        impl Cell for $value {
            const TYPE: CellType = CellType::Json;

            fn put(&self, cells: &mut impl Cells) {
                // Rows can always be written as JSON: their keys are strings.
                match serde_json::to_string(self) {
                    Ok(text) => cells.text(&text),
                    Err(_) => cells.nothing(),
                }
            }
        }
    )+};
}

json!([i32; 3] Vec<PeerRow> Vec<FrameRow> Vec<GpuProcessRow> Vec<NicRow> Vec<String> Vec<u64> LinkKey WaitRow);
json!(BTreeMap<Wait, WaitRow> BTreeMap<i32, Vec<u32>>);

impl<T: Cell> Cell for Option<T> {
    const TYPE: CellType = T::TYPE;

    fn put(&self, cells: &mut impl Cells) {
        match self {
            Some(value) => value.put(cells),
            None => cells.nothing(),
        }
    }
}

impl<T: Cell> Cell for Observed<T> {
    const TYPE: CellType = T::TYPE;

    fn put(&self, cells: &mut impl Cells) {
        match self {
            Self::Known(value) => value.put(cells),
            Self::Absent | Self::Unknown => cells.nothing(),
        }
    }
}
