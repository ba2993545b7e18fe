//! Draws the screen: a heading, the table, the details of the selected row, and the keys. It fits 60 columns
//! and 24 lines; a wider terminal shows more.

use std::ops::Range;

use clap::{ValueEnum as _, builder::PossibleValue};
use flow::{
    schema::GpuRow,
    session::Level,
    statistics::Sum,
    text::{bytes, counted, cut_left, cut_right, joined, nanoseconds, number},
};
use ratatui::{
    Frame,
    layout::{
        Constraint::{Fill, Length, Min},
        Layout, Rect,
    },
    style::{Color, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Block, Borders, Cell, Clear, Paragraph, Row as TableRow, Table, TableState, Wrap},
};

use super::{
    columns::{self, Column, Shown, fitting, wrapped},
    equals::SILENT_S,
    once::{COLUMNS, MOST, NAME, WAITED_FOR, cells, mix},
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

const HELP: &str = " q, Ctrl-C        quit: probes are detached
 Esc              one step back: from a page, this help, a filter
 Tab, v           ranks, communicators, processes
 s, r             sort by the next column; the other way round
 e                ranks that do the same: each a row, or one for all
 /                filter: rows that contain this text; Enter, Esc: none
 Space, f         freeze what is shown; the session goes on
 u                show or hide the GPUs that watched processes use
 up, down, PgUp, PgDn, Home, End, j, k, g, G   select a row
 Enter            the page of the selected row: its history, all its peers
 ?, h             this help

 OPS/S      operations of NCCL (calls, with --level api); each counts
            once, on however many channels it runs
 BYTES/S    that they were called with; >: of some it is not known
 WAITED FOR behind N: has not launched N collectives that another rank
            had at the refresh before, and none has launched any since;
            by receivers: others wait long to receive from this rank,
            and it waits little itself, over half a minute or the
            last 4 ops, 10 s at least (--level steps)
 A communicator's numbers are its busiest rank's, a process's the sums,
 those of ranks that do the same (half a minute, within 10 %, 2 ops) their mean.
 Waits are derived from measured times; nothing else here is measured.";

pub fn draw(frame: &mut Frame<'_>, state: &State, subject: &Subject) {
    draw_in_color(frame, state, subject);
    if state.is_plain {
        for cell in &mut frame.buffer_mut().content {
            (cell.fg, cell.bg) = (Color::Reset, Color::Reset);
        }
    }
}

fn draw_in_color(frame: &mut Frame<'_>, state: &State, subject: &Subject) {
    let area = frame.area();
    let wide = area.width >= WIDE;
    if state.page && !state.help {
        let [page, keys] = Layout::vertical([Min(1), Length(1)]).areas(area);
        draw_page(frame, page, state, subject);
        frame.render_widget(Paragraph::new(keys_line(state, usize::from(area.width))), keys);
        return;
    }
    let details = if area.height >= TALL { (area.height - 4) / 3 } else { 0 };
    let has_room = area.height >= ROOM_FOR_GPUS;
    let shown = if has_room == state.toggled_gpus { 0 } else { state.gpus.len().min(MAX_GPUS) };
    let gpus = u16::try_from(shown).unwrap_or(0);
    let [heading, gpu_lines, choices, table, below, keys] =
        Layout::vertical([Length(1), Length(gpus), Length(1), Min(3), Length(details), Length(1)])
            .areas(area);
    let width = usize::from(area.width);
    let lines: Vec<Line<'_>> = state.gpus.iter().take(shown).map(|gpu| gpu_line(gpu, width)).collect();
    frame.render_widget(Paragraph::new(lines), gpu_lines);
    let on_screen = draw_table(frame, table, state, subject, wide);
    frame.render_widget(Paragraph::new(heading_line(state, subject, &on_screen, width)), heading);
    frame.render_widget(Paragraph::new(choices_line(state, &on_screen, width)), choices);
    if details > 0 {
        draw_details(frame, below, state);
    }
    frame.render_widget(Paragraph::new(keys_line(state, width)), keys);
    if state.help {
        draw_help(frame, area, state);
    }
}

/// A part of a line; those with larger numbers are left out first.
type Part = (u8, Span<'static>);

/// Puts as many parts on a line as fit.
fn fitted(mut parts: Vec<Part>, width: usize) -> Line<'static> {
    let total =
        |parts: &[Part]| parts.iter().map(|(_, span)| span.width() + 2).sum::<usize>().saturating_sub(2);
    while parts.len() > 1 && total(&parts) > width {
        let last = parts.iter().enumerate().max_by_key(|(at, (order, _))| (*order, *at)).map(|(at, _)| at);
        drop(last.map(|at| parts.remove(at)));
    }
    let mut spans = Vec::new();
    for (_, span) in parts {
        if !spans.is_empty() {
            spans.push(Span::raw("  "));
        }
        spans.push(span);
    }
    Line::from(spans)
}

fn heading_line(state: &State, subject: &Subject, on_screen: &Range<usize>, width: usize) -> Line<'static> {
    let level = subject.level.unwrap_or(Level::Flow).name();
    let rates = &state.rates;
    let ranks = rates.ranks.iter().filter(|rank| rank.key.is_some()).count() + rates.folded_ranks;
    let lost = format!("lost {}", rates.lost);
    let mut parts: Vec<Part> = vec![
        (5, "ncclflow top".bold()),
        (3, subject.host.clone().bold()),
        (4, format!("level {level}").bold()),
        (2, counted(subject.processes.len(), "process").bold()),
        (1, counted(ranks, "rank").bold()),
        (0, if rates.lost > 0 { lost.red() } else { lost.into() }),
    ];
    if rates.undecodable > 0 {
        parts.push((0, format!("undecodable {}", rates.undecodable).red()));
    }
    match &subject.recording {
        Some(recording) if recording.is_over => {
            parts.push((1, format!("recording of {}, over", recording.begun).yellow().bold()));
        }
        Some(recording) => parts.push((2, format!("recording of {}", recording.begun).yellow())),
        None => {}
    }
    if let Some(ranks) = unseen_lags(state, on_screen) {
        parts.push((0, format!("waited for: {ranks}").red().bold()));
    }
    match subject.exited() {
        Some((exited, all)) if exited == all => parts.push((0, "ENDED".yellow().bold())),
        Some((exited, _)) => parts.push((2, format!("{exited} exited").yellow())),
        None => {}
    }
    fitted(parts, width)
}

