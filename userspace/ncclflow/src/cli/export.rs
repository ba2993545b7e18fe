//! `ncclflow export` and `replay`: files out of recordings, without root.

use std::{
    io::{self, IsTerminal as _, Write, stderr, stdout},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    export_args::{ExportArgs, ReplayArgs},
    write_json,
};
use crate::{
    export::{
        Choice, ExportOptions, ExportProgress, Exported, Format, Moment, SourceReport, ViewOptions, export,
        replay,
    },
    record::Read,
    recording::Damage,
};

pub(super) fn run(args: &ExportArgs) -> Result<ExitCode> {
    if args.flat && args.format != Format::Compat {
        anyhow::bail!("--flat is for -f compat only");
    }
    let options = ExportOptions {
        inputs: args.inputs.clone(),
        output: args.output.clone(),
        format: args.format,
        view: ViewOptions { flat: args.flat, ..ViewOptions::default() },
        choice: Choice {
            from: args.last.map(Moment::BeforeEnd).or(args.from),
            to: args.to,
            comms: args.comm.clone(),
            ranks: args.rank.clone(),
            pids: args.pid.clone(),
            users: args.user.clone(),
            jobs: args.job.clone(),
            exact: args.exact,
        },
    };
    let mut line = ProgressLine::new();
    let exported = export(options, &mut |progress| line.show(progress));
    line.clear();
    let exported = exported?;
    let mut out = stdout().lock();
    if args.json {
        write_json(&mut out, &exported)?;
    } else {
        write_exported(&exported, args, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_exported(exported: &Exported, args: &ExportArgs, out: &mut dyn Write) -> io::Result<()> {
    let rows = &exported.rows;
    writeln!(
        out,
        "{} ops, {} messages and {} calls exported into {}",
        rows.ops,
        rows.messages,
        rows.calls,
        args.output.display()
    )?;
    let several = exported.sources.len() > 1;
    for source in &exported.sources {
        let name = if several { format!("{}: ", source.path.display()) } else { String::new() };
        for said in source_notes(source) {
            writeln!(out, "{name}{said}")?;
        }
    }
    if rows.ops + rows.calls == 0 && rows.left_out > 0 {
        writeln!(
            out,
            "nothing that was recorded is asked for; the recordings' times are in --json (span_unix_ns)"
        )?;
    }
    if rows.numbered_locally > 0 {
        writeln!(
            out,
            "{} ops and calls have numbers (seq, call) that count from the beginning of the part; --exact reads all before it",
            rows.numbered_locally
        )?;
    }
    for twice in exported.twice.iter().take(20) {
        writeln!(
            out,
            "rank {} of {} comes twice: that of process {} on {} is in {}",
            twice.rank, twice.communicator, twice.pid, twice.host, twice.instead
        )?;
    }
    if exported.twice.len() > 20 {
        writeln!(out, "{} more ranks come twice", exported.twice.len() - 20)?;
    }
    exported.notes.iter().try_for_each(|note| writeln!(out, "{note}"))
}

fn source_notes(source: &SourceReport) -> Vec<String> {
    let damage =
        Damage { blocks: source.damaged_blocks, bytes: source.damaged_bytes, unknown: source.unknown_blocks };
    notes(source.is_cut, damage, source.undecodable)
}

/// What a reader should know of what was read.
fn notes(is_cut: bool, damage: Damage, undecodable: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if is_cut {
        notes.push(
            "it has no end: its recording was killed, its disk was full, or it still goes on".to_owned(),
        );
    }
    let Damage { blocks, bytes, unknown } = damage;
    if blocks + bytes > 0 {
        notes
            .push(format!("{blocks} blocks and {bytes} bytes between blocks are damaged, and were left out"));
    }
    if unknown > 0 {
        notes.push(format!("{unknown} blocks and events are of a newer version, and were left out"));
    }
    if undecodable > 0 {
        notes.push(format!("{undecodable} records could not be understood"));
    }
    notes
}

pub(super) fn run_replay(args: &ReplayArgs) -> Result<ExitCode> {
    let Read { records, undecodable, is_cut, damage, .. } = replay(&args.capture, &args.output)?;
    let mut out = stdout().lock();
    writeln!(out, "{records} records replayed into {}", args.output.display())?;
    notes(is_cut, damage, undecodable).iter().try_for_each(|note| writeln!(out, "{note}"))?;
    Ok(ExitCode::SUCCESS)
}

/// How far the export is, on a line of the terminal that is written over; nothing where standard error is no
/// terminal.
struct ProgressLine {
    is_terminal: bool,
    begun: Instant,
    shown: Option<Instant>,
}

impl ProgressLine {
    /// What is over before is not worth a line.
    const PATIENCE: Duration = Duration::from_secs(1);
    const INTERVAL: Duration = Duration::from_millis(200);

    fn new() -> Self {
        Self { is_terminal: stderr().is_terminal(), begun: Instant::now(), shown: None }
    }

    fn show(&mut self, progress: ExportProgress) {
        let is_due = self.shown.is_none_or(|shown| shown.elapsed() >= Self::INTERVAL);
        if !self.is_terminal || self.begun.elapsed() < Self::PATIENCE || !is_due {
            return;
        }
        let ExportProgress { bytes, of_bytes } = progress;
        let percent = bytes.saturating_mul(100).checked_div(of_bytes).unwrap_or(100).min(100);
        // Nobody may be there to read it.
        let _ = write!(
            stderr(),
            "\r\x1b[K{percent}% of {} MiB read, {} s",
            of_bytes >> 20,
            self.begun.elapsed().as_secs()
        );
        self.shown = Some(Instant::now());
    }

    fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
