//! What is done with a trace of a profiler.

use std::os::fd::AsRawFd as _;

use stacks::trace::{Query, TraceFile, Window, find_functions, stacks_of};

/// Looks for a function, and for the stacks behind all kernels, in the whole and in a window. Errors are fine; the fuzzer looks for panics, time
/// and memory.
pub fn use_trace(bytes: &[u8]) {
    let Ok(file) = super::in_memory(bytes) else { return };
    let Ok(mut trace) = TraceFile::open(format!("/proc/self/fd/{}", file.as_raw_fd()).as_ref()) else {
        return;
    };
    let functions = find_functions(&mut trace, "%a_%", &mut |_| ());
    let window = functions.ok().and_then(|found| Some(found.get(0)?.window()));
    for window in [Some(Window::WHOLE), window].into_iter().flatten() {
        let query = Query { window, kernel_name: "%".to_owned(), stack_depth: 12 };
        if let Ok(found) = stacks_of(&mut trace, &query, &mut |_| ()) {
            let frames = found.stacks.stacks().iter().flat_map(|stack| &stack.frames);
            let hostile = frames.flat_map(|frame| frame.as_str().chars()).find(|char| char.is_control());
            assert_eq!(hostile, None, "a control character in a stack");
        }
    }
}
