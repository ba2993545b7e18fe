//! The page of one row: its history, all kinds of ops, all peers and all waits.

use std::fmt::Write as _;

use flow::text::{ago, bytes, counted, number};
use ratatui::{
    Frame,
    layout::{
        Constraint::{Length, Min},
        Layout, Rect,
    },
    style::{Color, Style, Stylize as _},
    text::Line,
    widgets::{Paragraph, Sparkline},
};

use super::{
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
    let tall = if area.height >= 20 { 3 } else { 1 };
    let kinds = u16::try_from(row.kinds.len()).unwrap_or(u16::MAX).clamp(1, 6) + 1;
    let heights =
        [Length(1), Length(2), Length(tall), Length(tall), Length(1), Length(kinds), Length(1), Min(2)];
    let [title, said, ops, moved, _, kinds, _, peers] = Layout::vertical(heights).areas(area);
    frame.render_widget(Paragraph::new(Line::from(name(row, state.shape.view, &subject.host)).bold()), title);
    frame.render_widget(Paragraph::new(facts(row, &ranks, subject)), said);
    draw_history(frame, ops, "OPS/S", &state.history_of(row, |point| point.ops_per_s), number);
    draw_history(frame, moved, "BYTES/S", &state.history_of(row, |point| point.bytes_per_s), bytes);
    draw_kinds(frame, kinds, row);
    let found = peers_of(row, &state.rates);
    if found.is_empty() {
        let text = "messages are not measured: --level steps measures those that go over the network";
        frame.render_widget(Paragraph::new(text).dim(), peers);
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

fn facts(row: &Row, ranks: &[&RankRates], subject: &Subject) -> Vec<Line<'static>> {
    let at_least = if row.bytes_are_least { "more than " } else { "" };
    let mut text = format!(
        "{} ops/s, {at_least}{}/s; {}",
        number(row.ops_per_s),
        bytes(row.bytes_per_s),
        match ago(row.idle_s) {
            _ if row.has_exited => "exited".to_owned(),
            now if now == "now" => "active now".to_owned(),
            ago => format!("active {ago} ago"),
        }
    );
    if let [rank] = ranks
        && let Some(launched) = rank.launched
    {
        _ = write!(text, "; NCCL has launched {}", counted(launched, "collective"));
    }
    let pids = ranks.iter().filter_map(|rank| rank.key).map(|key| key.pid);
    let versions = pids.filter_map(|pid| subject.processes.get(&pid)).map(|process| process.nccl.as_str());
    if let Some(version) = versions.into_iter().find(|version| !version.is_empty()) {
        _ = write!(text, "; NCCL {version}");
    }
    let verdict = match row.lag {
        Some(Lag::Behind(collectives)) => {
            let behind = counted(collectives, "collective");
            format!("It has not launched {behind} that another rank had launched before.")
        }
        Some(Lag::WaitedFor(_)) => {
            "Others wait long to receive from this rank, and it waits little itself.".to_owned()
        }
        None => String::new(),
    };
    vec![Line::from(text), Line::from(verdict).red().bold()]
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
