//! `ncclflow-bed`: runs the real NCCL without a GPU and checks what it computes. The program is [`main`]; [`hosted`] is
//! for programs that call NCCL themselves.
//!
//! The CUDA runtime inside libnccl is replaced in memory by [`runtime`]; [`emulator`] does what the
//! kernels would do; [`rank`] is the workload of one rank, [`controller`] keeps ranks together, as
//! threads or as [`children`].

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::cast_ptr_alignment,
    reason = "numbers and pointers cross to and from a C ABI; the formats fix their widths"
)]

mod call_log;
mod children;
mod common_calls;
mod controller;
mod data;
mod elsewhere;
mod emulator;
mod environment;
mod faults;
mod graphs;
pub mod hosted;
mod iterations;
mod library;
mod link;
mod mapped;
mod nccl_api;
mod nodes;
mod option_values;
mod options;
mod patch;
mod phases;
mod rank;
mod runtime;
mod setup;
mod workload;

use std::process::ExitCode;

pub use environment::gives_way;

use clap::Parser;

use crate::options::{Mode, Options};

/// The program `ncclflow-bed`. Ends the process.
pub fn main() -> ExitCode {
    let options = Options::parse();
    let result = options.validate().and_then(|()| link::keep_stdout()).and_then(|()| {
        match (options.child, options.mode) {
            (Some(rank), _) => children::run_child(&options, rank),
            (None, Mode::Processes) => children::run_parent(&options),
            (None, Mode::Threads) => setup::run_threads(&options),
        }
    });
    let code = match result {
        Ok(outcome) => outcome.code(),
        Err(error) => {
            say(&format!("{error:#}"));
            1
        }
    };
    // SAFETY: ends the process without the library's destructors, which would enter the runtime's private
    // code.
    unsafe { libc::_exit(code) }
}

/// A line on standard error.
fn say(message: &str) {
    use std::io::Write;
    // If standard error is closed, there is no other place to report to.
    let _ignored = writeln!(std::io::stderr(), "ncclflow-bed[{}]: {message}", std::process::id());
}
