//! Phases of a program in which others wait for it, and nothing is wrong: told by the Python stack of its
//! main thread. Pure.

use flow::schema::PythonFrame;
use serde::{Deserialize, Serialize};

/// Work of a rank that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    Checkpoint,
    Evaluation,
    Compilation,
    DataLoading,
}

/// Files that only this phase runs. `torch/_dynamo/eval_frame.py` is not among them, as each call of a
/// compiled function goes through it, nor is `torch/utils/checkpoint.py`, which saves activations.
const FILES: [(Phase, &[&str]); 3] = [
    (Phase::Checkpoint, &["torch/distributed/checkpoint/", "torch/serialization.py", "safetensors/torch.py"]),
    (
        Phase::Compilation,
        &[
            "torch/_dynamo/convert_frame.py",
            "torch/_inductor/async_compile.py",
            "torch/_inductor/scheduler.py",
            "torch/utils/cpp_extension.py",
            "triton/compiler/compiler.py",
        ],
    ),
    (Phase::DataLoading, &["torch/utils/data/dataloader.py"]),
];

/// Parts of the names of functions.
const FUNCTIONS: [(Phase, &[&str]); 3] = [
    (
        Phase::Checkpoint,
        &[
            "save_checkpoint",
            "load_checkpoint",
            "save_ckpt",
            "load_ckpt",
            "save_pretrained",
            "save_state",
            "save_model",
        ],
    ),
    (Phase::Evaluation, &["evaluate", "evaluation", "validate", "validation", "eval_step", "eval_loop"]),
    (Phase::DataLoading, &["load_batch", "next_batch", "get_batch"]),
];

impl Phase {
    /// Tells the phase by a stack, innermost frame first. The innermost frame that tells decides.
    pub(crate) fn of(frames: &[PythonFrame]) -> Option<Self> {
        let told = |frame: &PythonFrame| {
            let by_file = FILES.iter().find(|(_, files)| files.iter().any(|file| frame.file.contains(file)));
            let is_named = |names: &[&str]| names.iter().any(|name| frame.function.contains(name));
            let by_function = FUNCTIONS.iter().find(|(_, names)| is_named(names));
            by_file.or(by_function).map(|(phase, _)| *phase)
        };
        frames.iter().find_map(told)
    }

    pub(crate) fn described(self) -> &'static str {
        match self {
            Self::Checkpoint => "saves or loads a checkpoint",
            Self::Evaluation => "evaluates",
            Self::Compilation => "compiles",
            Self::DataLoading => "loads data",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, function: &str) -> PythonFrame {
        PythonFrame { file: file.into(), function: function.into(), ..PythonFrame::default() }
    }

    #[test]
    fn phases_are_told_and_what_only_looks_like_one_is_not() {
        let lib = "/opt/venv/lib/python3.12/site-packages/";
        let of =
            |file: &str, function: &str| Phase::of(&[frame(file, function), frame("/w/train.py", "main")]);
        assert_eq!(of(&format!("{lib}torch/serialization.py"), "_save"), Some(Phase::Checkpoint));
        assert_eq!(of("/w/train.py", "save_checkpoint"), Some(Phase::Checkpoint));
        assert_eq!(of("/w/train.py", "evaluate"), Some(Phase::Evaluation));
        assert_eq!(of(&format!("{lib}torch/_dynamo/convert_frame.py"), "_compile"), Some(Phase::Compilation));
        assert_eq!(
            of(&format!("{lib}torch/utils/data/dataloader.py"), "_get_data"),
            Some(Phase::DataLoading)
        );
        // Activation checkpointing, and a compiled function that runs.
        assert_eq!(of(&format!("{lib}torch/utils/checkpoint.py"), "checkpoint"), None);
        assert_eq!(of(&format!("{lib}torch/_dynamo/eval_frame.py"), "_fn"), None);
        assert_eq!(of("/w/train.py", "step"), None);
        assert_eq!(Phase::of(&[]), None);
    }
}
