//! The list as text for people: a line for each process and library, and below it one for each communicator.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{
    entries::{CommunicatorEntry, LibraryEntry, ProcessEntry, PsReport},
    launches::Launches,
};
use crate::{CopiedRank, grouped};
use flow::text::{age, column_widths, counted, cut_left, cut_right, write_wrapped};
use nccl_library::symbols::SymbolSource;

/// Minimum width of the list; it does not fit into less.
const MIN_WIDTH: usize = 40;
const MIN_PATH: usize = 12;

/// Renders the list. `width` is the number of columns of the terminal; without it nothing is cut.
pub fn render(report: &PsReport, width: Option<usize>) -> String {
    let (mut out, several) = (String::new(), report.hosts.len() > 1);
    if report.processes.is_empty() {
        let whose = if report.denied > 0 || report.hidden { " that may be inspected" } else { "" };
        let of = if several { "these hosts" } else { "this host" };
        // Writing to a string cannot fail.
        _ = writeln!(out, "no process of {of}{whose} uses NCCL");
    } else {
        _ = writeln!(out, "{}", cut_right(&headline(&report.processes, report.hosts.len()), width));
        let width = width.map(|width| width.max(MIN_WIDTH));
        // The processes of a host stand together.
        for processes in report.processes.chunk_by(|one, next| one.host == next.host) {
            if let Some(host) = processes.first().and_then(|process| process.host.as_deref()) {
                _ = writeln!(out, "\n{}", cut_right(host, width));
            }
            table(&mut out, processes, width);
        }
        if several {
            out.push('\n');
        }
    }
    let mut note = |text: &str| {
        // Writing to a string cannot fail.
        _ = write_wrapped(&mut out, text, 0, width.unwrap_or(usize::MAX));
    };
    for line in grouped(&report.hosts_not_read) {
        note(&format!("not read: {line}"));
    }
    if report.denied > 0 {
        let remedy =
            if several || rustix::process::geteuid().is_root() { "" } else { ": run as root to see them" };
        let what = if report.denied == 1 { "process" } else { "processes" };
        note(&format!("cannot inspect {} {what}{remedy}", report.denied));
    }
    if report.hidden {
        note("processes of other users are hidden (/proc is mounted with hidepid): run as root to see them");
    }
    out
}

/// Sums the list up: `2 processes use NCCL; ranks here: 4, of 2 communicators`. `hosts`: the number of hosts
/// that were looked at, if they are several.
fn headline(processes: &[ProcessEntry], hosts: usize) -> String {
    let count = processes.len();
    let mut text = format!("{count} {}", if count == 1 { "process uses NCCL" } else { "processes use NCCL" });
    // Copies in forked children do not count.
    let ranks = || processes.iter().filter_map(|process| process.communicators.as_deref()).flatten();
    let hashes: BTreeSet<&str> = ranks().map(|rank| rank.comm_hash.as_str()).collect();
    let jobs: BTreeSet<_> = processes.iter().map(|process| (&process.host, &process.job)).collect();
    // Communicators in common tell which processes are of one job.
    let are_known = processes.iter().all(|process| process.communicators.is_some());
    if hosts <= 1 && jobs.len() > 1 && are_known {
        _ = write!(text, ", of {} jobs", jobs.len());
    }
    if !hashes.is_empty() {
        let what = if hashes.len() == 1 { "communicator" } else { "communicators" };
        let here = if hosts > 1 { "" } else { " here" };
        _ = write!(text, "; ranks{here}: {}, of {} {what}", ranks().count(), hashes.len());
    }
    if hosts > 1 {
        let with: BTreeSet<&str> = processes.iter().filter_map(|process| process.host.as_deref()).collect();
        _ = write!(text, "; on {} of {hosts} hosts", with.len());
    }
    text
}

const HEADINGS: [&str; 8] = ["PID", "OWN-PID", "USER", "AGE", "CONTAINER", "NCCL", "SYMBOLS", "LIBRARY"];

