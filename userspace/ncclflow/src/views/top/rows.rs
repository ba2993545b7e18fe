//! Rows of the table: ranks, communicators or processes, sorted and filtered.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet},
};

use clap::ValueEnum;

use super::{
    equals::{self, SILENT_S},
    lag::Lag,
    rates::{KindRates, RankRates, Rates, Subject},
};
use flow::{
    statistics::RankKey,
    text::{counted, joined, ranges},
};

/// Longest list of ranges of ranks that is shown in a row.
const MAX_RANGES: usize = 12;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// A rank of a communicator
    #[default]
    Ranks,
    /// A communicator; its numbers are those of its busiest rank
    Communicators,
    /// A process; its numbers are the sums of its ranks
    Processes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Job, communicator and rank
    #[default]
    Comm,
    /// Operations a second
    Ops,
    /// Bytes a second
    Bytes,
    /// Those that are waited for, then those that nothing was seen of for long
    Lag,
    /// Process
    Pid,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ops => "ops/s",
            Self::Bytes => "bytes/s",
            Self::Lag => "lag",
            Self::Comm => "job, communicator, rank",
            Self::Pid => "pid",
        }
    }
}

/// Returns the choice after this one; after the last, the first.
pub(super) fn next<C: ValueEnum + PartialEq>(choice: &C) -> C {
    let mut all = C::value_variants().iter().cycle().skip_while(|one| *one != choice);
    all.nth(1).unwrap_or(choice).clone()
}

/// What rows there are, in which order.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    pub view: View,
    pub sort: Sort,
    /// Text that a column must contain.
    pub filter: String,
    /// Ranks of a large communicator that do the same are one row.
    pub is_grouped: bool,
}

#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the job; empty where there is one only.
    pub job: String,
    /// `commHash`, or its placeholder.
    pub comm: String,
    pub rank: String,
    pub pid: String,
    pub name: String,
    pub ops_per_s: f64,
    pub bytes_per_s: f64,
    /// There were ops whose bytes are not known.
    pub bytes_are_least: bool,
    /// Kinds of op, those that there are most of first.
    pub kinds: Vec<KindRates>,
    pub idle_s: f64,
    /// Its processes have exited.
    pub has_exited: bool,
    /// Ranks of the row that lag, and how.
    pub(super) lags: Vec<(i32, Lag)>,
    /// Ranks of the row, as indexes into [`Rates::ranks`].
    pub members: Vec<usize>,
    /// What makes it the same row at another time: its rank, with zeros for what the view puts together.
    pub(super) key: Option<RankKey>,
    first_pid: u32,
    n_ranks: i32,
}

/// Returns the rows, each a rank, a communicator or a process, or ranks that do the same.
pub fn rows(rates: &Rates, subject: &Subject, shape: &Shape) -> Vec<Row> {
    let mut groups: BTreeMap<(bool, Option<RankKey>), Vec<usize>> = BTreeMap::new();
    for (at, rank) in rates.ranks.iter().enumerate() {
        let group = rank.key.map(|key| match shape.view {
            View::Ranks if !shape.is_grouped => key,
            View::Ranks | View::Communicators => RankKey { rank: 0, pid: 0, ..key },
            View::Processes => RankKey { hash: None, instance: 0, rank: 0, pid: key.pid },
        });
        groups.entry((group.is_none(), group)).or_default().push(at);
    }
    let jobs = subject.jobs(rates);
    let made = groups.into_iter().flat_map(|((_, key), members)| {
        let parts = match key {
            Some(_) if shape.view == View::Ranks => equals::parts(&rates.ranks, members),
            _ => vec![members],
        };
        parts.into_iter().map(move |members| (key, members))
    });
    let mut rows: Vec<Row> = made
        .map(|(key, members)| {
            let first = members.first().and_then(|&at| rates.ranks.get(at)?.key);
            let key = key.and(if shape.view == View::Ranks { first } else { key });
            row(rates, subject, &jobs, shape.view, key, members)
        })
        .collect();
    let wanted = shape.filter.to_lowercase();
    rows.retain(|row| wanted.is_empty() || row.matches(&wanted));
    let has_one_job = jobs.values().collect::<BTreeSet<_>>().len() < 2;
    rows.sort_by(|a, b| compare(a, b, shape.sort).then_with(|| a.place().cmp(&b.place())));
    if has_one_job {
        for row in &mut rows {
            row.job.clear();
        }
    }
    rows
}

