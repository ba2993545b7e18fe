//! Files that look like a library and are made to cost whoever reads them.

/// 1 MB of debugging information: hundreds of units, each over a table of abbreviations that overlaps with all
/// others', and is taken for a table of its own.
#[must_use]
pub fn overlapping_tables() -> Vec<u8> {
    const RECORDS: usize = 140_000;
    const UNITS: usize = 460;
    let mut abbreviations = Vec::new();
    for code in 1..=RECORDS {
        // LEB128 of three bytes, a compilation unit without children and attributes.
        let low = |shift: usize| u8::try_from(code >> shift & 0x7f).unwrap_or(0);
        abbreviations.extend([low(0) | 0x80, low(7) | 0x80, low(14), 0x11, 0, 0, 0]);
    }
    abbreviations.push(0);
    let mut info = Vec::new();
    for unit in 0..UNITS {
        let code = unit + 1;
        let low = |shift: usize| u8::try_from(code >> shift & 0x7f).unwrap_or(0);
        let offset = u32::try_from(unit * 7).unwrap_or(0);
        let mut body = vec![4, 0];
        body.extend(offset.to_le_bytes());
        body.extend([8, low(0) | 0x80, low(7) | 0x80, low(14)]);
        info.extend(u32::try_from(body.len()).unwrap_or(0).to_le_bytes());
        info.extend(body);
    }
    let names = b"\0.debug_abbrev\0.debug_info\0.shstrtab\0";
    let (at_abbreviations, at_info) = (64, 64 + abbreviations.len());
    let at_names = at_info + info.len();
    let at_sections = at_names + names.len();
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend([3u16, 62].iter().flat_map(|number| number.to_le_bytes()));
    file.extend(1u32.to_le_bytes());
    file.extend([0u64, 0, at_sections as u64].iter().flat_map(|number| number.to_le_bytes()));
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, 0, 64, 4, 3].iter().flat_map(|number| number.to_le_bytes()));
    file.extend(abbreviations.iter().chain(&info).chain(names));
    let sections = [
        (0u32, 0u32, 0usize, 0usize),
        (1, 1, at_abbreviations, abbreviations.len()),
        (15, 1, at_info, info.len()),
        (27, 3, at_names, names.len()),
    ];
    for (name, kind, offset, size) in sections {
        file.extend(name.to_le_bytes());
        file.extend(kind.to_le_bytes());
        file.extend([0u64, 0, offset as u64, size as u64].iter().flat_map(|number| number.to_le_bytes()));
        file.extend([0u32; 2].iter().flat_map(|number| number.to_le_bytes()));
        file.extend([1u64, 0].iter().flat_map(|number| number.to_le_bytes()));
    }
    file
}