fn table(out: &mut String, processes: &[ProcessEntry], width: Option<usize>) {
    let rows: Vec<(Vec<[String; 8]>, &ProcessEntry)> =
        processes.iter().map(|process| (rows_of(process), process)).collect();
    let headings = HEADINGS.map(str::to_owned);
    let widths = column_widths(std::iter::once(&headings).chain(rows.iter().flat_map(|(rows, _)| rows)));
    // A column that is empty in all lines is left out.
    let own_pids = processes.iter().any(|process| process.own_pid != process.pid);
    let containers = processes.iter().any(|process| process.container_cell() != "-");
    let shown = |column: usize| match column {
        1 => own_pids,
        4 => containers,
        _ => true,
    };
    let before: usize = (0..7).filter(|column| shown(*column)).map(|column| widths[column] + 2).sum();
    let path_width = width.map(|width| width.saturating_sub(before).max(MIN_PATH));
    let has_jobs =
        processes.iter().any(|process| process.job != processes.first().and_then(|one| one.job.clone()));
    let mut line = |cells: &[String; 8]| {
        let mut text = String::new();
        for (column, cell) in cells.iter().enumerate().filter(|(column, _)| shown(*column)) {
            let width = widths[column];
            match column {
                0 | 1 | 3 => _ = write!(text, "{cell:>width$}  "),
                7 => text.push_str(&cut_left(cell, path_width)),
                _ => _ = write!(text, "{cell:width$}  "),
            }
        }
        _ = writeln!(out, "{}", cut_right(text.trim_end(), width));
    };
    line(&headings);
    let indent = " ".repeat(widths[0] + 2);
    let mut job = None;
    for (rows, process) in rows {
        if has_jobs && job != Some(&process.job) {
            job = Some(&process.job);
            let mut cells = [const { String::new() }; 8];
            cells[0] = format!("job {}", process.job.as_deref().unwrap_or("not known"));
            line(&cells);
        }
        rows.iter().for_each(&mut line);
        let mut below = |text: &str| {
            // A line below a process has no columns.
            let mut cells = [const { String::new() }; 8];
            cells[0] = format!("{indent}{text}");
            line(&cells);
        };
        for communicator in process.communicators.iter().flatten() {
            below(&communicator_text(communicator));
        }
        if let Some(parent) = process.forked_from {
            below(&format!("communicators as in {parent}, from which it was forked"));
        }
        if let Some(CopiedRank { comm_hash, rank }) = process.left_over_of.first() {
            below(&format!(
                "left over: a child of the process that was rank {rank} of {comm_hash}, which is gone"
            ));
        }
        if process.scan_is_complete == Some(false) {
            below("only a part of its memory was scanned: there may be more communicators");
        }
        for error in &process.errors {
            below(error);
        }
    }
}

fn rows_of(process: &ProcessEntry) -> Vec<[String; 8]> {
    let of_library = |library: Option<&LibraryEntry>| {
        let missing = || "-".to_owned();
        [
            process.pid.to_string(),
            process.own_pid.to_string(),
            process.description.user.clone(),
            process.description.age_seconds.map_or_else(missing, age),
            process.container_cell(),
            library.and_then(|library| library.version.clone()).unwrap_or_else(missing),
            library.and_then(|library| library.symbols).map_or("-", short).to_owned(),
            library.map_or_else(missing, |library| {
                format!("{}{}", library.path, if library.deleted { " (deleted)" } else { "" })
            }),
        ]
    };
    if process.libraries.is_empty() {
        return vec![of_library(None)];
    }
    process.libraries.iter().map(|library| of_library(Some(library))).collect()
}

fn communicator_text(communicator: &CommunicatorEntry) -> String {
    let CommunicatorEntry { comm_hash, comm_name, rank, n_ranks, cuda_dev, nvml_dev, n_nodes, .. } =
        communicator;
    let gpu = nvml_dev.map_or_else(|| format!("CUDA device {cuda_dev}"), |nvml| format!("GPU {nvml}"));
    let nodes = if *n_nodes > 1 { format!(", {n_nodes} nodes") } else { String::new() };
    let name = comm_name
        .as_ref()
        .filter(|name| !name.is_empty())
        .map(|name| format!("  {name}"))
        .unwrap_or_default();
    format!("{comm_hash}  rank {rank}/{n_ranks}  {gpu}{nodes}{}{name}", launches_text(&communicator.launches))
}

fn launches_text(launches: &Launches) -> String {
    let mut text = match launches.collectives {
        Some(count) => format!("  {}", counted(count, "collective")),
        None => String::new(),
    };
    if let Some(since) = &launches.since_last_look {
        let seconds = since.seconds;
        let change = match (since.collectives, since.moved) {
            // Nothing else can have moved the counters.
            (Some(0), true) => format!("+0 in {seconds:.1} s; but sends, receives or graphs"),
            (Some(count), _) => format!("+{count} in {seconds:.1} s"),
            (None, true) => format!("launched something in {seconds:.1} s"),
            (None, false) => format!("no launch counted in {seconds:.1} s"),
        };
        _ = write!(text, "  ({change})");
    }
    text
}

