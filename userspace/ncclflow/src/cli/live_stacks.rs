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
    signals::{self, with_signals},
    stacks::{StacksArgs, write_stacks},
    whom::{by_reason, may_trace, none_matched, one_is_there},
};
use analysis::export::sources;
use flow::{
    session::Level,
    text::{counted, joined},
};
use inspect::{
    layout_cache::default_folder,
    process::Process,
    python::{Interpreter, Runtimes},
    resolver,
};
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
    one_is_there(&each(&args.pids))?;
    let kind = match (args.native, args.both) {
        (true, _) => StackKind::Native,
        (_, true) => StackKind::Both,
        _ => StackKind::Python,
    };
    if !kind.has_native() && run_no_python(&each(&args.pids)) {
        bail!("{NO_PYTHON}: --native samples native stacks");
    }
    let live = LiveStacks::default();
    let targets = Targets::new(args.all, &each(&args.pids), &args.filter.filter());
    let mut options = RecordOptions {
        watcher: Some(live.clone()),
        duration: args.seconds,
        cache: default_folder(),
        ..RecordOptions::new(started, targets, best_buffer(), prepared(best_links()))
    };
    options.choice.level = Level::Api;
    options.choice.stacks = Some(StackChoice { kind, depth: args.frames() });
    let duration = args.seconds;
    let (outcome, without) = with_signals(
        move |stop| {
            // `Some` until all processes that are there at the beginning are known.
            let (mut without, mut at_first) = (BTreeSet::new(), Some(Vec::new()));
            let outcome = record(&options, stop, &mut |notice| match notice {
                Notice::NoStacks { pid, why } => {
                    without.insert(pid);
                    match &mut at_first {
                        Some(reasons) => reasons.push((pid, why.to_owned())),
                        None => tell!("process {pid}: no call stacks: {why}"),
                    }
                }
                Notice::Found(setup) => {
                    setup.passed_over.iter().for_each(|why| tell!("not traced: {why}"));
                }
                Notice::NotSeen(what) => tell!("ncclflow: {what}"),
                Notice::PassedOver(why) => tell!("not traced: {why}"),
                Notice::TargetExited { pid } => tell!("process {pid} exited"),
                Notice::Recording { probes } => {
                    for said in by_reason(at_first.take().unwrap_or_default()) {
                        tell!("no call stacks: {said}");
                    }
                    tell!("watching with {}{}", counted(probes, "probe"), signals::end(duration));
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
    let counted = finish(args, &live)?;
    if counted.calls == 0 && counted.without_stack > 0 {
        let targets = found.iter().flat_map(|source| source.session().targets.iter());
        let python = targets.filter_map(|target| Some((target.pid, target.python.clone()?)));
        if let Some(why) = why_without(python.collect()) {
            tell!("{why}");
        }
    }
    Ok(())
}

/// What is said where all processes lack Python.
const NO_PYTHON: &str = "no process runs Python";

/// Tells whether all of these processes that have NCCL are known to run no Python. A recording tells of those
/// that cannot be looked at.
fn run_no_python(pids: &[u32]) -> bool {
    let runtimes = Runtimes::default();
    let lacks = |pid: &u32| {
        let process = Process::open(*pid).ok()?;
        resolver::libraries(&process, None).ok()?;
        Some(matches!(Interpreter::find(&process, &runtimes, 1), Ok(None)))
    };
    let mut lack = pids.iter().filter_map(lacks).peekable();
    lack.peek().is_some() && lack.all(|lacks| lacks)
}

/// Says why a recording has no stack. `python`: what its report says of the Python of its processes, which it
/// does of those that stacks were wanted of.
fn why_without(python: Vec<(u32, String)>) -> Option<String> {
    const NOT_KNOWN: &str = "not known: ";
    if python.is_empty() {
        return Some("it was recorded without stacks: `ncclflow record --stacks` records them".to_owned());
    }
    let reasons =
        python.into_iter().filter_map(|(pid, said)| Some((pid, said.strip_prefix(NOT_KNOWN)?.to_owned())));
    let reasons: Vec<_> = reasons.collect();
    let why = match reasons.iter().all(|(_, why)| why == "it runs no Python") {
        _ if reasons.is_empty() => return None,
        true => NO_PYTHON.to_owned(),
        false => joined(by_reason(reasons), "; "),
    };
    let instead = "`ncclflow record --stacks=native` records native stacks";
    Some(format!("it was recorded with --stacks, but {why}: {instead}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_without_stacks_has_a_reason() {
        let of = |said: &[&str]| why_without((7..).zip(said.iter().map(|said| (*said).to_owned())).collect());
        assert!(of(&[]).unwrap().starts_with("it was recorded without stacks"));
        assert_eq!(of(&["3.12.1"]), None);
        let none = of(&["not known: it runs no Python"; 2]).unwrap();
        assert!(
            none.contains("with --stacks, but no process runs Python: `ncclflow record --stacks=native`")
        );
        let some = of(&["not known: it runs no Python", "not known: its layout is unknown"]).unwrap();
        assert!(some.contains("process 7: it runs no Python; process 8: its layout is unknown"), "{some}");
    }

    #[test]
    fn a_process_without_nccl_says_nothing_of_python() {
        assert!(!run_no_python(&[std::process::id()]));
        assert!(!run_no_python(&[]));
    }
}
