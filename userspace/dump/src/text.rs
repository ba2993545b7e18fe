//! A dump as text for people: the verdict, what it is based on, then what was read.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
};

use super::{
    CommunicatorReport, CopiedRank, DumpReport, LibraryReport, OpReport, ProcessId, ProcessReport,
    ProcessState, PythonGroup, PythonReport, RankReport, gpus, nics, of_host, one_sided, python,
    verdict::{Kind, State, named},
};
use flow::text::{counted, joined, name_ranks, wrap, write_paragraph as wrapped};
use inspect::{gpu::GpuReport, memory::ScanEnd, threads::Thread};
use nccl_library::nccl::Direction;

/// Maximum number of ops that are shown of one rank; all are in the JSON.
const MAX_OPS: usize = 12;
/// Maximum number of threads that are shown of one process.
const MAX_THREADS: usize = 16;
/// Maximum number of communicators that are shown with their ranks, and of those that are named in a line.
const MAX_COMMUNICATORS: usize = 3;
const MAX_NAMES: usize = 4;

/// Maximum numbers of what is shown.
#[derive(Clone, Copy)]
struct Most {
    /// Ranks of a communicator, processes and GPUs. If there are more, only those that somebody waits for, or
    /// with which something is the matter, are shown.
    rows: usize,
    sentences: usize,
    /// Groups of equal Python stacks, and frames of each.
    groups: usize,
    frames: usize,
    /// Sentences on torch's process groups.
    notes: usize,
}

const SHORT: Most = Most { rows: 4, sentences: 6, groups: 3, frames: 5, notes: 2 };
const VERBOSE: Most =
    Most { rows: usize::MAX, sentences: usize::MAX, groups: 8, frames: 12, notes: usize::MAX };

impl Most {
    /// Returns the rows that are shown, and the number of the others.
    fn of<T>(self, rows: Vec<T>, is_telling: impl Fn(&T) -> bool) -> (Vec<T>, usize) {
        let all = rows.len();
        let shown: Vec<T> = if all <= self.rows {
            rows
        } else {
            rows.into_iter().filter(is_telling).take(self.rows).collect()
        };
        let more = all - shown.len();
        (shown, more)
    }
}

/// Renders a dump; the first paragraph is the verdict. `is_verbose`: with threads, and the operations of each
/// rank. `width`: columns of a line.
pub fn render(report: &DumpReport, is_verbose: bool, width: usize) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    _ = write_report(&mut out, report, is_verbose);
    wrap(&out, width)
}

fn write_report(out: &mut String, report: &DumpReport, is_verbose: bool) -> fmt::Result {
    if let Some(job) = &report.job {
        wrapped(out, &job.sentence, 0)?;
        if let Some(why) = why(report) {
            wrapped(out, why, 0)?;
        }
        if let Some(next) = &job.next {
            wrapped(out, &format!("next: {next}"), 0)?;
        }
        writeln!(out)?;
    }
    if !report.hosts_not_read.is_empty() {
        of_host::write(out, &report.hosts_not_read)?;
        writeln!(out)?;
    }
    write_communicators(out, report, is_verbose)?;
    let most = if is_verbose { VERBOSE } else { SHORT };
    let awaited = awaited(report);
    let is_telling = |process: &&ProcessReport| awaited.contains(&process.id()) || is_remarkable(process);
    let (processes, more) = most.of(report.processes.iter().collect(), is_telling);
    let mut has_more = more > 0;
    let shown = processes.len();
    for process in processes {
        write_process(out, process, is_verbose)?;
    }
    write_more(out, 0, [shown, more], "process")?;
    let is_telling = |gpu: &&GpuReport| gpus::is_remarkable(gpu) || gpus::is_of(gpu, report, &awaited);
    let (gpus, more) = most.of(gpus::used(report), is_telling);
    gpus::write(out, &gpus)?;
    write_more(out, 0, [gpus.len(), more], "GPU")?;
    has_more |= more > 0;
    // Most hosts that have no driver have no GPU either: nothing is missing there.
    for remark in report.gpu_remarks.iter().filter(|_| !report.communicators.is_empty()) {
        wrapped(out, remark, 0)?;
    }
    for sentence in report.torch_notes.iter().take(most.notes) {
        wrapped(out, sentence, 0)?;
    }
    write_rest(
        out,
        0,
        report.torch_notes.len(),
        most.notes,
        "more sentences of torch: see `ncclflow history`",
    )?;
    if report.processes_denied > 0 {
        let what = "processes that cannot be inspected, so that NCCL in them is not seen";
        wrapped(out, &format!("{what}: {}", report.processes_denied), 0)?;
    }
    let left = report.lost_readers.left_behind;
    if left > 0 {
        let what =
            "helper processes of ncclflow that hang in the kernel, because what they read does not answer";
        wrapped(out, &format!("{what}: {left}"), 0)?;
    }
    let has_details = report.processes.iter().any(|process| !process.threads.is_empty());
    if !is_verbose && (has_details && report.state() != State::Healthy || has_more) {
        writeln!(out, "-v shows all, with the threads inside NCCL and the operations in flight")?;
    }
    Ok(())
}

