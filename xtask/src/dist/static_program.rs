//! Whether a program needs nothing of the system that it runs on but the kernel.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};
use object::{
    elf::{PT_DYNAMIC, PT_INTERP},
    read::elf::{Dyn as _, ElfFile64, ProgramHeader as _},
};

/// Fails if the program needs a loader or a library.
pub(super) fn check(program: &Path) -> Result<()> {
    let context = || format!("reading `{}`", program.display());
    let bytes = fs::read(program).with_context(context)?;
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).with_context(context)?;
    let endian = file.endian();
    for header in file.elf_program_headers() {
        if header.p_type(endian) == PT_INTERP {
            bail!("`{}` wants a loader: it is not static", program.display());
        }
        if header.p_type(endian) == PT_DYNAMIC {
            let entries = header.dynamic(endian, &*bytes).with_context(context)?.unwrap_or_default();
            if entries.iter().any(|entry| entry.tag32(endian) == i32::try_from(object::elf::DT_NEEDED).ok()) {
                bail!("`{}` wants libraries: it is not static", program.display());
            }
        }
    }
    Ok(())
}
