//! Rows of the table: ranks, communicators or processes, sorted and filtered.

use std::collections::BTreeMap;

use clap::ValueEnum;

use super::{
    lag::Lag,
    rates::{KindRates, RankRates, Rates},
    subject::Subject,
};
use flow::statistics::RankKey;

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

impl View {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ranks => "ranks",
            Self::Communicators => "communicators",
            Self::Processes => "processes",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Ops a second
    #[default]
    Ops,
    /// Bytes a second
    Bytes,
    /// Those that lag, then those that nothing was seen of for long
    Lag,
    /// Communicator and rank
    Comm,
    /// Process
    Pid,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ops => "ops/s",
            Self::Bytes => "bytes/s",
            Self::Lag => "lag",
            Self::Comm => "communicator",
            Self::Pid => "pid",
        }
    }
}

/// Returns the choice after this one; after the last, the first.
pub(super) fn next<C: ValueEnum + PartialEq>(choice: &C) -> C {
    let mut all = C::value_variants().iter().cycle().skip_while(|one| *one != choice);
    all.nth(1).unwrap_or(choice).clone()
}

#[derive(Clone, Debug)]
pub struct Row {
    /// `commHash`, or its placeholder.
    pub comm: String,
    pub rank: String,
    pub pid: String,
    pub name: String,
    pub ops_per_s: f64,
    pub bytes_per_s: f64,
    /// There were ops whose bytes are not known.
    pub bytes_are_least: bool,
    /// Kinds of op, most first.
    pub kinds: Vec<KindRates>,
    pub idle_s: f64,
    pub lag: Option<Lag>,
    /// Ranks of the row, as indexes into [`Rates::ranks`].
    pub members: Vec<usize>,
    order: (Option<RankKey>, u32),
}

/// Returns the rows of a view that contain `filter` in any of their columns.
pub fn rows(rates: &Rates, subject: &Subject, view: View, sort: Sort, filter: &str) -> Vec<Row> {
    let mut groups: BTreeMap<(bool, Option<RankKey>), Vec<usize>> = BTreeMap::new();
    for (at, rank) in rates.ranks.iter().enumerate() {
        let group = rank.key.map(|key| match view {
            View::Ranks => key,
            View::Communicators => RankKey { rank: 0, pid: 0, ..key },
            View::Processes => RankKey { hash: None, instance: 0, rank: 0, pid: key.pid },
        });
        groups.entry((group.is_none(), group)).or_default().push(at);
    }
    let mut rows: Vec<Row> =
        groups.into_iter().map(|((_, key), members)| row(rates, subject, view, key, members)).collect();
    let wanted = filter.to_lowercase();
    rows.retain(|row| wanted.is_empty() || row.matches(&wanted));
    rows.sort_by(|a, b| compare(a, b, sort).then_with(|| a.order.cmp(&b.order)));
    rows
}

fn compare(a: &Row, b: &Row, sort: Sort) -> std::cmp::Ordering {
    match sort {
        Sort::Ops => b.ops_per_s.total_cmp(&a.ops_per_s),
        Sort::Bytes => b.bytes_per_s.total_cmp(&a.bytes_per_s),
        Sort::Lag => b.lag.is_some().cmp(&a.lag.is_some()).then(b.idle_s.total_cmp(&a.idle_s)),
        Sort::Comm => std::cmp::Ordering::Equal,
        Sort::Pid => a.order.1.cmp(&b.order.1),
    }
}

fn row(rates: &Rates, subject: &Subject, view: View, key: Option<RankKey>, members: Vec<usize>) -> Row {
    let ranks: Vec<&RankRates> = members.iter().filter_map(|&at| rates.ranks.get(at)).collect();
    let busiest = ranks.iter().max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s).then(a.ops.cmp(&b.ops)));
    let first = ranks.first().and_then(|rank| rank.key);
    let total = |value: fn(&RankRates) -> f64| {
        let values = ranks.iter().map(|rank| value(rank));
        if view == View::Communicators { values.fold(0.0, f64::max) } else { values.sum() }
    };
    let n_ranks = ranks.first().map_or(0, |rank| rank.n_ranks);
    let (comm, rank, pid) = match (view, key) {
        (_, None) => (format!("other ({})", rates.folded_ranks), String::new(), String::new()),
        (View::Ranks, Some(key)) => (key.comm_name(), format!("{}/{n_ranks}", key.rank), key.pid.to_string()),
        (View::Communicators, Some(key)) => {
            (key.comm_name(), format!("{} of {n_ranks}", ranks.len()), several(&ranks))
        }
        (View::Processes, Some(key)) => {
            (format!("{} of it", ranks.len()), String::new(), key.pid.to_string())
        }
    };
    Row {
        comm,
        rank,
        pid,
        name: first.map_or_else(String::new, |key| subject.name(key.pid).to_owned()),
        ops_per_s: total(|rank| rank.ops_per_s),
        bytes_per_s: total(|rank| rank.bytes_per_s),
        bytes_are_least: ranks.iter().any(|rank| rank.unsized_ops > 0),
        kinds: busiest.map(|rank| rank.kinds.clone()).unwrap_or_default(),
        idle_s: ranks.iter().map(|rank| rank.idle_s).fold(f64::INFINITY, f64::min),
        lag: ranks.iter().find_map(|rank| rank.lag),
        order: (key, first.map_or(u32::MAX, |key| key.pid)),
        members,
    }
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
    /// Returns what makes it the same row at another time.
    pub(super) fn identity(&self) -> (String, String, String) {
        (self.comm.clone(), self.rank.clone(), self.pid.clone())
    }

    fn matches(&self, wanted: &str) -> bool {
        let kinds = self.kinds.iter().map(KindRates::label);
        [&self.comm, &self.rank, &self.pid, &self.name]
            .into_iter()
            .cloned()
            .chain(kinds)
            .chain(self.lag.map(Lag::label))
            .any(|text| text.to_lowercase().contains(wanted))
    }
}

impl Lag {
    pub(super) fn label(self) -> String {
        match self {
            Self::Behind(collectives) => format!("behind {collectives}"),
            Self::WaitedFor(_) => "waited for".to_owned(),
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
        [self.algorithm, self.protocol].into_iter().flatten().collect::<Vec<_>>().join("/")
    }
}