fn compare(a: &Row, b: &Row, sort: Sort) -> Ordering {
    match sort {
        Sort::Ops => b.ops_per_s.total_cmp(&a.ops_per_s),
        Sort::Bytes => b.bytes_per_s.total_cmp(&a.bytes_per_s),
        Sort::Lag => {
            // By whole seconds: rows do not change places where all do something now and then.
            let silent_s = |row: &Row| if row.idle_s > SILENT_S { row.idle_s.floor() } else { 0.0 };
            let lags = |row: &Row| !row.lags.is_empty();
            lags(b).cmp(&lags(a)).then(silent_s(b).total_cmp(&silent_s(a)))
        }
        Sort::Comm => Ordering::Equal,
        Sort::Pid => a.first_pid.cmp(&b.first_pid),
    }
}

fn row(
    rates: &Rates,
    subject: &Subject,
    jobs: &BTreeMap<u32, String>,
    view: View,
    key: Option<RankKey>,
    members: Vec<usize>,
) -> Row {
    let ranks: Vec<&RankRates> = members.iter().filter_map(|&at| rates.ranks.get(at)).collect();
    let busiest = ranks.iter().max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s).then(a.ops.cmp(&b.ops)));
    let first = ranks.first().and_then(|rank| rank.key);
    let total = |value: fn(&RankRates) -> f64| {
        let values = ranks.iter().map(|rank| value(rank));
        match view {
            View::Communicators => values.fold(0.0, f64::max),
            // Ranks that do the same, or one: their mean.
            #[expect(clippy::cast_precision_loss, reason = "a number of ranks")]
            View::Ranks => values.sum::<f64>() / ranks.len().max(1) as f64,
            View::Processes => values.sum(),
        }
    };
    let n_ranks = ranks.first().map_or(0, |rank| rank.n_ranks);
    let (comm, rank, pid) = match (view, key) {
        (_, None) => (format!("other ({})", rates.folded_ranks), String::new(), String::new()),
        (View::Ranks, Some(key)) => {
            let numbers: Vec<i32> = ranks.iter().filter_map(|rank| Some(rank.key?.rank)).collect();
            (key.comm_name(), rank_cell(&numbers, n_ranks), several(&ranks))
        }
        (View::Communicators, Some(key)) => {
            (key.comm_name(), format!("{} of {n_ranks}", ranks.len()), several(&ranks))
        }
        (View::Processes, Some(key)) => (counted(ranks.len(), "rank"), String::new(), key.pid.to_string()),
    };
    Row {
        job: first.and_then(|key| jobs.get(&key.pid)).cloned().unwrap_or_default(),
        comm,
        rank,
        pid,
        name: first
            .and_then(|key| subject.processes.get(&key.pid))
            .map(|process| process.member.program.clone())
            .unwrap_or_default(),
        ops_per_s: total(|rank| rank.ops_per_s),
        bytes_per_s: total(|rank| rank.bytes_per_s),
        bytes_are_least: ranks.iter().any(|rank| rank.unsized_ops > 0),
        kinds: match view {
            View::Processes => in_order(&joined_kinds(&ranks)),
            _ => busiest.map(|rank| in_order(&rank.kinds)).unwrap_or_default(),
        },
        idle_s: ranks.iter().map(|rank| rank.idle_s).fold(f64::INFINITY, f64::min),
        has_exited: !ranks.is_empty()
            && ranks.iter().all(|rank| {
                let process = rank.key.and_then(|key| subject.processes.get(&key.pid));
                process.is_some_and(|process| process.has_exited)
            }),
        lags: ranks.iter().filter_map(|rank| Some((rank.key?.rank, rank.lag?))).collect(),
        key,
        first_pid: first.map_or(u32::MAX, |key| key.pid),
        n_ranks: if view == View::Processes { 0 } else { n_ranks },
        members,
    }
}

