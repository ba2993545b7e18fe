//! Stacks for people, as the NCCL Call Stack Analyzer writes them.

use std::io::{self, Write};

use super::GroupedStacks;

/// Separator between a frame and the one that it called.
const CALLS: &str = "\n ->\n";

/// Writes each stack from the top-level function to the innermost, its count, and an empty line.
pub fn write_text(stacks: &GroupedStacks, out: &mut dyn Write) -> io::Result<()> {
    for stack in stacks.stacks() {
        let frames: Vec<_> = stack.frames.iter().map(super::Frame::as_str).collect();
        writeln!(out, "{}\nAppeared {} times\n", frames.join(CALLS), stack.count)?;
    }
    Ok(())
}
