//! Steps on their way from the process that makes them to the one that posted the op.

use super::*;
use crate::rows::processes::Traced;
use flow::{
    decode::Event,
    made::elsewhere::{EXECUTOR, POSTER, posted, steps, tells_its_rank},
    model::ModelCounters,
};

const ANOTHER: u32 = 12;

/// The processes of one node.
struct Recording {
    node: Node,
    pxn_peers: PxnPeers,
    processes: HashMap<u32, TracedProcess>,
    output: Output,
}

impl Recording {
    fn new() -> Self {
        let traced = Traced { steps: true, ..Traced::default() };
        let new = |tgid| (tgid, TracedProcess::new(traced));
        let processes = [POSTER, EXECUTOR, ANOTHER].map(new).into_iter().collect();
        Self { node: Node::default(), pxn_peers: PxnPeers::default(), processes, output: Output::default() }
    }

    fn events(&mut self, tgid: u32, events: Vec<Event>) {
        for event in events {
            self.processes.get_mut(&tgid).unwrap().session.apply(event, &mut self.node, &mut |_| ());
            self.pxn_peers.look_again(&mut self.processes, &mut self.node, &mut self.output);
        }
    }

    fn steps(&mut self, tgid: u32) {
        for mut step in steps(tgid) {
            assert!(!self.processes.get_mut(&tgid).unwrap().session.step(
                &mut step,
                &mut self.node,
                &mut |_| ()
            ));
            self.pxn_peers.step(step, &mut self.processes, &mut self.node, &mut self.output);
        }
    }

    /// Ends the recording. Returns what the poster and another process could not join.
    fn end(mut self, tgid: u32) -> [ModelCounters; 2] {
        self.pxn_peers.give_up(None, &mut self.processes);
        [POSTER, tgid].map(|tgid| {
            let process = self.processes.get_mut(&tgid).unwrap();
            process.session.finish(|_| 0, &mut self.node, &mut |_| ());
            process.counters()
        })
    }
}

/// A recording that begins in the middle: the process has posted nothing yet, and its proxy is at another's
/// op.
#[test]
fn steps_wait_until_their_process_has_said_who_it_is() {
    let mut node = Recording::new();
    node.events(POSTER, posted());
    node.steps(EXECUTOR);
    assert_eq!(node.pxn_peers.waiting.len(), 4);
    node.events(EXECUTOR, tells_its_rank(EXECUTOR));
    assert!(node.pxn_peers.waiting.is_empty());
    let [poster, executor] = node.end(EXECUTOR);
    assert_eq!((poster.proxy_not_known, poster.unfinished, executor.unjoined_steps), (0, 0, 0));
}

#[test]
fn steps_of_who_is_never_known_are_counted() {
    let mut node = Recording::new();
    node.events(POSTER, posted());
    node.steps(EXECUTOR);
    let [poster, executor] = node.end(EXECUTOR);
    assert_eq!((poster.proxy_not_known, poster.unfinished), (1, 0));
    assert_eq!((executor.unjoined_steps, executor.foreign_messages), (4, 2));
}

/// The same address and number in a process that does not sit there are a coincidence, and no join.
#[test]
fn steps_of_another_process_are_not_taken() {
    let mut node = Recording::new();
    node.events(POSTER, posted());
    node.events(EXECUTOR, tells_its_rank(EXECUTOR));
    node.steps(ANOTHER);
    let [poster, another] = node.end(ANOTHER);
    assert_eq!((poster.unfinished, another.unjoined_steps), (1, 4));
}

#[test]
fn of_two_that_say_that_they_sit_there_none_is_believed() {
    let mut node = Recording::new();
    node.events(POSTER, posted());
    node.events(EXECUTOR, tells_its_rank(EXECUTOR));
    node.events(ANOTHER, tells_its_rank(ANOTHER));
    node.steps(EXECUTOR);
    let [poster, executor] = node.end(EXECUTOR);
    assert_eq!((poster.proxy_not_known, poster.unfinished, executor.unjoined_steps), (1, 0, 4));
}
