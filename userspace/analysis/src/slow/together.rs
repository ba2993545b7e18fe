//! What holds all ranks back together: no rank is to blame.

use super::{
    evidence::{Evidence, LateRanks},
    launches::median,
    text,
    verdict::{Cause, FAULT_PERCENT, Kind},
};

/// Iterations on either side of a change, and in all where pauses are looked for.
const MIN_ITERATIONS: usize = 16;

/// Fewest pauses.
const MIN_PAUSES: usize = 3;

/// Standard errors by which iterations must become longer: their lengths depend on each other.
const CHANGE_ERRORS: f64 = 8.0;

/// Part by which iterations must become longer: under a power cap healthy GPUs drift by up to 4 %.
const CHANGE_PERCENT: f64 = 5.0;

/// Share of the time in which all GPUs have nothing to run, from which on it is told.
const IDLE_PERCENT: f64 = 10.0;

/// Returns what all ranks have in common; all of it are notes.
pub(super) fn causes(evidence: &Evidence) -> Vec<Cause> {
    let late = evidence.late.first();
    let found = [late.and_then(|late| slower(evidence, late)), late.and_then(|late| pauses(evidence, late))];
    found.into_iter().flatten().chain(idle(evidence)).collect()
}

fn note(evidence: &Evidence, kind: Kind, percent: f64, text: String) -> Cause {
    Cause { kind, is_note: true, text, ..Cause::sized(percent, evidence.iteration, 0.9) }
}

/// Tells of a moment from which on iterations are longer.
fn slower(evidence: &Evidence, late: &LateRanks) -> Option<Cause> {
    let iterations: Vec<(u64, u64)> = late
        .late
        .iterations
        .iter()
        .filter_map(|iteration| Some((iteration.begun_ns, iteration.lasted_ns?)))
        .collect();
    let typical = median(iterations.iter().map(|(_, ns)| *ns).collect());
    // A pause is no change.
    #[expect(clippy::cast_precision_loss, reason = "lengths of iterations")]
    let lasted: Vec<f64> =
        iterations.iter().map(|(_, ns)| (*ns).min(typical.saturating_mul(2)) as f64).collect();
    let at = change(&lasted)?;
    let (before, after) = iterations.split_at_checked(at)?;
    let length = |part: &[(u64, u64)]| median(part.iter().map(|(_, ns)| *ns).collect());
    let (before_ns, after_ns) = (length(before), length(after));
    #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
    let percent = after_ns.saturating_sub(before_ns) as f64 * 100.0 / before_ns.max(1) as f64;
    let since_ns = after.first()?.0;
    (percent >= CHANGE_PERCENT)
        .then(|| note(evidence, Kind::All, percent, text::slower(before_ns, after_ns, since_ns)))
}

/// Returns the index from which on values are larger, if that is certain.
#[expect(clippy::cast_precision_loss, reason = "numbers of iterations")]
fn change(values: &[f64]) -> Option<usize> {
    let n = values.len();
    let (sum, squares) =
        values.iter().fold((0.0, 0.0), |(sum, squares), value| (sum + value, squares + value * value));
    let (mut before, mut before_squares, mut best) = (0.0, 0.0, None::<(f64, usize)>);
    for (at, value) in values.iter().enumerate().map(|(at, value)| (at + 1, value)) {
        before += value;
        before_squares += value * value;
        if at < MIN_ITERATIONS || n - at < MIN_ITERATIONS {
            continue;
        }
        let (first, second) = (at as f64, (n - at) as f64);
        let (mean, later) = (before / first, (sum - before) / second);
        let variance = (before_squares / first - mean * mean).max(0.0) / first
            + ((squares - before_squares) / second - later * later).max(0.0) / second;
        let errors = (later - mean) / variance.sqrt().max(mean * 1e-6);
        if errors >= CHANGE_ERRORS && best.is_none_or(|(most, _)| errors > most) {
            best = Some((errors, at));
        }
    }
    best.map(|(_, at)| at)
}

/// Tells of iterations that are much longer, in which no rank is late.
fn pauses(evidence: &Evidence, late: &LateRanks) -> Option<Cause> {
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
    let all: u64 = iterations.iter().filter_map(|iteration| iteration.lasted_ns).sum();
    #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
    let percent = longer.iter().sum::<u64>() as f64 * 100.0 / all.max(1) as f64;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_found_where_it_is_and_noise_is_none() {
        let noise = |at: usize| f64::from(u32::try_from(at * 7919 % 101).unwrap()) / 100.0;
        let steady: Vec<f64> = (0..200).map(|at| 100.0 + noise(at)).collect();
        assert_eq!(change(&steady), None);
        let slower: Vec<f64> = (0..200).map(|at| if at < 80 { 100.0 } else { 104.0 } + noise(at)).collect();
        assert!((78..=82).contains(&change(&slower).unwrap()), "{:?}", change(&slower));
        let faster: Vec<f64> = slower.iter().map(|value| 300.0 - value).collect();
        assert_eq!(change(&faster), None);
    }
}
