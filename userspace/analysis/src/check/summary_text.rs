//! A summary for people: the traffic of links in one sentence, then each link.

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    io::{self, Write},
};

use flow::{
    schema::{LinkRow, Wait},
    text::{bytes, column_widths, counted, spaced_seconds},
};
use nccl_library::nccl::Direction;

use super::summary::{RankReport, SummaryReport};

/// Most links of a rank that are shown, those with most bytes; with `-v` all.
const MAX_LINKS: usize = 16;

/// Says how many links there are, and which has the least bandwidth, in one sentence.
pub fn headline(report: &SummaryReport) -> String {
    let links = || report.ranks.iter().flat_map(|rank| rank.links.iter().map(move |link| (rank, link)));
    if links().next().is_none() {
        let how = if report.has_calls_only { " (record with --level flow or steps)" } else { "" };
        return format!("no links to show: these recordings have no operations with messages{how}");
    }
    let mut measured: Vec<(u64, &RankReport, &LinkRow)> =
        links().filter_map(|(rank, link)| Some((link.bandwidth?, rank, link))).collect();
    measured.sort_by_key(|(bandwidth, ..)| *bandwidth);
    // Several recordings can be of the same ranks.
    let ranks: BTreeSet<_> = report.ranks.iter().map(|rank| (&*rank.communicator, rank.rank)).collect();
    let all: BTreeSet<_> = links()
        .map(|(rank, link)| {
            (&*rank.communicator, rank.rank, link.op == Direction::Recv, link.peer, link.channel)
        })
        .collect();
    let recordings = match recordings(report) {
        1 => String::new(),
        several => format!(" in {several} recordings"),
    };
    let all = format!("{} of {}{recordings}", counted(all.len(), "link"), counted(ranks.len(), "rank"));
    let median = measured.get(measured.len() / 2);
    let (Some((least, rank, link)), Some((median, ..))) = (measured.first(), median) else {
        let how = report.how_to_measure.as_ref().map(|how| format!(" ({how})")).unwrap_or_default();
        return format!("{all}; sizes are those that NCCL planned, because nothing was measured{how}");
    };
    format!(
        "{all}; least bandwidth: rank {} {} on channel {}, {}/s (median of all {}/s)",
        rank.rank,
        with_whom(link),
        link.channel,
        amount(*least),
        amount(*median)
    )
}

fn recordings(report: &SummaryReport) -> usize {
    report.ranks.iter().map(|rank| &rank.recording).collect::<BTreeSet<_>>().len()
}

/// Writes every rank with its links. `width`: columns of the terminal.
pub fn write_summary(
    report: &SummaryReport,
    is_verbose: bool,
    width: Option<usize>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (mut recording, several) = (None, recordings(report) > 1);
    for rank in &report.ranks {
        if (several || rank.window.is_some()) && recording.replace(&rank.recording) != Some(&rank.recording) {
            writeln!(out, "{}:", rank.recording)?;
        }
        write_rank(rank, is_verbose, width, out)?;
    }
    report.notes.iter().try_for_each(|note| writeln!(out, "{note}"))
}

const HEADINGS: [&str; 9] =
    ["LINK", "CHANNEL", "VIA", "MESSAGES", "BYTES", "BANDWIDTH", "MEDIAN", "P99", "TIME IN WAITS FOR"];

/// Columns that only measured messages have.
const MEASURED: usize = 5;

