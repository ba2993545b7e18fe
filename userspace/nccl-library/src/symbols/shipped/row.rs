//! Lines of the table: a struct or an enumeration each.

use serde::{Deserialize, Serialize};

use crate::layouts::{Array, Bits, Field, Member};

/// A line: `{"s":[name, size, members]}` or `{"e":[name, size, values]}`.
#[derive(Debug, Serialize, Deserialize)]
pub enum TypeRow {
    #[serde(rename = "s")]
    Struct(String, u64, Vec<MemberRow>),
    #[serde(rename = "e")]
    Enumeration(String, u64, Vec<(String, i64)>),
}

/// A member: `[name, offset, size, type]`, and a fifth element for what few members have.
#[derive(Debug, Serialize, Deserialize)]
pub struct MemberRow(
    pub String,
    pub u64,
    pub u64,
    pub String,
    #[serde(default, skip_serializing_if = "Option::is_none")] pub Option<Extra>,
);

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Extra {
    /// Name of the struct that the member, or its element, is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is: Option<String>,
    /// Dimensions of an array, and the bytes of an element.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<(Vec<u64>, u64)>,
    /// Shift and width of a bit field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<(u32, u32)>,
}

impl MemberRow {
    /// Returns the member; `None` if its array has more elements than can be counted.
    pub(super) fn into_member(self) -> Option<Member> {
        let Self(name, offset, size, type_name, extra) = self;
        let Extra { is: inner, array, bits } = extra.unwrap_or_default();
        let array = match array {
            Some((dims, elem_size)) => {
                let count = dims.iter().try_fold(1u64, |count, dim| count.checked_mul(*dim))?;
                Some(Array { count, elem_size, dims })
            }
            None => None,
        };
        let bits = bits.map(|(shift, width)| Bits { shift, width });
        Some(Member { name, field: Field { offset, size, type_name, array, bits }, inner })
    }
}
