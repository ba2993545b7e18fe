//! A history as text for people: the verdict first, below it the notes that it rests on.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use super::HistoryReport;
use crate::of_host;
use flow::text::{joined, nanoseconds, number, wrap, write_paragraph as wrapped};
use torch::flight_recorder::Entry;
use torch_history::{
    GroupHistory, GroupVerdict, HistoryState, Late, Member, ProcessHistory, by_collective,
    names::{self, Who},
};

/// Collectives that are shown of each group, unless `--last` says otherwise.
const USUAL: usize = 10;
/// Maximum number of ranks of a group that are shown with their status.
const MAX_MEMBERS: usize = 16;

/// Renders a history. `last` is the number of collectives that are shown of each group, `width` the columns of a
/// line.
pub fn render(report: &HistoryReport, last: Option<usize>, width: usize) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    _ = write_report(&mut out, report, last.unwrap_or(USUAL));
    wrap(&out, width)
}

fn write_report(out: &mut String, report: &HistoryReport, last: usize) -> fmt::Result {
    wrapped(out, &report.verdict.sentence, 0)?;
    of_host::write(out, &report.hosts_not_read)?;
    writeln!(out)?;
    for process in &report.processes {
        write_process(out, process, report.hosts.len() > 1)?;
    }
    for group in &report.groups {
        writeln!(out)?;
        write_group(out, group, report, last)?;
    }
    Ok(())
}

/// Writes a process, with its host if there are several.
fn write_process(out: &mut String, process: &ProcessHistory, several: bool) -> fmt::Result {
    let rank = process.rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
    let from = match process.rank_from.as_deref() {
        Some("torch") | None => String::new(),
        Some("communicator") => " by its communicator".to_owned(),
        Some(variable) => format!(" by {variable}"),
    };
    let what = match &process.notes {
        None if process.error.is_some() => "not read".to_owned(),
        None => "without torch".to_owned(),
        Some(notes) => {
            let how = if notes.layouts_were_run { "" } else { ", by layouts that were never run on GPUs" };
            format!("torch {}{how}", notes.torch.as_deref().unwrap_or("of unknown version"))
        }
    };
    let host = if several { format!(" on {}", process.host) } else { String::new() };
    wrapped(out, &format!("process {} ({}){host}{rank}{from}: {what}", process.pid, process.name), 0)?;
    let Some(notes) = &process.notes else {
        return process.error.as_deref().map_or(Ok(()), |why| wrapped(out, why, 2));
    };
    for ring in notes.rings.iter().filter(|ring| ring.enabled) {
        let backend = ring.backend.as_deref().unwrap_or("no backend yet");
        let library =
            ring.library_version.as_deref().map(|version| format!(", NCCL {version}")).unwrap_or_default();
        let torn = if ring.torn > 0 { format!(", {} changed meanwhile", ring.torn) } else { String::new() };
        let noticed = ring.noticed_ns.map_or_else(
            || "torch has noticed no completion".to_owned(),
            |at| format!("the latest completion that torch noticed is {} old", ago(notes.read_ns, at)),
        );
        let line = format!(
            "{backend}{library}: {} of {} entries kept{torn}; {noticed}",
            number_of(ring.entries.len() as u64),
            number_of(ring.recorded)
        );
        wrapped(out, &line, 2)?;
    }
    notes.unknown.as_deref().map_or(Ok(()), |why| wrapped(out, why, 2))
}

