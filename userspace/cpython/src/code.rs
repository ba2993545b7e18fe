//! Code objects: function, file and lines.

use crate::{
    LineTable, Offsets, Unknown, line_at,
    memory::Reader,
    text::{bytes, string},
};

/// Contents of a code object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeObject {
    /// `co_name`, as a traceback shows it: `load_batch`, `<lambda>`, `<module>`
    pub name: String,
    /// `co_qualname` (3.11 and later): `Loader.load_batch`, `train.<locals>.<lambda>`
    pub qualname: Option<String>,
    /// `co_filename`, as Python was given it: often relative to the folder in which it was started
    pub filename: String,
    pub first_line: u32,
    kind: LineTable,
    table: Vec<u8>,
}

impl CodeObject {
    /// Returns the line of the instruction at `offset` ([`Offsets::instruction_offset`]).
    pub fn line(&self, offset: i64) -> Option<u32> {
        line_at(self.kind, &self.table, self.first_line, offset)
    }
}

/// Reads the code object at `address`, which was proven to be one.
pub(crate) fn read(reader: &Reader<'_>, offsets: &Offsets, address: u64) -> Result<CodeObject, Unknown> {
    let code = &offsets.code;
    let qualname = code.qualname.unwrap_or(code.name);
    let head = [code.filename, code.name, qualname, code.first_line, code.line_table];
    let head = reader.fields(address, &head)?;
    let text = |field| string(reader, offsets, head.u64(field));
    Ok(CodeObject {
        name: text(code.name)?,
        qualname: code.qualname.map(text).transpose()?,
        filename: text(code.filename)?,
        first_line: u32::try_from(head.i32(code.first_line))
            .map_err(|_| Unknown::Contradiction("a function begins before the first line"))?,
        kind: offsets.line_table(),
        table: bytes(reader, offsets, head.u64(code.line_table))?,
    })
}
