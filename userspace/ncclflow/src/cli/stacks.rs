//! `ncclflow stacks`: call stacks behind NCCL's kernels.

use std::{
    io::{self, BufRead, IsTerminal as _, Write, stderr, stdin, stdout},
    path::Path,
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use super::{live_stacks, progress::reading, stacks_args::StacksArgs, terminal, write_json};
use recording::sinks::{OutputDir, Share};
use stacks::{
    GroupedStacks, pprof,
    trace::{Found, Functions, Match, Query, TraceFile, Window, find_functions, stacks_of},
    write_folded, write_text,
};

/// Words of kernels to suggest where the wanted one is not found.
const WORDS: [&str; 5] = ["nccl", "reduce", "gather", "broadcast", "scatter"];

/// Most calls of a function that an error lists.
const LISTED: usize = 100;

pub(super) fn run(args: &StacksArgs, started: Instant) -> Result<ExitCode> {
    if args.pprof && args.output.is_none() && stdout().is_terminal() {
        bail!("a pprof profile is binary: give --output FILE, or a pipe");
    }
    match &args.source {
        None => live_stacks::run(args, started),
        Some(folder) if folder.is_dir() => live_stacks::run_recording(args, folder),
        Some(trace) => run_trace(args, trace),
    }
}

fn run_trace(args: &StacksArgs, path: &Path) -> Result<ExitCode> {
    let mut trace = TraceFile::open(path)?;
    let window = window(&mut trace, args)?;
    let query = Query { window, kernel_name: args.kernel().to_owned(), stack_depth: args.callers() };
    let found =
        reading("", |line| stacks_of(&mut trace, &query, &mut |read| line.show(read.bytes, read.of_bytes)))?;
    let mut out = Vec::new();
    write_stacks(&found, args, window, &mut out)?;
    write_out(args.output.as_deref(), &out, args.pprof)?;
    say(&found, window);
    Ok(ExitCode::SUCCESS)
}

fn window(trace: &mut TraceFile, args: &StacksArgs) -> Result<Window> {
    if let (Some(start), Some(duration)) = (args.start_ts, args.duration) {
        return Ok(Window::new(start, duration));
    }
    let Some(name) = &args.function_name else { return Ok(Window::WHOLE) };
    let found = reading("looking for the function: ", |line| {
        find_functions(trace, name, &mut |read| line.show(read.bytes, read.of_bytes))
    })?;
    if found.is_empty() {
        bail!(
            "no slice on a thread of the trace is named `{name}`; names are as the trace has them, and with a % \
             in it a name is a pattern: --function-name '%forward%'"
        );
    }
    let index = match args.index {
        Some(index) if index >= found.len() => {
            bail!("index {index} is out of range: `{name}` has {} slices, from 0", found.len())
        }
        Some(index) => index,
        None if found.len() == 1 => 0,
        None if stdin().is_terminal() && stderr().is_terminal() => {
            choose(&found, &mut stdin().lock(), &mut terminal::err())?
        }
        None => {
            let mut list = Vec::new();
            write_matches(&found, LISTED, &mut list)?;
            bail!(
                "{} slices match `{name}`; --index N says which is the window:\n{}",
                found.len(),
                String::from_utf8_lossy(&list).trim_end()
            );
        }
    };
    let Some(chosen) = found.get(index) else { bail!("index {index} is out of range") };
    tell!(
        "window: {}: --start-ts {}{}",
        chosen.name.as_str(),
        chosen.start,
        duration_of(&chosen, " --duration ")
    );
    Ok(chosen.window())
}

fn duration_of(found: &Match, before: &str) -> String {
    found.duration.map_or_else(|| ", never ended".to_owned(), |duration| format!("{before}{duration}"))
}

/// Asks which of the slices is meant, until one is chosen.
fn choose(found: &Functions, answers: &mut dyn BufRead, out: &mut dyn Write) -> Result<usize> {
    writeln!(out, "{} slices match:\n", found.len())?;
    write_matches(found, usize::MAX, out)?;
    let last = found.len() - 1;
    loop {
        write!(out, "\nSelect a slice index (0-{last}): ")?;
        out.flush()?;
        let mut answer = String::new();
        if answers.read_line(&mut answer)? == 0 {
            writeln!(out)?;
            bail!("cancelled: no slice was chosen");
        }
        match answer.trim().parse() {
            Ok(index) if index <= last => return Ok(index),
            Ok(_) => writeln!(out, "Index must be between 0 and {last}.")?,
            Err(_) => writeln!(out, "Please enter a valid integer.")?,
        }
    }
}

fn write_matches(found: &Functions, most: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:<8} {:<20} {:<20} {:<20} Name", "Index", "Start Time", "Duration", "End Time")?;
    for (index, slice) in found.iter().enumerate().take(most) {
        let Match { name, start, duration } = slice;
        let end = duration
            .map_or_else(|| "-".to_owned(), |duration| start.saturating_add_unsigned(duration).to_string());
        let duration = duration.map_or_else(|| "-".to_owned(), |duration| duration.to_string());
        writeln!(out, "{index:<8} {start:<20} {duration:<20} {end:<20} {}", name.as_str())?;
    }
    if found.len() > most {
        writeln!(out, "… and {} more", found.len() - most)?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Document<'f> {
    kernels: u64,
    stacks: &'f GroupedStacks,
}

fn write_stacks(found: &Found, args: &StacksArgs, window: Window, out: &mut Vec<u8>) -> Result<()> {
    let stacks = &found.stacks;
    let is_text = !(args.json || args.folded || args.pprof);
    if args.json {
        write_json(out, &Document { kernels: stacks.total(), stacks })?;
    } else if args.folded {
        write_folded(stacks, out)?;
    } else if args.pprof {
        out.extend(pprof(stacks, "kernels")?);
    } else {
        write_text(stacks, out)?;
    }
    if stacks.is_empty() {
        let place = if window.is_whole() { "trace" } else { "window" };
        if is_text {
            explain(found, args.kernel(), place, out)?;
        } else {
            explain(found, args.kernel(), place, &mut terminal::err())?;
        }
    }
    Ok(())
}

/// Explains why nothing was found.
fn explain(found: &Found, kernel: &str, place: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "No call stacks found matching the criteria.\n")?;
    if found.ambiguous > 0 {
        writeln!(
            out,
            "The kernel '{kernel}' was found in the {place}, but several calls may have launched it."
        )
    } else if found.has_kernel {
        let before = if place == "window" { ", or before the window begins" } else { "" };
        writeln!(
            out,
            "The kernel '{kernel}' was found in the {place}, but nothing that launched it: it was likely launched as part of \
             a graph without tracking data{before}."
        )
    } else if found.window_kernels.is_empty() {
        writeln!(out, "No kernels found in the {place}.")
    } else {
        writeln!(out, "Could not find the kernel '{kernel}' in the {place}.")?;
        let meant: Vec<_> = found
            .window_kernels
            .iter()
            .filter(|(name, _)| {
                let name = name.as_str().to_ascii_lowercase();
                WORDS.iter().any(|word| name.contains(word))
            })
            .collect();
        if meant.is_empty() {
            return writeln!(
                out,
                "No relevant kernels found in the {place}: none has {} in its name.",
                WORDS.join(", ")
            );
        }
        writeln!(out, "\nFound {} possibly relevant kernels:\n\n{:<10} Kernel Name", meant.len(), "Count")?;
        meant.iter().try_for_each(|(name, count)| writeln!(out, "{count:<10} {}", name.as_str()))?;
        writeln!(out, "\n--kernel-name takes one of them, or a pattern: 'nccl%' is all of NCCL's.")
    }
}

