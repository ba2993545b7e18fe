//! Arguments, messages and exit codes.

/// Writes a line to standard error, for people.
macro_rules! tell {
    ($($argument:tt)*) => {
        crate::cli::terminal::tell(format_args!($($argument)*))
    };
}

mod args;
mod check;
mod completions;
mod doctor;
mod dump;
mod exit;
mod export;
mod fleet_args;
mod help;
mod history;
mod live_stacks;
mod mem;
mod merge;
mod nonblocking_writer;
mod progress;
mod ps;
mod quantities;
mod record;
mod record_args;
mod record_console;
mod record_groups;
mod report;
mod shared_args;
mod signals;
mod stacks;
mod symbols;
mod terminal;
mod top;
mod top_recording;
mod top_session;
mod variables;
mod watch;
mod watch_recording;
mod whom;

use std::{
    io::{BufWriter, StdoutLock, Write},
    process::ExitCode,
    time::Instant,
};

use anyhow::Result;
use serde::Serialize;

use crate::{allocator, descriptor_table};
use flow::text::PlainWriter;
use inspect::resolver;

pub use args::{Cli, Command};
pub use variables::command;

/// Writes a JSON document, and the end of its line.
fn write_json(out: &mut dyn Write, value: &impl Serialize) -> Result<()> {
    // Standard output writes each line by itself: a merged dump of 1,024 ranks has 400,000.
    let mut out = BufWriter::with_capacity(1 << 16, out);
    serde_json::to_writer_pretty(PlainWriter::of_json(&mut out), value)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// A report, with the version of its schema and of the program.
#[derive(Serialize)]
struct Versioned<'r, T: Serialize> {
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ncclflow: Option<&'static str>,
    #[serde(flatten)]
    report: &'r T,
}

impl<'r, T: Serialize> Versioned<'r, T> {
    /// Adds version 1 of a schema: fields may be added within it; none changes its meaning.
    fn first(report: &'r T) -> Self {
        Self { schema: Some(1), ..Self::of(report) }
    }

    /// Takes a report that states the version of its schema itself.
    fn of(report: &'r T) -> Self {
        Self { schema: None, ncclflow: Some(env!("CARGO_PKG_VERSION")), report }
    }

    /// Takes what stands in `session.json`, which names the program itself.
    fn session(report: &'r T) -> Self {
        Self { schema: Some(1), ncclflow: None, report }
    }
}

/// Writes a report to standard output: as JSON, or as text.
fn write_report(
    is_json: bool,
    report: &impl Serialize,
    write_text: impl FnOnce(&mut PlainWriter<StdoutLock<'static>>) -> Result<()>,
) -> Result<()> {
    let mut out = terminal::out();
    if is_json {
        write_json(&mut out, report)?;
    } else {
        write_text(&mut out)?;
    }
    Ok(out.flush()?)
}

/// Writes a document on one line.
fn write_json_line(out: &mut dyn Write, value: &impl Serialize) -> Result<()> {
    serde_json::to_writer(PlainWriter::of_json(&mut *out), value)?;
    Ok(writeln!(out)?)
}

/// Parses the command line, does what it says, and turns the outcome into an exit code.
pub fn main() -> ExitCode {
    let started = Instant::now();
    // Before there is a second thread.
    allocator::share_one_arena();
    if let Some(code) = resolver::serve_if_asked() {
        return code;
    }
    descriptor_table::enlarge();
    let cli = variables::parse();
    terminal::choose_color(cli.color);
    let done = match &cli.command {
        Command::Ps(args) => ps::run(args),
        Command::Record(args) => record::run(args, started),
        Command::Export(args) => export::run(args),
        Command::Report(args) => report::run(args),
        Command::Check(args) => check::run(args),
        Command::Dump(args) => dump::run(args),
        Command::History(args) => history::run(args),
        Command::Mem(args) => mem::run(args),
        Command::Stacks(args) => stacks::run(args, started),
        Command::Top(args) => top::run(args, started),
        Command::Watch(args) => watch::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Summary(args) => check::run_summary(args),
        Command::Symbols(args) => symbols::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Help(args) => help::run(args),
    };
    let code = exit::code(done);
    terminal::flush_told(terminal::AT_END);
    code
}
