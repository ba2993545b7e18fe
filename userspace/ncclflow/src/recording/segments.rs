//! The names of segments. They are numbered from 1, and the oldest can be gone.

use crate::sinks::OutputDir;
use std::io;

/// File name of a segment.
pub(super) fn name(number: u32) -> String {
    format!("{number:06}.nfr")
}

/// Numbers of the segments that are in the folder, in their order.
pub(super) fn numbers(folder: &OutputDir) -> io::Result<Vec<u32>> {
    let number =
        |file: &String| file.strip_suffix(".nfr")?.parse().ok().filter(|number| *file == name(*number));
    let mut numbers: Vec<u32> = folder.names()?.iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}
