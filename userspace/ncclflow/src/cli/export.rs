//! `ncclflow export` and `replay`: files out of recordings, without root.

use std::{
    io::{self, Write, stdout},
    process::ExitCode,
};

use anyhow::Result;

use super::{
    export_args::{ExportArgs, ReplayArgs},
    progress::ReadingProgress,
    write_json,
};
use crate::{
    export::{Choice, ExportOptions, Exported, Format, Moment, SourceReport, ViewOptions, export, replay},
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
    let mut line = ReadingProgress::new();
    let exported = export(options, &mut |progress| line.show(progress.bytes, progress.of_bytes));
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
