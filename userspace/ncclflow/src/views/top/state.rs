//! The user's choices: view, order, filter, row; and how keys change them. Rates of ranks at earlier
//! refreshes, for the lines over time.

use std::{
    cell::Cell,
    collections::{HashMap, VecDeque},
    ops::ControlFlow,
    sync::Arc,
};

use flow::{schema::GpuRow, statistics::RankKey};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{
    rates::{RankRates, Rates, Snapshot, Subject},
    rows::{Row, Shape, View, next, rows},
    window::Window,
};

const MAX_FILTER: usize = 64;

/// Refreshes that are kept: four minutes at one each two seconds. Statistics keep 512 ranks: some 4 MB in
/// all.
const MAX_POINTS: usize = 120;

/// Shortest time that rates are over, if nothing else is wanted: those of a moment say nothing.
pub const LEAST_NS: u64 = 50_000_000;

/// The choices, and what is shown.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct State {
    pub shape: Shape,
    pub reversed: bool,
    /// The filter is being typed.
    pub(super) typing: bool,
    pub(super) help: bool,
    /// First line of the help that is shown. What is drawn keeps it where there are lines.
    pub(super) help_top: Cell<usize>,
    /// Shortest time that rates are over, where that is longer than [`LEAST_NS`].
    pub least_ns: u64,
    /// There are no colours.
    pub is_plain: bool,
    /// The page of the selected row is shown.
    pub(super) page: bool,
    history: History,
    /// Rates stay as they are; the session goes on.
    pub(super) frozen: bool,
    pub(super) selected: usize,
    /// The user has chosen a row, which stays chosen wherever it goes; before, it is the first.
    has_chosen: bool,
    pub(super) rates: Rates,
    /// GPUs that a watched process uses, or all where the driver does not tell.
    pub(super) gpus: Vec<Arc<GpuRow>>,
    /// GPUs are shown despite little room, or hidden despite enough.
    pub(super) toggled_gpus: bool,
    before: Snapshot,
    window: Window,
    pub(super) rows: Vec<Row>,
    /// A line to show in place of the keys.
    pub message: Option<String>,
}

impl State {
    pub fn new(shape: Shape) -> Self {
        Self { shape, ..Self::default() }
    }

    /// Tells whether there are rates: of two readings or more.
    pub fn has_rates(&self) -> bool {
        !self.history.0.is_empty()
    }

