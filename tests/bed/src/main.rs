//! `ncclflow-bed`: see the library of this package.

use std::process::ExitCode;

fn main() -> ExitCode {
    ncclflow_bed::main()
}
