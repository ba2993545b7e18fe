//! Arguments, messages and exit codes.

/// A line on standard error, for people. Nobody may be there to read it, and that is no reason to stop.
macro_rules! tell {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($argument)*);
    }};
}

mod aggregate;
mod args;
mod auto;
mod check;
mod disk_args;
mod doctor;
mod dump;
mod exit;
mod filter_args;
mod progress;
mod ps;
mod record;
mod record_args;
mod replay;
mod sampling_args;
mod signals;
mod summary;
mod symbols;
mod top;
mod top_args;
mod window_args;

use std::{process::ExitCode, time::Instant};

use clap::Parser as _;

pub use args::{Cli, Command};

/// Parses the command line, does what it says, and turns the outcome into an exit code.
pub fn main() -> ExitCode {
    let started = Instant::now();
    let cli = Cli::parse();
    if let Err(error) = cli.check() {
        error.exit();
    }
    let done = match &cli.command {
        Command::Ps(args) => ps::run(args),
        Command::Record(args) => record::run(args, started),
        Command::Replay(args) => replay::run(args),
        Command::Aggregate(args) => aggregate::run(args),
        Command::Check(args) => check::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Top(args) => top::run(args, started),
        Command::Doctor(args) => doctor::run(args),
        Command::Summary(args) => summary::run(args),
        Command::Symbols(args) => symbols::run(args),
    };
    exit::code(done)
}
