//! Makes the names in an object's BTF acceptable to the kernel.
//!
//! The kernel wants C identifiers. bpf-linker 0.10.1 rewrites the generic names of structs (`Array<u32>` →
//! `Array_3C_u32_3E_`), but not those of unions (`MaybeUninit<u32>`, in every `aya_ebpf::Global`). Then the
//! kernel refuses the BTF, and with it all programs that use `bpf_loop`, as their callbacks need BTF.

use anyhow::{Context as _, Result};
use object::{Object as _, ObjectSection as _, read::elf::ElfFile64};

/// Offsets in BTF's header of `hdr_len`, `str_off` and `str_len` (include/uapi/linux/btf.h).
const HEADER_LEN: usize = 4;
const STRINGS_AT: usize = 16;
const STRINGS_LEN: usize = 20;

/// Replaces the brackets in BTF's names by underscores, in place.
pub(crate) fn make_valid(elf: &mut [u8]) -> Result<()> {
    let (start, len) = {
        let file: ElfFile64<'_> = ElfFile64::parse(&*elf).context("reading the built object")?;
        let section = file.section_by_name(".BTF").context("the built object has no section .BTF")?;
        section.file_range().context("the section .BTF is empty")?
    };
    let start = usize::try_from(start)?;
    let btf = elf.get_mut(start..start + usize::try_from(len)?).context("the section .BTF is cut")?;
    let word = |at: usize| -> Result<usize> {
        let bytes = btf.get(at..at + 4).context("the BTF header is cut")?;
        Ok(usize::try_from(u32::from_le_bytes(bytes.try_into()?))?)
    };
    let first = word(HEADER_LEN)? + word(STRINGS_AT)?;
    let strings = first..first + word(STRINGS_LEN)?;
    for byte in btf.get_mut(strings).context("the BTF strings are cut")? {
        if matches!(byte, b'<' | b'>') {
            *byte = b'_';
        }
    }
    Ok(())
}
