//! Ops whose sends another rank's process executes (PXN), made up: that of rank 1 in process 10, executed by
//! rank 3.

use super::*;
use crate::{
    decode::ProxyRank,
    made::elsewhere::{EXECUTOR, EXECUTORS_RANK, POSTER, posted, steps, tells_its_rank},
};

fn apply(session: &mut Session, events: Vec<Event>, node: &mut Node, out: &mut Vec<FlowRecord>) {
    for event in events {
        session.apply(event, node, &mut |record| out.push(record));
    }
}

fn poster(node: &mut Node, out: &mut Vec<FlowRecord>) -> Session {
    let mut session = Session::new(true);
    apply(&mut session, posted(), node, out);
    session
}

/// Runs the messages through the poster's session; `lost` of the executor's records are lost in between.
fn executed(lost: u64) -> Vec<FlowRecord> {
    let (mut node, mut out) = (Node::default(), Vec::new());
    node.proxy_ranks.note_process(EXECUTOR, Some(1011), 0);
    let mut executor = Session::new(true);
    apply(&mut executor, tells_its_rank(EXECUTOR), &mut node, &mut Vec::new());
    let mut session = poster(&mut node, &mut out);
    for mut step in steps(EXECUTOR) {
        assert!(!executor.step(&mut step, &mut node, &mut |_| ()), "it is not its own");
        let [at] = session.executors(POSTER, &step)[..] else { panic!("one can have made it") };
        let by = Origin { tgid: POSTER, ..step.origin };
        assert!(session.step_elsewhere(at, &step, &by, &mut node, &mut |record| out.push(record)));
        node.proxy_ranks.note_process(EXECUTOR, Some(1011), lost);
    }
    session.finish(|_| 0, &mut node, &mut |record| out.push(record));
    assert_eq!(session.counters(), ModelCounters::default());
    out
}

#[test]
fn what_another_process_executed_is_measured_and_names_it() {
    let [record] = &executed(0)[..] else { panic!("one op") };
    let peer = &record.peers[0];
    assert_eq!((record.outcome, record.incomplete), (Some(Outcome::AsPlanned), false));
    assert_eq!((peer.proxy_pid, peer.measured.as_ref().unwrap().totals()), (Some(1011), (2, 202)));
}

#[test]
fn losses_of_the_process_that_executes_are_the_ops() {
    let [record] = &executed(1)[..] else { panic!("one op") };
    assert!(record.incomplete);
}

/// The poster's own connection can lie at the same address, and its op have the same number.
#[test]
fn an_own_connection_at_the_same_address_is_another() {
    let (mut node, mut out) = (Node::default(), Vec::new());
    let mut session = poster(&mut node, &mut out);
    for step in steps(POSTER) {
        session.apply(Event::ProxyStep(step), &mut node, &mut |record| out.push(record));
    }
    session.finish(|_| 0, &mut node, &mut |record| out.push(record));
    assert_eq!((session.counters().unjoined_steps, session.counters().proxy_not_known), (4, 1));
    let [record] = &out[..] else { panic!("one op") };
    assert_eq!((record.outcome, &record.peers[0].measured), (Some(Outcome::ProxyNotKnown), &None));
}

/// Somebody who is never found does not hold up all that comes.
#[test]
fn ops_do_not_wait_for_ever_for_somebody_to_be_found() {
    let (mut node, mut out) = (Node::default(), Vec::new());
    let mut session = Session::new(true);
    for _ in 0..5000 {
        apply(&mut session, posted(), &mut node, &mut out);
    }
    assert_eq!(out.len(), 5000 - 4096 - 1, "the last one may still get peers");
    assert!(out.iter().all(|record| record.outcome == Some(Outcome::ProxyNotKnown)));
    assert_eq!(session.counters().proxy_not_known, out.len() as u64);
    let at = CommunicatorRank { hash: Some(7), rank: ProxyRank::Rank(EXECUTORS_RANK) };
    assert_eq!(session.executors(POSTER, &steps(EXECUTOR)[0]), [at], "the others wait");
}