/// `3/8`; of several ranks `0-14, 16-63` where there is room, or `63 of 64`.
fn rank_cell(numbers: &[i32], n_ranks: i32) -> String {
    match numbers {
        [number] => format!("{number}/{n_ranks}"),
        numbers => {
            let ranges = ranges(numbers);
            if ranges.len() <= MAX_RANGES { ranges } else { format!("{} of {n_ranks}", numbers.len()) }
        }
    }
}

/// Adds up the kinds of op of several ranks.
fn joined_kinds(ranks: &[&RankRates]) -> Vec<KindRates> {
    let mut sums: Vec<KindRates> = Vec::new();
    for kind in ranks.iter().flat_map(|rank| &rank.kinds) {
        let name = |kind: &KindRates| (kind.coll.clone(), kind.algorithm, kind.protocol);
        let Some(sum) = sums.iter_mut().find(|sum| name(sum) == name(kind)) else {
            sums.push(kind.clone());
            continue;
        };
        sum.ops = sum.ops.saturating_add(kind.ops);
        sum.ops_per_s += kind.ops_per_s;
        sum.bytes = sum.bytes.saturating_add(kind.bytes);
        sum.bytes_per_s += kind.bytes_per_s;
        sum.unsized_ops = sum.unsized_ops.saturating_add(kind.unsized_ops);
    }
    sums
}

/// Puts kinds of op that there are about as many of in the order of their names: they do not change places
/// at each refresh.
fn in_order(kinds: &[KindRates]) -> Vec<KindRates> {
    let mut kinds = kinds.to_vec();
    kinds.sort_by_cached_key(|kind| (Reverse(kind.ops.checked_ilog2()), kind.label()));
    kinds
}

fn several(ranks: &[&RankRates]) -> String {
    let mut pids: Vec<u32> = ranks.iter().filter_map(|rank| Some(rank.key?.pid)).collect();
    pids.sort_unstable();
    pids.dedup();
    match &*pids {
        [pid] => pid.to_string(),
        pids => format!("{} procs", pids.len()),
    }
}

impl Row {
    /// Returns its place in the order by job, communicator (the largest first) and rank; ranks without a name
    /// come last.
    fn place(&self) -> impl Ord + use<'_> {
        (self.key.is_none(), &self.job, Reverse(self.n_ranks), self.key, self.first_pid)
    }

    /// Returns how it lags: `by receivers`; of one of several ranks `rank 15 by receivers`.
    pub(super) fn waited_for(&self) -> String {
        let Some(((rank, lag), others)) = self.lags.split_first() else { return String::new() };
        let name = if self.members.len() > 1 { format!("rank {rank} ") } else { String::new() };
        let more = if others.is_empty() { String::new() } else { format!(", {} more", others.len()) };
        format!("{name}{}{more}", lag.label())
    }

    fn matches(&self, wanted: &str) -> bool {
        let kinds = self.kinds.iter().map(KindRates::label);
        [&self.job, &self.comm, &self.rank, &self.pid, &self.name]
            .into_iter()
            .cloned()
            .chain(kinds)
            .chain([self.waited_for()])
            .any(|text| text.to_lowercase().contains(wanted))
    }
}

impl Lag {
    pub(super) fn label(self) -> String {
        match self {
            Self::Behind(collectives) => format!("behind {collectives}"),
            Self::WaitedFor(_) => "by receivers".to_owned(),
        }
    }
}

impl KindRates {
    /// `AllReduce RING/SIMPLE`.
    pub(super) fn label(&self) -> String {
        let coll = self.coll.as_deref().unwrap_or("other");
        let algorithm = self.algorithm_and_protocol();
        if algorithm.is_empty() { coll.to_owned() } else { format!("{coll} {algorithm}") }
    }

    /// `RING/SIMPLE`; the protocol alone for p2p.
    pub(super) fn algorithm_and_protocol(&self) -> String {
        joined(self.algorithm.into_iter().chain(self.protocol), "/")
    }
}
