use super::*;
use crate::made::ops::Op;

const THREAD: u32 = 11;
const COMM: u64 = 0x1000;

#[derive(Default)]
struct Made {
    graphs: Graphs,
    replayed: Vec<u64>,
    at_ns: u64,
    lost: u64,
}

impl Made {
    fn event(&mut self, moment: GraphMoment, tid: u32, change: impl FnOnce(&mut GraphEvent)) {
        self.at_ns += 1_000;
        let origin =
            Origin { ts_ns: 1_000_000_000_000 + self.at_ns, tgid: 1, tid, lost: self.lost, stack: None };
        let mut event = GraphEvent {
            origin,
            moment,
            graph: 0,
            capture: 0,
            exec: 0,
            plan: 0,
            comm: None,
            answer: None,
            answered: [None; 2],
        };
        change(&mut event);
        let replayed = &mut self.replayed;
        self.graphs.apply(&event, &mut |record| replayed.push(record.seq));
    }

    /// Captures these ops, as call by call they are seen.
    fn capture(&mut self, graph: u64, capture: u64, seqs: &[u64]) {
        self.graphs.begin(THREAD);
        for seq in seqs {
            for channel in 0..2 {
                let op = Op { seq: *seq, channel, ..Op::default() };
                self.graphs.planned(THREAD, COMM, &FlowRecord { needed: false, ..op.record() });
            }
        }
        self.event(GraphMoment::Captured, THREAD, |event| {
            (event.graph, event.capture, event.plan, event.comm) = (graph, capture, 0x77, Some(COMM));
        });
    }

    fn instantiate(&mut self, graph: u64, at: u64, before: u64) {
        self.event(GraphMoment::Instantiated, THREAD, |event| {
            event.graph = graph;
            event.answer = Some(Answer { at, word: Some(before) });
        });
    }

    /// Launches, with the answer of an earlier call of the thread, or of its process.
    fn launch(&mut self, exec: u64, answered: [Option<(u64, u64)>; 2]) -> Vec<u64> {
        self.event(GraphMoment::Launched, THREAD, |event| {
            event.exec = exec;
            event.answered = answered.map(|of| of.map(|(at, word)| Answer { at, word: Some(word) }));
        });
        std::mem::take(&mut self.replayed)
    }
}

#[test]
fn a_launch_replays_each_captured_op_once_however_many_channels_it_has() {
    let mut made = Made::default();
    made.capture(0xa, 1, &[2, 4]);
    made.instantiate(0xa, 0x500, 0);
    assert_eq!(made.launch(0xe, [Some((0x500, 0xe)), None]), [2, 4]);
    assert_eq!(made.launch(0xe, [None; 2]), [2, 4]);
    assert_eq!(made.launch(0xf, [None; 2]), [0; 0], "it was there before");
    let GraphCounters { launches, replays, unknown, ops, .. } = made.graphs.counters;
    assert_eq!((launches, replays, unknown, ops), (3, 2, 1, 4));
}

#[test]
fn a_word_that_need_not_be_the_answer_is_none() {
    // What stood there before, while another thread looks.
    let mut made = Made::default();
    made.capture(0xa, 1, &[2]);
    made.instantiate(0xa, 0x500, 0xe);
    assert_eq!(made.launch(0xe, [None, Some((0x500, 0xe))]), [0; 0]);
    // The same by the thread itself: the call can have failed.
    assert_eq!(made.launch(0xe, [Some((0x500, 0xe)), None]), [0; 0]);
    // The place serves for another variable by now: an executable that is known.
    made.instantiate(0xa, 0x600, 0);
    assert_eq!(made.launch(0xf, [Some((0x600, 0xf)), None]), [2]);
    made.capture(0xb, 2, &[8]);
    made.instantiate(0xb, 0x600, 0);
    assert_eq!(made.launch(0xf, [Some((0x600, 0xf)), None]), [2]);
    assert_eq!(made.graphs.counters.unknown, 2);
}

#[test]
fn an_executable_at_the_address_of_one_that_is_no_more_has_its_own_content() {
    let mut made = Made::default();
    made.capture(0xa, 1, &[2]);
    made.instantiate(0xa, 0x500, 0);
    assert_eq!(made.launch(0xe, [Some((0x500, 0xe)), None]), [2]);
    made.event(GraphMoment::ExecDestroyed, THREAD, |event| event.exec = 0xe);
    made.event(GraphMoment::GraphDestroyed, THREAD, |event| event.graph = 0xa);
    assert_eq!(made.launch(0xe, [None; 2]), [0; 0], "of nothing that was seen");
    made.event(GraphMoment::ExecDestroyed, THREAD, |event| event.exec = 0xe);
    made.capture(0xa, 2, &[4, 6]);
    // The variable still has the old word.
    made.instantiate(0xa, 0x500, 0xe);
    assert_eq!(made.launch(0xe, [Some((0x500, 0xe)), None]), [4, 6]);
    assert_eq!(made.graphs.kept.load(Ordering::Relaxed), 2, "what is no more takes no room");
}