/// Writes all communicators: first those at which the waiting ends, then those that wait, last the healthy
/// ones. Of these, and of very many that wait, only a line, unless `is_verbose`.
fn write_communicators(out: &mut String, report: &DumpReport, is_verbose: bool) -> fmt::Result {
    if report.communicators.is_empty() {
        let is_unread = |process: &ProcessReport| process.error.is_some();
        let nothing =
            report.job.is_none() && !report.processes.is_empty() && report.processes.iter().all(is_unread);
        let what =
            if nothing { "nothing is known: no process could be read" } else { "no communicator was found" };
        return writeln!(out, "{what}\n");
    }
    let ends = report.job.as_ref().map_or(&[][..], |job| &job.communicators);
    let mut all: Vec<&CommunicatorReport> = report.communicators.iter().collect();
    all.sort_by_key(|one| (!ends.contains(&one.comm_hash), std::cmp::Reverse(one.verdict.state)));
    let (healthy, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|one| one.verdict.state == State::Healthy);
    let at_the_end = others.iter().filter(|one| ends.contains(&one.comm_hash)).count();
    let most = match at_the_end {
        _ if is_verbose => usize::MAX,
        0 => MAX_COMMUNICATORS,
        ends => ends.min(MAX_COMMUNICATORS),
    };
    for communicator in others.iter().take(most) {
        write_communicator(out, communicator, is_verbose)?;
    }
    for (state, what) in
        [(State::Stuck, "STUCK"), (State::Waiting, "waiting"), (State::Unknown, "cannot tell")]
    {
        let of_state = others.iter().skip(most).filter(|one| one.verdict.state == state);
        write_names(out, "more", &format!(" ({what})"), &of_state.copied().collect::<Vec<_>>())?;
    }
    if !is_verbose && (!others.is_empty() || healthy.len() > MAX_COMMUNICATORS) {
        return write_names(out, "healthy", "", &healthy);
    }
    for communicator in healthy {
        write_communicator(out, communicator, is_verbose)?;
    }
    Ok(())
}

/// Writes communicators in a line: `3 healthy communicators: 0x1, 0x2, 0x3`.
fn write_names(out: &mut String, which: &str, what: &str, all: &[&CommunicatorReport]) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    let names =
        joined(all.iter().take(MAX_NAMES).map(|one| one.name.as_ref().unwrap_or(&one.comm_hash)), ", ");
    let more = if all.len() > MAX_NAMES { " …" } else { "" };
    let s = if all.len() == 1 { "" } else { "s" };
    wrapped(out, &format!("{} {which} communicator{s}{what}: {names}{more}", all.len()), 0)?;
    writeln!(out)
}