fn write_rank(
    rank: &RankReport,
    is_verbose: bool,
    width: Option<usize>,
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "communicator {}, rank {}", rank.communicator, rank.rank)?;
    let mut links: Vec<&LinkRow> = rank.links.iter().collect();
    if !is_verbose && links.len() > MAX_LINKS {
        links.sort_by_key(|link| Reverse(link.bytes));
        links.truncate(MAX_LINKS);
        links.sort_by_key(|link| (link.op == Direction::Recv, link.peer, link.channel));
    }
    let rows: Vec<[String; 9]> =
        std::iter::once(HEADINGS.map(str::to_owned)).chain(links.iter().map(|link| cells(link))).collect();
    let widths = column_widths(&rows);
    let is_measured = links.iter().any(|link| link.bandwidth.is_some() || link.message.is_some());
    let columns = if is_measured { HEADINGS.len() - 1 } else { MEASURED };
    let lines: Vec<(String, &String)> = rows
        .iter()
        .map(|row| {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(widths).take(columns).enumerate() {
                let text = match column {
                    0 | 2 => format!("  {cell:width$}"),
                    _ => format!("  {cell:>width$}"),
                };
                line.push_str(&text);
            }
            let [.., waits] = row;
            (line, waits)
        })
        .collect();
    let is_long = |(line, waits): &(String, &String)| {
        width.is_some_and(|width| line.chars().count() + 2 + waits.chars().count() > width)
    };
    // Where there is no room, what is waited for has a line of its own.
    let between = if lines.iter().any(is_long) { "\n      " } else { "  " };
    for (line, waits) in lines {
        let (between, waits) =
            if is_measured && !waits.is_empty() { (between, waits.as_str()) } else { ("", "") };
        writeln!(out, "{}{between}{waits}", line.trim_end())?;
    }
    if links.len() < rank.links.len() {
        writeln!(out, "  (those with most bytes of {} links; -v shows all)", rank.links.len())?;
    }
    let slowest =
        rank.ops.iter().max_by_key(|op| op.times.last_end_ns.saturating_sub(op.times.first_start_ns));
    if let Some(op) = slowest {
        let link = &op.times.slowest_link;
        writeln!(
            out,
            "  longest of {} measured operations: {} (seq {}); its messages were longest in the network {} rank {} \
             on channel {}, {} in all",
            rank.ops.len(),
            spaced_seconds(op.times.last_end_ns.saturating_sub(op.times.first_start_ns)),
            op.seq,
            if link.op == Direction::Send { "to" } else { "from" },
            link.peer,
            link.channel,
            spaced_seconds(op.times.slowest_link_network_ns)
        )?;
    }
    Ok(())
}

fn cells(link: &LinkRow) -> [String; 9] {
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), spaced_seconds);
    [
        with_whom(link),
        link.channel.to_string(),
        link.transport.to_string(),
        link.messages.to_string(),
        amount(link.bytes),
        link.bandwidth.map_or_else(|| "-".to_owned(), |bandwidth| format!("{}/s", amount(bandwidth))),
        time(link.message.map(|message| message.p50_ns)),
        time(link.message.map(|message| message.p99_ns)),
        waits(link),
    ]
}

fn with_whom(link: &LinkRow) -> String {
    format!("{} rank {}", if link.op == Direction::Send { "to" } else { "from" }, link.peer)
}

/// Lists waits, the largest first; those of less than a hundredth are left out.
fn waits(link: &LinkRow) -> String {
    let all: u64 = link.waits.values().map(|wait| wait.total_ns).sum();
    let percent = |ns: u64| u128::from(ns) * 100 / u128::from(all.max(1));
    let mut waits: Vec<(u128, &str)> = link
        .waits
        .iter()
        .map(|(wait, times)| (percent(times.total_ns), who_is_waited_for(*wait, link.op)))
        .filter(|(percent, _)| *percent > 0)
        .collect();
    waits.sort_by_key(|(percent, _)| Reverse(*percent));
    let waits: Vec<String> = waits.into_iter().map(|(percent, who)| format!("{who} {percent} %")).collect();
    waits.join("; ")
}

