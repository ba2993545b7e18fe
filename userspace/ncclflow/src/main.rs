//! The command line. Its commands are in the library; see `ncclflow::cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ncclflow::cli::main()
}