/// Reports what the stacks do not show.
fn say(found: &Found, window: Window) {
    if found.replayed > 0 {
        tell!(
            "{} kernels were launched by replays of graphs: their stacks are those of the replays; where they were captured \
             the trace does not say",
            found.replayed
        );
    }
    // With a window, most of the others were launched outside of it.
    if window.is_whole() && !found.stacks.is_empty() && found.without_launch > 0 {
        tell!(
            "{} kernels of that name are left out: the trace does not have what launched them",
            found.without_launch
        );
    }
    if found.ambiguous > 0 {
        tell!(
            "{} kernels of that name are left out: several calls may have launched them; is this the trace of several \
             processes, put together?",
            found.ambiguous
        );
    }
    found.notes.iter().for_each(|note| tell!("{note}"));
}

/// Writes to the file, whole or not at all, or to standard output.
pub(super) fn write_out(path: Option<&Path>, bytes: &[u8], is_binary: bool) -> Result<()> {
    let Some(path) = path else {
        let mut out: Box<dyn Write> =
            if is_binary { Box::new(stdout().lock()) } else { Box::new(terminal::out()) };
        out.write_all(bytes)?;
        return Ok(out.flush()?);
    };
    let shown = path.display();
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        bail!("`{shown}` is not a file name")
    };
    if path.symlink_metadata().is_ok_and(|there| !there.is_file()) {
        bail!("`{shown}` exists and is not a regular file: give another name, or a pipe instead of --output");
    }
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    OutputDir::open(folder)?
        .replace_file(Share::Free, name, |file| file.write_all(bytes))
        .with_context(|| format!("writing `{shown}`"))?;
    tell!("Results written to: {shown}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(answers: &str) -> (Result<usize>, String) {
        let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/kineto_ddp_rank0.json.gz");
        let found = find_functions(&mut TraceFile::open(&trace).unwrap(), "%evaluate", &mut |_| ()).unwrap();
        let mut out = Vec::new();
        let chosen = choose(&found, &mut answers.as_bytes(), &mut out);
        (chosen, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_slice_is_chosen_by_its_index() {
        let (index, out) = chosen("one\n2\n-1\n 1 \n");
        assert_eq!(index.unwrap(), 1);
        assert_eq!(out.matches("Select a slice index (0-1): ").count(), 4, "{out}");
        assert_eq!(out.matches("Please enter a valid integer.").count(), 2, "{out}");
        assert_eq!(out.matches("Index must be between 0 and 1.").count(), 1, "{out}");
        assert_eq!(out.matches("prof.py(23): evaluate").count(), 2, "{out}");
    }

    #[test]
    fn no_answer_is_no_choice() {
        assert!(chosen("5\n").0.unwrap_err().to_string().contains("cancelled"));
    }
}
