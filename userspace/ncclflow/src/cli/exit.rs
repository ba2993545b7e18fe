//! Exit codes: 0 done, 1 not done (the message says why), 2 wrong usage, 3 done but incomplete (with
//! `--strict`), 130 ended by a second Ctrl-C.

use std::{io, process::ExitCode};

use anyhow::Result;

pub(super) const INCOMPLETE: u8 = 3;
pub(super) const FINDINGS: u8 = 3;

/// Ended by a second SIGINT or SIGTERM; the code that shells give for SIGINT.
pub(super) const INTERRUPTED: i32 = 130;

/// Prints the error, if it is one, and returns the code.
pub(super) fn code(done: Result<ExitCode>) -> ExitCode {
    match done {
        Ok(code) => code,
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
