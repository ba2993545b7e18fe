//! A program that ran to its end, and what it said.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "part of tests, which fail by panicking")]

use std::{
    path::Path,
    process::{Command, ExitStatus},
};

use serde_json::Value;

use super::{programs, schemas::assert_valid};

/// The end of a program and its output.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    /// Command of `ncclflow`; empty for other programs.
    pub command: String,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Ran {
    let output = command.output().unwrap_or_else(|error| panic!("starting {command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let is_ncclflow = Path::new(command.get_program()).file_name().is_some_and(|name| name == "ncclflow");
    let first = command.get_args().next().filter(|_| is_ncclflow);
    let command = first.map_or_else(String::new, |word| word.to_string_lossy().into_owned());
    Ran { status: output.status, command, stdout, stderr }
}

/// Runs `ncclflow` with these words to its end.
pub fn ncclflow(words: &str) -> Ran {
    ncclflow_of(words, &[""; 0])
}

/// Runs `ncclflow` with these words, and these paths behind them, to its end.
pub fn ncclflow_of(words: &str, paths: &[impl AsRef<Path>]) -> Ran {
    let mut command = Command::new(programs::ncclflow().unwrap());
    run(command.args(words.split_whitespace()).args(paths.iter().map(AsRef::as_ref)))
}

#[expect(clippy::return_self_not_must_use, reason = "what is asserted may be all")]
impl Ran {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Asserts that it succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert!(self.status.success(), "{}: {}", self.status, self.stderr);
        self
    }

    /// Asserts that it refused with exit code 1 and said these words.
    #[track_caller]
    pub fn refused(self, words: &[&str]) -> Self {
        assert_eq!(self.code(), Some(1), "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "no `{word}`: {}", self.stderr);
        }
        self
    }

    /// Its standard output, which must be JSON; that of a command of `ncclflow` as its schema says.
    #[track_caller]
    pub fn json(&self) -> Value {
        let json = serde_json::from_str(&self.stdout);
        let json = json.unwrap_or_else(|_| panic!("no JSON: {}{}", self.stdout, self.stderr));
        assert_valid(&self.command, &json);
        json
    }
}