fn number_of(count: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let large = count as f64;
    if count < 100_000 { count.to_string() } else { number(large) }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn ago(now: i64, at: i64) -> String {
    nanoseconds(now.saturating_sub(at).max(0) as f64)
}

fn write_group(out: &mut String, group: &GroupHistory, report: &HistoryReport, last: usize) -> fmt::Result {
    let state = match group.verdict.state {
        HistoryState::Agree => "the same",
        HistoryState::Differ => "DIFFERENT",
        HistoryState::Waiting => "waiting",
        HistoryState::Unknown => "cannot tell",
    };
    let backend = group.backend.as_deref().map(|backend| format!(", {backend}")).unwrap_or_default();
    let ranks = match group.ranks.as_slice() {
        [] => ", its ranks are not known".to_owned(),
        ranks => format!(", ranks {}", flow::text::ranges(ranks)),
    };
    let hashes = joined(group.comm_hashes.iter().map(|hash| format!(", communicator {hash}")), "");
    let name = names::group(&group.name, &group.description);
    let line = format!("process group {name}{backend}{ranks}{hashes}: {} read: {state}", group.members.len());
    wrapped(out, &line, 0)?;
    for sentence in &group.verdict.sentences {
        // The line above has the name.
        let sentence = sentence.strip_prefix(&format!("{name}: ")).unwrap_or(sentence);
        wrapped(out, &format!("- {sentence}"), 2)?;
    }
    let GroupVerdict { called_last, completed_last, .. } = &group.verdict;
    for (late, what) in [(called_last, "called"), (completed_last, "noticed the end of")] {
        let Some(Late { collective_seq_id, ranks, pids, seconds }) = late else { continue };
        let who = Who::of(ranks.first().copied(), pids.first().copied().unwrap_or_default());
        let (who, after) = (names::ranks(&[who]), nanoseconds(seconds * 1e9));
        let line = format!("{what} collective {collective_seq_id} last: {who}, {after} after the first");
        wrapped(out, &line, 2)?;
    }
    for member in group.members.iter().take(MAX_MEMBERS) {
        write_status(out, member)?;
    }
    write_rows(out, group, report, last)
}

/// Writes `rank 3: torch's status: enqueued 4711 (ALLREDUCE), completed 4710`.
fn write_status(out: &mut String, member: &Member) -> fmt::Result {
    let Some(status) = &member.status else { return Ok(()) };
    let works = [
        ("enqueued", &status.last_enqueued),
        ("started", &status.last_started),
        ("completed", &status.last_completed),
    ];
    let works = works.into_iter().filter(|(_, work)| work.seq >= 0).map(|(what, work)| {
        let name = if work.name.is_empty() { String::new() } else { format!(" ({})", work.name) };
        format!("{what} {}{name}", work.seq)
    });
    let works = joined(works, ", ");
    if works.is_empty() {
        return Ok(());
    }
    let age = |seconds: Option<f64>, what: &str| {
        seconds
            .map(|seconds| format!("; latest {what} {} before", nanoseconds(seconds * 1e9)))
            .unwrap_or_default()
    };
    let who = names::ranks(&[Who::of(member.rank, member.pid)]);
    let called = age(member.called_seconds_ago, "call");
    let completed = age(member.completed_seconds_ago, "completion noticed");
    wrapped(out, &format!("{who}, torch's own status: {works}{called}{completed}"), 2)
}

/// The entries of one process under one number.
struct Cell<'a> {
    who: Who,
    entries: Vec<&'a Entry>,
    read_ns: i64,
}

/// Writes the latest collectives of the group, the latest last, and the ranks that called each.
fn write_rows(out: &mut String, group: &GroupHistory, report: &HistoryReport, last: usize) -> fmt::Result {
    let mut rows: BTreeMap<u64, Vec<Cell<'_>>> = BTreeMap::new();
    for process in report.processes.iter().filter(|process| group.has_process(process)) {
        let Some(notes) = &process.notes else { continue };
        let rings = notes.rings.iter().filter(|ring| ring.backend == group.backend);
        let own = rings.flat_map(|ring| &ring.entries).filter(|entry| group.has(entry));
        let who = Who::of(process.rank, process.pid);
        for (seq, entries) in by_collective(own) {
            rows.entry(seq).or_default().push(Cell { who, entries, read_ns: notes.read_ns });
        }
    }
    let skipped = rows.len().saturating_sub(last);
    for (seq, cells) in rows.into_iter().skip(skipped) {
        let mut kinds: BTreeMap<String, Vec<&Cell<'_>>> = BTreeMap::new();
        for cell in &cells {
            kinds.entry(what(&cell.entries)).or_default().push(cell);
        }
        for (what, cells) in kinds {
            let mut states: BTreeMap<(bool, &str), Vec<&Cell<'_>>> = BTreeMap::new();
            for cell in cells {
                let best = cell.entries.iter().find(|entry| entry.is_completed()).or(cell.entries.last());
                let state = best.map_or("", |entry| entry.state.name());
                states.entry((state == "completed", state)).or_default().push(cell);
            }
            let states = states.into_iter().map(|((_, state), cells)| {
                let who: Vec<Who> = cells.iter().map(|cell| cell.who).collect();
                let called = |cell: &&Cell<'_>| Some((cell.entries.first()?.time_created_ns, cell.read_ns));
                let called = cells.iter().filter_map(called).min();
                let called =
                    called.map(|(at, now)| format!(", called {} before", ago(now, at))).unwrap_or_default();
                format!("{state} on {}{called}", names::ranks(&who))
            });
            wrapped(out, &format!("{seq:>6}  {what}: {}", joined(states, "; ")), 2)?;
        }
    }
    Ok(())
}

fn what(entries: &[&Entry]) -> String {
    let Some(entry) = entries.last() else { return String::new() };
    let line = names::line(entry).map(|line| format!(" at {line}")).unwrap_or_default();
    let (sizes, dtypes) = (names::sizes(&entry.input_sizes), names::dtypes(&entry.input_dtypes));
    format!("{} {sizes} {dtypes}{line}", entry.function())
}
