//! `ncclflow export`: files out of recordings, without root.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use clap::Args;

use super::{Versioned, exit::Exit, progress::reading, shared_args::PartArgs, terminal, write_report};
use analysis::export::{ExportOptions, Exported, Format, InspectorVersion, ViewOptions, export};
use flow::text::counted;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow export flows -f jsonl -o lines --last 30s
  ncclflow export host1/flows host2/flows -f jsonl -o job --rank 0-7
  ncclflow export flows -f compat --flat -o extractor     as NCCL Flow Extractor
  ncclflow export calls -f megatrace -o logs               of --level api
  ncclflow export host*/flows -f parquet -o tables         for DuckDB and Spark
  ncclflow export host*/flows -f perfetto -o job.pftrace   for ui.perfetto.dev
  ncclflow export host*/flows -f chakra -o et              for ASTRA-sim
  ncclflow export host*/flows -f inspector -o records      as NCCL Inspector
  ncclflow export host*/calls -f flight-recorder -o fr/rank_   for torchfrtrace

TIME: 2026-11-22T14:03:05Z, @1795356185.5 (Unix), now, -30s (before the end), +2m (after the begin).
Exit codes: 0 done, also where something was damaged, which is said; 1 not done; 2 wrong usage.")]
#[command(after_long_help = "\
More examples:
  ncclflow export flows -f jsonl -o part --last 30s --comm 0x8f2c
  ncclflow export flows -f jsonl -o part --from 2026-11-22T14:03:05Z --to now
  ncclflow export flows -f compat --flat --comm 0x8f2c -o extractor
  ncclflow export host*/flows -f perfetto -o job.tar --manifest torch*.json.gz
                                          torch's traces on the same timeline
  ncclflow export host*/flows -f chakra -o et --kineto torch*.json.gz
                                          with the kernels of torch's traces;
                                          --workload-configuration=et/ncclflow
  ncclflow export host*/flows -f inspector --inspector-version v4.3 -o records
                                          with messages, as nccl#2359 proposes

TIME is as in journalctl: 2026-11-22T14:03:05Z (or with an offset as +02:00, never without), a Unix time \
as @1795356185.5, or now. Offsets are of the recordings: -30s is 30 s before their end, +2m is 2 minutes \
after their begin. Units are ms, s, m, h and d.

For a part, ncclflow reads only the blocks of its time, and 10 s before and after them. Collectives have \
the numbers (seq) that they have in the whole; sends and receives are counted from the beginning of what \
is read, and say so (seqLocal): --exact reads everything before the part, too.