    /// Returns the rows that are shown.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn take(&mut self, now: Snapshot, subject: &Subject) {
        let is_first = self.before.at_ns == 0;
        if !is_first && now.at_ns < self.before.at_ns.saturating_add(self.least_ns.max(LEAST_NS)) {
            return self.arrange(subject);
        }
        if !self.frozen {
            let is_whole = subject.is_recording_over() && !self.has_rates();
            let whole = is_whole.then(|| Window::one(&self.before));
            let window = whole.as_ref().unwrap_or(&self.window);
            self.rates = Rates::between(&self.before, &self.before, &now, window);
            // The first snapshot has what was before, not a rate.
            if !is_first {
                self.history.note(&self.rates);
            }
            let is_watched = |pid: u32| subject.processes.contains_key(&pid);
            let is_used = |gpu: &&Arc<GpuRow>| {
                gpu.processes.as_ref().is_none_or(|all| all.iter().any(|process| is_watched(process.pid)))
            };
            self.gpus = now.gpus.iter().filter(is_used).cloned().collect();
        }
        self.window.note(&now);
        self.before = now;
        self.arrange(subject);
    }

    /// Sorts and filters anew. The selected rank stays selected where it can.
    pub fn arrange(&mut self, subject: &Subject) {
        let selected = self.rows.get(self.selected).filter(|_| self.has_chosen).map(|row| row.key);
        self.rows = rows(&self.rates, subject, &self.shape);
        if self.reversed {
            self.rows.reverse();
        }
        let same = self.rows.iter().position(|row| Some(row.key) == selected);
        let last = self.rows.len().saturating_sub(1);
        self.selected = same.unwrap_or(self.selected).min(last);
    }

    /// Does what a key asks for. `Break`: that is the end.
    pub fn key(&mut self, key: KeyEvent, subject: &Subject) -> ControlFlow<()> {
        if key.kind == KeyEventKind::Release {
            return ControlFlow::Continue(());
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            let is_interrupt = key.code == KeyCode::Char('c');
            return if is_interrupt { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        }
        if self.typing {
            self.type_filter(key.code);
        } else if self.help {
            match moved(key.code, self.help_top.get()) {
                Some(top) => self.help_top.set(top),
                // Any other key closes it.
                None => self.help = false,
            }
        } else {
            match key.code {
                KeyCode::Esc | KeyCode::Backspace | KeyCode::Enter if self.page => self.page = false,
                KeyCode::Char('q') => return ControlFlow::Break(()),
                // One step back. It never ends the view: `q` does.
                KeyCode::Esc => self.shape.filter.clear(),
                // From then on the row stays the chosen one, whatever is sorted.
                KeyCode::Enter => (self.page, self.has_chosen) = (!self.rows.is_empty(), true),
                KeyCode::Char('?' | 'h') => (self.help, self.help_top) = (true, Cell::default()),
                KeyCode::Char(' ' | 'f') => self.frozen = !self.frozen,
                KeyCode::Char('/') => self.typing = true,
                KeyCode::Char('s') => self.shape.sort = next(&self.shape.sort),
                KeyCode::Char('e') => self.shape.is_grouped = !self.shape.is_grouped,
                KeyCode::Char('u') => self.toggled_gpus = !self.toggled_gpus,
                KeyCode::Char('r') => self.reversed = !self.reversed,
                KeyCode::Tab | KeyCode::Char('v') => self.shape.view = next(&self.shape.view),
                code => {
                    if let Some(selected) = moved(code, self.selected) {
                        (self.selected, self.has_chosen) = (selected, true);
                    }
                }
            }
        }
        self.selected = self.selected.min(self.rows.len().saturating_sub(1));
        self.arrange(subject);
        ControlFlow::Continue(())
    }

    /// Returns earlier rates: the busiest of a communicator's ranks, the sum of a process's.
    pub(super) fn history_of(&self, row: &Row, value: fn(&Point) -> f64) -> Vec<f64> {
        let keys: Vec<_> = row.members.iter().filter_map(|&at| self.rates.ranks.get(at)?.key).collect();
        let sum = |a: f64, b: f64| a + b;
        let join = if self.shape.view == View::Communicators { f64::max } else { sum };
        let mut values = self.history.of(&keys, value, join);
        if self.shape.view == View::Ranks {
            // Ranks that do the same: their mean.
            #[expect(clippy::cast_precision_loss, reason = "a number of ranks")]
            let ranks = keys.len().max(1) as f64;
            for value in &mut values {
                *value /= ranks;
            }
        }
        values
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.shape.filter.clear();
            }
            KeyCode::Backspace => {
                self.shape.filter.pop();
            }
            KeyCode::Char(c) if self.shape.filter.len() < MAX_FILTER && !c.is_control() => {
                self.shape.filter.push(c);
            }
            _ => {}
        }
    }
}

fn moved(code: KeyCode, from: usize) -> Option<usize> {
    Some(match code {
        KeyCode::Down | KeyCode::Char('j') => from.saturating_add(1),
        KeyCode::Up | KeyCode::Char('k') => from.saturating_sub(1),
        KeyCode::PageDown => from.saturating_add(10),
        KeyCode::PageUp => from.saturating_sub(10),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => usize::MAX,
        _ => return None,
    })
}

/// Rates of a refresh.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) ops_per_s: f64,
    pub(super) bytes_per_s: f64,
}

/// Points of each refresh by rank, the latest refresh last.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<HashMap<RankKey, Point>>);

impl History {
    pub(super) fn note(&mut self, rates: &Rates) {
        let point = |rank: &RankRates| {
            Some((rank.key?, Point { ops_per_s: rank.ops_per_s, bytes_per_s: rank.bytes_per_s }))
        };
        self.0.push_back(rates.ranks.iter().filter_map(point).collect());
        if self.0.len() > MAX_POINTS {
            self.0.pop_front();
        }
    }

    /// Returns the history of a value of several ranks, put together by `join`. A rank that came later has
    /// zeros before.
    pub(super) fn of(
        &self,
        keys: &[RankKey],
        value: fn(&Point) -> f64,
        join: fn(f64, f64) -> f64,
    ) -> Vec<f64> {
        let joined = |ranks: &HashMap<RankKey, Point>| {
            keys.iter().filter_map(|key| ranks.get(key)).map(value).fold(0.0, join)
        };
        self.0.iter().map(joined).collect()
    }
}
