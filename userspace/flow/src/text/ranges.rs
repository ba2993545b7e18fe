//! Lists of numbers, in few columns.

use super::joined;

/// Most ranges that are written.
const MAX: usize = 16;

/// Writes numbers as ranges, at most 16: `0-2, 5`.
pub fn ranges<N: Into<i128> + Copy>(numbers: &[N]) -> String {
    let mut sorted: Vec<i128> = numbers.iter().map(|&number| number.into()).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut ranges: Vec<(i128, i128)> = Vec::new();
    for number in sorted {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let shown = ranges.iter().take(MAX).map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    });
    let more = if ranges.len() > MAX { ", …" } else { "" };
    joined(shown, ", ") + more
}

/// Names ranks: `rank 3`, `ranks 0-2, 4`.
pub fn name_ranks<N: Into<i128> + Copy>(numbers: &[N]) -> String {
    format!("{} {}", if numbers.len() == 1 { "rank" } else { "ranks" }, ranges(numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range() {
        assert_eq!(ranges::<i32>(&[]), "");
        assert_eq!(name_ranks(&[3]), "rank 3");
        assert_eq!(name_ranks(&[4, 0, 2, 1, 0]), "ranks 0-2, 4");
        assert_eq!(name_ranks(&[0, 1]), "ranks 0, 1");
        assert_eq!(ranges(&[u64::MAX, u64::MAX - 1]), format!("{}, {}", u64::MAX - 1, u64::MAX));
        let even: Vec<i32> = (0..40).step_by(2).collect();
        assert!(ranges(&even).ends_with("28, 30, …"));
    }
}
