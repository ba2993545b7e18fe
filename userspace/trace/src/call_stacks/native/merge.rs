//! Merges Python's frames into the native ones.
//!
//! A C function of CPython, `_PyEval_EvalFrameDefault`, evaluates Python's frames: up to 3.10 each call of it
//! evaluates one, from 3.11 on also those that the frame itself calls (Python/ceval.c). The kernel side has
//! marked the frames with which a call of the function begins. So each native frame of that function stands
//! for Python's frames up to the next mark.

use flow::schema::FrameRow;

use inspect::threads::NativeFrame;

/// The function that evaluates Python's frames.
const EVALUATOR: &str = "_PyEval_EvalFrameDefault";

/// The frames of a stack, innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Merged {
    pub(super) frames: Vec<FrameRow>,
    /// Native frames that lie between Python's are not known.
    pub(super) lacks_native: bool,
    /// Python's frames ended before the native ones: native frames outside of them are left out.
    pub(super) lacks_python: bool,
}

/// Makes a row of `stacks.jsonl` from a native frame.
pub(super) fn row(frame: &NativeFrame) -> FrameRow {
    let function = frame.function.clone().unwrap_or_else(|| format!("+{:#x}", frame.address));
    FrameRow { function, file: None, line: None, module: Some(frame.module.clone()) }
}

/// Merges `native` and `python`, both innermost first. `enters`: bit i is of frame i of Python. `of_runtime`:
/// the inode of the interpreter's file, if it is known. `python_is_cut`: Python has more frames.
pub(super) fn merge(
    native: &[NativeFrame],
    python: Vec<FrameRow>,
    enters: u64,
    of_runtime: Option<u64>,
    python_is_cut: bool,
) -> Merged {
    let mut merged = Merged::default();
    if python.is_empty() {
        merged.frames = native.iter().map(row).collect();
        return merged;
    }
    let is_evaluator = |frame: &&NativeFrame| frame.function.as_deref() == Some(EVALUATOR);
    let inode = native.iter().find(is_evaluator).and_then(|frame| frame.inode).or(of_runtime);
    let mut python = python.into_iter().enumerate();
    if !native.iter().any(|frame| is_evaluator(&frame)) {
        // Without names it is not known which of the interpreter's frames evaluate. Native frames inside of
        // its first one are inside of Python's innermost.
        let inside = native.iter().take_while(|frame| frame.inode.is_none() || frame.inode != inode);
        merged.frames.extend(inside.map(row));
        merged.lacks_native = true;
        merged.frames.extend(python.map(|(_, frame)| frame));
        return merged;
    }
    for frame in native {
        if !is_evaluator(&frame) {
            if frame.inode != inode || !is_own(frame) {
                merged.frames.push(row(frame));
            }
            continue;
        }
        let mut is_entered = false;
        for (depth, of_python) in python.by_ref() {
            merged.frames.push(of_python);
            is_entered = true;
            if enters >> depth.min(63) & 1 != 0 {
                break;
            }
        }
        if !is_entered && python_is_cut {
            merged.lacks_python = true;
            return merged;
        }
    }
    let before = merged.frames.len();
    merged.frames.extend(python.map(|(_, frame)| frame));
    merged.lacks_native = merged.frames.len() > before;
    merged
}

/// Tells whether a function is the interpreter's, and not of a program that has the interpreter in it.
fn is_own(frame: &NativeFrame) -> bool {
    let is_python = frame.module.starts_with("libpython") || frame.module.starts_with("python");
    let named = |name: &String| name.starts_with("Py") || name.starts_with("_Py");
    is_python || frame.function.as_ref().is_some_and(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `file:function`; files are told apart by their first letters.
    fn native(text: &str) -> Vec<NativeFrame> {
        let frame = |text: &str| {
            let (module, function) = text.split_once(':').unwrap();
            let function = if function == "E" { EVALUATOR } else { function };
            NativeFrame {
                function: (!function.is_empty()).then(|| function.to_owned()),
                module: module.to_owned(),
                inode: Some(module.bytes().map(u64::from).sum()),
                address: 16,
            }
        };
        text.split_whitespace().map(frame).collect()
    }

    fn python(names: &str) -> Vec<FrameRow> {
        let frame = |name: &str| FrameRow {
            function: name.to_owned(),
            file: Some("a.py".to_owned()),
            line: Some(1),
            module: None,
        };
        names.split_whitespace().map(frame).collect()
    }

    fn merged(of_native: &str, of_python: &str, enters: u64, is_cut: bool) -> (String, bool, bool) {
        let Merged { frames, lacks_native, lacks_python } =
            merge(&native(of_native), python(of_python), enters, None, is_cut);
        let names: Vec<String> = frames.iter().map(|frame| frame.function.clone()).collect();
        (names.join(" "), lacks_native, lacks_python)
    }

    const STACK: &str = "nccl:all ctypes:call libpython3.so:x libpython3.so:E libpython3.so:vector torch:hook \
                         libpython3.so:E libpython3.so:main libc:start";

    #[test]
    fn frames_of_the_evaluator_are_those_of_python() {
        // The inner call of the evaluator runs `c` and `b`, the outer one `a`.
        let found = merged(STACK, "c b a", 0b110, false);
        assert_eq!(found, ("all call c b hook a start".to_owned(), false, false));
        // Each call runs one.
        let found = merged(STACK, "b a", 0b11, false);
        assert_eq!(found, ("all call b hook a start".to_owned(), false, false));
    }

    #[test]
    fn what_one_of_both_lacks_is_said() {
        // More Python than native frames: the copy was too short.
        let found = merged("nccl:all libpython3.so:E", "c b a", 0b111, false);
        assert_eq!(found, ("all c b a".to_owned(), true, false));
        // More native frames than Python's were walked.
        let found = merged(STACK, "b", 1, true);
        assert_eq!(found, ("all call b hook".to_owned(), false, true));
        // The interpreter has no names.
        let found = merged("nccl:all ctypes: libpython3.so: libpython3.so:", "b a", 0b11, false);
        assert_eq!(found, ("all +0x10 +0x10 +0x10 b a".to_owned(), true, false));
        let frames = merge(
            &native("nccl:all libpython3.so: libc:x"),
            python("a"),
            1,
            native("libpython3.so:")[0].inode,
            false,
        );
        assert_eq!(frames.frames.len(), 2);
        assert!(frames.lacks_native);
    }

    #[test]
    fn without_python_all_is_native_and_a_program_keeps_its_own() {
        let found = merged(STACK, "", 0, false);
        assert_eq!(
            found.0,
            STACK
                .split_whitespace()
                .map(|frame| frame.split_once(':').unwrap().1.replace('E', EVALUATOR))
                .collect::<Vec<_>>()
                .join(" ")
        );
        // A program that has the interpreter in it.
        let found = merged("job:Work job:PyObject_Call job:E job:_PyRun job:main", "a", 1, false);
        assert_eq!(found.0, "Work a main");
        let row = row(&native("lib:f")[0]);
        assert_eq!((row.module.as_deref(), row.file), (Some("lib"), None));
    }
}
