//! A dump as text for people, in at most 100 columns: the verdict, what it is based on, then what was read.

use std::fmt::{self, Write as _};

use super::{
    CommunicatorReport, CopiedRank, DumpReport, OpReport, ProcessReport, ProcessState, PythonGroup,
    PythonReport, RankReport, gpus, python,
    verdict::{Kind, State, named},
};
use flow::text::{joined, write_paragraph as wrapped};
use inspect::{memory::ScanEnd, threads::Thread};
use nccl_library::nccl::Direction;

/// Maximum number of ops that are shown of one rank; all are in the JSON.
const MAX_OPS: usize = 12;
/// Maximum number of threads that are shown of one process.
const MAX_THREADS: usize = 16;
/// Maximum number of communicators that are shown with their ranks, and of those that have a line.
const MAX_COMMUNICATORS: usize = 3;
const MAX_LINES: usize = 8;
/// Maximum number of ranks that are shown of a healthy communicator.
const MAX_HEALTHY_RANKS: usize = 16;

/// Maximum number of groups of equal Python stacks that are shown, and of frames of each.
const MAX_GROUPS: usize = 8;
const MAX_FRAMES: usize = 12;

/// Renders a dump; the first paragraph is the verdict. `is_verbose`: with threads, and the operations of each
/// rank.
pub fn render(report: &DumpReport, is_verbose: bool) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    _ = write_report(&mut out, report, is_verbose);
    out
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
    write_communicators(out, report, is_verbose)?;
    for process in &report.processes {
        write_process(out, process, is_verbose)?;
    }
    gpus::write(out, report)?;
    for sentence in &report.torch_notes {
        wrapped(out, sentence, 0)?;
    }
    let left = report.lost_readers.left_behind;
    if left > 0 {
        let what =
            "helper processes of ncclflow that hang in the kernel, because what they read does not answer";
        wrapped(out, &format!("{what}: {left}"), 0)?;
    }
    let has_details = report.processes.iter().any(|process| !process.threads.is_empty());
    if has_details && !is_verbose && report.state() != State::Healthy {
        writeln!(out, "-v shows the threads inside NCCL and the operations in flight")?;
    }
    Ok(())
}

/// Writes all communicators: first those at which the waiting ends, then those that wait, last the healthy
/// ones. Of these, and of very many that wait, only a line, unless `is_verbose`.
fn write_communicators(out: &mut String, report: &DumpReport, is_verbose: bool) -> fmt::Result {
    if report.communicators.is_empty() {
        let is_unread = |process: &ProcessReport| process.error.is_some();
        let nothing = !report.processes.is_empty() && report.processes.iter().all(is_unread);
        let what =
            if nothing { "nothing is known: no process could be read" } else { "no communicator was found" };
        return writeln!(out, "{what}\n");
    }
    let ends = report.job.as_ref().map_or(&[][..], |job| &job.communicators);
    let mut all: Vec<&CommunicatorReport> = report.communicators.iter().collect();
    all.sort_by_key(|one| (!ends.contains(&one.comm_hash), std::cmp::Reverse(one.verdict.state)));
    let (healthy, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|one| one.verdict.state == State::Healthy);
    let most = if is_verbose { usize::MAX } else { MAX_COMMUNICATORS };
    for communicator in others.iter().take(most) {
        write_communicator(out, communicator, is_verbose)?;
    }
    for communicator in others.iter().skip(most).take(MAX_LINES) {
        wrapped(out, &headline(communicator), 0)?;
    }
    let most = most.saturating_add(MAX_LINES);
    write_rest(out, 0, others.len(), most, "more communicators that are not healthy")?;
    let is_short = !is_verbose && (!others.is_empty() || healthy.len() > MAX_COMMUNICATORS);
    if is_short && !healthy.is_empty() {
        let names = healthy.iter().take(MAX_LINES).map(|one| one.name.as_ref().unwrap_or(&one.comm_hash));
        let more = if healthy.len() > MAX_LINES { " …" } else { "" };
        let s = if healthy.len() == 1 { "" } else { "s" };
        let names = joined(names, ", ");
        wrapped(out, &format!("{} healthy communicator{s}: {names}{more}", healthy.len()), 0)?;
        return writeln!(out);
    }
    for communicator in healthy {
        write_communicator(out, communicator, is_verbose)?;
    }
    Ok(())
}

