//! A moment from which on iterations are longer.

use super::launches::median;

/// Iterations on either side of it.
const MIN_ITERATIONS: usize = 16;

/// Standard errors by which iterations must become longer: their lengths depend on each other.
const CHANGE_ERRORS: f64 = 8.0;

/// Part by which iterations must become longer: under a power cap healthy GPUs drift by up to 4 %.
const CHANGE_PERCENT: f64 = 5.0;

/// Iterations became longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slowdown {
    /// Usual length of iterations before it, and after it, in nanoseconds.
    pub(super) before: u64,
    pub(super) after: u64,
    /// Wall time.
    pub(super) since_ns: u64,
}

impl Slowdown {
    /// Finds it in iterations, by the wall time of their begin, and their length.
    pub(super) fn find(iterations: &[(u64, u64)]) -> Option<Self> {
        let typical = median(iterations.iter().map(|(_, ns)| *ns).collect());
        // A pause is no change.
        #[expect(clippy::cast_precision_loss, reason = "lengths of iterations")]
        let lasted: Vec<f64> =
            iterations.iter().map(|(_, ns)| (*ns).min(typical.saturating_mul(2)) as f64).collect();
        let (earlier, later) = iterations.split_at_checked(change(&lasted)?)?;
        let length = |part: &[(u64, u64)]| median(part.iter().map(|(_, ns)| *ns).collect());
        let found = Self { before: length(earlier), after: length(later), since_ns: later.first()?.0 };
        (found.percent() >= CHANGE_PERCENT).then_some(found)
    }

    /// Returns by how many percent iterations are longer.
    #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
    pub(super) fn percent(&self) -> f64 {
        self.after.saturating_sub(self.before) as f64 * 100.0 / self.before.max(1) as f64
    }

    /// Returns the part of the longer iterations by which they are longer, in percent.
    pub(super) fn percent_of_after(&self) -> f64 {
        let percent = self.percent();
        100.0 * percent / (100.0 + percent)
    }
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
