//! What `ncclflow record` says while it records.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{progress::ProgressLine, record::Seen, record_args::RecordArgs, signals, whom::MAX_NAMED};
use flow::{
    session::{UncutProcess, WindowIterations},
    text::{counted, joined},
};
use inspect::process::{LibraryId, Process};
use trace::record::{LibraryInUse, Notice, Setup};

/// Most libraries that are remembered.
const MAX_LIBRARIES: usize = 1024;

pub(super) struct Console {
    quiet: bool,
    is_verbose: bool,
    /// Those that were named with their paths.
    libraries: BTreeSet<LibraryId>,
    /// Further processes with these that came before the recording began; they are named together.
    joined: Vec<String>,
    is_recording: bool,
    output: Option<PathBuf>,
    duration: Option<Duration>,
    /// Why the oldest of the output is removed.
    why_removed: &'static str,
    detaching_since: Option<Instant>,
    progress: Option<ProgressLine>,
}

impl Console {
    /// `output` is `None` if nothing is written.
    pub(super) fn new(args: &RecordArgs, output: Option<PathBuf>) -> Self {
        Self {
            quiet: args.quiet,
            is_verbose: args.verbose,
            libraries: BTreeSet::new(),
            joined: Vec::new(),
            is_recording: false,
            output,
            duration: args.duration,
            why_removed: if args.disk.max_age.is_some() {
                " (--max-size, --max-age)"
            } else {
                " to make room (--max-size)"
            },
            detaching_since: None,
            progress: None,
        }
    }

    pub(super) fn say(&mut self, notice: &Notice<'_>) {
        match notice {
            Notice::WriteFailed(error) => tell!("ncclflow: {error}"),
            Notice::Failed(why) => tell!("ncclflow: the session has failed: {why}"),
            Notice::OverMaxSize(bytes) => {
                tell!(
                    "ncclflow: the folder has reached its limit of {bytes} bytes: further records are \
                     lost (--max-size)"
                );
            }
            Notice::NotSeen(what) => tell!("ncclflow: {what}"),
            _ if self.quiet => {}
            Notice::NoStacks { pid, why } => tell!("process {pid}: no call stacks: {why}"),
            Notice::NotCached(why) => tell!("struct layouts could not be kept for the next run: {why}"),
            Notice::Found(setup) => found(setup, self.is_verbose),
            Notice::Recording { probes } => {
                self.is_recording = true;
                let others = std::mem::take(&mut self.joined);
                if !others.is_empty() {
                    let names = joined(others.iter().take(MAX_NAMED), ", ");
                    let more = if others.len() > MAX_NAMED { " …" } else { "" };
                    let processes = counted(others.len(), "more process");
                    tell!("{processes} with a library that is named above: {names}{more}");
                }
                let to = self.output.as_ref().map_or_else(
                    || "recording, without files,".to_owned(),
                    |output| format!("recording to {}", output.display()),
                );
                tell!("{to} with {}{}", counted(*probes, "probe"), signals::end(self.duration));
            }
            Notice::TargetExited { pid } => tell!("process {pid} exited"),
            Notice::Joined { process, library } => {
                let name = named(process);
                let process = format!("process {name}");
                let has_room = self.libraries.len() < MAX_LIBRARIES;
                if self.is_verbose || !has_room || self.libraries.insert(library.file.id) {
                    using(library, &process);
                } else if self.is_recording {
                    tell!("{process}: NCCL {}, the same library as above", version_of(library));
                } else {
                    self.joined.push(name);
                }
            }
            Notice::WindowRemoved(folder) => tell!("removed{}: {folder}", self.why_removed),
            Notice::LinesRemoved(folder) => {
                let output = self.output.as_deref().unwrap_or(Path::new("."));
                let output = if folder.is_empty() { output.to_owned() } else { output.join(folder) };
                let (why, output) = (self.why_removed, output.display());
                tell!(
                    "removed{why}: the .jsonl files in {output}; `ncclflow export {output} -f jsonl -o \
                     NEW` makes them again"
                );
            }
            Notice::WindowOpened(window) => tell!("window {} opened: {}", window.number, window.folder),
            Notice::WindowClosed(window, report) => {
                let seen = Seen::of(&report.communicators).told(report.level, self.is_verbose);
                let lost = report.loss.records_lost + report.loss.records_dropped + report.loss.lines_lost;
                tell!(
                    "window {} closed: {} with {seen}; {lost} lost",
                    window.number,
                    counted(report.communicators.len(), "rank")
                );
                if let Some(iterations) = &window.iterations {
                    tell_iterations(iterations);
                }
            }
            Notice::Hang(what) => tell!("{}", hang(what, self.output.as_deref())),
            Notice::LibraryChanged(what) | Notice::FlagNotSeen(what) => tell!("{what}"),
            Notice::NothingToRotate => {
                tell!("SIGUSR1 has no effect without windows (--window-flag, --rotate)");
            }
            Notice::RankMapBroken(why) => tell!("--rank-map {why}"),
            Notice::PassedOver(why) => tell!("not traced: {why}"),
            Notice::Finishing { done, of } => {
                self.progress.get_or_insert_with(|| ProgressLine::new("")).files(*done, *of);
            }
            Notice::Detaching { left } if self.detaching_since.is_none() => {
                tell!("the recording is complete; detaching {}", counted(*left, "probe"));
                self.detaching_since = Some(Instant::now());
            }
            Notice::Detaching { .. } => {}
            Notice::Detached => {
                if let Some(since) = self.detaching_since {
                    tell!("detached in {} ms", since.elapsed().as_millis());
                }
            }
        }
    }
}