/// Names a rank that lags and is in no row that is on the screen: `rank 15 (below)`.
fn unseen_lags(state: &State, on_screen: &Range<usize>) -> Option<String> {
    let place = |at: usize| match state.rows.iter().position(|row| row.members.contains(&at)) {
        None => Some("filtered out"),
        Some(row) if row < on_screen.start => Some("above"),
        Some(row) if row >= on_screen.end => Some("below"),
        Some(_) => None,
    };
    let lagging = state.rates.ranks.iter().enumerate().filter(|(_, rank)| rank.lag.is_some());
    let mut unseen = lagging.filter_map(|(at, rank)| Some((rank.key?.rank, place(at)?)));
    let (rank, place) = unseen.next()?;
    let more = unseen.count();
    Some(format!("rank {rank} ({place}){}", if more > 0 { format!(", {more} more") } else { String::new() }))
}

/// `GPU 0  99 % busy, 35 % memory  NVLink 64.0 GB/s out, 63.9 GB/s in  612 of 700 W  55 °C`
fn gpu_line(gpu: &GpuRow, width: usize) -> Line<'static> {
    let known = |value: Option<u32>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
    let mut parts: Vec<Part> = vec![
        (0, format!("GPU {}", gpu.gpu).into()),
        (1, format!("{} % busy, {} % memory", known(gpu.sm_percent), known(gpu.memory_percent)).into()),
    ];
    if let (Some(sent), Some(received), Some(period)) = (gpu.nvlink_sent, gpu.nvlink_received, gpu.period_ns)
    {
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = |moved: u64| bytes(moved as f64 / (period.max(1) as f64 / 1e9));
        parts.push((2, format!("NVLink {}/s out, {}/s in", rate(sent), rate(received)).into()));
    }
    if let (Some(power), Some(limit)) = (gpu.power_mw, gpu.power_limit_mw) {
        parts.push((3, format!("{} of {} W", power / 1000, limit / 1000).into()));
    }
    if let Some(temperature) = gpu.temperature {
        parts.push((4, format!("{temperature} °C").into()));
    }
    if !gpu.throttled_by.is_empty() {
        parts.push((0, format!("slowed by {}", gpu.throttled_by.join(", ")).yellow()));
    }
    if !gpu.xids.is_empty() {
        parts.push((0, format!("Xid {}", joined(&gpu.xids, ", ")).red()));
    }
    fitted(parts, width)
}

