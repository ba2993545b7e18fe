//! Names of segments, which are numbered from 1. The oldest can be gone.

use crate::sinks::OutputDir;
use std::io;

/// Returns the file name of a segment.
pub(super) fn name(number: u32) -> String {
    format!("{number:06}.nfr")
}

/// Returns the numbers of the segments in the folder, in their order.
pub(super) fn numbers(folder: &OutputDir) -> io::Result<Vec<u32>> {
    let number =
        |file: &String| file.strip_suffix(".nfr")?.parse().ok().filter(|number| *file == name(*number));
    let mut numbers: Vec<u32> = folder.names()?.iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}
