//! `ncclflow-bed`: see the library of this package.

mod waits;

use std::process::ExitCode;

fn main() -> ExitCode {
    ncclflow_bed::main()
}
