use super::{content::MAX_OPS, *};
use crate::{
    decode::{CommunicatorId, OpShape},
    made::ops::Op,
    wire::PlanList,
};

const THREAD: u32 = 11;
const COMM: u64 = 0x1000;
const STREAM: u64 = 0x5000;

#[derive(Default)]
struct Made {
    graphs: Graphs,
    replayed: Vec<u64>,
    at_ns: u64,
    lost: u64,
    /// Answer of the thread's last call, which the next tells.
    left: Option<(u64, u64)>,
}

impl Made {
    fn event(&mut self, moment: GraphMoment, tid: u32, change: impl FnOnce(&mut GraphEvent)) {
        self.at_ns += 1_000;
        let origin =
            Origin { ts_ns: 1_000_000_000_000 + self.at_ns, tgid: 1, tid, lost: self.lost, stack: None };
        let mut event = GraphEvent {
            origin,
            moment,
            stream: STREAM,
            graph: 0,
            capture: 0,
            exec: 0,
            plan: 0,
            comm: None,
            answer: None,
            answered: [None; 2],
        };
        change(&mut event);
        if tid == THREAD && moment != GraphMoment::Captured {
            let left = self.left.take().map(|(at, word)| Answer { at, word: Some(word) });
            event.answered[0] = event.answered[0].or(left);
        }
        let replayed = &mut self.replayed;
        self.graphs.apply(&event, &mut |record| replayed.push(record.seq));
    }

    fn begin(&mut self) {
        self.event(GraphMoment::CaptureBegun, THREAD, |_| {});
    }

    /// Ends the capture, with this graph.
    fn end(&mut self, graph: u64) {
        self.event(GraphMoment::CaptureEnded, THREAD, |event| {
            event.answer = Some(Answer { at: 0x400, word: Some(0) });
        });
        self.left = Some((0x400, graph));
    }

    /// Captures these ops, from the beginning to the end.
    fn capture(&mut self, graph: u64, capture: u64, seqs: &[u64]) {
        self.begin();
        self.tie(graph, capture, seqs);
        self.end(graph);
    }

    /// Ties these ops, as call by call they are seen, to a graph that is captured.
    fn tie(&mut self, graph: u64, capture: u64, seqs: &[u64]) {
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
    made.begin();
    made.end(0xa);
    made.instantiate(0xa, 0x500, 0);
    made.launch(0xe, [Some((0x500, 0xe)), None]);
    assert_eq!(made.graphs.counters.without_ops, 1);
    made.capture(0xb, 1, &[2]);
    made.event(GraphMoment::CaptureBegunInto, THREAD, |event| event.graph = 0xb);
    made.tie(0xb, 2, &[4]);
    made.end(0xb);
    made.instantiate(0xb, 0x600, 0);
    assert_eq!(made.launch(0xf, [Some((0x600, 0xf)), None]), [0; 0]);
    assert_eq!(made.graphs.counters.unknown, 1);
}

#[test]
fn a_capture_of_which_only_a_part_was_seen_is_not_known() {
    let mut made = Made::default();
    // It was under way when the recording began.
    made.tie(0xa, 1, &[40]);
    made.end(0xa);
    made.instantiate(0xa, 0x500, 0);
    assert_eq!(made.launch(0xe, [Some((0x500, 0xe)), None]), [0; 0]);
    // It goes on, as far as is known.
    made.begin();
    made.tie(0xb, 2, &[2]);
    made.instantiate(0xb, 0x600, 0);
    assert_eq!(made.launch(0xf, [Some((0x600, 0xf)), None]), [0; 0]);
    // A tie was lost, before the first that came.
    made.begin();
    made.lost = 1;
    made.tie(0xc, 3, &[4]);
    made.end(0xc);
    made.instantiate(0xc, 0x700, 0);
    assert_eq!(made.launch(0x10, [Some((0x700, 0x10)), None]), [0; 0]);
    // It was captured before, or made in another way: a clone, or with another graph in it.
    made.instantiate(0xd, 0x800, 0);
    assert_eq!(made.launch(0x11, [Some((0x800, 0x11)), None]), [0; 0]);
    let GraphCounters { launches, unknown, .. } = made.graphs.counters;
    assert_eq!((launches, unknown), (4, 4));
}

#[test]
fn a_graph_has_nothing_of_a_capture_that_failed_at_its_address() {
    let mut made = Made::default();
    made.begin();
    made.tie(0xa, 1, &[2]);
    made.end(0);
    made.begin();
    made.end(0xa);
    made.instantiate(0xa, 0x500, 0);
    assert_eq!(made.launch(0xe, [Some((0x500, 0xe)), None]), [0; 0]);
    assert_eq!(made.graphs.counters.without_ops, 1);
    made.begin();
    made.tie(0xb, 2, &[4]);
    made.end(0);
    made.capture(0xb, 3, &[6]);
    made.instantiate(0xb, 0x600, 0);
    assert_eq!(made.launch(0xf, [Some((0x600, 0xf)), None]), [6]);
}

#[test]
fn streams_capture_side_by_side() {
    let mut made = Made::default();
    made.begin();
    made.event(GraphMoment::CaptureBegun, 12, |event| event.stream = 0x6000);
    made.tie(0xa, 1, &[2]);
    made.end(0xa);
    made.instantiate(0xa, 0x500, 0);
    assert_eq!(made.launch(0xe, [Some((0x500, 0xe)), None]), [2]);
    // Another thread looks where this one's graph is.
    made.begin();
    made.tie(0xb, 2, &[4]);
    made.end(0xb);
    made.event(GraphMoment::Instantiated, 12, |event| {
        event.graph = 0xb;
        event.answer = Some(Answer { at: 0x600, word: Some(0) });
        event.answered[1] = Some(Answer { at: 0x400, word: Some(0xb) });
    });
    made.left = None;
    assert_eq!(made.launch(0xf, [None, Some((0x600, 0xf))]), [4]);
}

fn plan(pointer: u64) -> PlanEvent {
    PlanEvent {
        origin: Origin { ts_ns: 1, tgid: 1, tid: THREAD, lost: 0, stack: None },
        comm: CommunicatorId { pointer: COMM, hash: Some(7), rank: 1, n_ranks: 4, launched: None },
        plan: pointer,
        in_callback: false,
        persistent: true,
        by_callback: false,
        channel_mask: 1,
        op_has: OpShape { algorithm: true, coll_api: true, channel_size: true },
        pat: None,
        work_bytes: 0,
        nodes: Vec::new(),
        launch: None,
        one_sided: false,
    }
}

impl Made {
    /// Ties a plan to a graph, and launches it if it has ops.
    fn plan(&mut self, graph: u64, plan: &PlanEvent, seqs: &[u64]) {
        self.event(GraphMoment::Captured, THREAD, |event| {
            (event.graph, event.capture, event.plan, event.comm) = (graph, graph, plan.plan, Some(COMM));
        });
        if !seqs.is_empty() {
            self.launch_plan(plan, seqs);
        }
    }

