//! Exit codes.

use std::{io, process::ExitCode};

use anyhow::Result;

/// How a command ended. 2, wrong usage, is clap's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Exit {
    Done = 0,
    /// Not done; the message says why.
    Failed = 1,
    /// Done, and there is something to look at: findings, a job that is stuck, losses with `--strict`.
    Findings = 3,
    /// Nobody can tell.
    Unknown = 4,
    /// Ranks wait for one that makes progress elsewhere.
    Waiting = 5,
    /// Ended by a second SIGINT or SIGTERM; the code that shells give for SIGINT.
    Interrupted = 130,
}

/// Prints the error, if it is one, and returns the code.
pub(super) fn code(done: Result<Exit>) -> ExitCode {
    match done {
        Ok(exit) => ExitCode::from(exit as u8),
        // `ncclflow … | head`: the reader has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("ncclflow: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