/// Says where the dump of a hang is, and what shows it: the recording itself knows only its name.
fn hang(what: &str, output: Option<&Path>) -> String {
    match (what.rsplit_once("; see "), output) {
        (Some((verdict, name)), Some(output)) => {
            format!("{verdict}; `ncclflow dump --merge {}` shows more", output.join(name).display())
        }
        _ => what.to_owned(),
    }
}

fn tell_iterations(iterations: &WindowIterations) {
    if iterations.found {
        let fewest = iterations.processes.iter().map(|process| process.iterations).min().unwrap_or(0);
        let period = iterations.period_collectives.unwrap_or(0);
        tell!("  {fewest} training iterations of {period} collectives each, inferred from what recurs");
    }
    for UncutProcess { pid, why, .. } in iterations.uncut.iter().take(MAX_NAMED) {
        tell!("  process {pid} is not cut: {why}");
    }
    let more = iterations.uncut.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        tell!("  nor are {more} more (`uncut` of the window in session.json)");
    }
    if let Some(why) = &iterations.why_not {
        tell!("  fewer iterations than --window-iterations asks for: {why}");
    }
}

fn found(setup: &Setup, is_verbose: bool) {
    for reason in &setup.passed_over {
        tell!("not traced: {reason}");
    }
    for (at, library) in setup.libraries.iter().enumerate().filter(|(_, library)| !library.is_driver()) {
        let users = setup.targets.iter().filter(|target| target.libraries.contains(&at));
        let users: Vec<String> = users.map(|target| named(&target.process)).collect();
        let shown = if is_verbose { users.len() } else { MAX_NAMED };
        let more = users.len().saturating_sub(shown);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let noun = if users.len() == 1 { "process" } else { "processes" };
        using(library, &format!("{noun} {}{more}", joined(users.iter().take(shown), ", ")));
    }
}

/// Names a process, for lists.
fn named(process: &Process) -> String {
    format!("{} ({})", process.pid(), process.name())
}

fn version_of(library: &LibraryInUse) -> String {
    let version = library.resolved.resolution.nccl_version;
    version.map_or_else(|| "?".to_owned(), |version| version.to_string())
}

/// Says what is traced in a library, and whose it is.
fn using(library: &LibraryInUse, processes: &str) {
    let resolution = &library.resolved.resolution;
    tell!(
        "{processes}: NCCL {}, symbols from {}, {}{}",
        version_of(library),
        resolution.symbol_source.describe(),
        library.file.shown(),
        if library.file.deleted { " (deleted)" } else { "" },
    );
    for missing in &library.probes.missing {
        tell!(
            "  cannot be probed: {}: {}; so this is not recorded: {}",
            missing.function,
            missing.why,
            missing.lost
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dump_of_a_hang_is_named_with_its_folder() {
        let told = "nothing moved for 3 s: stuck; see dump_17.json";
        let said = hang(told, Some(Path::new("/var/tmp/flows")));
        let command = "`ncclflow dump --merge /var/tmp/flows/dump_17.json`";
        assert_eq!(said, format!("nothing moved for 3 s: stuck; {command} shows more"));
        assert_eq!(hang(told, None), told);
    }
}
