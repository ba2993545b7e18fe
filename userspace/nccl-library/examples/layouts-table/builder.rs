//! Making of the table's text from libraries.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use nccl_library::elf::BuildId;
use nccl_library::layouts::{Array, Bits, Field, Layouts, Member, Struct};
use nccl_library::symbols::shipped::{Extra, FORMAT, Head, Library, MemberRow, Table, TypeRow};
use nccl_library::symbols::{Problem, ProblemKind, Resolution, SymbolSource};
use serde::Serialize;

#[derive(Debug, Default)]
pub(crate) struct TableBuilder {
    libraries: BTreeMap<BuildId, (Library, Layouts)>,
}

impl TableBuilder {
    pub(crate) fn from_table(table: &Table<'_>) -> Result<Self> {
        let mut builder = Self::default();
        for library in table.libraries() {
            let layouts = table.layouts(library)?;
            builder.libraries.insert(library.build_id.clone(), (library.clone(), layouts));
        }
        Ok(builder)
    }

    /// Adds a library that was resolved by its own debugging information, or replaces it.
    ///
    /// # Errors
    /// When its identity or part of its layouts is not known: such a library helps nobody.
    pub(crate) fn add(&mut self, resolution: &Resolution) -> Result<()> {
        // A struct with several layouts under one name is in no answer, nor in the table.
        let doubtful = |problem: &&Problem| problem.kind == ProblemKind::DebugInfo;
        if resolution.symbol_source != SymbolSource::OwnDwarf {
            bail!("the library has no debugging information of its own");
        }
        if let Some(problem) = resolution.problems.iter().find(doubtful) {
            bail!("{}: {}", problem.subject, problem.what);
        }
        let (Some(build_id), Some(nccl), Some(cuda)) =
            (&resolution.build_id, resolution.nccl_version, resolution.cuda_version)
        else {
            bail!("the library states no build-id or no version");
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
    pub(crate) fn render(&self) -> Result<String> {
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

fn type_lines(layouts: &Layouts) -> Result<BTreeSet<String>> {
    let structs = layouts.structs.iter().map(|(name, layout)| to_line(&of_struct(name, layout)));
    let enums = layouts.enums.iter().map(|(name, layout)| {
        to_line(&TypeRow::Enumeration(name.clone(), layout.size, layout.values.clone()))
    });
    structs.chain(enums).collect()
}

fn to_line(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string(value)?)
}

fn of_struct(name: &str, layout: &Struct) -> TypeRow {
    TypeRow::Struct(name.to_owned(), layout.size, layout.members.iter().map(of_member).collect())
}

fn of_member(member: &Member) -> MemberRow {
    let Member { name, field: Field { offset, size, type_name, array, bits }, inner } = member;
    let array = array.as_ref().map(|Array { count: _, elem_size, dims }| (dims.clone(), *elem_size));
    let bits = bits.map(|Bits { shift, width }| (shift, width));
    let extra = Extra { is: inner.clone(), array, bits };
    let plain = extra.is.is_none() && extra.array.is_none() && extra.bits.is_none();
    MemberRow(name.clone(), *offset, *size, type_name.clone(), (!plain).then_some(extra))
}

#[cfg(test)]
mod tests {
    use super::{Table, TableBuilder};

    #[test]
    fn the_shipped_table_is_in_its_own_form() {
        let again = TableBuilder::from_table(&Table::shipped().unwrap()).unwrap().render().unwrap();
        let shipped = include_str!("../../src/symbols/shipped/layouts.jsonl");
        assert!(again == shipped, "written anew, it is another text");
    }
}
