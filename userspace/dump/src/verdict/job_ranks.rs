//! Processes of a job by the ranks that a launcher gave them, before there is a communicator: who is not
//! where the others are.

use super::{
    Kind, State,
    case::{MAX_SENTENCES, named},
    job::JobVerdict,
};
use crate::{dump_report::ProcessReport, python::place};
use flow::text::joined;

/// Processes of one job, by their ranks in it.
pub(super) struct Job<'a> {
    pub(super) size: u32,
    pub(super) ranks: Vec<(u32, &'a ProcessReport)>,
}

impl<'a> Job<'a> {
    /// Makes a job of processes; `None` if they are of several jobs of one size, which cannot be told apart.
    pub(super) fn new(size: u32, mut ranks: Vec<(u32, &'a ProcessReport)>) -> Option<Self> {
        ranks.sort_by_key(|(rank, _)| *rank);
        let is_one = ranks.windows(2).all(|pair| pair[0].0 != pair[1].0);
        is_one.then_some(Self { size, ranks })
    }

    /// Returns the ranks of the job that were not read, the first of them if there are very many: the size is
    /// what a tenant's environment says.
    pub(super) fn missing(&self) -> Vec<u32> {
        const MAX_LISTED: usize = 65_536;
        let is_read = |rank: &u32| self.ranks.binary_search_by_key(rank, |(rank, _)| *rank).is_ok();
        (0..self.size).filter(|rank| !is_read(rank)).take(MAX_LISTED).collect()
    }

    /// Says which ranks were not read: `; ranks 4, 5 were not read`.
    pub(super) fn not_read(&self) -> String {
        match &*self.missing() {
            [] => String::new(),
            [one] => format!("; {} was not read", named([one])),
            more => format!("; {} were not read", named(more)),
        }
    }

    /// Makes the verdict that it waits for these ranks. `about` says what for; `how` says of each what it has
    /// not done.
    pub(super) fn waits_for(
        &self,
        kind: Kind,
        about: &str,
        how: &str,
        outside: &[(u32, &ProcessReport)],
    ) -> JobVerdict {
        let state = if outside.iter().all(|(_, process)| makes_progress(process)) {
            State::Waiting
        } else {
            State::Stuck
        };
        let where_is = |rank: u32, process: &ProcessReport| {
            let how = if process.state.is_halted() { "is halted" } else { how };
            format!("rank {rank} (process {}) {how}: {}", process.pid, line_of(process))
        };
        let shown =
            joined(outside.iter().take(MAX_SENTENCES).map(|(rank, process)| where_is(*rank, process)), "; ");
        let more = match outside.len().saturating_sub(MAX_SENTENCES) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let what = if state == State::Stuck { "stuck" } else { "waiting" };
        JobVerdict {
            state,
            kind: Some(kind),
            sentence: format!("{what}: {about}; {shown}{more}{}", self.not_read()),
            next: Some(kind.next_step(outside.iter().map(|(_, process)| process.pid))),
            communicators: Vec::new(),
        }
    }

    /// Makes the verdict that it cannot be told whom the job waits for.
    pub(super) fn cannot_tell(&self, why: &str, next: Option<String>) -> JobVerdict {
        let kind = (!self.missing().is_empty()).then_some(Kind::NotRead);
        JobVerdict {
            state: State::Unknown,
            kind,
            sentence: format!("cannot tell: {why}"),
            next: kind.map(|kind| kind.next_step([])).or(next),
            communicators: Vec::new(),
        }
    }
}

/// Says where the program of a process is.
pub(super) fn line_of(process: &ProcessReport) -> String {
    let place = process.main_thread().and_then(place).or_else(|| process.whereabouts());
    place.unwrap_or_else(|| "its main thread's place is not known".to_owned())
}

fn makes_progress(process: &ProcessReport) -> bool {
    let activity = process.activity.as_ref().and_then(|activity| activity.progress(false));
    !process.state.is_halted() && activity.is_some()
}