/// Says what rows there are, and which of them are on the screen.
fn choices_line(state: &State, on_screen: &Range<usize>, width: usize) -> Line<'static> {
    const FROZEN: &str = "FROZEN";
    let direction = if state.reversed { ", reversed" } else { "" };
    let view = state.shape.view.to_possible_value();
    let view = view.as_ref().map_or("", PossibleValue::get_name);
    let mut parts: Vec<Part> = vec![(2, format!("{view} by {}{direction}", state.shape.sort.name()).into())];
    if on_screen.len() < state.rows.len() {
        let (first, last) = (on_screen.start + 1, on_screen.end);
        parts.push((3, format!("rows {first}-{last} of {}", state.rows.len()).yellow()));
    }
    if state.typing || !state.shape.filter.is_empty() {
        let cursor = if state.typing { "_" } else { "" };
        let room = width.saturating_sub(if state.frozen { FROZEN.len() + 2 } else { 0 });
        // Its end is what is being typed.
        let filter = cut_left(&format!("filter: {}{cursor}", state.shape.filter), Some(room));
        parts.push((1, filter.yellow()));
    }
    if state.frozen {
        parts.push((0, FROZEN.cyan().bold()));
    }
    fitted(parts, width)
}

fn keys_line(state: &State, width: usize) -> Line<'static> {
    let keys: &[&str] = match &state.message {
        Some(message) => return Line::styled(cut_right(message, Some(width)), Style::new().yellow()),
        None if state.typing => &["Enter keeps the filter", "Esc drops it"],
        None if state.page => &["Esc back", "q quit", "j/k next row", "Space freeze", "? help"],
        None => &[
            "q quit",
            "? help",
            "Tab view",
            "s sort",
            "/ filter",
            "Enter page",
            "e equals",
            "Space freeze",
            "r reverse",
        ],
    };
    let parts = (0..).zip(keys).map(|(order, key)| (order, Span::raw(*key).dim()));
    fitted(parts.collect(), width)
}