fn who_is_waited_for(wait: Wait, direction: Direction) -> &'static str {
    match (wait, direction) {
        (Wait::GpuReady, _) => "own GPU to fill the slot",
        (Wait::PeerBuffer, _) => "peer's buffer",
        (Wait::GpuReadyOrPeerBuffer, _) => "own GPU or peer's buffer",
        (Wait::Network, Direction::Send) => "network",
        (Wait::Network, Direction::Recv) => "sender or network",
        (Wait::Flush, _) => "flush to the GPU",
        (Wait::GpuConsume, _) => "own GPU to take it",
        (Wait::FlushOrGpuConsume, _) => "own GPU or flush",
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn amount(value: u64) -> String {
    bytes(value as f64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flow::schema::{LinkKey, OpTimes, OpTimesRow, WaitRow};

    use super::*;

    fn link(op: Direction, peer: i32, bandwidth: Option<u64>) -> LinkRow {
        let wait =
            |total_ns| WaitRow { messages: 1, total_ns, p50_ns: 85_000, p99_ns: 900_000, max_ns: 900_000 };
        LinkRow {
            op,
            peer,
            channel: 3,
            transport: "NET".into(),
            messages: 12,
            messages_measured: 12,
            bytes: 1_200_000,
            busy_ns: 1,
            bandwidth,
            message: bandwidth.map(|_| wait(1)),
            waits: BTreeMap::from([(Wait::Network, wait(250)), (Wait::GpuReady, wait(750))]),
        }
    }

    fn report(links: Vec<LinkRow>) -> SummaryReport {
        let communicator = "0xab".to_owned();
        let recording = "flows".to_owned();
        let rank = RankReport { window: None, recording, communicator, rank: 1, links, ops: Vec::new() };
        let how_to_measure = Some("record with --level steps".to_owned());
        SummaryReport { ranks: vec![rank], how_to_measure, ..SummaryReport::default() }
    }

    fn text(report: &SummaryReport) -> String {
        let mut out = Vec::new();
        write_summary(report, false, None, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_longest_op_is_not_said_to_be_as_long_in_the_network() {
        let mut report = report(vec![link(Direction::Send, 5, Some(920_000_000))]);
        let times = OpTimes {
            first_start_ns: 0,
            last_end_ns: 32_500_000,
            unended: 0,
            slowest_link: LinkKey { op: Direction::Send, peer: 1, channel: 0 },
            slowest_link_network_ns: 1_430_000,
        };
        report.ranks[0].ops = vec![OpTimesRow { seq: 17752, times }];
        let expected = "longest of 1 measured operations: 32.5 ms (seq 17752); its messages were longest in the \
                        network to rank 1 on channel 0, 1.43 ms in all\n";
        assert!(text(&report).contains(expected), "{}", text(&report));
    }

    /// The same ranks, recorded twice: each has its folder's name, and counts once.
    #[test]
    fn recordings_of_the_same_ranks_are_told_apart_and_counted_once() {
        let mut both = report(vec![link(Direction::Send, 5, None), link(Direction::Recv, 5, None)]);
        assert!(!text(&both).contains("flows"), "one needs no heading: {}", text(&both));
        both.ranks.push(RankReport { recording: "later".to_owned(), ..both.ranks[0].clone() });
        assert!(headline(&both).starts_with("2 links of 1 rank in 2 recordings;"), "{}", headline(&both));
        let headings = ["flows:", "later:"];
        assert!(headings.iter().all(|heading| text(&both).lines().any(|line| line == *heading)));
    }

    #[test]
    fn the_headline_names_the_link_with_the_least_bandwidth() {
        let links = [(2, 3_000_000_000), (5, 920_000_000), (7, 2_000_000_000)];
        let links = links.map(|(peer, bandwidth)| link(Direction::Send, peer, Some(bandwidth)));
        let text = headline(&report(links.to_vec()));
        let expected = "3 links of 1 rank; least bandwidth: rank 1 to rank 5 on channel 3, 920 MB/s (median of all 2.00 GB/s)";
        assert_eq!(text, expected);
        let planned = headline(&report(vec![link(Direction::Recv, 2, None)]));
        let expected = "1 link of 1 rank; sizes are those that NCCL planned, because nothing was measured (record \
                        with --level steps)";
        assert_eq!(planned, expected);
        assert!(headline(&report(Vec::new())).ends_with("no operations with messages"));
        let of_calls = headline(&SummaryReport { has_calls_only: true, ..SummaryReport::default() });
        assert!(of_calls.ends_with("no operations with messages (record with --level flow or steps)"));
    }

    #[test]
    fn a_line_has_units_and_the_longest_wait_first() {
        let mut out = Vec::new();
        let links = vec![link(Direction::Send, 5, Some(920_000_000)), link(Direction::Recv, 2, None)];
        write_summary(&report(links), false, None, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line = text.lines().find(|line| line.contains("to rank 5")).unwrap();
        for part in ["1.20 MB", "920 MB/s", "85 µs", "900 µs", "own GPU to fill the slot 75 %; network 25 %"]
        {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(text.contains("sender or network 25 %"), "{text}");
        // On a narrow terminal the waits stand below; what was only planned has no columns of what is measured.
        let mut out = Vec::new();
        write_summary(&report(vec![link(Direction::Send, 5, Some(920_000_000))]), false, Some(80), &mut out)
            .unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\n      own GPU to fill the slot 75 %; network 25 %\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let mut out = Vec::new();
        write_summary(&report(vec![link(Direction::Recv, 2, None)]), false, Some(80), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().any(|line| line.ends_with("BYTES")) && !text.contains("MEDIAN"), "{text}");
        let mut out = Vec::new();
        let many = (0..20).map(|peer| link(Direction::Send, peer, None)).collect();
        write_summary(&report(many), false, None, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 2 + MAX_LINKS + 1);
    }
}
