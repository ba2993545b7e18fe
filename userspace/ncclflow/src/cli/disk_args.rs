//! What the output folder may take on the disk.

use clap::Args;

#[derive(Clone, Copy, Debug, Default, Args)]
pub struct DiskArgs {
    /// Most that DIR may take on the disk, as in 500M or 20G (K, M, G, T; without a letter, MiB): the oldest
    /// windows are removed; without windows, lines beyond it are counted as lost
    #[arg(help_heading = "Disk", long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,

    /// Compress each .jsonl file when nothing more comes to it: of closed windows, and at the end
    #[arg(help_heading = "Disk", long)]
    pub compress: bool,
}

/// The smallest limit of a folder.
const MIN_SIZE: u64 = 1 << 20;

/// Bytes, by a number and a letter; without a letter MiB, as the sizes of buffers.
fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.char_indices().next_back() {
        Some((at, letter)) if letter.is_ascii_alphabetic() => {
            let shift = match letter.to_ascii_uppercase() {
                'K' => 10,
                'M' => 20,
                'G' => 30,
                'T' => 40,
                _ => return Err("the letters are K, M, G and T".to_owned()),
            };
            (&text[..at], shift)
        }
        _ => (text, 20),
    };
    let number: u64 = number.parse().map_err(|_| "not a size, as 500M or 20G is one".to_owned())?;
    let bytes = number.checked_mul(1 << shift).ok_or("too much")?;
    if bytes < MIN_SIZE { Err("must be 1M at least".to_owned()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_letters_and_are_mebibytes_without() {
        let sizes = ["500M", "20G", "20g", "64", "1024K", "1T"].map(|text| size(text).unwrap());
        assert_eq!(sizes, [500 << 20, 20 << 30, 20 << 30, 64 << 20, 1 << 20, 1 << 40]);
        for text in ["", "M", "0", "-1", "1.5G", "1000K", "5X", "5é", "20 G", "99999999999T", "20GB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