/// Draws the table. Returns the rows that are on the screen.
fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &State,
    subject: &Subject,
    wide: bool,
) -> Range<usize> {
    if state.rows.is_empty() {
        let text = if !state.shape.filter.is_empty() {
            "no row fits the filter"
        } else if state.has_rates() && subject.processes.is_empty() {
            "no process that uses NCCL was seen yet"
        } else if state.has_rates() {
            "no NCCL operation so far: `ncclflow dump` says whether the processes wait"
        } else {
            "no NCCL operation was seen yet"
        };
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return 0..0;
    }
    let comm = |row: &Row| match row.comm.strip_prefix("0x") {
        // The beginning of a hash mostly tells communicators apart. The filter (`/`) uses all of it.
        Some(hash) if !wide => hash.chars().take(9).collect(),
        _ => row.comm.clone(),
    };
    let cells = |row: &Row| {
        let mut cells = cells(row, comm);
        // Names take room that is better used otherwise.
        cells[NAME] = cells[NAME].chars().filter(|_| wide).collect();
        if state.shape.view != View::Ranks {
            // A mark names the rank: no column moves when one appears.
            cells[WAITED_FOR] = format!("{:<1$}", cells[WAITED_FOR], "rank 15 by receivers".len());
        }
        cells
    };
    let lines: Vec<_> = state.rows.iter().map(cells).collect();
    let shown = columns::chosen(&COLUMNS, &lines, usize::from(area.width), 1);
    let rows = state.rows.iter().zip(&lines).enumerate().map(|(place, (row, line))| {
        let cells = shown.iter().map(|&(at, width)| match at {
            MOST => Cell::from(cut_right(&mix(&row.kinds, width), Some(width))),
            WAITED_FOR => Cell::from(line[at].clone()).red().bold(),
            _ => cell(&COLUMNS[at], &line[at], width),
        });
        // The selected row stays readable on its background.
        let is_silent = (row.idle_s > SILENT_S || row.has_exited) && place != state.selected;
        TableRow::new(cells).style(if is_silent { Style::new().dark_gray() } else { Style::new() })
    });
    let highlight =
        if state.is_plain { Style::new().reversed() } else { Style::new().bg(Color::Indexed(238)).bold() };
    let table = table(&COLUMNS, &shown, rows)
        .header(headings(&COLUMNS, &shown).reversed())
        .row_highlight_style(highlight);
    let mut selected = TableState::new().with_selected(Some(state.selected));
    frame.render_stateful_widget(table, area, &mut selected);
    let first = selected.offset();
    first..(first + usize::from(area.height.saturating_sub(1))).min(state.rows.len())
}

fn cell(column: &Column, text: &str, width: usize) -> Cell<'static> {
    Cell::from(columns::padded(column, text, width))
}

fn headings(columns: &[Column], shown: &[Shown]) -> TableRow<'static> {
    let columns = shown.iter().filter_map(|&(at, width)| Some((columns.get(at)?, width)));
    TableRow::new(columns.map(|(column, width)| cell(column, column.heading, width)))
}

fn table<'t>(columns: &[Column], shown: &[Shown], rows: impl IntoIterator<Item = TableRow<'t>>) -> Table<'t> {
    let widths = shown.iter().map(|&(_, width)| Length(u16::try_from(width).unwrap_or(u16::MAX)));
    Table::new(rows, widths).header(headings(columns, shown).dim())
}

/// Draws a table of text, of the columns that there is room for.
fn draw_lines<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: &[Column; N],
    lines: &[[String; N]],
) {
    let shown = columns::chosen(columns, lines, usize::from(area.width), 1);
    let rows = lines
        .iter()
        .map(|line| TableRow::new(shown.iter().map(|&(at, width)| cell(&columns[at], &line[at], width))));
    frame.render_widget(table(columns, &shown, rows), area);
}

fn draw_details(frame: &mut Frame<'_>, area: Rect, state: &State) {
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
    let [left, right_side] = Layout::horizontal([Fill(1), Fill(1)]).spacing(1).areas(inside);
    let left = if peers.is_empty() { inside } else { left };
    draw_kinds(frame, left, row);
    if !peers.is_empty() {
        draw_peers(frame, right_side, &peers, row.members.len() > 1, "other", 1);
    }
}

/// Draws the kinds of a row's ops.
pub(super) fn draw_kinds(frame: &mut Frame<'_>, area: Rect, row: &Row) {
    const COLUMNS: [Column; 4] = [
        columns::cut("OPERATION", 0),
        columns::number("OPS/S", 6, 1),
        columns::number("BYTES/S", 9, 2),
        columns::number("OPS IN ALL", 10, 3),
    ];
    let line = |kind: &KindRates| {
        [kind.label(), number(kind.ops_per_s), bytes(kind.bytes_per_s), kind.ops.to_string()]
    };
    draw_lines(frame, area, &COLUMNS, &row.kinds.iter().map(line).collect::<Vec<_>>());
}