/// Returns the processes that are waited for where the waiting ends.
fn awaited(report: &DumpReport) -> BTreeSet<ProcessId<'_>> {
    let ends = report.job.as_ref().map_or(&[][..], |job| &job.communicators);
    let at_the_end = report.communicators.iter().filter(|one| ends.contains(&one.comm_hash));
    let culprits =
        at_the_end.flat_map(|one| one.ranks.iter().filter(|rank| one.verdict.culprits.contains(&rank.rank)));
    culprits.map(RankReport::process).collect()
}

/// Tells whether something is the matter with a process, whatever the verdicts say.
fn is_remarkable(process: &ProcessReport) -> bool {
    process.error.is_some()
        || process.libraries.iter().any(|library| library.unusable.is_some())
        || process.state == ProcessState::Exited
        || process.state.is_halted()
        || !process.left_over_of.is_empty()
        || process.scan.as_ref().is_some_and(|scan| is_cut(scan.ended_by))
}

/// Tells whether a search was cut, so that it can have missed a communicator.
fn is_cut(end: Option<ScanEnd>) -> bool {
    matches!(end, Some(ScanEnd::ByteLimit | ScanEnd::TimeLimit))
}

/// Returns the sentence on why the rank is waited for that the verdict names first.
fn why(report: &DumpReport) -> Option<&str> {
    let is_known = |one: &&CommunicatorReport| one.verdict.known_bug.is_some();
    if let Some(known) = report.communicators.iter().find(is_known) {
        return known.verdict.evidence.iter().find(|one| one.starts_with("Known: ")).map(String::as_str);
    }
    let first = report.job.as_ref()?.communicators.first()?;
    let communicator = report.communicators.iter().find(|communicator| communicator.comm_hash == *first)?;
    let evidence = communicator.verdict.evidence.iter().map(String::as_str);
    // What torch has recorded says with sizes and names what counters only show.
    if let Some(differs) = evidence.clone().find(|sentence| sentence.contains(" differs")) {
        return Some(differs);
    }
    if communicator.verdict.kind == Some(Kind::NeverMatches) {
        return communicator.verdict.evidence.first().map(String::as_str);
    }
    let name = format!("rank {} ", communicator.verdict.culprits.first()?);
    let mut about = evidence.clone().filter(|sentence| sentence.starts_with(&name));
    let of_gpu = format!("the GPU of {name}");
    about
        .find(|sentence| !sentence.contains(" waits for "))
        .or_else(|| evidence.clone().find(|sentence| sentence.starts_with(&of_gpu)))
}

