//! What holds all ranks back together: no rank is to blame.

use super::{
    change::Slowdown,
    evidence::Evidence,
    launches::{median, sum},
    text,
    verdict::{Cause, FAULT_PERCENT, Kind},
};

/// Iterations in all where pauses are looked for.
const MIN_ITERATIONS: usize = 16;

/// Fewest pauses.
const MIN_PAUSES: usize = 3;

/// Share of the time in which all GPUs have nothing to run, from which on it is told.
const IDLE_PERCENT: f64 = 10.0;

/// Returns what all ranks have in common; all of it are notes. `pauses`: those of [`pauses`], if nobody is named for
/// them.
pub(super) fn causes(evidence: &Evidence, pauses: Option<Cause>) -> Vec<Cause> {
    [slower(evidence), pauses, idle(evidence)].into_iter().flatten().collect()
}

fn note(evidence: &Evidence, kind: Kind, percent: f64, text: String) -> Cause {
    Cause { kind, is_note: true, text, ..Cause::sized(percent, evidence.iteration, 0.9) }
}

/// Tells of a moment from which on iterations are longer.
fn slower(evidence: &Evidence) -> Option<Cause> {
    let slowdown = evidence.slowdown?;
    let Slowdown { before, after, since_ns } = slowdown;
    let text = text::slower(before, after, since_ns);
    Some(note(evidence, Kind::All, slowdown.percent(), text))
}

/// Tells of iterations that are much longer, in which no rank is late.
pub(super) fn pauses(evidence: &Evidence) -> Option<Cause> {
    let late = evidence.late.first()?;
    let iterations = &late.late.iterations;
    let typical = evidence.iteration?.typical_ns;
    if iterations.len() < MIN_ITERATIONS || late.ranks.len() < 2 {
        return None;
    }
    let is_late = |at: usize, ns: u64| {
        let latest =
            |at: usize| iterations.get(at).and_then(|one| one.late_ns.iter().max()).copied().unwrap_or(0);
        latest(at).max(latest(at + 1)) > ns / 4
    };
    let longer: Vec<u64> = iterations
        .iter()
        .enumerate()
        .filter_map(|(at, iteration)| Some((at, iteration.lasted_ns?.saturating_sub(typical))))
        .filter(|(at, ns)| *ns > typical && !is_late(*at, *ns))
        .map(|(_, ns)| ns)
        .collect();
    let all = sum(iterations.iter().filter_map(|iteration| iteration.lasted_ns));
    #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
    let percent = sum(longer.iter().copied()) as f64 * 100.0 / all.max(1) as f64;
    let (count, usual_ns) = (longer.len(), median(longer));
    (count >= MIN_PAUSES && percent >= FAULT_PERCENT).then(|| {
        let text = text::pause_together(usual_ns, count, iterations.len(), percent);
        note(evidence, Kind::Outside, percent, text)
    })
}

/// Tells of GPUs that all have nothing to run.
fn idle(evidence: &Evidence) -> Option<Cause> {
    let busy: Vec<f64> = evidence.ranks.iter().filter_map(|rank| Some(rank.graphics?.percent)).collect();
    let most = busy.iter().copied().fold(0.0, f64::max);
    let percent = 100.0 - most;
    (busy.len() > 1 && percent >= IDLE_PERCENT)
        .then(|| note(evidence, Kind::Outside, percent, text::all_idle(percent)))
}
