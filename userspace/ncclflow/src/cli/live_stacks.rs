//! `ncclflow stacks` of processes and of recordings.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    path::Path,
    time::Instant,
};

use anyhow::{Result, bail};

use super::{
    progress::ProgressLine,
    quantities::each,
    signals::with_signals,
    stacks::{StacksArgs, write_stacks},
    whom::{may_trace, none_matched},
};
use analysis::export::sources;
use flow::{
    session::Level,
    text::{counted, joined},
};
use inspect::layout_cache::default_folder;
use stacks::{CallStacks, LiveStacks};
use trace::{
    kernel::loader::{best_buffer, best_links, prepared},
    record::{Notice, RecordOptions, StackChoice, StackKind, Targets, record},
};

/// Most groups that are listed below a stack.
const LISTED: usize = 16;

/// Counts the stacks of processes as they run.
pub(super) fn run(args: &StacksArgs, started: Instant) -> Result<()> {
    may_trace()?;
    let live = LiveStacks::default();
    let targets = Targets::new(args.all, &each(&args.pids), &args.filter.filter());
    let mut options = RecordOptions {
        watcher: Some(live.clone()),
        duration: args.seconds,
        cache: default_folder(),
        ..RecordOptions::new(started, targets, best_buffer(), prepared(best_links()))
    };
    options.choice.level = Level::Api;
    let kind = match (args.native, args.both) {
        (true, _) => StackKind::Native,
        (_, true) => StackKind::Both,
        _ => StackKind::Python,
    };
    options.choice.stacks = Some(StackChoice { kind, depth: args.frames() });
    let (outcome, without) = with_signals(
        move |stop| {
            let mut without = BTreeSet::new();
            let outcome = record(&options, stop, &mut |notice| match notice {
                Notice::NoStacks { pid, why } => {
                    tell!("process {pid}: no call stacks: {why}");
                    without.insert(pid);
                }
                Notice::NotSeen(what) => tell!("ncclflow: {what}"),
                Notice::PassedOver(why) => tell!("not traced: {why}"),
                Notice::TargetExited { pid } => tell!("process {pid} exited"),
                Notice::Recording { probes } => {
                    tell!("watching with {}; Ctrl-C ends it", counted(probes, "probe"));
                }
                _ => {}
            });
            outcome.map(|outcome| (outcome, without))
        },
        || {},
    )?;
    if outcome.report.targets.is_empty() && !args.filter.filter().is_empty() {
        tell!("{}", none_matched());
    }
    let loss = &outcome.report.loss;
    let lost = loss.records_lost + loss.records_dropped;
    if lost > 0 {
        tell!("{lost} records were lost: calls are missing, or their stacks");
    }
    finish(args, &live)?;
    let targets = &outcome.report.targets;
    if !targets.is_empty() && targets.iter().all(|target| without.contains(&target.pid)) {
        bail!("no process has Python stacks that can be read; --native shows native ones");
    }
    Ok(())
}

/// Counts the stacks of a recording, or of all windows in a folder.
pub(super) fn run_recording(args: &StacksArgs, folder: &Path) -> Result<()> {
    if args.function_name.is_some() || args.start_ts.is_some() {
        bail!("--function-name and --start-ts are for traces; of a recording all calls count");
    }
    let live = LiveStacks::default();
    let found = sources(&[folder.to_owned()])?;
    let (mut line, of_bytes) = (ProgressLine::new(""), found.iter().map(|source| source.bytes).sum());
    let mut before = 0;
    for source in &found {
        let progress = &mut |bytes: u64| line.bytes(before + bytes, of_bytes);
        let (_, read) = source.read_all(live.clone(), progress)?;
        line.clear();
        before += source.bytes;
        read.notes().iter().for_each(|note| tell!("{note}"));
    }
    let found = finish(args, &live)?;
    if found.calls == 0 && found.without_stack > 0 {
        tell!("it was recorded without stacks: `ncclflow record --stacks` records them");
    }
    Ok(())
}

fn finish(args: &StacksArgs, live: &LiveStacks) -> Result<CallStacks> {
    let found = live.finish(args.kernel_name.as_deref(), args.stack_depth.unwrap_or(usize::MAX));
    write_stacks(args, &found, &found.stacks, found.of, |out| write_groups(&found, out))?;
    say(args, &found, live);
    Ok(found)
}

fn write_groups(found: &CallStacks, out: &mut dyn Write) -> io::Result<()> {
    for (stack, groups) in found.by_stack() {
        let frames = joined(stack.frames.iter().map(stacks::Frame::as_str), "\n ->\n");
        writeln!(out, "{frames}\nAppeared {} times", stack.count)?;
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
    let functions = live.functions();
    match &args.kernel_name {
        Some(name) if !functions.is_empty() => {
            tell!("no call of `{name}` was seen, but {}", joined(functions, ", "));
        }
        _ => tell!("no call was seen"),
    }
}
