//! Draws the screen: a heading, the table, the details of the selected row, and the keys. It fits 80 columns
//! and 24 lines; a wider terminal shows more.

use std::fmt::Write as _;

use clap::{ValueEnum as _, builder::PossibleValue};
use flow::{
    schema::GpuRow,
    session::Level,
    text::{ago, bytes, joined, nanoseconds, number},
};
use ratatui::{
    Frame,
    layout::{
        Constraint::{self, Length, Min},
        Layout, Rect,
    },
    style::{Color, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Block, Borders, Cell, Clear, Paragraph, Row as TableRow, Table, TableState},
};

use super::{
    lag::Lag,
    once::{HEADINGS, bytes_cell},
    page::{draw_history, draw_page},
    rates::{KindRates, PeerRates, RankRates, Rates, Subject},
    rows::{Row, View},
    state::State,
};

/// Width from which the table shows whole names.
const WIDE: u16 = 120;
/// Height from which there is room for details.
const TALL: u16 = 16;

/// Height from which the GPUs are shown; below, only when the user wants them.
const ROOM_FOR_GPUS: u16 = 32;
/// Most GPUs that are shown: as many as most hosts have.
const MAX_GPUS: usize = 8;

const HELP: &str = "\
 q, Esc, Ctrl-C   quit: probes are detached
 Tab, v           ranks, communicators, processes
 s, r             sort by the next column; the other way round
 /                filter: rows that contain this text; Enter, Esc: none
 Space, f         freeze what is shown; the session goes on
 u                show or hide the GPUs that watched processes use
 up, down, PgUp, PgDn, Home, End, j, k, g, G   select a row
 Enter            the page of the selected row: its history, all its peers
 ?, h             this help

 OPS/S    ops of NCCL (calls, with --level api); an op counts once,
          on however many channels it runs
 BYTES/S  that they were called with; >: of some it is not known
 LAG      behind N: has not launched N collectives that another rank had
          at the refresh before, and none has launched any since;
          waited for: others wait long to receive
          from this rank, and it waits little itself (--level steps)
 A communicator's numbers are its busiest rank's, a process's the sums.
 Waits are derived from measured times; nothing else here is measured.";

pub fn draw(frame: &mut Frame<'_>, state: &State, subject: &Subject) {
    let area = frame.area();
    let wide = area.width >= WIDE;
    if state.page && !state.help {
        let [page, keys] = Layout::vertical([Min(1), Length(1)]).areas(area);
        draw_page(frame, page, state, subject);
        frame.render_widget(Paragraph::new(keys_line(state)), keys);
        return;
    }
    let details = if area.height >= TALL { (area.height - 4) / 3 } else { 0 };
    let has_room = area.height >= ROOM_FOR_GPUS;
    let shown = if has_room == state.toggled_gpus { 0 } else { state.gpus.len().min(MAX_GPUS) };
    let gpus = u16::try_from(shown).unwrap_or(0);
    let [heading, gpu_lines, choices, table, below, keys] =
        Layout::vertical([Length(1), Length(gpus), Length(1), Min(3), Length(details), Length(1)])
            .areas(area);
    frame.render_widget(Paragraph::new(heading_line(state, subject)), heading);
    let lines: Vec<Line<'_>> = state.gpus.iter().take(shown).map(|gpu| gpu_line(gpu)).collect();
    frame.render_widget(Paragraph::new(lines), gpu_lines);
    frame.render_widget(Paragraph::new(choices_line(state)), choices);
    draw_table(frame, table, state, wide);
    if details > 0 {
        draw_details(frame, below, state, wide);
    }
    frame.render_widget(Paragraph::new(keys_line(state)), keys);
    if state.help {
        draw_help(frame, area);
    }
}

fn heading_line(state: &State, subject: &Subject) -> Line<'static> {
    let level = subject.level.unwrap_or(Level::Flow).name();
    let rates = &state.rates;
    let text = format!(
        "ncclflow top  {}  level {level}  {} processes  {} ranks  ",
        subject.host,
        subject.processes.len(),
        rates.ranks.iter().filter(|rank| rank.key.is_some()).count() + rates.folded_ranks,
    );
    let lost = format!("lost {}", rates.lost);
    let mut spans = vec![text.bold(), if rates.lost > 0 { lost.red() } else { lost.into() }];
    if rates.undecodable > 0 {
        spans.push(format!("  not understood {}", rates.undecodable).red());
    }
    Line::from(spans)
}