    fn launch_plan(&mut self, plan: &PlanEvent, seqs: &[u64]) {
        self.graphs.begin(THREAD);
        for seq in seqs {
            let record = FlowRecord { needed: false, ..Op { seq: *seq, ..Op::default() }.record() };
            self.graphs.planned(THREAD, COMM, &record);
        }
        self.graphs.launched_plan(plan);
    }

    /// Ends the capture of a graph, and launches it.
    fn replayed(&mut self, graph: u64) -> Vec<u64> {
        self.end(graph);
        let exec = graph << 8;
        self.instantiate(graph, exec, 0);
        self.launch(exec, [Some((exec, exec)), None])
    }
}

#[test]
fn a_plan_belongs_to_the_graph_that_it_was_tied_to_last() {
    let mut made = Made::default();
    made.begin();
    // Its launch failed, and NCCL's pool gives the plan's memory out again.
    made.plan(0xa, &plan(0x2000), &[]);
    made.end(0);
    made.begin();
    made.plan(0xb, &plan(0x2000), &[2]);
    // Further plans of the group are not tied.
    made.launch_plan(&plan(0x3000), &[4]);
    assert_eq!(made.replayed(0xb), [2, 4]);
}

#[test]
fn a_graph_with_a_plan_that_is_not_known_as_a_whole_is_not_known() {
    let mut made = Made::default();
    let cut = PlanEvent { nodes: vec![(PlanList::Works, 100, true)], ..plan(0x2000) };
    made.begin();
    made.plan(0xa, &cut, &[2]);
    assert_eq!(made.replayed(0xa), [0; 0]);
    // Nothing is known of what the second one launches.
    made.begin();
    made.plan(0xb, &plan(0x2000), &[2]);
    made.launch_plan(&plan(0x3000), &[]);
    assert_eq!(made.replayed(0xb), [0; 0]);
    made.begin();
    let many: Vec<u64> = (0..=MAX_PLANNED as u64).map(|number| number * 2).collect();
    made.plan(0xc, &plan(0x2000), &many);
    assert_eq!(made.replayed(0xc), [0; 0]);
    // A plan is tied to it, and no op came of that.
    made.begin();
    made.plan(0xd, &plan(0x2000), &[]);
    assert_eq!(made.replayed(0xd), [0; 0]);
    assert_eq!(made.graphs.counters.unknown, 4);
}

#[test]
fn one_sided_calls_come_before_their_plan() {
    let mut made = Made::default();
    made.begin();
    made.plan(0xa, &PlanEvent { one_sided: true, ..plan(0x2000) }, &[1, 3]);
    let launch = crate::decode::Launch {
        kind: crate::schema::LaunchKind::OneSided,
        kernel: None,
        calls: None,
        call: crate::decode::LaunchedCall::default(),
        elsewhere: true,
    };
    made.launch_plan(&PlanEvent { launch: Some(launch), ..plan(0x2000) }, &[]);
    assert_eq!(made.replayed(0xa), [1, 3]);
}

#[test]
fn nothing_is_known_behind_records_that_were_passed_over() {
    let mut made = Made::default();
    made.capture(0xa, 1, &[2]);
    made.instantiate(0xa, 0x500, 0);
    assert_eq!(made.launch(0xe, [Some((0x500, 0xe)), None]), [2]);
    made.graphs.forget();
    assert_eq!(made.launch(0xe, [None; 2]), [0; 0], "it can be another");
    let GraphCounters { launches, unknown, ops, .. } = made.graphs.counters;
    assert_eq!((launches, unknown, ops), (2, 1, 1));
}

#[test]
fn room_for_planned_ops_is_held_only_while_it_is_counted() {
    let mut made = Made::default();
    made.tie(0xa, 1, &(0..4096).collect::<Vec<u64>>());
    made.graphs.begin(THREAD);
    assert_eq!(made.graphs.planned[&THREAD].ops.capacity(), 0);
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
    made.begin();
    made.graphs.begin(THREAD);
    for (channel, needed) in [(0, false), (1, true)] {
        let op = Op { seq: 2, channel, ..Op::default() };
        made.graphs.planned(THREAD, COMM, &FlowRecord { needed, ..op.record() });
    }
    made.event(GraphMoment::Captured, THREAD, |event| (event.graph, event.comm) = (0xa, Some(COMM)));
    made.end(0xa);
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