fn short(symbol_source: SymbolSource) -> &'static str {
    match symbol_source {
        SymbolSource::OwnDwarf => "dwarf",
        SymbolSource::DebugFile => "debug file",
        SymbolSource::SymtabWithShippedLayout => "symtab+shipped",
        SymbolSource::Stripped => "stripped+shipped",
        SymbolSource::SymtabOnly => "symtab",
        SymbolSource::StrippedOnly => "stripped",
        SymbolSource::ExportsOnly => "exports",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ps::Movement;
    use inspect::process::{Description, Evidence};

    fn process(pid: u32) -> ProcessEntry {
        ProcessEntry {
            pid,
            own_pid: pid,
            name: "python3".to_owned(),
            description: Description {
                command: "python3 train.py".to_owned(),
                user: "root".to_owned(),
                age_seconds: Some(127),
                ..Description::default()
            },
            libraries: vec![LibraryEntry {
                path: "/opt/a/very/long/way/to/site-packages/nvidia/nccl/lib/libnccl.so.2".to_owned(),
                deleted: true,
                device: 1,
                inode: 2,
                found_by: Some(Evidence::Name),
                version: Some("2.27.5".to_owned()),
                cuda_version: None,
                build_id: None,
                symbols: Some(SymbolSource::OwnDwarf),
                unusable: None,
            }],
            communicators: Some(vec![CommunicatorEntry {
                comm_hash: "0x0123456789abcdef".to_owned(),
                comm_name: None,
                rank: 3,
                n_ranks: 8,
                local_rank: 3,
                node: 0,
                n_nodes: 1,
                cuda_dev: 0,
                nvml_dev: Some(3),
                n_channels: 2,
                launches: Launches { collectives: Some(40), ..Launches::default() },
            }]),
            scan_is_complete: Some(true),
            ..ProcessEntry::default()
        }
    }

    #[test]
    fn lines_fit_the_terminal_and_are_whole_without_one() {
        let report =
            PsReport { processes: vec![process(4242), process(7)], denied: 3, ..PsReport::default() };
        for width in [40, 80, 100] {
            let text = render(&report, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        }
        let text = render(&report, Some(80));
        assert!(text.contains("…") && text.contains("libnccl.so.2 (deleted)"), "{text}");
        let text = render(&report, None);
        assert!(text.contains("/opt/a/very/long"), "{text}");
        assert!(text.contains("0x0123456789abcdef  rank 3/8  GPU 3  40 collectives\n"), "{text}");
        assert!(text.contains("2m07s  2.27.5  dwarf"), "{text}");
        assert!(!text.contains("CONTAINER") && text.contains("cannot inspect 3 processes"), "{text}");
        assert!(text.starts_with("2 processes use NCCL; ranks here: 2, of 1 communicator\n"), "{text}");
    }

    #[test]
    fn processes_of_several_jobs_stand_below_their_names() {
        let of = |pid: u32, job: &str| ProcessEntry { job: Some(job.to_owned()), ..process(pid) };
        let processes = vec![of(7, "77"), of(9, "77"), of(8, "python3-8")];
        let text = render(&PsReport { processes, ..PsReport::default() }, None);
        assert!(text.starts_with("3 processes use NCCL, of 2 jobs; ranks here: 3"), "{text}");
        let begins: Vec<&str> =
            text.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
        let expected = ["job", "7", "0x0123456789abcdef", "9", "0x0123456789abcdef", "job", "8"];
        assert_eq!(begins[..7], expected, "{text}");
        let one = PsReport { processes: vec![of(7, "77"), of(9, "77")], ..PsReport::default() };
        assert!(!render(&one, None).contains("job"));
    }

    #[test]
    fn what_was_launched_since_the_last_look_stands_behind_the_number() {
        let text = |collectives, since, moved| {
            let since_last_look = Some(Movement { seconds: 2.04, collectives: since, moved });
            launches_text(&Launches { collectives, since_last_look, ..Launches::default() })
        };
        assert_eq!(text(Some(40), Some(7), true), "  40 collectives  (+7 in 2.0 s)");
        assert_eq!(text(Some(1), Some(0), false), "  1 collective  (+0 in 2.0 s)");
        assert!(text(Some(40), Some(0), true).contains("sends, receives or graphs"));
        assert_eq!(text(None, None, true), "  (launched something in 2.0 s)");
    }
}
