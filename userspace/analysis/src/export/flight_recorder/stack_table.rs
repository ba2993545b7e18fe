//! Call stacks as torch has them, once each.

use std::{collections::HashMap, path::Path, sync::Arc};

use flow::schema::{FrameRow, PythonFrame, StackId, StackRow};

use torch::flight_recorder::UNKNOWN;

/// Most bytes of memory of all stacks that are kept, about.
const MAX_BYTES: usize = 256 << 20;

#[derive(Debug, Default)]
pub(super) struct StackTable {
    /// Stacks by process and number.
    stacks: HashMap<(usize, StackId), Arc<[PythonFrame]>>,
    bytes: usize,
}

impl StackTable {
    /// Takes a stack, if there is room for it.
    pub(super) fn insert(&mut self, process: usize, row: &StackRow) {
        self.bytes = self.bytes.saturating_add(row.memory());
        if self.bytes <= MAX_BYTES {
            // torch has the innermost frame first.
            let frames = row.frames.iter().rev().map(frame).collect();
            self.stacks.insert((process, row.stack), frames);
        }
    }

    pub(super) fn get(&self, process: usize, stack: StackId) -> Option<Arc<[PythonFrame]>> {
        self.stacks.get(&(process, stack)).map(Arc::clone)
    }
}

/// Makes a frame of torch's, which has `co_name`, the last part of Python's qualified name.
fn frame(row: &FrameRow) -> PythonFrame {
    let FrameRow { function, file, line, module } = row;
    let has_extension =
        |file: &String| Path::new(file).extension().is_some_and(|extension| extension == "py");
    let is_python =
        module.is_none() && file.as_ref().is_none_or(|file| has_extension(file) || file.starts_with('<'));
    let name = if is_python { function.rsplit('.').next().unwrap_or(function) } else { function };
    let name = if name == "?" { UNKNOWN } else { name };
    let filename = file.as_deref().or(module.as_deref()).unwrap_or(UNKNOWN);
    PythonFrame { function: name.to_owned(), qualname: None, file: filename.to_owned(), line: *line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_torchs() {
        let row = |function: &str, file: Option<&str>, line| FrameRow {
            function: function.to_owned(),
            file: file.map(str::to_owned),
            line,
            module: None,
        };
        let stack = StackRow {
            stack: StackId(7),
            pid: 1,
            frames: vec![
                row("<module>", Some("train.py"), Some(4)),
                row("Trainer.step.<locals>.<lambda>", Some("train.py"), Some(9)),
                row("?", None, None),
            ],
            cut: false,
            unknown: None,
            thread: None,
        };
        let mut table = StackTable::default();
        table.insert(3, &stack);
        let found = table.get(3, StackId(7)).unwrap();
        let found: Vec<_> =
            found.iter().map(|frame| (frame.function.as_str(), frame.file.as_str(), frame.line)).collect();
        assert_eq!(
            found,
            [("??", "??", None), ("<lambda>", "train.py", Some(9)), ("<module>", "train.py", Some(4))]
        );
        assert!(table.get(2, StackId(7)).is_none());
    }
}
