//! Columns of rows, as the documentation shows them.

use super::CellType;

/// Origin of a column's value: how it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Name of something: a rank, a process, a place, a moment of the recording.
    Identity,
    /// Computed by NCCL before the transfer.
    Planned,
    /// Computed by ncclflow: from planned values by NCCL's arithmetic, or from measured values.
    Derived,
    /// Observed while it happened.
    Measured,
}

/// A key of a row.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub key: &'static str,
    pub kind: ValueKind,
    /// Unit of the value; empty for a name, a number of things or a flag.
    pub unit: &'static str,
    /// Meaning of the value, and the versions of NCCL in which it is known.
    pub about: &'static str,
    /// Type of the values in tables.
    pub cells: CellType,
}

/// Declares a row: a struct that is written and read as a JSON object, and its `COLUMNS`.
///
/// A column consists of its documentation; the key, how the value is known, and the unit if it has one;
/// attributes for serde; field and type; and, if the key can be left out, the method that says when.
macro_rules! row {
    (
        $(#[doc = $about_row:literal])+
        $(#[derive($($derived:ident),+)])?
        pub struct $row:ident {
            $(
                $(#[doc = $about:literal])+
                $key:literal: $kind:ident $($unit:literal)?,
                $(#[$attribute:meta])* $field:ident: $type:ty $(, unless $absent:ident)?;
            )+
        }
    ) => {
        $(#[doc = $about_row])+
        #[derive(Clone, Debug, PartialEq, $($($derived,)+)? serde::Deserialize)]
        #[allow(clippy::struct_excessive_bools, clippy::struct_field_names, reason = "named as the keys")]
        pub struct $row {
            $(
                $(#[doc = $about])+
                #[serde(rename = $key)]
                $(#[$attribute])*
                $(#[doc = concat!("Left out where `", stringify!($absent), "`.")] #[serde(default)])?
                pub $field: $type,
            )+
        }

        impl $row {
            /// Columns in the order in which they are written.
            pub const COLUMNS: &[$crate::schema::Column] = &[
                $($crate::schema::Column {
                    key: $key,
                    kind: $crate::schema::ValueKind::$kind,
                    unit: concat!($($unit)?),
                    about: concat!($($about),+).trim_ascii(),
                    cells: <$type as $crate::schema::Cell>::TYPE,
                },)+
            ];

            /// Appends the row as JSON: the same text as by `Serialize`, without a look at each byte of the
            /// keys.
            pub fn write_json(&self, line: &mut Vec<u8>) -> serde_json::Result<()> {
                let begin = line.len();
                $(if $(!self.$field.$absent() &&)? true {
                    line.extend_from_slice(concat!(",\"", $key, "\":").as_bytes());
                    serde_json::to_writer(&mut *line, &self.$field)?;
                })+
                if let Some(comma) = line.get_mut(begin) {
                    *comma = b'{';
                }
                line.push(b'}');
                Ok(())
            }
        }

        impl $crate::schema::Row for $row {
            fn put(&self, cells: &mut impl $crate::schema::Cells) {
                $($crate::schema::Cell::put(&self.$field, cells);)+
            }
        }

        impl serde::Serialize for $row {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap as _;
                let mut row = serializer.serialize_map(None)?;
                $(if $(!self.$field.$absent() &&)? true {
                    row.serialize_entry($key, &self.$field)?;
                })+
                row.end()
            }
        }
    };
}
