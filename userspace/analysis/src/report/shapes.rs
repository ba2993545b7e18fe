//! Rings and trees, derived from each rank's neighbours on each channel.

use std::collections::{BTreeMap, BTreeSet};

use flow::schema::OpRow;

use super::data::{RingData, TreeData};

/// Most channels of ranks that are kept.
const MAX_PLACES: usize = 131_072;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    prev: i32,
    next: i32,
    up: i32,
    down: [i32; 3],
}

/// Neighbours by communicator, channel and rank.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    places: BTreeMap<(usize, u32, i32), Place>,
}

impl Shapes {
    /// Notes the neighbours in a row. They do not change while a communicator lives.
    pub(super) fn note(&mut self, comm: usize, row: &OpRow) {
        let key = (comm, row.channel, row.rank);
        if self.places.len() >= MAX_PLACES || self.places.contains_key(&key) {
            return;
        }
        let place = Place { prev: row.ring_prev, next: row.ring_next, up: row.tree_up, down: row.tree_down };
        self.places.insert(key, place);
    }

    pub(super) fn is_full(&self) -> bool {
        self.places.len() >= MAX_PLACES
    }

    fn channels(&self, comm: usize) -> BTreeMap<u32, BTreeMap<i32, Place>> {
        let mut channels: BTreeMap<u32, BTreeMap<i32, Place>> = BTreeMap::new();
        let of_comm = (comm, 0, i32::MIN)..=(comm, u32::MAX, i32::MAX);
        for ((_, channel, rank), place) in self.places.range(of_comm) {
            channels.entry(*channel).or_default().insert(*rank, *place);
        }
        channels
    }

    /// Returns the rings; channels with the same order are together.
    pub(super) fn rings(&self, comm: usize) -> Vec<RingData> {
        let mut rings: Vec<RingData> = Vec::new();
        for (channel, ranks) in self.channels(comm) {
            let mut next: BTreeMap<i32, i32> = BTreeMap::new();
            for (rank, place) in &ranks {
                if place.next >= 0 && place.next != *rank {
                    next.insert(*rank, place.next);
                }
                if place.prev >= 0 && place.prev != *rank {
                    next.entry(place.prev).or_insert(*rank);
                }
            }
            let (paths, closed) = follow(&next);
            if paths.is_empty() {
                continue;
            }
            match rings.iter_mut().find(|ring| (&ring.paths, ring.closed) == (&paths, closed)) {
                Some(ring) => ring.channels.push(channel),
                None => rings.push(RingData { channels: vec![channel], paths, closed }),
            }
        }
        rings
    }

    /// Returns the trees; channels with the same edges are together.
    pub(super) fn trees(&self, comm: usize) -> Vec<TreeData> {
        let mut trees: Vec<TreeData> = Vec::new();
        for (channel, ranks) in self.channels(comm) {
            let mut edges: BTreeSet<(i32, i32)> = BTreeSet::new();
            for (rank, place) in ranks {
                if place.up >= 0 {
                    edges.insert((rank, place.up));
                }
                edges.extend(place.down.into_iter().filter(|down| *down >= 0).map(|down| (down, rank)));
            }
            let edges: Vec<(i32, i32)> = edges.into_iter().collect();
            if edges.is_empty() {
                continue;
            }
            match trees.iter_mut().find(|tree| tree.edges == edges) {
                Some(tree) => tree.channels.push(channel),
                None => trees.push(TreeData { channels: vec![channel], edges }),
            }
        }
        trees
    }
}

/// Returns the paths from rank to rank, each from its smallest rank on, and whether they are one circle.
fn follow(next: &BTreeMap<i32, i32>) -> (Vec<Vec<i32>>, bool) {
    let targets: BTreeSet<i32> = next.values().copied().collect();
    let mut left: BTreeMap<i32, i32> = next.clone();
    let (mut paths, mut circles) = (Vec::new(), 0);
    // Paths that begin at a rank to which nothing leads come first; the rest are circles.
    let begins: Vec<i32> = next.keys().copied().filter(|rank| !targets.contains(rank)).collect();
    let mut begins = begins.into_iter();
    while let Some(begin) = begins.next().or_else(|| left.keys().next().copied()) {
        let (mut path, mut at) = (vec![begin], begin);
        while let Some(to) = left.remove(&at) {
            if to == begin {
                circles += 1;
                break;
            }
            path.push(to);
            at = to;
        }
        paths.push(path);
    }
    let is_closed = circles == 1 && paths.len() == 1;
    (paths, is_closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_followed_around_and_a_part_of_one_to_its_end() {
        let next = |edges: &[(i32, i32)]| follow(&edges.iter().copied().collect());
        assert_eq!(next(&[(0, 2), (2, 1), (1, 3), (3, 0)]), (vec![vec![0, 2, 1, 3]], true));
        // Of 6 ranks, only 1 and 4 were recorded.
        assert_eq!(next(&[(0, 1), (1, 2), (3, 4), (4, 5)]), (vec![vec![0, 1, 2], vec![3, 4, 5]], false));
        assert_eq!(next(&[(0, 1), (1, 0)]), (vec![vec![0, 1]], true));
        // Forged: two circles, and a way into one.
        assert_eq!(
            next(&[(0, 1), (1, 0), (2, 3), (3, 2), (9, 0)]),
            (vec![vec![9, 0, 1, 0], vec![2, 3]], false)
        );
        assert_eq!(next(&[]), (vec![], false));
    }
}
