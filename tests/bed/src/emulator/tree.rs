//! All-reduce on a tree: sums go up and the result comes down, side by side except at the root.

use super::executor::{self, Task};
use super::kernel::{Block, CollWork};
use super::primitives::{Primitives, Step};

/// This rank's neighbours in a channel's tree.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) up: Option<usize>,
    pub(crate) down: Vec<usize>,
}

pub(crate) async fn all_reduce(block: &Block<'_>, work: &CollWork, tree: &Tree) {
    let Some(up) = tree.up else {
        let mut prims = block.primitives(&work.func, &tree.down, &tree.down);
        for (place, elems) in work.chunks() {
            let (input, output) = (Some(work.input(place)), Some(work.output(place)));
            prims.step(Step { recv: true, send: true, input, output, elems }).await;
        }
        block.finish(work, prims);
        return;
    };
    let leaf = tree.down.is_empty();
    let summing: Task<'_> = Box::pin(async move {
        let mut prims = block.primitives(&work.func, &tree.down, &[up]);
        for (place, elems) in work.chunks() {
            let input = Some(work.input(place));
            prims.step(Step { recv: !leaf, send: true, input, elems, ..Step::default() }).await;
        }
        block.finish(work, prims);
    });
    let spreading: Task<'_> = Box::pin(async move {
        let mut prims: Primitives<'_> = block.primitives(&work.func, &[up], &tree.down);
        for (place, elems) in work.chunks() {
            let output = Some(work.output(place));
            prims.step(Step { recv: true, send: !leaf, output, elems, ..Step::default() }).await;
        }
        block.finish(work, prims);
    });
    executor::all(vec![summing, spreading]).await;
}
