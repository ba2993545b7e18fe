//! `ncclflow stacks` of processes and of recordings.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
    time::Instant,
};

use anyhow::{Result, bail};

use super::{
    progress::BytesLine, signals::with_signals, stacks::write_out, stacks_args::StacksArgs, write_json,
};
use analysis::export::sources;
use stacks::{CallStacks, LiveStacks, pprof, write_folded};
use trace::record::{Notice, record};

/// Most groups that are listed below a stack.
const LISTED: usize = 16;

/// Counts the stacks of processes as they run.
pub(super) fn run(args: &StacksArgs, started: Instant) -> Result<ExitCode> {
    let live = LiveStacks::default();
    let options = args.options(started, live.clone());
    let outcome = with_signals(
        move |stop| {
            record(&options, stop, &mut |notice| match notice {
                Notice::NoStacks { pid, why } => tell!("process {pid}: no call stacks: {why}"),
                Notice::PassedOver(why) => tell!("not traced: {why}"),
                Notice::TargetExited { pid } => tell!("process {pid} exited"),
                Notice::Recording { probes } => tell!("watching with {probes} probes; Ctrl-C ends it"),
                _ => {}
            })
        },
        || {},
    )?;
    let loss = &outcome.report.loss;
    let lost = loss.records_lost + loss.records_dropped;
    if lost > 0 {
        tell!("{lost} records were lost: calls are missing, or their stacks");
    }
    finish(args, &live)
}

/// Counts the stacks of a recording, or of all windows in a folder.
pub(super) fn run_recording(args: &StacksArgs, folder: &Path) -> Result<ExitCode> {
    if args.function_name.is_some() || args.start_ts.is_some() {
        bail!("--function-name and --start-ts are for traces; of a recording all calls count");
    }
    let live = LiveStacks::default();
    let found = sources(&[folder.to_owned()])?;
    let (mut line, of_bytes) = (BytesLine::new(""), found.iter().map(|source| source.bytes).sum());
    let mut before = 0;
    for source in &found {
        let progress = &mut |bytes: u64| line.show(before + bytes, of_bytes);
        let (_, read) = source.read_all(live.clone(), progress)?;
        line.clear();
        before += source.bytes;
        read.notes().iter().for_each(|note| tell!("{note}"));
    }
    finish(args, &live)
}

fn finish(args: &StacksArgs, live: &LiveStacks) -> Result<ExitCode> {
    let depth = args.stack_depth.unwrap_or(usize::MAX);
    let found = live.finish(args.kernel_name.as_deref(), depth);
    let mut out = Vec::new();
    if args.json {
        write_json(&mut out, &found)?;
    } else if args.folded {
        write_folded(&found.stacks, &mut out)?;
    } else if args.pprof {
        out.extend(pprof(&found.stacks, found.of)?);
    } else {
        write_stacks(&found, &mut out)?;
    }
    write_out(args.output.as_deref(), &out, args.pprof)?;
    say(args, &found, live);
    Ok(ExitCode::SUCCESS)
}

fn write_stacks(found: &CallStacks, out: &mut dyn Write) -> io::Result<()> {
    for (stack, groups) in found.by_stack() {
        let frames: Vec<_> = stack.frames.iter().map(stacks::Frame::as_str).collect();
        writeln!(out, "{}\nAppeared {} times", frames.join("\n ->\n"), stack.count)?;
        for group in groups.iter().take(LISTED) {
            let of = match (&group.comm_hash, group.rank) {
                (Some(hash), Some(rank)) => format!("{hash}, rank {rank}"),
                _ => "an unknown communicator".to_owned(),
            };
            writeln!(out, "  {} of {of} (process {})", group.count, group.pid)?;
        }
        if groups.len() > LISTED {
            writeln!(out, "  … and of {} more ranks", groups.len() - LISTED)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Reports what the stacks do not show.
fn say(args: &StacksArgs, found: &CallStacks, live: &LiveStacks) {
    if found.without_stack > 0 {
        tell!("{} {} have no known stack", found.without_stack, found.of);
    }
    if found.calls + found.without_stack > 0 {
        return;
    }
    let functions: Vec<_> = live.functions().iter().map(ToString::to_string).collect();
    match &args.kernel_name {
        Some(name) if !functions.is_empty() => {
            tell!("no call of `{name}` was seen, but {}", functions.join(", "));
        }
        _ => tell!("no call was seen"),
    }
}