/// Returns the sentence on why the rank is waited for that the verdict names first.
fn why(report: &DumpReport) -> Option<&str> {
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
    let versions = process.libraries.iter().map(|library| library.version.as_deref());
    let versions = versions.map(|version| format!("NCCL {}", version.unwrap_or("of unknown version")));
    let versions = joined(versions, ", ");
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
    // A search that was cut can have missed a communicator.
    let is_cut = |end: Option<ScanEnd>| matches!(end, Some(ScanEnd::ByteLimit | ScanEnd::TimeLimit));
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
fn write_groups(out: &mut String, groups: &[PythonGroup], state: State) -> fmt::Result {
    for group in groups.iter().take(MAX_GROUPS) {
        let is_usual = group.is_largest && (groups.len() > 1 || state == State::Healthy);
        let frames = if is_usual { 1 } else { MAX_FRAMES };
        let largest = if group.is_largest && groups.len() > 1 { ", as most ranks" } else { "" };
        wrapped(out, &format!("Python, main thread of {}{largest}:", named(&group.ranks)), 2)?;
        for frame in group.frames.iter().take(frames) {
            wrapped(out, &format!("{} ({}:{})", frame.function, frame.file, frame.line_text()), 4)?;
        }
        write_rest(out, 4, group.frames.len(), frames, "more frames")?;
    }
    write_rest(out, 2, groups.len(), MAX_GROUPS, "more stacks")
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
    wrapped(out, &headline(communicator), 0)?;
    for (how, ranks) in [("waited for", &verdict.culprits), ("waiting", &verdict.victims)] {
        if !ranks.is_empty() {
            wrapped(out, &format!("{how}: rank {}", joined(ranks.iter().take(16), ", ")), 2)?;
        }
    }
    for sentence in &verdict.evidence {
        wrapped(out, &format!("- {sentence}"), 2)?;
    }
    write_groups(out, &communicator.python_stacks, verdict.state)?;
    let shown = if verdict.state == State::Healthy { MAX_HEALTHY_RANKS } else { usize::MAX };
    for rank in communicator.ranks.iter().take(shown) {
        write_rank(out, rank, is_verbose)?;
    }
    writeln!(out)
}

fn write_rank(out: &mut String, rank: &RankReport, is_verbose: bool) -> fmt::Result {
    let mut line = format!(
        "rank {}: process {}, node {}, GPU {}, {} channel{}",
        rank.rank,
        rank.pid,
        rank.node,
        rank.cuda_dev,
        rank.n_channels,
        if rank.n_channels == 1 { "" } else { "s" }
    );
    for (function, count) in rank.counters.seq_number.iter().filter(|(_, count)| **count > 0) {
        write!(line, ", {function} {count}")?;
    }
    if let Some(count) = rank.counters.coll_op_count.filter(|_| rank.counters.seq_number.is_empty()) {
        write!(line, ", {count} collectives")?;
    }
    if let Some(count) = rank.counters.p2p_op_count.filter(|count| *count > 0) {
        write!(line, ", {count} p2p batches")?;
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
    for remark in &rank.remarks {
        wrapped(out, remark, 4)?;
    }
    Ok(())
}

fn write_op(out: &mut String, op: &OpReport) -> fmt::Result {
    let what = [op.protocol.as_deref(), op.transport.as_deref()].map(|name| name.unwrap_or("?")).join(" ");
    wrapped(out, &format!("{} {what}, still for {:.1} s", op.label(), op.still_seconds), 4)?;
    let gpu = op.gpu.map(|gpu| format!(", by the GPU {gpu}")).unwrap_or_default();
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

/// Tells how many of a list are not shown.
fn write_rest(out: &mut String, indent: usize, all: usize, most: usize, what: &str) -> fmt::Result {
    match all.saturating_sub(most) {
        0 => Ok(()),
        rest => writeln!(out, "{:indent$}and {rest} {what}", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{JobVerdict, Verdict};

    #[test]
    fn the_verdict_and_its_reason_come_before_all_else() {
        let verdict = Verdict {
            state: State::Stuck,
            culprits: vec![2],
            victims: vec![0],
            evidence: vec![
                "rank 0 waits for rank 2: RECV".to_owned(),
                "rank 2 has not joined: AllReduce 3 of 4 launched".to_owned(),
            ],
            ..Verdict::default()
        };
        let communicator = CommunicatorReport { comm_hash: "0xab".to_owned(), verdict, ..Default::default() };
        let job = JobVerdict {
            state: State::Stuck,
            kind: None,
            next: None,
            sentence: "stuck: communicator 0xab waits for rank 2".to_owned(),
            communicators: vec!["0xab".to_owned()],
        };
        let report =
            DumpReport { job: Some(job), communicators: vec![communicator], ..DumpReport::default() };
        let text = render(&report, false);
        let expected =
            "stuck: communicator 0xab waits for rank 2\nrank 2 has not joined: AllReduce 3 of 4 launched";
        assert_eq!(text.split("\n\n").next(), Some(expected), "{text}");
    }
}