/// `GPU 0  99 % busy, 35 % memory  NVLink 64.0 GB/s out, 63.9 GB/s in  612 of 700 W  55 °C`
fn gpu_line(gpu: &GpuRow) -> Line<'static> {
    let known = |value: Option<u32>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
    let mut text =
        format!("GPU {}  {} % busy, {} % memory", gpu.gpu, known(gpu.sm_percent), known(gpu.memory_percent));
    if let (Some(sent), Some(received), Some(period)) = (gpu.nvlink_sent, gpu.nvlink_received, gpu.period_ns)
    {
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = |moved: u64| bytes(moved as f64 / (period.max(1) as f64 / 1e9));
        _ = write!(text, "  NVLink {}/s out, {}/s in", rate(sent), rate(received));
    }
    if let (Some(power), Some(limit)) = (gpu.power_mw, gpu.power_limit_mw) {
        _ = write!(text, "  {} of {} W", power / 1000, limit / 1000);
    }
    if let Some(temperature) = gpu.temperature {
        _ = write!(text, "  {temperature} °C");
    }
    let mut spans = vec![Span::raw(text)];
    if !gpu.throttled_by.is_empty() {
        spans.push(format!("  slowed by {}", gpu.throttled_by.join(", ")).yellow());
    }
    if !gpu.xids.is_empty() {
        spans.push(format!("  Xid {}", joined(&gpu.xids, ", ")).red());
    }
    Line::from(spans)
}

fn choices_line(state: &State) -> Line<'static> {
    let direction = if state.reversed { ", reversed" } else { "" };
    let view = state.view.to_possible_value();
    let view = view.as_ref().map_or("", PossibleValue::get_name);
    let mut spans = vec![Span::raw(format!("{view} by {}{direction}", state.sort.name()))];
    if state.typing || !state.filter.is_empty() {
        let cursor = if state.typing { "_" } else { "" };
        spans.push(format!("  filter: {}{cursor}", state.filter).yellow());
    }
    if state.frozen {
        spans.push("  FROZEN".cyan().bold());
    }
    Line::from(spans)
}

fn keys_line(state: &State) -> Line<'static> {
    let keys = match &state.message {
        Some(message) => return Line::styled(message.clone(), Style::new().yellow()),
        None if state.typing => "Enter keeps the filter, Esc drops it",
        None if state.page => "Esc back to the table  j/k next row  Space freeze  ? help  q quit",
        None => "q quit  ? help  Tab view  s sort  r reverse  / filter  Space freeze  Enter page",
    };
    Line::styled(keys, Style::new().dim())
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, state: &State, wide: bool) {
    if state.rows.is_empty() {
        let text = if state.filter.is_empty() { "no NCCL op was seen yet" } else { "no row fits the filter" };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let headings = HEADINGS.map(|text| match text {
        "OPS/S" | "BYTES/S" | "SEEN" => right(text),
        _ => Cell::from(text),
    });
    let (comm, pid) = if wide { (20, 24) } else { (9, 7) };
    let rank = if state.view == View::Communicators { 9 } else { 6 };
    let fixed = [comm, rank, pid, 6, 9, 4, 10];
    let taken: u16 = fixed.iter().sum::<u16>() + 7;
    let room = usize::from(area.width.saturating_sub(taken));
    let rows = state.rows.iter().map(|row| table_row(row, state.view, wide, room));
    let widths = fixed.map(Length).into_iter().chain([Min(12)]);
    let table = Table::new(rows, widths)
        .header(TableRow::new(headings).reversed())
        .row_highlight_style(Style::new().bg(Color::Indexed(238)).bold());
    let mut selected = TableState::new().with_selected(Some(state.selected));
    frame.render_stateful_widget(table, area, &mut selected);
}

pub(super) fn right<'a>(text: impl Into<Line<'a>>) -> Cell<'a> {
    Cell::from(text.into().right_aligned())
}

fn table_row(row: &Row, view: View, wide: bool, room: usize) -> TableRow<'static> {
    let comm = if wide || view == View::Processes {
        row.comm.clone()
    } else {
        // The beginning of a hash mostly tells communicators apart. The filter (`/`) uses all of it.
        row.comm.strip_prefix("0x").map_or_else(|| row.comm.clone(), |hash| hash.chars().take(9).collect())
    };
    let pid =
        if wide && !row.name.is_empty() { format!("{} {}", row.pid, row.name) } else { row.pid.clone() };
    let lag = row.lag.map(Lag::label).unwrap_or_default();
    let cells = [
        comm.into(),
        row.rank.clone().into(),
        pid.into(),
        right(number(row.ops_per_s)),
        right(bytes_cell(row)),
        right(ago(row.idle_s)),
        Cell::from(lag).red().bold(),
        mix(&row.kinds, wide, room).into(),
    ];
    let style = if row.idle_s > 5.0 { Style::new().dark_gray() } else { Style::new() };
    TableRow::new(cells).style(style)
}

