use crate::{
    OneSided, OneSidedKind, OneSidedOp, OneSidedProxy, OneSidedQueue, ProcessState, RankReport, SignalWait,
    Work,
    verdict::{
        Kind, State, Verdict, judge,
        tests::made::{check, op, over_nvlink, rank},
    },
};
use nccl_library::nccl::Direction;

/// A queue with three puts, of which one is done.
fn queue(proxy: OneSidedProxy, target: u32, still_seconds: f64) -> OneSidedQueue {
    let oldest =
        OneSidedOp { kind: Some(OneSidedKind::Put), bytes: Some(65536), with_signal: true, is_ready: None };
    OneSidedQueue {
        proxy: Some(proxy),
        context: 1,
        slot: target,
        target: Some(target),
        called: 3,
        taken: 3,
        done: 1,
        oldest: Some(oldest),
        still_seconds,
        ..OneSidedQueue::default()
    }
}

fn wait(peer: u32, expected: u64, arrived: Option<u64>, has_begun: bool) -> SignalWait {
    SignalWait { context: 1, peer, signal: 0, expected, arrived, has_begun }
}

/// Four ranks without an op of the proxy, whose GPUs run nothing.
fn ranks() -> Vec<RankReport> {
    (0..4)
        .map(|number| {
            let mut rank = rank(number, 5, Vec::new());
            rank.gpu = over_nvlink(number, 5, Some(Work::Idle)).gpu;
            rank.one_sided = Some(OneSided::default());
            rank
        })
        .collect()
}

fn of(rank: &mut RankReport) -> &mut OneSided {
    rank.one_sided.get_or_insert_default()
}

#[test]
fn puts_that_stand_name_their_target_and_accuse_nobody_who_runs() {
    let mut ranks = ranks();
    of(&mut ranks[0]).queues.push(queue(OneSidedProxy::Gin, 2, 1.0));
    let said = "rank 0 waits for rank 2: 2 in flight, the oldest a put of 65536 bytes with a signal, \
                through GIN's proxy (connection 0, context 1): nothing got done for 1.0 s";
    check(&judge(&ranks, &[]), State::Unknown, &[], &[], said);
    ranks[2].process_state = ProcessState::Stopped;
    let verdict = judge(&ranks, &[]);
    check(&verdict, State::Stuck, &[2], &[0], said);
    assert_eq!(verdict.kind, Some(Kind::Stopped));
    // It is the rank's own proxy that does not run.
    let stopped =
        ranks.iter().map(|rank| RankReport { process_state: ProcessState::Running, ..rank.clone() });
    let mut stopped: Vec<RankReport> = stopped.collect();
    stopped[0].process_state = ProcessState::Stopped;
    let verdict = judge(&stopped, &[]);
    assert_eq!((verdict.kind, &*verdict.culprits), (Some(Kind::Stopped), &[0][..]), "{verdict:#?}");
    let is_said = |verdict: &Verdict| verdict.evidence.iter().any(|one| one.contains("waits for rank 2"));
    assert!(!is_said(&verdict), "{verdict:#?}");
    // Something got done in one of the readings.
    of(&mut ranks[0]).queues[0].still_seconds = 0.5;
    let verdict = judge(&ranks, &[]);
    assert!(!is_said(&verdict), "{verdict:#?}");
}

#[test]
fn what_stands_is_said_beside_another_reason() {
    let mut ranks = ranks();
    of(&mut ranks[0]).queues.push(queue(OneSidedProxy::Gin, 2, 1.0));
    ranks[1].motion.steps_moved = true;
    check(&judge(&ranks, &[]), State::Healthy, &[], &[], "rank 0 waits for rank 2: 2 in flight");
    ranks[1].motion.steps_moved = false;
    ranks[1].proxy.ops.push(op(Direction::Recv, 0, 4));
    let verdict = judge(&ranks, &[]);
    assert_eq!(verdict.state, State::Stuck, "{verdict:#?}");
    assert!(verdict.evidence.iter().any(|sentence| sentence.contains("through GIN's proxy")), "{verdict:#?}");
}

#[test]
fn a_rank_waits_for_the_peer_that_has_called_fewer_puts() {
    let mut ranks = ranks();
    of(&mut ranks[0]).waits.push(wait(3, 2, None, false));
    let given =
        |called| OneSidedQueue { called, taken: called, done: called, ..queue(OneSidedProxy::Rma, 0, 0.0) };
    of(&mut ranks[3]).queues.push(given(1));
    let verdict = judge(&ranks, &[]);
    let said = "rank 0 waits for rank 3: it has called a wait for 2 signals of rank 3 (RMA context 1); \
                how many came is in its GPU's memory; rank 3 has called 1 put to it";
    check(&verdict, State::Stuck, &[3], &[0], said);
    assert_eq!(verdict.kind, Some(Kind::NoCounterpart));
    // Another context's are not these.
    of(&mut ranks[3]).queues.push(OneSidedQueue { context: 0, ..given(7) });
    check(&judge(&ranks, &[]), State::Stuck, &[3], &[0], said);
    of(&mut ranks[3]).queues[0] = given(2);
    check(&judge(&ranks, &[]), State::Healthy, &[], &[], "no NCCL op in flight");
    // Puts that were called together can be for this rank.
    of(&mut ranks[3]).queues[0] = given(1);
    of(&mut ranks[3]).queues.push(OneSidedQueue { slot: 3, ..given(1) });
    check(&judge(&ranks, &[]), State::Healthy, &[], &[], "no NCCL op in flight");
    // A GPU that runs something may not have come to the wait.
    of(&mut ranks[3]).queues.truncate(1);
    ranks[0].gpu = over_nvlink(0, 5, Some(Work::Computes)).gpu;
    check(&judge(&ranks, &[]), State::Healthy, &[], &[], "no NCCL op in flight");
}

#[test]
fn of_ranks_that_wait_for_each_other_in_a_row_the_last_is_named() {
    let mut ranks = ranks();
    for number in [0, 1] {
        of(&mut ranks[number]).waits.push(wait(u32::try_from(number).unwrap() + 1, 9, Some(8), true));
    }
    let said = "rank 1 waits for rank 2: it waits for 9 signals of rank 2 (RMA context 1); 8 signals came";
    check(&judge(&ranks, &[]), State::Stuck, &[2], &[0, 1], said);
    // Its put is on its way: the link, or either adapter.
    of(&mut ranks[2]).queues.push(queue(OneSidedProxy::RmaGraph, 1, 1.0));
    check(&judge(&ranks, &[]), State::Unknown, &[], &[], said);
    of(&mut ranks[2]).queues.clear();
    of(&mut ranks[2]).waits.push(wait(0, 9, Some(8), true));
    check(&judge(&ranks, &[]), State::Unknown, &[], &[], "rank 2 waits for rank 0");
    // A rank that was not read is not accused, if nothing is known of it.
    ranks.remove(2);
    check(&judge(&ranks, &[]), State::Unknown, &[], &[], said);
}
