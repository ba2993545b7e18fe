//! Folded stacks: one line for each stack, from which flame graphs are made (flamegraph.pl, inferno,
//! speedscope).

use std::io::{self, Write};

use super::GroupedStacks;

/// Writes lines of `top;…;innermost COUNT`. A `;` in a name becomes a `:`.
pub fn write_folded(stacks: &GroupedStacks, out: &mut dyn Write) -> io::Result<()> {
    for stack in stacks.stacks() {
        let frames: Vec<_> = stack.frames.iter().map(|frame| frame.as_str().replace(';', ":")).collect();
        writeln!(out, "{} {}", frames.join(";"), stack.count)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Frame, StackCounter, write_text};

    #[test]
    fn lines_and_paragraphs() {
        let mut counter = StackCounter::default();
        counter.add(["train.py(3): a;b", "cuLaunchKernelEx"].map(Frame::new).to_vec(), 7);
        counter.add(vec![Frame::new("main")], 1);
        let stacks = counter.finish();
        let written = |write: fn(&GroupedStacks, &mut dyn Write) -> io::Result<()>| {
            let mut out = Vec::new();
            write(&stacks, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(write_folded), "train.py(3): a:b;cuLaunchKernelEx 7\nmain 1\n");
        assert_eq!(
            written(write_text),
            "train.py(3): a;b\n ->\ncuLaunchKernelEx\nAppeared 7 times\n\nmain\nAppeared 1 times\n\n"
        );
    }
}
