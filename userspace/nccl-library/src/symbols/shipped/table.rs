//! The table of shipped layouts: which library has which.
//!
//! The lines, of JSON, are a head, the libraries, the sets of types, and the types. Equal types are written
//! once, and libraries with equal layouts share a set. Only the lines that a lookup needs are parsed.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::row::{MemberRow, TypeRow};
use crate::elf::{BuildId, ElfVaddr, Machine};
use crate::{
    layouts::{Enumeration, Layouts, Struct},
    nccl::NcclVersion,
};

pub const FORMAT: u32 = 1;
const SHIPPED: &str = include_str!("layouts.jsonl");

/// The first line: numbers of lines that follow.
#[derive(Debug, Serialize, Deserialize)]
pub struct Head {
    pub format: u32,
    pub made_by: String,
    pub libraries: usize,
    pub sets: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    pub build_id: BuildId,
    pub nccl: NcclVersion,
    /// CUDA version that the library was built for.
    pub cuda: (u32, u32),
    pub machine: Machine,
    /// Number of its set of types.
    pub set: usize,
    /// Addresses of variables, as in [`Resolution`](crate::symbols::Resolution): valid only for a library
    /// with this build-id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, ElfVaddr>,
}

/// The table, its types not parsed yet.
#[derive(Debug)]
pub struct Table<'t> {
    libraries: Vec<Library>,
    sets: Vec<&'t str>,
    types: Vec<&'t str>,
}

impl<'t> Table<'t> {
    /// Parses the table that this program was built with.
    pub fn shipped() -> Result<Table<'static>, TableError> {
        Table::parse(SHIPPED)
    }

    pub fn parse(text: &'t str) -> Result<Self, TableError> {
        let mut lines = text.lines();
        let head: Head = parse_line(lines.next().unwrap_or_default())?;
        if head.format != FORMAT {
            return Err(TableError(format!("format {} is not {FORMAT}", head.format)));
        }
        let libraries: Vec<Library> =
            lines.by_ref().take(head.libraries).map(parse_line).collect::<Result<_, _>>()?;
        let sets: Vec<&str> = lines.by_ref().take(head.sets).collect();
        let complete = libraries.len() == head.libraries && sets.len() == head.sets;
        if !complete || libraries.iter().any(|library| library.set >= sets.len()) {
            return Err(TableError("it is cut short".to_owned()));
        }
        Ok(Self { libraries, sets, types: lines.collect() })
    }

    /// Returns all libraries, by version.
    pub fn libraries(&self) -> &[Library] {
        &self.libraries
    }

    pub fn with_build_id(&self, build_id: &BuildId) -> Option<&Library> {
        self.libraries.iter().find(|library| library.build_id == *build_id)
    }

    /// Finds a library of that version for a CUDA with the same layouts and that processor. `None` when there
    /// are several whose layouts differ: nobody can say which one is meant.
    pub fn with_version(&self, nccl: NcclVersion, cuda: (u32, u32), machine: Machine) -> Option<&Library> {
        let same = |library: &&Library| {
            library.nccl == nccl && same_layouts(library.cuda, cuda) && library.machine == machine
        };
        let mut same = self.libraries.iter().filter(same);
        let first = same.next()?;
        same.all(|other| other.set == first.set).then_some(first)
    }

    pub fn layouts(&self, library: &Library) -> Result<Layouts, TableError> {
        let set: Vec<usize> = parse_line(self.sets.get(library.set).copied().unwrap_or_default())?;
        let mut layouts = Layouts::default();
        for index in set {
            match parse_line(self.types.get(index).copied().unwrap_or_default())? {
                TypeRow::Struct(name, size, members) => {
                    let members: Option<Vec<_>> = members.into_iter().map(MemberRow::into_member).collect();
                    let members = members.ok_or_else(|| TableError(format!("struct `{name}` overflows")))?;
                    layouts.structs.insert(name, Struct { size, members });
                }
                TypeRow::Enumeration(name, size, values) => {
                    layouts.enums.insert(name, Enumeration { size, values });
                }
            }
        }
        Ok(layouts)
    }
}

/// Tells whether builds of one version for these CUDAs can have the same layouts. Besides the major versions,
/// 11.3 makes a difference: before it there are no graphs in `ncclStrongStream` (`CUDART_VERSION >= 11030`,
/// src/include/strongstream.h, 2.16 to 2.30).
fn same_layouts(one: (u32, u32), other: (u32, u32)) -> bool {
    const GRAPHS: (u32, u32) = (11, 3);
    one.0 == other.0 && (one < GRAPHS) == (other < GRAPHS)
}

fn parse_line<'t, T: Deserialize<'t>>(line: &'t str) -> Result<T, TableError> {
    serde_json::from_str(line).map_err(|error| TableError(error.to_string()))
}

/// Reason why a table cannot be read.
#[derive(Debug)]
pub struct TableError(String);

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table of layouts: {}", self.0)
    }
}

impl std::error::Error for TableError {}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn the_shipped_table_is_whole() {
        let table = Table::shipped().unwrap();
        for library in table.libraries() {
            let layouts = table.layouts(library).unwrap();
            assert!(layouts.struct_size("ncclComm").is_some(), "{library:?}");
            assert_eq!(table.with_build_id(&library.build_id), Some(library));
        }
    }

    #[test]
    fn what_is_no_table_is_refused() {
        for text in [
            "",
            "{}",
            "[]\n",
            "{\"format\":2,\"made_by\":\"\",\"libraries\":0,\"sets\":0}",
            "{\"format\":1,\"made_by\":\"\",\"libraries\":1,\"sets\":0}",
            "{\"format\":1,\"made_by\":\"\",\"libraries\":0,\"sets\":1}",
        ] {
            assert!(Table::parse(text).is_err(), "{text}");
        }
    }
}
