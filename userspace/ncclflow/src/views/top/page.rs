//! The page of one row: its history, all kinds of ops, all peers and all waits.

use flow::text::{ago, bytes, counted, number};
use ratatui::{
    Frame,
    layout::{
        Constraint::{Length, Min},
        Layout, Rect,
    },
    style::{Color, Style, Stylize as _},
    text::Line,
    widgets::{Paragraph, Sparkline, Wrap},
};

use super::{
    columns::wrapped,
    draw::{draw_kinds, draw_peers, peers_of},
    lag::Lag,
    rates::{RankRates, Subject},
    rows::{Row, View},
    state::State,
};

/// Draws the page over all but the last line, which has the keys.
pub(super) fn draw_page(frame: &mut Frame<'_>, area: Rect, state: &State, subject: &Subject) {
    let Some(row) = state.rows.get(state.selected) else {
        frame.render_widget(Paragraph::new("no row is selected"), area);
        return;
    };
    let ranks: Vec<&RankRates> = row.members.iter().filter_map(|&at| state.rates.ranks.get(at)).collect();
    let width = usize::from(area.width);
    let words = |text: &str| wrapped(text.split(' '), " ", width);
    let bold = |line: String| Line::from(line).bold();
    let facts = facts(row, &ranks, subject);
    let mut said: Vec<Line<'_>> =
        words(&name(row, state.shape.view, &subject.host)).into_iter().map(bold).collect();
    said.extend(wrapped(facts.iter().map(String::as_str), "; ", width).into_iter().map(Line::from));
    let verdict = verdict(row);
    let verdict = words(&verdict).into_iter().filter(|line| !line.is_empty());
    said.extend(verdict.map(|line| bold(line).red()));

    let said_height = u16::try_from(said.len()).unwrap_or(u16::MAX).min(area.height);
    let mut free = area.height - said_height;
    // Where there is little room, what is taken last is not there.
    let mut take = |wanted: u16, least: u16| {
        let taken = if free < least { 0 } else { wanted.min(free) };
        free -= taken;
        taken
    };
    let (mut kinds, peers) = (take(2, 2), take(2, 2));
    let (mut ops, mut moved) = (take(1, 1), take(1, 1));
    let (above, below) = (take(1, 1), take(1, 1));
    kinds += take(u16::try_from(row.kinds.len()).unwrap_or(u16::MAX).clamp(1, 6) - 1, 0);
    if area.height >= 20 {
        ops += take(2, 2);
        moved += take(2, 2);
    }
    let peers = peers + take(u16::MAX, 0);
    let heights = [said_height, ops, moved, above, kinds, below, peers].map(Length);
    let [title, ops, moved, _, kinds, _, peers] = Layout::vertical(heights).areas(area);
    frame.render_widget(Paragraph::new(said), title);
    draw_history(frame, ops, "OPS/S", &state.history_of(row, |point| point.ops_per_s), number);
    draw_history(frame, moved, "BYTES/S", &state.history_of(row, |point| point.bytes_per_s), bytes);
    draw_kinds(frame, kinds, row);
    let found = peers_of(row, &state.rates);
    if found.is_empty() {
        let text = "messages are not measured: --level steps measures those that go over the network";
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }).dim(), peers);
        return;
    }
    draw_peers(frame, peers, &found, ranks.len() > 1, "others", usize::MAX);
}

fn name(row: &Row, view: View, host: &str) -> String {
    let process = if row.name.is_empty() { row.pid.clone() } else { format!("{} ({})", row.pid, row.name) };
    match view {
        View::Ranks => format!("rank {} of communicator {}, process {process} on {host}", row.rank, row.comm),
        View::Communicators => format!("communicator {}, ranks {} on {host}", row.comm, row.rank),
        View::Processes => format!("process {process} on {host}, ranks: {}", row.comm),
    }
}

fn facts(row: &Row, ranks: &[&RankRates], subject: &Subject) -> Vec<String> {
    let at_least = if row.bytes_are_least { "more than " } else { "" };
    let mut facts = vec![
        format!("{} ops/s, {at_least}{}/s", number(row.ops_per_s), bytes(row.bytes_per_s)),
        match ago(row.idle_s) {
            _ if row.has_exited => "exited".to_owned(),
            now if now == "now" => "active now".to_owned(),
            ago => format!("active {ago} ago"),
        },
    ];
    if let [rank] = ranks
        && let Some(launched) = rank.launched
    {
        facts.push(format!("NCCL has launched {}", counted(launched, "collective")));
    }
    let pids = ranks.iter().filter_map(|rank| rank.key).map(|key| key.pid);
    let versions = pids.filter_map(|pid| subject.processes.get(&pid)).map(|process| process.nccl.as_str());
    if let Some(version) = versions.into_iter().find(|version| !version.is_empty()) {
        facts.push(format!("NCCL {version}"));
    }
    facts
}

/// Says which rank lags, and how; empty where none does.
fn verdict(row: &Row) -> String {
    let Some(&(rank, lag)) = row.lags.first() else { return String::new() };
    let (it, them) = if row.members.len() > 1 {
        (format!("Rank {rank}"), format!("rank {rank}"))
    } else {
        ("It".to_owned(), "this rank".to_owned())
    };
    match lag {
        Lag::Behind(collectives) => {
            let behind = counted(collectives, "collective");
            format!("{it} has not launched {behind} that another rank had launched before.")
        }
        Lag::WaitedFor(_) => {
            format!("Others wait long to receive from {them}, and it waits little itself.")
        }
    }
}

/// Draws a line over time, with the largest value at its right end.
pub(super) fn draw_history(
    frame: &mut Frame<'_>,
    area: Rect,
    label: &str,
    values: &[f64],
    show: fn(f64) -> String,
) {
    let [name, line, most] = Layout::horizontal([Length(9), Min(4), Length(16)]).areas(area);
    frame.render_widget(Paragraph::new(label.to_owned()).dim(), name);
    // The latest points that fit, at the right end.
    let shown = &values[values.len().saturating_sub(usize::from(line.width))..];
    let largest = shown.iter().copied().fold(0.0, f64::max);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a height of a bar")]
    let heights: Vec<u64> =
        shown.iter().map(|value| if largest > 0.0 { (value / largest * 1000.0) as u64 } else { 0 }).collect();
    let free = line.width.saturating_sub(u16::try_from(heights.len()).unwrap_or(u16::MAX));
    let line = Rect { x: line.x + free, width: line.width - free, ..line };
    frame.render_widget(
        Sparkline::default().data(&heights).max(1000).style(Style::new().fg(Color::Cyan)),
        line,
    );
    frame.render_widget(Paragraph::new(format!(" peak {}", show(largest))).dim(), most);
}
