//! Resolutions: answers to a [`Request`](super::Request).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Function, SymmetricKernel};
use crate::elf::{BuildId, ElfVaddr, Machine};
use crate::{layouts::Layouts, nccl::NcclVersion};

/// Quality of a library's symbols, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymbolSource {
    /// The library's own debugging information: everything is known.
    OwnDwarf,
    /// A separate debug file, found by build-id or debug link.
    DebugFile,
    /// Function addresses from `.symtab`, layouts from a table shipped for that version.
    SymtabWithShippedLayout,
    /// Functions found without symbols, layouts from a table shipped for that version.
    Stripped,
    SymtabOnly,
    StrippedOnly,
    ExportsOnly,
}

impl SymbolSource {
    /// Describes the source in one phrase.
    pub fn describe(self) -> &'static str {
        match self {
            Self::OwnDwarf => "own debugging information",
            Self::DebugFile => "separate debug file",
            Self::SymtabWithShippedLayout => "symbol table, shipped layouts",
            Self::Stripped => "stripped, shipped layouts",
            Self::SymtabOnly => "symbol table, no layouts",
            Self::StrippedOnly => "stripped, no layouts",
            Self::ExportsOnly => "exported API only",
        }
    }
}

/// Source of the layouts, and so the proof that they are this library's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayoutSource {
    /// Debugging information of the library, or of its debug file.
    Dwarf,
    /// Shipped table, which has a library with this build-id.
    ShippedForBuildId,
    /// Shipped table, which has this version for this CUDA and this processor. The library's code agrees with
    /// it.
    ShippedForVersion,
    Unknown,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Resolution {
    pub build_id: Option<BuildId>,
    /// Version of NCCL, from the version string in the library.
    pub nccl_version: Option<NcclVersion>,
    /// CUDA version that the library was built for (major, minor), from the same string.
    pub cuda_version: Option<(u32, u32)>,
    pub machine: Machine,
    /// Source of the answers.
    #[serde(alias = "rung")]
    pub symbol_source: SymbolSource,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug_file: Option<String>,
    pub layouts_from: LayoutSource,
    /// All copies of each function found, by the name asked for, in the order of their addresses.
    pub functions: BTreeMap<String, Vec<Function>>,
    pub layouts: Layouts,
    /// Addresses of variables, counted from where the beginning of the file is mapped. Empty for a file that
    /// is linked for a fixed address; a variable that the symbol table has twice is left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, ElfVaddr>,
    /// Kernels on symmetric memory, if a symbol table names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub symmetric_kernels: Vec<SymmetricKernel>,
    /// Things that could not be found out, and what is lost with them.
    pub problems: Vec<Problem>,
}

impl Resolution {
    /// Returns all copies of a function; none if it was not found.
    pub fn functions(&self, name: &str) -> &[Function] {
        self.functions.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the required functions that were not found. Nothing should be attached while there are any.
    pub fn missing_required(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().filter(|problem| problem.kind == ProblemKind::RequiredFunctionMissing)
    }

    /// Says why a function, struct or enumeration is not known, if that is so and the reason was found.
    pub fn why_unknown(&self, subject: &str) -> Option<&str> {
        let known = self.functions.contains_key(subject) || self.layouts.struct_size(subject).is_some();
        let mut problems = self.problems.iter().filter(|problem| !known && problem.subject == subject);
        problems.next().map(|problem| problem.what.as_str())
    }
}

/// Something that could not be found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub kind: ProblemKind,
    /// The function, parameter, struct or section.
    pub subject: String,
    pub what: String,
    /// Loss for an operator; empty if nothing that ncclflow knows of depends on the subject.
    pub lost: String,
}

impl Problem {
    pub(super) fn new(
        kind: ProblemKind,
        subject: impl Into<String>,
        what: impl Into<String>,
        lost: impl Into<String>,
    ) -> Self {
        Self { kind, subject: subject.into(), what: what.into(), lost: lost.into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    RequiredFunctionMissing,
    FunctionMissing,
    /// A parameter of a function copy is not at a known place.
    ParamUnknown,
    StructMissing,
    EnumMissing,
    /// The library holds different layouts under one name; none of them is used.
    LayoutAmbiguous,
    /// A part of the debugging information cannot be used.
    DebugInfo,
}
