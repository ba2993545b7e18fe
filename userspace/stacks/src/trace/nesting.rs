//! Finds callers on a thread: a slice was called by those that enclose its begin.

use std::{cmp::Reverse, num::NonZeroU32};

use anyhow::{Result, bail};

use super::{names::NameId, open_slices::MAX_DEPTH};

/// A slice of one thread, in 24 bytes: whole traces are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadSlice {
    pub(super) begin: i64,
    pub(super) end: i64,
    pub(super) name: NameId,
    /// Number of the launch that the slice is, if it is one.
    pub(super) launch: Option<LaunchId>,
}

/// The number of a launch, from 1.
pub(super) type LaunchId = NonZeroU32;

/// A time on a thread at which kernels were launched, by the slice that encloses it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) at: i64,
    pub(super) kernels: u64,
}

/// Calls `each` with the names from the outermost slice to the launch, the launch and at most `depth`
/// callers, and the number of kernels, for each slice of which `kernels_of` knows some, and each of `points`.
/// Returns the kernels of points that no slice encloses.
///
/// A slice that has ended is no caller. One that goes on is, also where a slice that it called seems to end
/// later: profilers round begin and end each for itself.
pub(super) fn walk(
    slices: &mut [ThreadSlice],
    kernels_of: impl Fn(LaunchId) -> u64,
    points: &mut [Point],
    depth: usize,
    mut each: impl FnMut(&[NameId], u64),
) -> Result<u64> {
    // Among slices of the same times a launch is the innermost; otherwise the first in the file calls the
    // next: the sort is stable.
    slices.sort_by_key(|slice| (slice.begin, Reverse(slice.end), slice.launch));
    points.sort_by_key(|point| point.at);
    let mut points = points.iter().peekable();
    let mut stack = CallStack { open: Vec::new(), names: Vec::new(), depth };
    let mut alone = 0;
    for slice in slices {
        while let Some(point) = points.next_if(|point| point.at < slice.begin) {
            alone += stack.at_point(point, &mut each);
        }
        stack.enter(*slice)?;
        if let Some(kernels) = slice.launch.map(&kernels_of).filter(|kernels| *kernels > 0) {
            each(stack.names(stack.open.len() - 1, slice.begin), kernels);
        }
    }
    points.for_each(|point| alone += stack.at_point(point, &mut each));
    Ok(alone)
}

struct CallStack {
    open: Vec<ThreadSlice>,
    /// Names of the last stack that was asked for.
    names: Vec<NameId>,
    depth: usize,
}

impl CallStack {
    fn enter(&mut self, slice: ThreadSlice) -> Result<()> {
        while self.open.last().is_some_and(|last| last.end <= slice.begin) {
            self.open.pop();
        }
        // Slices that overlap and do not enclose each other can lie below one that goes on.
        if self.open.len() >= MAX_DEPTH {
            self.open.retain(|open| open.end > slice.begin);
        }
        if self.open.len() >= MAX_DEPTH {
            bail!("more than {MAX_DEPTH} slices enclose one: not a profiler's trace");
        }
        self.open.push(slice);
        Ok(())
    }

    fn at_point(&mut self, point: &Point, each: &mut impl FnMut(&[NameId], u64)) -> u64 {
        let encloses = |slice: &ThreadSlice| slice.end > point.at || slice.begin == point.at;
        let Some(innermost) = self.open.iter().rposition(encloses) else { return point.kernels };
        each(self.names(innermost, point.at), point.kernels);
        0
    }

    /// Returns the names of the slice at this place of the stack and of those that call it.
    fn names(&mut self, innermost: usize, at: i64) -> &[NameId] {
        self.names.clear();
        self.names.push(self.open[innermost].name);
        let callers = self.open[..innermost].iter().rev().filter(|slice| slice.end > at);
        self.names.extend(callers.take(self.depth).map(|slice| slice.name));
        self.names.reverse();
        &self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(begin: i64, end: i64, name: u32, launch: u32) -> ThreadSlice {
        ThreadSlice { begin, end, name: NameId(name), launch: LaunchId::new(launch) }
    }

    fn walked(
        mut slices: Vec<ThreadSlice>,
        points: &[(i64, u64)],
        depth: usize,
    ) -> (Vec<(Vec<u32>, u64)>, u64) {
        let mut found = Vec::new();
        let mut points: Vec<_> =
            points.iter().map(|(at, kernels)| Point { at: *at, kernels: *kernels }).collect();
        let each =
            |names: &[NameId], kernels| found.push((names.iter().map(|name| name.0).collect(), kernels));
        let alone =
            walk(&mut slices, |launch| u64::from(launch.get() - 1), &mut points, depth, each).unwrap();
        (found, alone)
    }

    #[test]
    fn callers_enclose_the_begin_of_a_launch() {
        let slices = vec![
            // A launch that seems to end after its caller, one before it, and one that begins at the same
            // time.
            slice(40, 61, 9, 2),
            slice(0, 100, 1, 0),
            slice(10, 40, 2, 0),
            slice(40, 60, 3, 0),
            slice(50, 55, 8, 4),
            slice(70, 70, 7, 3),
            slice(80, 90, 6, 1),
        ];
        let (found, alone) = walked(slices.clone(), &[(5, 10), (75, 20), (100, 5), (-1, 6)], 12);
        let expected: [(&[u32], u64); 5] =
            [(&[1], 10), (&[1, 9], 1), (&[1, 9, 3, 8], 3), (&[1, 7], 2), (&[1], 20)];
        assert_eq!(found, expected.map(|(names, kernels)| (names.to_vec(), kernels)));
        assert_eq!(alone, 11);
        let (cut, _) = walked(slices, &[], 1);
        assert_eq!(cut[1], (vec![3, 8], 3));
    }

    #[test]
    fn what_takes_the_same_time_is_called_in_the_order_of_the_file() {
        let slices = vec![slice(0, 9, 5, 2), slice(0, 9, 1, 0), slice(0, 9, 2, 0)];
        assert_eq!(walked(slices, &[], 12).0, [(vec![1, 2, 5], 1)]);
    }

    #[test]
    fn overlapping_slices_do_not_pile_up_and_deep_nesting_is_refused() {
        let count = i64::try_from(3 * MAX_DEPTH).unwrap();
        let overlapping = |length| (0..count).map(|at| slice(at, at + length, 0, 0)).collect::<Vec<_>>();
        let calls = |mut slices: Vec<_>| walk(&mut slices, |_| 0, &mut [], 12, |_, _| ());
        assert_eq!(calls(overlapping(100)).unwrap(), 0);
        assert!(calls(overlapping(count)).unwrap_err().to_string().contains("enclose one"));
    }
}
