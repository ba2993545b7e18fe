//! `c10::ScalarType`: the numbers of element types, and the names that `c10::toString` gives them.

/// Names in the order of the enum (`AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS`, c10/core/ScalarType.h;
/// from 2.10 on torch/headeronly/core/ScalarType.h). Versions have added to its end and changed nothing, from
/// 2.4 to 2.15.
const NAMES: [&str; 47] = [
    "Byte",
    "Char",
    "Short",
    "Int",
    "Long",
    "Half",
    "Float",
    "Double",
    "ComplexHalf",
    "ComplexFloat",
    "ComplexDouble",
    "Bool",
    "QInt8",
    "QUInt8",
    "QInt32",
    "BFloat16",
    "QUInt4x2",
    "QUInt2x4",
    "Bits1x8",
    "Bits2x4",
    "Bits4x2",
    "Bits8",
    "Bits16",
    "Float8_e5m2",
    "Float8_e4m3fn",
    "Float8_e5m2fnuz",
    "Float8_e4m3fnuz",
    "UInt16",
    "UInt32",
    "UInt64",
    "UInt1",
    "UInt2",
    "UInt3",
    "UInt4",
    "UInt5",
    "UInt6",
    "UInt7",
    "Int1",
    "Int2",
    "Int3",
    "Int4",
    "Int5",
    "Int6",
    "Int7",
    "Float8_e8m0fnu",
    "Float4_e2m1fn_x2",
    "BComplex32",
];

/// Returns torch's name of an element type.
pub(crate) fn dtype_name(number: u8) -> &'static str {
    NAMES.get(usize::from(number)).copied().unwrap_or("UNKNOWN_SCALAR")
}
