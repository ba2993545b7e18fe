//! The ring algorithms.

use super::kernel::CollWork;
use super::primitives::{Primitives, Step};

/// This rank's place in a channel's ring.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) index: usize,
    /// User ranks in ring order, this one first.
    pub(crate) ranks: Vec<usize>,
}

/// Every rank's vector is cut into one chunk per rank. Each chunk goes round the ring twice: once to be
/// summed, once to be distributed.
pub(crate) async fn all_reduce(work: &CollWork, ring: &Ring, prims: &mut Primitives<'_>) {
    let ranks = ring.ranks.len();
    for round in work.rounds(ranks) {
        let at = |back: usize| {
            let place = round.begin + (ring.index + 2 * ranks - back) % ranks * round.chunk;
            (work.input(place), work.output(place), round.elems(place))
        };
        let (input, _, elems) = at(1);
        prims.step(Step { send: true, input: Some(input), elems, ..Step::default() }).await;
        for back in 2..ranks {
            let (input, _, elems) = at(back);
            prims.step(Step { recv: true, send: true, input: Some(input), elems, ..Step::default() }).await;
        }
        let (input, output, elems) = at(0);
        prims.step(Step { recv: true, send: true, input: Some(input), output: Some(output), elems }).await;
        for back in 1..ranks - 1 {
            let (_, output, elems) = at(back);
            prims.step(Step { recv: true, send: true, output: Some(output), elems, ..Step::default() }).await;
        }
        let (_, output, elems) = at(ranks - 1);
        prims.step(Step { recv: true, output: Some(output), elems, ..Step::default() }).await;
    }
}

pub(crate) async fn all_gather(work: &CollWork, ring: &Ring, prims: &mut Primitives<'_>) {
    let ranks = ring.ranks.len();
    for (place, elems) in work.chunks() {
        let output = |rank: usize| Some(work.output(place + ring.ranks[rank % ranks] * work.count));
        let input = Some(work.input(place));
        prims.step(Step { send: true, input, output: output(0), elems, ..Step::default() }).await;
        for back in 1..ranks - 1 {
            let output = output(ranks - back);
            prims.step(Step { recv: true, send: true, output, elems, ..Step::default() }).await;
        }
        prims.step(Step { recv: true, output: output(1), elems, ..Step::default() }).await;
    }
}

pub(crate) async fn reduce_scatter(work: &CollWork, ring: &Ring, prims: &mut Primitives<'_>) {
    let ranks = ring.ranks.len();
    for (place, elems) in work.chunks() {
        let input = |rank: usize| Some(work.input(place + ring.ranks[rank % ranks] * work.count));
        prims.step(Step { send: true, input: input(ranks - 1), elems, ..Step::default() }).await;
        for back in 2..ranks {
            let input = input(ranks - back);
            prims.step(Step { recv: true, send: true, input, elems, ..Step::default() }).await;
        }
        let output = Some(work.output(place));
        prims.step(Step { recv: true, input: input(0), output, elems, ..Step::default() }).await;
    }
}

pub(crate) async fn broadcast(work: &CollWork, ring: &Ring, prims: &mut Primitives<'_>) {
    let (this_is_root, next_is_root) = (ring.ranks[0] == work.root, ring.ranks[1] == work.root);
    for (place, elems) in work.chunks() {
        prims
            .step(Step {
                recv: !this_is_root,
                send: !next_is_root,
                input: this_is_root.then(|| work.input(place)),
                output: Some(work.output(place)),
                elems,
            })
            .await;
    }
}

pub(crate) async fn reduce(work: &CollWork, ring: &Ring, prims: &mut Primitives<'_>) {
    let last = ring.ranks.len() - 1;
    let (this_is_root, previous_is_root) = (ring.ranks[0] == work.root, ring.ranks[last] == work.root);
    for (place, elems) in work.chunks() {
        prims
            .step(Step {
                recv: !previous_is_root,
                send: !this_is_root,
                input: Some(work.input(place)),
                output: this_is_root.then(|| work.output(place)),
                elems,
            })
            .await;
    }
}
