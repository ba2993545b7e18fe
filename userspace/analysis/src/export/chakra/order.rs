//! Nodes that must be over before another begins, as far as the recording proves it.
//!
//! Calls of one thread on one stream run in their order. But calls of one group run together, and a send and
//! a receive that wait for each other in the order of a file would never end; and the begin and end of a
//! group are not recorded. So a node waits only for nodes that are proven to have been launched before it was
//! called:
//!
//! - those called before a collective that NCCL had launched when the node was called (`launched`): whatever
//!   a thread calls before that is in the same group, or in one before;
//! - those in another launch of the same communicator, where launches were recorded and calls were not: NCCL
//!   runs the launches of a communicator one after the other.
//!
//! NCCL also keeps the order of a communicator's collectives, of sends to one peer, and of receives from one.

use std::collections::HashMap;

/// Most dependencies of a node on earlier ones. If there are more, a node that does nothing joins them.
pub(super) const MAX_DEPENDENCIES: usize = 64;

/// Most nodes that are kept while they are not proven to be over. For more it is not found out any more.
const MAX_OPEN: usize = 8192;

/// A sequence of nodes of which each follows the one before in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Chain {
    /// Collectives of a communicator.
    Collectives(i32),
    /// Sends to a peer, on a communicator.
    Sends(i32, i32),
    Receives(i32, i32),
}

/// Values of a call or a launch that prove which nodes are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Communicator, and number of collectives that NCCL had launched on it.
    pub(super) launched: Option<(i32, u64)>,
    /// Time of the launch that the node is part of.
    pub(super) launch_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    id: u64,
    told: Told,
    is_collective: bool,
}

/// The nodes of a thread on a stream, or of a communicator where calls were not recorded.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Nodes that are all over before the next begins.
    before: Vec<u64>,
    /// Nodes that are not proven to be over, in their order.
    open: Vec<Open>,
}

impl Order {
    /// Adds a node. Returns its number, and the nodes that are over before it begins. `join` joins too many
    /// of them in one node, which comes before this one.
    pub(super) fn add<E>(
        &mut self,
        told: Told,
        is_collective: bool,
        new_id: &mut dyn FnMut() -> u64,
        join: impl FnOnce(Vec<u64>) -> Result<u64, E>,
    ) -> Result<(u64, Vec<u64>), E> {
        let over = self.open.iter().rposition(|open| open.is_over(told)).map_or(0, |last| last + 1);
        if over > 0 {
            self.before = self.open.drain(..over).map(|open| open.id).collect();
            if self.before.len() > MAX_DEPENDENCIES {
                self.before = vec![join(std::mem::take(&mut self.before))?];
            }
        }
        if self.open.len() >= MAX_OPEN {
            self.open.drain(..MAX_OPEN / 2);
        }
        let id = new_id();
        self.open.push(Open { id, told, is_collective });
        Ok((id, self.before.clone()))
    }
}

impl Order {
    /// Returns the number of nodes that are kept.
    pub(super) fn kept(&self) -> usize {
        self.before.len() + self.open.len()
    }

    /// Keeps fewer nodes: later ones wait for fewer.
    pub(super) fn forget(&mut self) {
        self.open = Vec::new();
    }
}

impl Open {
    /// Tells whether the node was launched before `now` was called. If so, all nodes called before it were,
    /// too.
    fn is_over(&self, now: Told) -> bool {
        let is_earlier =
            |before: Option<u64>, now: Option<u64>| before.zip(now).is_some_and(|(before, now)| before < now);
        is_earlier(self.told.launch_ns, now.launch_ns)
            || (self.is_collective
                && self
                    .told
                    .launched
                    .zip(now.launched)
                    .is_some_and(|((comm, before), (of, launched))| comm == of && before < launched))
    }
}

/// Adds the node before it in its chain to the dependencies of a node.
pub(super) fn follow(last: &mut HashMap<Chain, u64>, chain: Chain, id: u64, dependencies: &mut Vec<u64>) {
    if let Some(last) = last.insert(chain, id)
        && !dependencies.contains(&last)
    {
        dependencies.push(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Nodes {
        order: Order,
        last: u64,
        joined: Vec<usize>,
    }

    impl Nodes {
        fn add(&mut self, told: Told, is_collective: bool) -> (u64, Vec<u64>) {
            let Self { order, last, joined } = self;
            let mut new_id = || {
                *last += 1;
                *last
            };
            let join = |ids: Vec<u64>| {
                joined.push(ids.len());
                Ok::<u64, ()>(1000)
            };
            order.add(told, is_collective, &mut new_id, join).unwrap()
        }

        fn call(&mut self, comm: i32, launched: u64, is_collective: bool) -> Vec<u64> {
            self.add(Told { launched: Some((comm, launched)), ..Told::default() }, is_collective).1
        }
    }

    #[test]
    fn what_was_launched_before_the_call_is_over() {
        let mut nodes = Nodes::default();
        assert!(nodes.call(1, 5, true).is_empty());
        assert!(nodes.call(1, 5, true).is_empty(), "in one group, perhaps");
        assert!(nodes.call(2, 9, false).is_empty(), "another communicator's count proves nothing");
        // Nodes 1 and 2 were launched. 3 came after 2, and can be in the group of 4.
        assert_eq!(nodes.call(1, 7, true), [1, 2]);
        assert_eq!(nodes.call(1, 7, false), [1, 2]);
        assert_eq!(nodes.call(1, 8, true), [3, 4], "5 came after 4");
        assert_eq!(nodes.call(1, 9, false), [5, 6]);
        assert_eq!(nodes.call(1, 9, false), [5, 6], "that 7 was launched is not known");
    }

    #[test]
    fn launches_follow_each_other() {
        let mut nodes = Nodes::default();
        let launch = |at| Told { launch_ns: Some(at), ..Told::default() };
        assert_eq!((nodes.add(launch(7), true).1, nodes.add(launch(7), true).1), (vec![], vec![]));
        assert_eq!(nodes.add(launch(8), false).1, [1, 2]);
    }

    #[test]
    fn many_are_joined() {
        let mut nodes = Nodes::default();
        for _ in 0..100 {
            nodes.call(1, 5, true);
        }
        assert_eq!(nodes.call(1, 6, true), [1000]);
        assert_eq!(nodes.joined, [100]);
    }

    #[test]
    fn memory_is_bounded_where_nothing_is_proven() {
        let mut nodes = Nodes::default();
        for _ in 0..MAX_OPEN * 2 {
            nodes.call(1, 5, false);
        }
        assert!(nodes.order.open.len() <= MAX_OPEN);
    }

    #[test]
    fn a_chain_is_followed_once() {
        let (mut last, mut of) = (HashMap::new(), Vec::new());
        for id in 1..4 {
            let mut dependencies = vec![1];
            follow(&mut last, Chain::Sends(1, 2), id, &mut dependencies);
            of.push(dependencies);
        }
        assert_eq!(of, [vec![1], vec![1], vec![1, 2]]);
    }
}
