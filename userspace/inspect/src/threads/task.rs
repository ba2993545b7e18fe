//! Threads of a process, from `/proc/PID/task`.

use std::path::Path;

use crate::process::{Process, printable, read_text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// The thread sleeps in the kernel, which it entered with this stack pointer and program counter.
    Blocked {
        stack_pointer: u64,
        pc: u64,
    },
    Running,
    Unknown,
}

#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) tid: u32,
    pub(super) name: String,
    pub(super) position: Position,
    /// The kernel function that the thread sleeps in.
    pub(super) wchan: Option<String>,
}

/// Lists at most `most` threads, by number. Threads that end meanwhile are left out.
pub(super) fn list(process: &Process, most: usize) -> Vec<Task> {
    let mut tids: Vec<u32> = process.thread_ids().take(most).collect();
    tids.sort_unstable();
    tids.into_iter().filter_map(|tid| task(&process.task_path(tid), tid)).collect()
}

pub(super) fn position_of(process: &Process, tid: u32) -> Position {
    position_in(&process.task_path(tid))
}

fn position_in(folder: &Path) -> Position {
    read_text(folder.join("syscall")).map_or(Position::Unknown, |text| position(text.trim_end()))
}

fn task(folder: &Path, tid: u32) -> Option<Task> {
    let read = |name: &str| Some(printable(read_text(folder.join(name)).ok()?.trim_end()));
    Some(Task {
        tid,
        name: read("comm")?,
        position: position_in(folder),
        wchan: read("wchan").filter(|name| !name.is_empty() && name != "0"),
    })
}

/// Parses `running`, or the number of the system call (-1 if there is none), its arguments, stack pointer and
/// program counter (Documentation/filesystems/proc.rst).
fn position(text: &str) -> Position {
    if text == "running" {
        return Position::Running;
    }
    let mut words = text.split(' ').rev();
    let mut hex = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    match (hex(), hex()) {
        (Some(pc), Some(stack_pointer)) if pc != 0 && stack_pointer != 0 => {
            Position::Blocked { stack_pointer, pc }
        }
        _ => Position::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_as_the_kernel_writes_them() {
        let blocked = "202 0x7f00 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd1000 0x7f3a5b6c";
        let expected = Position::Blocked { stack_pointer: 0x7ffd_1000, pc: 0x7f3a_5b6c };
        assert_eq!(position(blocked), expected);
        assert_eq!(position("-1 0x7ffd1000 0x7f3a5b6c"), expected);
        assert_eq!(position("running"), Position::Running);
        for nothing in ["", "0 0x0 0x0", "x y", "-1"] {
            assert_eq!(position(nothing), Position::Unknown, "{nothing}");
        }
    }
}
