//! A function of the library and how its parameters arrive at its entry.

use serde::{Deserialize, Serialize};

use crate::{
    dwarf::DeclaredParam,
    elf::{ElfVaddr, FileOffset},
    parameter::ParamLocation,
};

/// One copy of a function in the library. GCC makes several of some: `.isra`, `.constprop` and `.part`
/// clones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// The name it was asked for: unqualified, not mangled.
    pub name: String,
    /// The symbol as the library states it: mangled, with clone suffixes. Where it states none, the name.
    pub symbol: String,
    pub found_by: FoundBy,
    /// Entry, as the ELF file states it.
    pub vaddr: ElfVaddr,
    /// Entry, in the file.
    pub file_offset: FileOffset,
    /// Bytes after the entry to where a uprobe goes: an instruction at which a hit costs one trap instead of
    /// two, where everything is still as it was at the entry. Mostly 0.
    #[serde(default)]
    pub uprobe_offset: u64,
    /// Bytes of machine code; 0 if the library does not say.
    pub size: u64,
    /// The parameters in the order of the debugging information. Clones have lost some, and one that was
    /// split into parts appears several times.
    pub params: Vec<Param>,
    pub params_from: ParamSource,
}

impl Function {
    /// The first parameter of that name with a known location, or else the first of that name.
    pub fn param(&self, name: &str) -> Option<&Param> {
        let mut named = self.params.iter().filter(|param| param.name == name);
        let first = named.clone().next();
        named.find(|param| param.location.is_known()).or(first)
    }

    pub fn uprobe_place(&self) -> FileOffset {
        FileOffset(self.file_offset.0.saturating_add(self.uprobe_offset))
    }

    /// The clone suffix of the symbol, such as `.isra.10`; empty for a plain copy.
    pub fn clone_suffix(&self) -> &str {
        self.symbol.find('.').map_or("", |dot| &self.symbol[dot..])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundBy {
    /// A symbol of `.symtab`, of the library or of its debug file.
    Symbol,
    /// A symbol of `.dynsym`: it is exported.
    Export,
    /// Its code refers to the string that is its own name.
    OwnName,
    /// It is what its callers call with the constants that it is for.
    Calls,
}

/// How a function's parameter locations were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamSource {
    /// The debugging information states where they are at the entry address.
    DwarfAtEntry,
    /// The declared order and the platform's calling convention: the copy has no debugging information of its
    /// own (the compiler folded it with an identical function), or only such of unoptimised code, which does
    /// not speak of the entry.
    CallingConvention,
    /// The parameters that NCCL's source declares, the same in all versions, and the platform's calling
    /// convention: a function that is called from other source files or through a pointer has to keep it.
    Prototype,
    /// NCCL's source, and which argument register the code at the entry tests first: that tells how the
    /// compiler passes the parameters.
    EntryCode,
    Unknown,
}

/// A parameter of one copy of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Param {
    /// As declared; empty if it has none.
    pub name: String,
    /// The declared type, `const` and the like left out.
    pub type_name: String,
    /// Bytes of that type, if they are known.
    #[serde(default)]
    pub size: Option<u64>,
    /// Where its value is when the first instruction of the function is about to run.
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