/// Lists the kinds of op with their shares of the ops of the interval, or of all ops if it had none.
fn mix(kinds: &[KindRates], wide: bool, room: usize) -> String {
    let total: f64 = kinds.iter().map(|kind| kind.ops_per_s).sum();
    let mut text = String::new();
    for kind in kinds.iter().filter(|kind| total == 0.0 || kind.ops_per_s > 0.0) {
        let (whole, algorithm) = (kind.label(), kind.algorithm_and_protocol());
        let has_room = wide || whole.len() + " 100%".len() <= room;
        let label = if has_room || algorithm.is_empty() { whole } else { algorithm };
        let share =
            if total > 0.0 { format!(" {:.0}%", kind.ops_per_s / total * 100.0) } else { String::new() };
        let separator = if text.is_empty() { "" } else { ", " };
        // The first is cut if it is too wide; others are shown whole or not at all.
        if !text.is_empty() && text.len() + separator.len() + label.len() + share.len() > room {
            break;
        }
        text.extend([separator, &label, &share]);
    }
    text
}

fn draw_details(frame: &mut Frame<'_>, area: Rect, state: &State, wide: bool) {
    let Some(row) = state.rows.get(state.selected) else { return };
    let title = format!(" {} {} {} ", row.comm, row.rank, row.name);
    let block = Block::new().borders(Borders::TOP).title(title);
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let ops = state.history_of(row, |point| point.ops_per_s);
    let lines = u16::from(ops.len() > 1 && inside.height > 4);
    let [over_time, inside] = Layout::vertical([Length(lines), Min(0)]).areas(inside);
    if lines > 0 {
        draw_history(frame, over_time, "OPS/S", &ops, number);
    }
    let peers = peers_of(row, &state.rates);
    let left_width = if wide { 60 } else { 40 };
    let [left, right_side] = Layout::horizontal([Length(left_width), Min(10)]).spacing(1).areas(inside);
    let left = if peers.is_empty() { inside } else { left };
    draw_kinds(frame, left, row, &[Min(12), Length(6), Length(9)]);
    if !peers.is_empty() {
        // In 80 columns the wait is worth more than the bytes.
        let widths = [10, 6, if wide { 9 } else { 0 }, 10];
        draw_peers(frame, right_side, &peers, row.members.len() > 1, ("other", 1, "WAIT, MEAN"), widths);
    }
}

/// Draws the kinds of a row's ops, in as many columns as there are widths.
pub(super) fn draw_kinds(frame: &mut Frame<'_>, area: Rect, row: &Row, widths: &[Constraint]) {
    let rows = row.kinds.iter().map(|kind| {
        TableRow::new([
            Cell::from(kind.label()),
            right(number(kind.ops_per_s)),
            right(bytes(kind.bytes_per_s)),
            right(kind.ops.to_string()),
        ])
    });
    let heading = TableRow::new(["OP".into(), right("OPS/S"), right("BYTES/S"), right("OPS IN ALL")]).dim();
    frame.render_widget(Table::new(rows, widths).header(heading), area);
}

/// Draws peers. `many`: they are of several ranks, which are named.
///
/// `others`: what peers beyond those that are kept apart are called. `most`: waits of a peer, the longest
/// first, and `heading` above them.
pub(super) fn draw_peers(
    frame: &mut Frame<'_>,
    area: Rect,
    peers: &[(&RankRates, &PeerRates)],
    many: bool,
    (others, most, heading): (&str, usize, &'static str),
    [name, messages, moved, wait]: [u16; 4],
) {
    let rows = peers.iter().take(usize::from(area.height)).map(|(rank, peer)| {
        let own = rank.key.filter(|_| many).map(|key| format!("{} ", key.rank)).unwrap_or_default();
        let other = peer.peer.map_or_else(|| others.to_owned(), |peer| peer.to_string());
        let mut waits: Vec<_> = peer.waits.iter().collect();
        waits.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.ns));
        let waits = waits.iter().take(most);
        let waits = waits.map(|(wait, sum)| format!("{wait} {}", nanoseconds(mean(sum.ns, sum.count))));
        TableRow::new([
            Cell::from(format!("{own}{} {other}", peer.direction.name())),
            right(number(peer.messages_per_s)),
            right(bytes(peer.bytes_per_s)),
            Cell::from(joined(waits, ", ")),
        ])
    });
    let heading = TableRow::new(["PEER".into(), right("MSG/S"), right("BYTES/S"), heading.into()]).dim();
    let [name, messages, moved] = [name, messages, moved].map(Length);
    let widths = [name, messages, moved, Min(wait)];
    frame.render_widget(Table::new(rows, widths).header(heading), area);
}

/// Returns the peers of a row's ranks.
pub(super) fn peers_of<'r>(row: &Row, rates: &'r Rates) -> Vec<(&'r RankRates, &'r PeerRates)> {
    let ranks = row.members.iter().filter_map(|&at| rates.ranks.get(at));
    ranks.flat_map(|rank| rank.peers.iter().map(move |peer| (rank, peer))).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a duration for people")]
fn mean(ns: u64, count: u64) -> f64 {
    ns as f64 / count.max(1) as f64
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines = u16::try_from(HELP.lines().count()).unwrap_or(u16::MAX).saturating_add(2);
    let popup = area.centered(Length(78), Length(lines));
    frame.render_widget(Clear, popup);
    frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" keys and columns ")), popup);
}
