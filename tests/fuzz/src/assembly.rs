//! Libraries made from the contents of their sections, so that the fuzzer changes those and not mostly an ELF
//! header.
//!
//! The input has one `u16` for each section, its size, and then their contents in that order. A section
//! that is missing is empty.

/// Name, type (`sh_type`), and the section that it links to.
type Kind = (&'static str, u32, &'static str);

/// The sections that the resolver reads. The index of addresses comes last, so that an input that ends before
/// has none.
const SECTIONS: [Kind; 19] = [
    (".note.gnu.build-id", 7, ""),
    (".text", 1, ""),
    (".rodata", 1, ""),
    (".eh_frame", 1, ""),
    (".dynsym", 11, ".dynstr"),
    (".dynstr", 3, ""),
    (".symtab", 2, ".strtab"),
    (".strtab", 3, ""),
    (".debug_info", 1, ""),
    (".debug_abbrev", 1, ""),
    (".debug_str", 1, ""),
    (".debug_line_str", 1, ""),
    (".debug_str_offsets", 1, ""),
    (".debug_loc", 1, ""),
    (".debug_loclists", 1, ""),
    (".debug_ranges", 1, ""),
    (".debug_rnglists", 1, ""),
    (".debug_addr", 1, ""),
    (".debug_aranges", 1, ""),
];

/// Code refers to strings, and unwind tables to code, by distance. So these sections have the addresses at
/// which the seeds are linked (`seeds/link.ld`), and room up to the next.
const PLACES: [(&str, usize); 3] = [(".text", 0x1000), (".rodata", 0x4000), (".eh_frame", 0x8000)];
const OTHERS: usize = 0xc000;

const HEADER: usize = 64;
const SECTION_HEADER: usize = 64;

/// The input for these sections.
pub fn pack(contents: &[&[u8]]) -> Vec<u8> {
    let mut input = Vec::new();
    for content in contents {
        input.extend(u16::try_from(content.len()).unwrap_or(u16::MAX).to_le_bytes());
    }
    for content in contents {
        input.extend(content.iter().take(usize::from(u16::MAX)));
    }
    input
}

/// Names of the sections of an input, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().map(|(name, _, _)| *name)
}

/// Where a section must lie, and how long it may be.
fn place(name: &str) -> Option<(usize, usize)> {
    let at = PLACES.iter().position(|(known, _)| *known == name)?;
    let end = PLACES.get(at + 1).map_or(OTHERS, |(_, next)| *next);
    Some((PLACES[at].1, end - PLACES[at].1))
}

/// The library that an input stands for: every section is loaded where it lies in the file.
pub fn library(input: &[u8], machine: u16) -> Vec<u8> {
    let count = SECTIONS.len();
    let (sizes, mut rest) = input.split_at(input.len().min(2 * count));
    let mut sizes = sizes.as_chunks::<2>().0.iter().map(|size| usize::from(u16::from_le_bytes(*size)));
    let mut file = vec![0; OTHERS];
    let mut headers = vec![0; SECTION_HEADER];
    let mut names_table = vec![0];
    let position =
        |wanted: &str| SECTIONS.iter().position(|(name, _, _)| *name == wanted).map_or(0, |at| at + 1);
    for (name, kind, link) in SECTIONS {
        let (content, after) = rest.split_at(rest.len().min(sizes.next().unwrap_or(0)));
        rest = after;
        let entry_size = if matches!(kind, 2 | 11) { 24u64 } else { 0 };
        let loaded =
            !name.starts_with(".debug") && !name.starts_with(".symtab") && !name.starts_with(".strtab");
        let (at, room) = place(name).unwrap_or((file.len(), usize::MAX));
        let content = &content[..content.len().min(room)];
        let address = if loaded { at as u64 } else { 0 };
        headers.extend(u32::try_from(names_table.len()).unwrap_or(0).to_le_bytes());
        headers.extend(kind.to_le_bytes());
        headers.extend((if loaded { 2u64 } else { 0 }).to_le_bytes());
        headers.extend(address.to_le_bytes());
        headers.extend((at as u64).to_le_bytes());
        headers.extend((content.len() as u64).to_le_bytes());
        headers.extend(u32::try_from(position(link)).unwrap_or(0).to_le_bytes());
        headers.extend(0u32.to_le_bytes());
        headers.extend(8u64.to_le_bytes());
        headers.extend(entry_size.to_le_bytes());
        names_table.extend(name.bytes().chain([0]));
        if at < OTHERS {
            file[at..at + content.len()].copy_from_slice(content);
        } else {
            file.extend(content);
        }
        file.resize(file.len().next_multiple_of(8), 0);
    }
    let names_at = file.len() as u64;
    headers.extend([0u8; 4]);
    headers.extend(3u32.to_le_bytes());
    headers.extend([0u8; 16]);
    headers.extend(names_at.to_le_bytes());
    headers.extend((names_table.len() as u64).to_le_bytes());
    headers.extend([0u8; 24]);
    file.extend(names_table);
    file.resize(file.len().next_multiple_of(8), 0);
    let headers_at = file.len() as u64;
    file.extend(headers);
    let length = file.len() as u64;

    let mut header = Vec::from(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    header.extend(3u16.to_le_bytes());
    header.extend(machine.to_le_bytes());
    header.extend(1u32.to_le_bytes());
    header.extend(0u64.to_le_bytes());
    header.extend((HEADER as u64).to_le_bytes());
    header.extend(headers_at.to_le_bytes());
    header.extend(0u32.to_le_bytes());
    for half in [64, 56, 1, 64, count + 2, count + 1] {
        header.extend(u16::try_from(half).unwrap_or(0).to_le_bytes());
    }
    // One PT_LOAD of the whole file at address 0.
    header.extend(1u32.to_le_bytes());
    header.extend(5u32.to_le_bytes());
    for word in [0, 0, 0, length, length, 4096] {
        header.extend(u64::to_le_bytes(word));
    }
    file[..header.len()].copy_from_slice(&header);
    file
}
