//! `ncclflow stacks`: call stacks behind NCCL's kernels.

use std::{
    io::{self, BufRead, IsTerminal as _, Write, stderr, stdin, stdout},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;

use super::{
    Versioned,
    exit::Exit,
    live_stacks,
    progress::reading,
    quantities::{Pids, seconds},
    shared_args::FilterArgs,
    terminal, write_json,
};
use ncclflow_common::{MAX_STACK_FRAMES, STACK_FRAMES};
use recording::sinks::{OutputDir, Share};
use stacks::{
    GroupedStacks, pprof,
    trace::{Found, Functions, Match, Query, TraceFile, Window, find_functions, stacks_of},
    write_folded, write_text,
};

const WINDOW: &str = "Window";
const OUTPUT: &str = "Output";

/// Default of the NCCL Call Stack Analyzer: NCCL's kernel for what has none of its own.
const KERNEL: &str = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)";

/// Default number of a launch's callers in a trace.
const CALLERS: usize = 12;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["source", "pids", "all"]))]
#[command(after_help = "\
Examples:
  ncclflow stacks -p 4242 -d 10           behind the calls of a process
  ncclflow stacks --all --comm train.py -d 10 --kernel-name AllReduce
  ncclflow stacks -p 4242 -d 10 --both    with C and C++ between Python and NCCL
  ncclflow stacks /var/tmp/flows          of a recording made with --stacks
  ncclflow stacks trace.json.gz --kernel-name 'ncclDevKernel_%'
                                          of a trace of torch's profiler
  ncclflow stacks trace.json.gz --folded | flamegraph.pl > stacks.svg

Needs what `record` needs for processes, and nothing for recordings and traces. docs/STACKS.md has the \
forms of output.
Exit codes: 0 done, also where nothing was found, which is said; 1 not done; 2 wrong usage.")]
#[command(after_long_help = "\
More examples:
  ncclflow stacks -p 4242 --json | jq '.groups[] | [.count, .function, .rank]'
  ncclflow stacks trace.json.gz           behind ncclDevKernel_Generic_1, in the
                                          whole trace
  ncclflow stacks trace.json --function-name 'train.py(41): step' --index 3
  ncclflow stacks trace.pb --start-ts 4502111772961473 --duration 1000000
  ncclflow stacks trace.json.gz --json | jq '.stacks[0].frames[]'
  ncclflow stacks trace.json.gz --pprof --output stacks.pb.gz

Of processes and recordings, the stacks behind NCCL's calls are counted, by function, communicator and \
rank: nothing has to be prepared in the job. Python frames are the default; a recording has what it was \
made with.