/// Draws peers. `many`: they are of several ranks, which are named.
///
/// `others`: what peers beyond those that are kept apart are called. `most`: number of waits of a peer that
/// are shown, the longest first.
pub(super) fn draw_peers(
    frame: &mut Frame<'_>,
    area: Rect,
    peers: &[(&RankRates, &PeerRates)],
    many: bool,
    others: &str,
    most: usize,
) {
    // Where there is little room, the wait is worth more than the bytes.
    const COLUMNS: [Column; 4] = [
        columns::text("PEER", 7, 0),
        columns::number("MSG/S", 6, 2),
        columns::number("BYTES/S", 9, 3),
        columns::cut("WAIT OF A MESSAGE", 1),
    ];
    let waits_of = |peer: &PeerRates| -> Vec<String> {
        let mut waits: Vec<_> = peer.waits.iter().collect();
        waits.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.ns));
        let text = |(wait, sum): &(&&str, &Sum)| {
            let words = wait.replace('_', " ").replace("gpu", "GPU");
            format!("{} {words}", nanoseconds(mean(sum.ns, sum.count)))
        };
        waits.iter().take(most).map(text).collect()
    };
    let line = |(rank, peer): &(&RankRates, &PeerRates)| {
        let own = rank.key.filter(|_| many).map(|key| format!("{} ", key.rank)).unwrap_or_default();
        let other = peer.peer.map_or_else(|| others.to_owned(), |peer| peer.to_string());
        [
            format!("{own}{} {other}", peer.direction.name()),
            number(peer.messages_per_s),
            bytes(peer.bytes_per_s),
            fitting(waits_of(peer), usize::MAX),
        ]
    };
    let mut lines: Vec<_> = peers.iter().take(usize::from(area.height)).map(line).collect();
    let shown = columns::chosen(&COLUMNS, &lines, usize::from(area.width), 1);
    if let Some((_, room)) = shown.last().filter(|(at, _)| *at + 1 == COLUMNS.len()) {
        for ([.., waits], (_, peer)) in lines.iter_mut().zip(peers) {
            *waits = fitting(waits_of(peer), *room);
        }
    }
    draw_lines(frame, area, &COLUMNS, &lines);
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

/// Wraps a line of the help below its text.
fn help_lines(line: &str, width: usize) -> Vec<String> {
    // A list of many keys is wrapped as a whole.
    let start = line.rfind("  ").map(|gap| gap + 2).filter(|start| *start <= 20).unwrap_or(1);
    let (key, text) = line.split_at_checked(start).unwrap_or(("", line));
    let room = width.saturating_sub(start).max(12);
    let mut lines = wrapped(text.split(' '), " ", room);
    for (at, line) in lines.iter_mut().enumerate() {
        let before = if at == 0 { key } else { "" };
        *line = format!("{before:<start$}{line}");
    }
    lines
}

fn draw_help(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let inside = usize::from(area.width.min(78)).saturating_sub(2).max(1);
    let lines: Vec<String> = HELP.lines().flat_map(|line| help_lines(line, inside)).collect();
    let room = usize::from(area.height).saturating_sub(2);
    let last_top = lines.len().saturating_sub(room);
    let top = state.help_top.get().min(last_top);
    state.help_top.set(top);
    let popup = area.centered(Length(78), Length(u16::try_from(lines.len() + 2).unwrap_or(u16::MAX)));
    let title = if last_top > 0 { " keys and columns: up, down show more " } else { " keys and columns " };
    let lines: Vec<Line<'_>> = lines.into_iter().skip(top).take(room).map(Line::from).collect();
    frame.render_widget(Clear, popup);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), popup);
}
