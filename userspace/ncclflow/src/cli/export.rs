//! `ncclflow export`: files out of recordings, without root.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Result;

use super::{export_args::ExportArgs, progress::reading, terminal, write_json};
use analysis::export::{ExportOptions, Exported, Format, InspectorVersion, ViewOptions, export};

pub(super) fn run(args: &ExportArgs) -> Result<ExitCode> {
    if args.flat && args.format != Format::Compat {
        anyhow::bail!("--flat is for -f compat only");
    }
    if args.planned_messages && args.format != Format::Parquet {
        anyhow::bail!("--planned-messages is for -f parquet only");
    }
    if args.collectives_only && args.format != Format::FlightRecorder {
        anyhow::bail!("--collectives-only is for -f flight-recorder only");
    }
    if !args.manifest.is_empty() && args.format != Format::Perfetto {
        anyhow::bail!("--manifest is for -f perfetto only; for -f chakra it is --kineto");
    }
    if !args.kineto.is_empty() && args.format != Format::Chakra {
        anyhow::bail!("--kineto is for -f chakra only; for -f perfetto it is --manifest");
    }
    if args.inspector_version != InspectorVersion::default() && args.format != Format::Inspector {
        anyhow::bail!("--inspector-version is for -f inspector only");
    }
    let options = ExportOptions {
        inputs: args.inputs.clone(),
        output: args.output.clone(),
        format: args.format,
        view: ViewOptions {
            flat: args.flat,
            planned_messages: args.planned_messages,
            collectives_only: args.collectives_only,
            manifest: args.manifest.clone(),
            kineto: args.kineto.clone(),
            inspector: args.inspector_version,
        },
        choice: args.part.choice(),
    };
    let exported = reading("", |line| export(options, &mut |read| line.show(read.bytes, read.of_bytes)))?;
    let mut out = terminal::out();
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
        "{} operations (counted on each channel), {} messages and {} calls exported into {}",
        rows.ops,
        rows.messages,
        rows.calls,
        args.output.display()
    )?;
    write_notes(exported, out)?;
    if rows.ops + rows.calls == 0 && rows.left_out > 0 {
        writeln!(
            out,
            "the part that you chose is empty; --json says when the recordings begin and end (span_unix_ns)"
        )?;
    }
    if rows.numbered_locally > 0 {
        writeln!(
            out,
            "{} operations and calls are numbered (seq, call) from the beginning of the part; with \
             --exact they have the numbers of the whole recording",
            rows.numbered_locally
        )?;
    }
    for twice in exported.twice.iter().take(20) {
        writeln!(
            out,
            "rank {} of {} was recorded twice: that of process {} on {} is in {}",
            twice.rank, twice.communicator, twice.pid, twice.host, twice.instead
        )?;
    }
    if exported.twice.len() > 20 {
        writeln!(out, "{} more ranks were recorded twice", exported.twice.len() - 20)?;
    }
    if rows.planned_messages > 0 && args.format == Format::Parquet {
        writeln!(
            out,
            "{} messages were planned and not measured: they are in the sums by link and second; --planned-messages writes a row for \
             each",
            rows.planned_messages
        )?;
    }
    exported.notes.iter().try_for_each(|note| writeln!(out, "{note}"))
}

/// Writes what is to be said of the recordings that were read.
pub(super) fn write_notes(exported: &Exported, out: &mut dyn Write) -> io::Result<()> {
    let several = exported.sources.len() > 1;
    for source in &exported.sources {
        let name = if several { format!("{}: ", source.path.display()) } else { String::new() };
        for said in source.read.notes() {
            writeln!(out, "{name}{said}")?;
        }
    }
    Ok(())
}