TRACE is of torch.profiler (with_stack=True gives Python's frames) or of any program that writes Chrome's \
JSON or Perfetto's protobuf; each may be compressed by gzip. Equal stacks are counted, the most frequent \
first; digits at the end of a name and addresses of objects are dropped before, so that layers are one. A \
name with a % in it is a pattern, as of SQL's LIKE: % is any text, _ any character, in either case.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct StacksArgs {
    /// Recording made with --stacks, or a profiler's trace
    ///
    /// A trace is Kineto's or Chrome's JSON, or Perfetto's protobuf.
    #[arg(value_name = "DIR|TRACE")]
    pub source: Option<PathBuf>,

    /// Processes whose calls are watched
    ///
    /// Other processes that use the same library are left alone.
    #[arg(short, long = "pid", value_name = "PID", num_args = 1..)]
    pub pids: Vec<Pids>,

    /// Every process of this host that uses NCCL, also later ones
    #[arg(long, conflicts_with = "pids")]
    pub all: bool,

    #[command(flatten)]
    pub filter: FilterArgs,

    /// Time to watch: 30, 5m [default: until Ctrl-C]
    #[arg(short = 'd', value_name = "TIME", value_parser = seconds, conflicts_with = "source")]
    pub seconds: Option<Duration>,

    /// Only kernels of this name, or calls of this function (AllReduce)
    ///
    /// Of a trace, kernels [default: ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)]; of processes
    /// and recordings, calls.
    #[arg(long, value_name = "NAME")]
    pub kernel_name: Option<String>,

    /// Most frames of a stack, from the innermost on
    ///
    /// Of a trace, callers of a launch [default: 12]; of processes [default: 24] and recordings, 48 at most.
    #[arg(long, value_name = "N")]
    pub stack_depth: Option<usize>,

    /// Of processes: Python frames [the default]
    #[arg(long, group = "frames", conflicts_with = "source")]
    pub python: bool,

    /// Of processes: native frames (C, C++ …); x86-64 only
    #[arg(long, group = "frames", conflicts_with = "source")]
    pub native: bool,

    /// Of processes: native frames with Python's among them
    #[arg(long, group = "frames", conflicts_with = "source")]
    pub both: bool,

    /// Only what was launched during a call of this function
    ///
    /// Of several calls, --index says which, or you are asked.
    #[arg(help_heading = WINDOW, long, value_name = "NAME", conflicts_with_all = ["pids", "all"])]
    pub function_name: Option<String>,

    /// Which call of the function, from 0, in the order of time
    #[arg(help_heading = WINDOW, long, value_name = "N", requires = "function_name")]
    pub index: Option<usize>,

    /// Only what was launched from this time of the trace on, in ns
    ///
    /// With --duration; whatever --function-name says.
    #[arg(help_heading = WINDOW, long, value_name = "NS", requires = "duration", allow_negative_numbers = true, value_parser = nanoseconds::<i64>)]
    pub start_ts: Option<i64>,

    /// For so long, in ns
    #[arg(help_heading = WINDOW, long, value_name = "NS", requires = "start_ts", value_parser = nanoseconds::<u64>)]
    pub duration: Option<u64>,

    /// As JSON
    #[arg(help_heading = OUTPUT, long, group = "form")]
    pub json: bool,

    /// A line a stack, for flame graphs
    #[arg(help_heading = OUTPUT, long, group = "form")]
    pub folded: bool,

    /// A profile for pprof, compressed
    #[arg(help_heading = OUTPUT, long, group = "form")]
    pub pprof: bool,

    /// Write to this file
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl StacksArgs {
    /// Returns the kernels' name in a trace.
    pub(super) fn kernel(&self) -> &str {
        self.kernel_name.as_deref().unwrap_or(KERNEL)
    }

    /// Returns the number of frames that the kernel side is to walk.
    pub(super) fn frames(&self) -> u8 {
        self.stack_depth.map_or(STACK_FRAMES, |depth| u8::try_from(depth).unwrap_or(u8::MAX))
    }

    /// Returns what is wrong with options that make sense with some values of others only.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let most = u8::try_from(MAX_STACK_FRAMES).unwrap_or(u8::MAX);
        (self.source.is_none() && !(1..=most).contains(&self.frames()))
            .then_some("--stack-depth is from 1 to 48 where processes are watched")
    }
}

/// Words of kernels to suggest where the wanted one is not found.
const WORDS: [&str; 5] = ["nccl", "reduce", "gather", "broadcast", "scatter"];

/// Most calls of a function that an error lists.
const LISTED: usize = 100;

pub(super) fn run(args: &StacksArgs, started: Instant) -> Result<Exit> {
    if args.pprof && args.output.is_none() && stdout().is_terminal() {
        bail!("a pprof profile is binary: give --output FILE, or a pipe");
    }
    match &args.source {
        None => live_stacks::run(args, started),
        Some(folder) if folder.is_dir() => live_stacks::run_recording(args, folder),
        Some(trace) => run_trace(args, trace),
    }?;
    Ok(Exit::Done)
}

fn run_trace(args: &StacksArgs, path: &Path) -> Result<()> {
    let mut trace = TraceFile::open(path)?;
    let window = window(&mut trace, args)?;
    let query = Query {
        window,
        kernel_name: args.kernel().to_owned(),
        stack_depth: args.stack_depth.unwrap_or(CALLERS),
    };
    let found =
        reading("", |line| stacks_of(&mut trace, &query, &mut |read| line.bytes(read.bytes, read.of_bytes)))?;
    let stacks = &found.stacks;
    let place = if window.is_whole() { "trace" } else { "window" };
    if stacks.is_empty() && (args.json || args.folded || args.pprof) {
        explain(&found, args.kernel(), place, &mut terminal::err())?;
    }
    write_stacks(args, &Document { kernels: stacks.total(), stacks }, stacks, "kernels", |out| {
        write_text(stacks, out)?;
        if stacks.is_empty() { explain(&found, args.kernel(), place, out) } else { Ok(()) }
    })?;
    say(&found, window);
    Ok(())
}

fn window(trace: &mut TraceFile, args: &StacksArgs) -> Result<Window> {
    if let (Some(start), Some(duration)) = (args.start_ts, args.duration) {
        return Ok(Window::new(start, duration));
    }
    let Some(name) = &args.function_name else { return Ok(Window::WHOLE) };
    let found = reading("looking for the function: ", |line| {
        find_functions(trace, name, &mut |read| line.bytes(read.bytes, read.of_bytes))
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
        chosen.duration.map_or_else(|| ", never ended".to_owned(), |ns| format!(" --duration {ns}"))
    );
    Ok(chosen.window())
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

/// Writes stacks in the form that is asked for: `document` is that of JSON, `of` what is counted.
pub(super) fn write_stacks(
    args: &StacksArgs,
    document: &impl Serialize,
    stacks: &GroupedStacks,
    of: &str,
    write_text: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
) -> Result<()> {
    let mut out = Vec::new();
    if args.json {
        write_json(&mut out, &Versioned::first(document))?;
    } else if args.folded {
        write_folded(stacks, &mut out)?;
    } else if args.pprof {
        out = pprof(stacks, of)?;
    } else {
        write_text(&mut out)?;
    }
    write_out(args.output.as_deref(), &out, args.pprof)
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
fn write_out(path: Option<&Path>, bytes: &[u8], is_binary: bool) -> Result<()> {
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
    OutputDir::open_or_create(folder)?
        .replace_file(Share::Free, name, |file| file.write_all(bytes))
        .with_context(|| format!("writing `{shown}`"))?;
    tell!("Results written to: {shown}");
    Ok(())
}

/// Parses a time of a trace.
fn nanoseconds<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| {
        format!("`{text}` is no number of nanoseconds: times of a trace are given as it has them")
    })
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