#[test]
fn a_graph_without_ops_and_one_that_captured_twice_are_told_apart() {
    let mut made = Made::default();
    made.instantiate(0xa, 0x500, 0);
    made.launch(0xe, [Some((0x500, 0xe)), None]);
    assert_eq!(made.graphs.counters.without_ops, 1);
    made.capture(0xb, 1, &[2]);
    made.capture(0xb, 2, &[4]);
    made.instantiate(0xb, 0x600, 0);
    assert_eq!(made.launch(0xf, [Some((0x600, 0xf)), None]), [0; 0], "or the first capture failed");
    assert_eq!(made.graphs.counters.unknown, 1);
}

#[test]
fn an_update_counts_only_if_it_succeeded() {
    let mut made = Made::default();
    made.capture(0xa, 1, &[2]);
    made.capture(0xb, 2, &[8]);
    made.instantiate(0xa, 0x500, 0);
    made.launch(0xe, [Some((0x500, 0xe)), None]);
    let update = |made: &mut Made| {
        made.event(GraphMoment::Updated, THREAD, |event| {
            (event.exec, event.graph) = (0xe, 0xb);
            event.answer = Some(Answer { at: 0x700, word: Some(99) });
        });
    };
    update(&mut made);
    assert_eq!(made.launch(0xe, [Some((0x700, 0xdead_0000_0000)), None]), [8], "the result is an int");
    update(&mut made);
    assert_eq!(made.launch(0xe, [Some((0x700, 1)), None]), [0; 0]);
    update(&mut made);
    assert_eq!(made.launch(0xe, [None, Some((0x700, 0))]), [0; 0], "it need not be over");
}

#[test]
fn after_a_loss_nothing_is_taken_for_known() {
    let mut made = Made::default();
    made.capture(0xa, 1, &[2]);
    made.instantiate(0xa, 0x500, 0);
    assert_eq!(made.launch(0xe, [Some((0x500, 0xe)), None]), [2]);
    made.lost = 1;
    assert_eq!(made.launch(0xe, [None; 2]), [0; 0], "it can have been destroyed");
    assert_eq!(made.graphs.counters.unknown, 1);
}

#[test]
fn ops_that_the_proxy_gets_have_no_line_by_the_launch() {
    let mut made = Made::default();
    made.graphs.begin(THREAD);
    for (channel, needed) in [(0, false), (1, true)] {
        let op = Op { seq: 2, channel, ..Op::default() };
        made.graphs.planned(THREAD, COMM, &FlowRecord { needed, ..op.record() });
    }
    made.event(GraphMoment::Captured, THREAD, |event| (event.graph, event.comm) = (0xa, Some(COMM)));
    made.instantiate(0xa, 0x500, 0);
    assert_eq!(made.launch(0xe, [Some((0x500, 0xe)), None]), [0; 0]);
    let GraphCounters { replays, ops, without_ops, .. } = made.graphs.counters;
    assert_eq!((replays, ops, without_ops), (1, 0, 0));
}

#[test]
fn lines_of_many_launches_are_bounded_in_time() {
    let mut made = Made::default();
    let seqs: Vec<u64> = (0..1000).map(|number| number * 2).collect();
    made.capture(0xa, 1, &seqs);
    made.instantiate(0xa, 0x500, 0);
    made.launch(0xe, [Some((0x500, 0xe)), None]);
    for _ in 0..1000 {
        made.launch(0xe, [None; 2]);
    }
    let GraphCounters { launches, replays, ops, left_out, .. } = made.graphs.counters;
    assert_eq!((launches, replays, ops + left_out), (1001, 1001, 1_001_000));
    assert!(ops <= OPS_AT_ONCE, "{ops}");
}

#[test]
fn what_is_kept_is_bounded_whatever_is_captured() {
    let mut made = Made::default();
    for graph in 0..100_000 {
        made.capture(graph, graph, &[2]);
        made.instantiate(graph, 0x500, 0);
        made.launch(1_000_000 + graph, [Some((0x500, 1_000_000 + graph)), None]);
    }
    assert!(made.graphs.kept.load(Ordering::Relaxed) <= MAX_OPS);
    assert!(made.graphs.captures.len() <= MAX_OBJECTS && made.graphs.execs.len() <= MAX_OBJECTS);
    assert!(made.graphs.held_bytes() < 256 << 20, "{}", made.graphs.held_bytes());
}
