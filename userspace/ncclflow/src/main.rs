//! The command line. What it can do is in the library; see `ncclflow::cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ncclflow::cli::main()
}
