//! Traces of torch's profiler that are used beside recordings: are they of the same job, and of its time?

use std::{collections::BTreeMap, path::Path};

use anyhow::{Result, bail, ensure};

use crate::sources::Source;

/// What a trace says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct TorchTrace<'t> {
    pub(super) path: &'t Path,
    /// Rank of the job.
    pub(super) rank: Option<i32>,
    /// Number of ranks of the job.
    pub(super) world_size: Option<i32>,
    /// Unix times of its begin and end, in ns.
    pub(super) span_ns: (u64, u64),
}

/// Refuses traces that do not belong to the recordings.
///
/// # Errors
/// If two traces are of one rank, or one is of another time, or of another job, than the recordings.
pub(super) fn check(traces: &[TorchTrace<'_>], sources: &[Source]) -> Result<()> {
    let mut ranks: BTreeMap<i32, &Path> = BTreeMap::new();
    for trace in traces {
        let Some(rank) = trace.rank else { continue };
        if let Some(other) = ranks.insert(rank, trace.path) {
            bail!("`{}` and `{}` are both of rank {rank}", other.display(), trace.path.display());
        }
    }
    let recordings = Recordings::of(sources);
    let strangers: Vec<String> = traces.iter().flat_map(|trace| recordings.differs_from(trace)).collect();
    ensure!(strangers.is_empty(), "{}", strangers.join("; "));
    Ok(())
}

/// Returns how far the clock of the host of a rank of the job is ahead of that by which the times of its
/// recording are.
pub(super) fn ahead_ns(rank: i32, sources: &[Source]) -> Option<i64> {
    let has_rank = |source: &&Source| {
        let session = source.session();
        let of_communicators = session.communicators.iter().filter_map(|row| row.job_rank);
        let of_processes = session.targets.iter().filter_map(|target| target.job.as_ref()?.rank);
        of_communicators.chain(of_processes).any(|known| i32::try_from(known) == Ok(rank))
    };
    Some(sources.iter().find(has_rank)?.clock.as_ref()?.1.ahead_ns)
}

/// What recordings say of their jobs and times.
#[derive(Debug, Default)]
struct Recordings {
    /// Unix times of the first and the last record of each that has any, in ns.
    spans_ns: Vec<(u64, u64)>,
    /// Sizes of their jobs, where something states them.
    sizes: Vec<i32>,
    /// Ranks of the largest communicator.
    largest: i32,
}

impl Recordings {
    fn of(sources: &[Source]) -> Self {
        let mut all = Self::default();
        for source in sources {
            let unix = |at: u64| at.saturating_add(source.unix_offset_ns());
            all.spans_ns.extend(source.span_ns.map(|(first, last)| (unix(first), unix(last))));
            let session = source.session();
            let ranks = session.communicators.iter().map(|row| row.n_ranks).max();
            all.largest = all.largest.max(ranks.unwrap_or_default());
            // A derived size is that of the largest communicator: the job can be larger.
            let jobs = session.targets.iter().filter_map(|target| target.job.as_ref());
            let stated = jobs.filter(|job| job.size_source.is_some_and(|source| !source.is_derived()));
            all.sizes.extend(stated.filter_map(|job| i32::try_from(job.size?).ok()));
        }
        all
    }

    fn differs_from(&self, trace: &TorchTrace<'_>) -> Vec<String> {
        let path = trace.path.display();
        let time = self.time_between(trace.span_ns);
        let time = time.map(|(seconds, what)| format!("`{path}` is of another time: it {what}: {seconds} s"));
        let is_other_size =
            |size: &i32| *size < self.largest || (!self.sizes.is_empty() && !self.sizes.contains(size));
        let size = trace.world_size.filter(is_other_size).map(|size| {
            let own = self.sizes.iter().copied().max().unwrap_or(self.largest);
            format!("`{path}` is of another job: it has {size} ranks, that of the recordings {own}")
        });
        time.into_iter().chain(size).collect()
    }

    /// Returns the seconds between a trace and the recordings, if they have no moment in common.
    fn time_between(&self, (begin, end): (u64, u64)) -> Option<(u64, &'static str)> {
        let first = self.spans_ns.iter().map(|(first, _)| *first).min()?;
        let last = self.spans_ns.iter().map(|(_, last)| *last).max()?;
        let (ns, what) = if end < first {
            (first - end, "ends so long before the recordings begin")
        } else if begin > last {
            (begin - last, "begins so long after the recordings end")
        } else {
            return None;
        };
        Some((ns / 1_000_000_000, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn trace(world_size: Option<i32>, begin: u64, end: u64) -> TorchTrace<'static> {
        let span_ns = (begin * SECOND, end * SECOND);
        TorchTrace { path: Path::new("t.json"), rank: Some(0), world_size, span_ns }
    }

    #[test]
    fn traces_of_another_time_or_job_are_told() {
        let of = |sizes: &[i32]| Recordings {
            spans_ns: vec![(100 * SECOND, 110 * SECOND), (105 * SECOND, 120 * SECOND)],
            sizes: sizes.to_vec(),
            largest: 8,
        };
        let said = |sizes: &[i32], trace| of(sizes).differs_from(&trace).join("; ");
        assert_eq!(said(&[16], trace(Some(16), 90, 100)), "");
        assert_eq!(said(&[], trace(Some(16), 115, 200)), "", "the job can be larger than what was seen");
        assert_eq!(said(&[16], trace(None, 119, 200)), "");
        let before = "`t.json` is of another time: it ends so long before the recordings begin: 10 s";
        assert_eq!(said(&[], trace(None, 80, 90)), before);
        assert!(said(&[], trace(None, 125, 200)).ends_with("after the recordings end: 5 s"));
        let other = "`t.json` is of another job: it has 4 ranks, that of the recordings ";
        assert_eq!(said(&[], trace(Some(4), 100, 110)), format!("{other}8"));
        assert_eq!(said(&[16], trace(Some(4), 100, 110)), format!("{other}16"));
        assert!(said(&[16], trace(Some(12), 100, 110)).contains("12 ranks"));
    }

    #[test]
    fn two_traces_of_one_rank_are_refused() {
        let traces = [trace(None, 1, 2), trace(None, 1, 2)];
        let error = check(&traces, &[]).unwrap_err().to_string();
        assert_eq!(error, "`t.json` and `t.json` are both of rank 0");
    }
}