docs/OUTPUT.md has the formats, docs/EXPORTS.md those of Perfetto, Chakra, NCCL Inspector and torch's \
flight recorder.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct ExportArgs {
    /// Folders of recordings, windows or hosts, or a folder of those
    #[arg(value_name = "DIR", required = true, num_args = 1..)]
    pub inputs: Vec<PathBuf>,

    /// What to make
    ///
    /// docs/EXPORTS.md has each.
    #[arg(short, long, value_enum)]
    pub format: Format,

    /// New or empty folder; -f perfetto: a new file
    ///
    /// With -f flight-recorder the beginning of the files' names, or a folder.
    #[arg(short, long, value_name = "PATH")]
    pub output: PathBuf,

    #[command(flatten)]
    pub part: PartArgs,

    /// With -f compat: all files in one folder
    ///
    /// As the extractor has them, not a folder for each communicator.
    #[arg(long)]
    pub flat: bool,

    /// With -f parquet: also rows of messages that were only planned
    ///
    /// They follow from their ops: a ring of 1,024 ranks has 2,046 for each loop, channel and direction.
    /// Without it, link_1s has their sums.
    #[arg(long)]
    pub planned_messages: bool,

    /// With -f flight-recorder: no sends and receives
    ///
    /// torch's analyser often calls them mismatched.
    #[arg(long)]
    pub collectives_only: bool,

    /// With -f inspector: NCCL Inspector's version
    #[arg(long, value_enum, value_name = "VERSION", default_value_t)]
    pub inspector_version: InspectorVersion,

    /// With -f perfetto: torch's traces on the same timeline
    ///
    /// Kineto's JSON, also compressed, of the same job. PATH becomes an archive, as job.tar, that Perfetto
    /// (v58 and later) opens as one timeline, by the hosts' clocks.
    #[arg(long, value_name = "TRACE", num_args = 1..)]
    pub manifest: Vec<PathBuf>,

    /// With -f chakra: torch's traces, one for each rank
    ///
    /// Their kernels become nodes, with their times; NCCL's kernels give the nodes of communication how long
    /// they took.
    #[arg(long, value_name = "TRACE", num_args = 1..)]
    pub kineto: Vec<PathBuf>,

    /// What was exported, as JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &ExportArgs) -> Result<Exit> {
    let is_inspected = args.inspector_version != InspectorVersion::default();
    let (manifest, kineto) = (!args.manifest.is_empty(), !args.kineto.is_empty());
    for (is_given, format, only) in [
        (args.flat, Format::Compat, "--flat is for -f compat only"),
        (args.planned_messages, Format::Parquet, "--planned-messages is for -f parquet only"),
        (args.collectives_only, Format::FlightRecorder, "--collectives-only is for -f flight-recorder only"),
        (manifest, Format::Perfetto, "--manifest is for -f perfetto only; for -f chakra it is --kineto"),
        (kineto, Format::Chakra, "--kineto is for -f chakra only; for -f perfetto it is --manifest"),
        (is_inspected, Format::Inspector, "--inspector-version is for -f inspector only"),
    ] {
        if is_given && args.format != format {
            bail!(only);
        }
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
    let exported = reading("", |line| export(options, &mut |read| line.bytes(read.bytes, read.of_bytes)))?;
    write_report(args.json, &Versioned::first(&exported), |out| {
        let mut text = Vec::new();
        write_exported(&exported, args, &mut text)?;
        Ok(write!(out, "{}", terminal::fitted(&String::from_utf8_lossy(&text), terminal::width()))?)
    })?;
    Ok(Exit::Done)
}

fn write_exported(exported: &Exported, args: &ExportArgs, out: &mut dyn Write) -> io::Result<()> {
    let rows = &exported.rows;
    let (messages, calls) = (counted(rows.messages, "message"), counted(rows.calls, "call"));
    let path = args.output.display();
    if has_files(&args.output) {
        writeln!(out, "{} operations × channels, {messages} and {calls} exported into {path}", rows.ops)?;
    } else {
        let read = format!("{} operations × channels, {messages} and {calls} were read", rows.ops);
        writeln!(out, "{read}, and no file was made of them in {path}")?;
    }
    write_notes(exported, out)?;
    if rows.ops + rows.calls == 0 {
        if args.part.is_given() {
            let is_there = exported.recorded.as_deref().unwrap_or("no communicator is known");
            writeln!(
                out,
                "the part that you chose is empty; {is_there}; --json says when the recordings begin and end \
                 (spanUnixNs)"
            )?;
        } else {
            writeln!(out, "nothing of NCCL was recorded")?;
        }
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

/// Files of an export that tell of it and of its ranks, and have no row.
const WITHOUT_ROWS: [&str; 2] = ["export.json", "ncclflow.groups.json"];

/// Tells whether there are files of rows: a view that has only operations makes none of calls. What is no folder
/// is a file, or the beginning of the names of several.
fn has_files(output: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(output) else { return true };
    entries.any(|entry| entry.is_ok_and(|entry| WITHOUT_ROWS.iter().all(|name| entry.file_name() != *name)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_files_of_rows_has_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_files(folder.path()));
        fs::write(folder.path().join("export.json"), "{}").unwrap();
        fs::write(folder.path().join("ncclflow.groups.json"), "{}").unwrap();
        assert!(!has_files(folder.path()));
        fs::create_dir(folder.path().join("0xab")).unwrap();
        assert!(has_files(folder.path()));
        assert!(has_files(&folder.path().join("rank_")), "the beginning of names");
    }
}