fn write_process(out: &mut String, process: &ProcessReport, is_verbose: bool) -> fmt::Result {
    let versions = joined(process.libraries.iter().map(build), ", ");
    let state = match (process.state, process.state.reason()) {
        (ProcessState::Exited, _) => ", exited".to_owned(),
        (_, Some((_, why))) => format!(", {why}"),
        (_, None) => String::new(),
    };
    let versions = if versions.is_empty() { "no NCCL library read" } else { &versions };
    let line = format!(
        "process {} ({}) on {}: {versions}, {} communicator{}{state}",
        process.pid,
        process.name,
        process.host,
        process.communicators,
        if process.communicators == 1 { "" } else { "s" }
    );
    wrapped(out, &line, 0)?;
    if let Some(scan) = process.scan.as_ref().filter(|scan| is_verbose || is_cut(scan.ended_by)) {
        let mib = |bytes: u64| format!("{}.{} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20);
        let line = format!(
            "searched {} of {} of its memory in {} ms{}",
            mib(scan.scanned_bytes),
            mib(scan.mapped_bytes),
            scan.milliseconds,
            match scan.ended_by {
                None => "",
                Some(ScanEnd::Found) => "; ended at the first communicator",
                Some(ScanEnd::Listed) => "; NCCL's own list of communicators was used instead",
                Some(ScanEnd::ByteLimit) => "; not to the end: the byte limit was reached (--max-gib)",
                Some(ScanEnd::TimeLimit) => "; not to the end: the time limit was reached (--max-seconds)",
            }
        );
        wrapped(out, &line, 2)?;
    }
    if let Some(parent) = process.forked_from {
        let line = format!("forked from process {parent}: its communicators are copies, and are not counted");
        wrapped(out, &line, 2)?;
    }
    if let Some(CopiedRank { comm_hash, rank }) = process.left_over_of.first() {
        let more = match process.left_over_of.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let line = format!(
            "left over: a child of the process that was rank {rank} of {comm_hash}{more}, which is gone; its \
             communicators are copies, and are not counted"
        );
        wrapped(out, &line, 2)?;
    }
    let threads = if is_verbose { process.threads.as_slice() } else { &[] };
    for thread in threads.iter().take(MAX_THREADS) {
        write_thread(out, thread)?;
    }
    write_rest(out, 2, threads.len(), MAX_THREADS, "more threads in NCCL")?;
    if let Some(python) = &process.python {
        write_python(out, python)?;
    }
    let unusable = process.libraries.iter().filter_map(|library| library.unusable.as_deref());
    for why in unusable.chain(process.error.as_deref()) {
        wrapped(out, why, 2)?;
    }
    Ok(())
}

/// Names the build of a library: `NCCL 2.28.9 for aarch64 (build 6a77e259)`. Two builds of one version can
/// differ in their bugs.
fn build(library: &LibraryReport) -> String {
    let version = library.version.as_deref().unwrap_or("of unknown version");
    let processor = library.processor.map(|processor| format!(" for {processor}")).unwrap_or_default();
    let short = library.build_id.as_deref().map(|id| id.get(..8).unwrap_or(id));
    let id = short.map(|id| format!(" (build {id})")).unwrap_or_default();
    format!("NCCL {version}{processor}{id}")
}

/// Writes a thread: `thread 812 (python3) in ncclAllReduce: groupLaunch, sleeps in futex_wait_queue`
fn write_thread(out: &mut String, thread: &Thread) -> fmt::Result {
    let inside = match (&thread.nccl_api, &thread.nccl_function) {
        (Some(api), Some(function)) if api != function => format!(" in {api}: {function}"),
        (Some(function), _) | (None, Some(function)) => format!(" in {function}"),
        (None, None) => String::new(),
    };
    let how = match (thread.is_running, &thread.wchan, &thread.unknown) {
        (_, _, Some(why)) => why.clone(),
        (true, ..) => "runs".to_owned(),
        (false, Some(wchan), _) => format!("sleeps in {wchan}"),
        (false, None, _) => "sleeps".to_owned(),
    };
    wrapped(out, &format!("thread {} ({}){inside}, {how}", thread.tid, thread.name), 2)?;
    for (number, frame) in thread.frames.iter().enumerate() {
        let function = frame.function.clone().unwrap_or_else(|| format!("{:#x}", frame.address));
        let module = frame.module.as_deref().map(|module| format!(" ({module})")).unwrap_or_default();
        let mark = if frame.inferred { "?" } else { "" };
        wrapped(out, &format!("#{number}{mark} {function}{module}"), 4)?;
    }
    Ok(())
}

/// Writes the Python threads: `Python 3.11: main thread 812 is at train.py:41 in load_batch`
fn write_python(out: &mut String, python: &PythonReport) -> fmt::Result {
    if let Some(why) = &python.unknown {
        return wrapped(out, &format!("unknown Python: {why}"), 2);
    }
    let version = python.version.as_deref().unwrap_or_default();
    for thread in python.threads.iter().take(MAX_THREADS) {
        let what = if thread.is_main { "main thread" } else { "thread" };
        let known = python::place(thread).map(|place| format!("is at {place}"));
        let how = match (known, &thread.unknown) {
            (Some(known), None) => known,
            (Some(known), Some(why)) => format!("{known}; the rest of its stack is unknown: {why}"),
            (None, Some(why)) => format!("is at an unknown place: {why}"),
            (None, None) => "runs no Python code".to_owned(),
        };
        wrapped(out, &format!("Python {version}: {what} {} {how}", thread.tid), 2)?;
    }
    write_rest(out, 2, python.threads.len(), MAX_THREADS, "more Python threads")
}

/// Writes the ranks by the stacks of their main threads: the largest group in a line, the others with their
/// frames.
fn write_groups(out: &mut String, groups: &[PythonGroup], state: State, most: Most) -> fmt::Result {
    for group in groups.iter().take(most.groups) {
        let is_usual = group.is_largest && (groups.len() > 1 || state == State::Healthy);
        let frames = if is_usual { 1 } else { most.frames };
        let largest = if group.is_largest && groups.len() > 1 { ", as most ranks" } else { "" };
        wrapped(out, &format!("Python, main thread of {}{largest}:", named(&group.ranks)), 2)?;
        for frame in group.frames.iter().take(frames) {
            wrapped(out, &format!("{} ({}:{})", frame.function, frame.file, frame.line_text()), 4)?;
        }
        write_rest(out, 4, group.frames.len(), frames, "more frames")?;
    }
    write_rest(out, 2, groups.len(), most.groups, "more stacks")
}

/// Names a communicator and its state: `communicator 0x1 "tp": 2 of 2 ranks read: STUCK`.
fn headline(communicator: &CommunicatorReport) -> String {
    let state = match communicator.verdict.state {
        State::Healthy => "healthy",
        State::Stuck => "STUCK",
        State::Waiting => "waiting",
        State::Unknown => "cannot tell",
    };
    let name = communicator.name.as_ref().map(|name| format!(" \"{name}\"")).unwrap_or_default();
    format!(
        "communicator {}{name}: {} of {} ranks read: {state}",
        communicator.comm_hash,
        communicator.ranks.len(),
        communicator.n_ranks
    )
}

fn write_communicator(out: &mut String, communicator: &CommunicatorReport, is_verbose: bool) -> fmt::Result {
    let verdict = &communicator.verdict;
    let most = if is_verbose { VERBOSE } else { SHORT };
    wrapped(out, &headline(communicator), 0)?;
    for (how, ranks) in [("waited for", &verdict.culprits), ("waiting", &verdict.victims)] {
        if !ranks.is_empty() {
            wrapped(out, &format!("{how}: {}", name_ranks(ranks)), 2)?;
        }
    }
    // That a rank waits is the least of them.
    let waits = |sentence: &&String| sentence.contains(" waits for rank ");
    let (least, first): (Vec<_>, Vec<_>) = verdict.evidence.iter().partition(waits);
    for sentence in first.into_iter().chain(least).take(most.sentences) {
        wrapped(out, &format!("- {sentence}"), 2)?;
    }
    write_rest(out, 2, verdict.evidence.len(), most.sentences, "more sentences")?;
    write_groups(out, &communicator.python_stacks, verdict.state, most)?;
    let is_telling =
        |rank: &&RankReport| verdict.culprits.contains(&rank.rank) || rank.process_state.is_halted();
    let (ranks, more) = most.of(communicator.ranks.iter().collect(), is_telling);
    let shown = ranks.len();
    for rank in ranks {
        write_rank(out, rank, is_verbose)?;
    }
    write_more(out, 2, [shown, more], "rank")?;
    writeln!(out)
}

fn write_rank(out: &mut String, rank: &RankReport, is_verbose: bool) -> fmt::Result {
    let mut line = format!(
        "rank {}: process {}, node {}, GPU {}{}, {} channel{}",
        rank.rank,
        rank.pid,
        rank.node,
        rank.cuda_dev,
        nics::shown(&rank.nics),
        rank.n_channels,
        if rank.n_channels == 1 { "" } else { "s" }
    );
    for (function, count) in rank.counters.seq_number.iter().filter(|(_, count)| **count > 0) {
        write!(line, ", {function} {count}")?;
    }
    if let Some(count) = rank.counters.coll_op_count.filter(|_| rank.counters.seq_number.is_empty()) {
        write!(line, ", {}", counted(count, "collective"))?;
    }
    if let Some(count) = rank.counters.p2p_op_count.filter(|count| *count > 0) {
        write!(line, ", {}", counted(count, "p2p batch"))?;
    }
    match rank.kernel_channels.as_deref().map(<[u32]>::len) {
        None | Some(0) => {}
        Some(count) => write!(line, ", kernels not finished on {count} channels")?,
    }
    if let Some((what, _)) = rank.process_state.reason() {
        write!(line, ", {}", what.trim_start_matches("is "))?;
    }
    let status = &rank.status;
    let results = [("init", &status.init), ("async", &status.async_result), ("proxy", &status.proxy_result)];
    for (what, result) in results {
        if let Some(result) = result.as_deref().filter(|result| *result != "ncclSuccess") {
            write!(line, ", {what} {result}")?;
        }
    }
    let flags = [
        ("aborted", status.abort),
        ("finalized", status.finalize_called),
        ("being destroyed", status.destroying),
        ("revoked", status.revoked),
    ];
    for (what, _) in flags.iter().filter(|(_, flag)| *flag == Some(true)) {
        write!(line, ", {what}")?;
    }
    wrapped(out, &line, 2)?;
    if is_verbose {
        let begun: Vec<&OpReport> = rank.proxy.ops.iter().filter(|op| op.begun).collect();
        for op in begun.iter().take(MAX_OPS) {
            write_op(out, op)?;
        }
        write_rest(out, 4, begun.len(), MAX_OPS, "more in flight")?;
        write_rest(out, 4, rank.proxy.ops.len(), begun.len(), "queued behind them")?;
    }
    for remark in one_sided::lines(rank, is_verbose).iter().chain(&rank.remarks) {
        wrapped(out, remark, 4)?;
    }
    Ok(())
}

fn write_op(out: &mut String, op: &OpReport) -> fmt::Result {
    let what = [op.protocol.as_deref(), op.transport.as_deref()].map(|name| name.unwrap_or("?")).join(" ");
    wrapped(out, &format!("{} {what}, still for {:.1} s", op.label(), op.still_seconds), 4)?;
    let gpu = op.gpu.map(|gpu| format!(", {gpu} by the GPU")).unwrap_or_default();
    let received = match op.direction {
        Direction::Send => String::new(),
        Direction::Recv => {
            let flushed = op.flushed.map(|flushed| format!(", flushed {flushed}")).unwrap_or_default();
            format!(", received {}{flushed}", op.received)
        }
    };
    writeln!(
        out,
        "      of {} steps: posted {}{received}, transmitted {}, done {}{gpu}",
        op.nsteps, op.posted, op.transmitted, op.done
    )
}

/// Tells how many things of a kind are not shown below those that are.
fn write_more(out: &mut String, indent: usize, [shown, more]: [usize; 2], what: &str) -> fmt::Result {
    let (and, more_of) = if shown > 0 { ("and ", format!("more {what}")) } else { ("", what.to_owned()) };
    if more > 0 { writeln!(out, "{:indent$}{and}{}", "", counted(more, &more_of)) } else { Ok(()) }
}

/// Tells how many of a list are not shown.
fn write_rest(out: &mut String, indent: usize, all: usize, most: usize, what: &str) -> fmt::Result {
    match all.saturating_sub(most) {
        0 => Ok(()),
        rest => writeln!(out, "{:indent$}and {rest} {what}", ""),
    }
}

#[cfg(test)]
mod tests;
