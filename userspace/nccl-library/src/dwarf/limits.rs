//! Bounds on what a hostile file may make us hold or visit. All are far above what NCCL 2.16 to 2.32 need.

/// Compilation units; NCCL 2.32.3 has 203.
pub(super) const UNITS: usize = 1 << 16;
/// Bytes of one compilation unit; the largest of the official libraries has 0.4 MB, but link-time
/// optimisation may make one of all.
pub(super) const UNIT_BYTES: u64 = 128 << 20;
/// Bytes of a section that is read whole (`.debug_str`, `.debug_abbrev`, `.debug_aranges` and the like).
pub(super) const SECTION_BYTES: u64 = 128 << 20;
/// Bytes of the abbreviations of one unit; the official libraries have at most 8 kB.
pub(super) const ABBREVIATION_BYTES: usize = 1 << 20;
/// Bytes of a name. Template names of C++ libraries reach some kilobytes.
pub(super) const NAME_BYTES: usize = 4096;
/// References from a concrete copy to its declaration, or from a type to what it stands for.
pub(super) const HOPS: usize = 16;
/// Structs inside structs, dimensions of arrays, and pointers to pointers.
pub(super) const NESTING: usize = 32;
/// Members of one struct, enumerators of one enumeration, parameters of one function.
pub(super) const CHILDREN: usize = 8192;
/// Structs in one answer.
pub(super) const STRUCTS: usize = 4096;
/// Members of all structs in one answer.
pub(super) const MEMBERS: usize = 1 << 17;
/// Entries of one location list.
pub(super) const LOCATIONS: usize = 4096;
/// Faults that are reported.
pub(super) const FAULTS: usize = 16;
