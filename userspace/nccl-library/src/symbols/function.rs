//! A function of the library and how its parameters arrive at its entry.

use serde::{Deserialize, Serialize};

use crate::{
    dwarf::DeclaredParam,
    elf::{ElfVaddr, FileOffset},
    parameter::ParamLocation,
};

/// A copy of a function in the library. GCC makes several of some: `.isra`, `.constprop` and `.part` clones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Name that the request has: unqualified, not mangled.
    pub name: String,
    /// Symbol as the library states it: mangled, with clone suffixes. The name if it states none.
    pub symbol: String,
    pub found_by: FoundBy,
    /// Address of the entry, as the ELF file states it.
    pub vaddr: ElfVaddr,
    /// Offset of the entry in the file.
    pub file_offset: FileOffset,
    /// Bytes from the entry to the instruction that a uprobe is attached to: a hit there costs one trap
    /// instead of two, and everything is still as it was at the entry. Mostly 0.
    #[serde(default)]
    pub uprobe_offset: u64,
    /// Bytes of machine code; 0 if the library does not say.
    pub size: u64,
    /// Parameters in the order of the debugging information. Clones have lost some, and a parameter that was
    /// split into parts appears several times.
    pub params: Vec<Param>,
    pub params_from: ParamSource,
}

impl Function {
    /// Returns the first parameter of that name with a known location, or else the first of that name.
    pub fn param(&self, name: &str) -> Option<&Param> {
        let mut named = self.params.iter().filter(|param| param.name == name);
        let first = named.clone().next();
        named.find(|param| param.location.is_known()).or(first)
    }

    pub fn uprobe_place(&self) -> FileOffset {
        FileOffset(self.file_offset.0.saturating_add(self.uprobe_offset))
    }

    /// Returns the clone suffix of the symbol, such as `.isra.10`; empty for a plain copy.
    pub fn clone_suffix(&self) -> &str {
        self.symbol.find('.').map_or("", |dot| &self.symbol[dot..])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundBy {
    /// Symbol of `.symtab`, of the library or of its debug file.
    Symbol,
    /// Symbol of `.dynsym`: the function is exported.
    Export,
    /// Code that refers to the function's own name, a string.
    OwnName,
    /// Calls by known callers with the constants that the function is for.
    Calls,
}

/// Source of a function's parameter locations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamSource {
    /// Debugging information that states the locations at the entry address.
    DwarfAtEntry,
    /// Declared order and the platform's calling convention: the copy has no debugging information of its own
    /// (the compiler folded it with an identical function), or only that of unoptimised code, which does not
    /// speak of the entry.
    CallingConvention,
    /// Parameters that NCCL's source declares, the same in all versions, and the platform's calling
    /// convention: a function that is called from other source files or through a pointer has to keep it.
    Prototype,
    /// NCCL's source, and the argument register that the code at the entry tests first: it tells how the
    /// compiler passes the parameters.
    EntryCode,
    Unknown,
}

/// A parameter of one copy of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Param {
    /// Declared name; empty if there is none.
    pub name: String,
    /// Declared type without `const` and the like.
    pub type_name: String,
    /// Bytes of that type, if known.
    #[serde(default)]
    pub size: Option<u64>,
    /// Location of the value when the first instruction of the function is about to run.
    pub location: ParamLocation,
}

impl Param {
    pub(super) fn of(declared: DeclaredParam, location: ParamLocation) -> Self {
        let DeclaredParam { name, type_name, size, class: _ } = declared;
        Self { name, type_name, size, location }
    }
}

#[cfg(test)]
mod tests {
    use super::{FoundBy, Function, Param, ParamSource};
    use crate::elf::{ElfVaddr, FileOffset};
    use crate::parameter::ParamLocation;

    fn param(name: &str, location: ParamLocation) -> Param {
        Param { name: name.into(), type_name: "int".into(), size: Some(4), location }
    }

    #[test]
    fn a_known_location_is_preferred() {
        let unknown = || ParamLocation::Unknown("none stated".into());
        let function = Function {
            name: "SaveProxy".into(),
            symbol: "_ZL9SaveProxyP8ncclComm.isra.10".into(),
            found_by: FoundBy::Symbol,
            vaddr: ElfVaddr(1),
            file_offset: FileOffset(1),
            uprobe_offset: 0,
            size: 1,
            params: vec![
                param("channel", unknown()),
                param("peer", unknown()),
                param("channel", ParamLocation::Register(4)),
            ],
            params_from: ParamSource::DwarfAtEntry,
        };
        assert_eq!(function.param("channel").unwrap().location, ParamLocation::Register(4));
        assert!(!function.param("peer").unwrap().location.is_known());
        assert_eq!(function.param("op"), None);
        assert_eq!(function.clone_suffix(), ".isra.10");
    }
}
