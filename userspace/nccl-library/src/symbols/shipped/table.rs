//! The table of shipped layouts: which library has which.
//!
//! The lines, of JSON, are a head, the libraries, the sets of types, and the types. Equal types are written
//! once, and libraries with equal layouts share a set. Only the lines that a lookup needs are parsed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::row::{self, TypeRow};
use crate::elf::{BuildId, ElfVaddr, Machine};
use crate::{
    layouts::{Enumeration, Layouts},
    nccl::NcclVersion,
    symbols::{Problem, ProblemKind, Resolution, SymbolSource},
};

const FORMAT: u32 = 1;
const SHIPPED: &str = include_str!("layouts.jsonl");

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    format: u32,
    made_by: String,
    libraries: usize,
    sets: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    pub build_id: BuildId,
    pub nccl: NcclVersion,
    /// CUDA version that the library was built for.
    pub cuda: (u32, u32),
    pub machine: Machine,
    set: usize,
    /// Addresses of variables, as in [`Resolution::variables`]: valid only for a library with this build-id.
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
                    let layout = row::into_struct(size, members);
                    let layout = layout.ok_or_else(|| TableError(format!("struct `{name}` overflows")))?;
                    layouts.structs.insert(name, layout);
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

#[derive(Debug, Default)]
pub struct TableBuilder {
    libraries: BTreeMap<BuildId, (Library, Layouts)>,
}

impl TableBuilder {
    pub fn from_table(table: &Table<'_>) -> Result<Self, TableError> {
        let mut builder = Self::default();
        for library in &table.libraries {
            let layouts = table.layouts(library)?;
            builder.libraries.insert(library.build_id.clone(), (library.clone(), layouts));
        }
        Ok(builder)
    }

    /// Adds a library that was resolved by its own debugging information, or replaces it.
    ///
    /// # Errors
    /// When its identity or part of its layouts is not known: such a library helps nobody.
    pub fn add(&mut self, resolution: &Resolution) -> Result<(), TableError> {
        // A struct with several layouts under one name is in no answer, nor in the table.
        let doubtful = |problem: &&Problem| problem.kind == ProblemKind::DebugInfo;
        if resolution.symbol_source != SymbolSource::OwnDwarf {
            return Err(TableError("the library has no debugging information of its own".to_owned()));
        }
        if let Some(problem) = resolution.problems.iter().find(doubtful) {
            return Err(TableError(format!("{}: {}", problem.subject, problem.what)));
        }
        let (Some(build_id), Some(nccl), Some(cuda)) =
            (&resolution.build_id, resolution.nccl_version, resolution.cuda_version)
        else {
            return Err(TableError("the library states no build-id or no version".to_owned()));
        };
        let library = Library {
            build_id: build_id.clone(),
            nccl,
            cuda,
            machine: resolution.machine,
            set: 0,
            variables: resolution.variables.clone(),
        };
        self.libraries.insert(build_id.clone(), (library, resolution.layouts.clone()));
        Ok(())
    }

    /// Renders the text of the table; the same for the same libraries.
    pub fn render(&self) -> Result<String, TableError> {
        let mut libraries: Vec<(Library, BTreeSet<String>)> = Vec::new();
        for (library, layouts) in self.libraries.values() {
            libraries.push((library.clone(), type_lines(layouts)?));
        }
        libraries.sort_by(|(a, _), (b, _)| (a.nccl, a.cuda, &a.build_id).cmp(&(b.nccl, b.cuda, &b.build_id)));
        let types: BTreeSet<&String> = libraries.iter().flat_map(|(_, types)| types).collect();
        let index: BTreeMap<&String, usize> =
            types.iter().enumerate().map(|(at, line)| (*line, at)).collect();
        let mut sets: Vec<Vec<usize>> = Vec::new();
        let mut library_lines = Vec::new();
        for (library, types) in &libraries {
            let set: Vec<usize> = types.iter().filter_map(|line| index.get(line).copied()).collect();
            let known = sets.iter().position(|known| *known == set);
            let set_index = known.unwrap_or(sets.len());
            if known.is_none() {
                sets.push(set);
            }
            library_lines.push(to_line(&Library { set: set_index, ..library.clone() })?);
        }
        let made_by = "cargo xtask make layouts".to_owned();
        let head = Head { format: FORMAT, made_by, libraries: libraries.len(), sets: sets.len() };
        let mut lines = vec![to_line(&head)?];
        lines.extend(library_lines);
        for set in &sets {
            lines.push(to_line(set)?);
        }
        lines.extend(types.into_iter().cloned());
        Ok(lines.join("\n") + "\n")
    }
}

fn type_lines(layouts: &Layouts) -> Result<BTreeSet<String>, TableError> {
    let structs = layouts.structs.iter().map(|(name, layout)| to_line(&row::of_struct(name, layout)));
    let enums = layouts.enums.iter().map(|(name, layout)| to_line(&row::of_enumeration(name, layout)));
    structs.chain(enums).collect()
}

fn to_line(value: &impl Serialize) -> Result<String, TableError> {
    serde_json::to_string(value).map_err(|error| TableError(error.to_string()))
}

/// Reason why a table cannot be read or made.
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
    use super::{Table, TableBuilder};

    #[test]
    fn the_shipped_table_is_whole_and_in_its_own_form() {
        let table = Table::shipped().unwrap();
        for library in table.libraries() {
            let layouts = table.layouts(library).unwrap();
            assert!(layouts.struct_size("ncclComm").is_some(), "{library:?}");
            assert_eq!(table.with_build_id(&library.build_id), Some(library));
        }
        let again = TableBuilder::from_table(&table).unwrap().render().unwrap();
        assert!(again == super::SHIPPED, "written anew, it is another text");
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
