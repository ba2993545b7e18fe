//! Removes the DWARF sections of an object.
//!
//! bpf-linker makes BTF from DWARF and leaves both in the object. The kernel has no use for DWARF, and aya
//! reads each of its 15,000 relocations whenever the object is loaded.

use anyhow::{Context as _, Result};
use object::{
    build::elf::{Builder, SectionData},
    elf::SHT_STRTAB,
};

/// Returns the object without its sections `.debug_*`, their relocations and the symbols that stand for them.
pub(crate) fn removed(elf: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(elf).context("reading the built object")?;
    for section in &mut builder.sections {
        let is_of = |prefix: &[u8]| section.name.starts_with(prefix);
        let is_relocations = matches!(section.data, SectionData::Relocation(_));
        section.delete = is_of(b".debug_") || (is_relocations && is_of(b".rel.debug_"));
    }
    // bpf-linker keeps the names of sections among those of symbols; the writer wants them in a section of
    // their own.
    let names = builder.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = SectionData::SectionString;
    builder.delete_orphans();
    builder.set_section_sizes();
    let mut stripped = Vec::new();
    builder.write(&mut stripped).context("writing the object without debugging information")?;
    Ok(stripped)
}
