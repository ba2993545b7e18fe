//! Messages of ops: joined, left out, with sizes that are sums.

use super::*;
use crate::decode::{BytesSum, ProxyStepEvent, SendSizeEvent, StepMoment};

/// A proxy op of one message each way, posted with opCount 40; the connections are 0x51 (receive) and 0x52
/// (send).
fn posted_for_measuring(session: &mut Alone, out: &mut Vec<FlowRecord>) {
    let mut plan = call(Pattern::RingTwice, 0, 0, 0);
    plan.event.op.nsteps = 4;
    for call in [plan.clone(), plan.posted(40, APPLICATION)] {
        let Call { event, peers } = call;
        let (origin, op_pointer, plan_pass) = (event.origin, event.op_pointer, event.plan_pass);
        session.apply(Event::ProxyOp(Box::new(event)), &mut |record| out.push(record));
        for (connection, connector) in (0x51..).zip(peers) {
            let connector = Connector { connection, ..connector };
            let peer = ProxyPeerEvent { origin, op_pointer, plan_pass, nsteps: Some(4), connector };
            session.apply(Event::ProxyPeer(peer), &mut |record| out.push(record));
        }
    }
}

fn step(connection: u64, number: u64, moment: StepMoment, ts_ns: u64) -> Event {
    Event::ProxyStep(ProxyStepEvent {
        origin: Origin { ts_ns, tgid: 10, tid: 300, lost: 0, stack: None },
        moment,
        connection,
        op_count: 40,
        direction: if connection == 0x51 { Direction::Recv } else { Direction::Send },
        step: number,
        n_subs: 1,
        is_foreign: None,
        is_per_fifo_step: false,
        bytes: Some(1000 + number),
        bytes_before: None,
        bytes_sum: None,
    })
}

/// The proxy thread is at the messages before the thread that posted the op does anything else.
#[test]
fn an_op_waits_for_its_messages_and_comes_out_measured() {
    use StepMoment::{Arrived, Handed, Posted, Ready, Sent, Start, Stop};
    let (mut session, mut out) = (Alone::new(Session::new(true)), Vec::new());
    posted_for_measuring(&mut session, &mut out);
    let mut time = 100;
    let mut apply = |session: &mut Alone, out: &mut Vec<FlowRecord>, connection, number, moment| {
        time += 1;
        session.apply(step(connection, number, moment, time), &mut |record| out.push(record));
    };
    for number in [0, 2] {
        for moment in [Start, Ready, Ready, Sent, Stop] {
            apply(&mut session, &mut out, 0x52, number, moment);
        }
        assert!(out.is_empty(), "the receives are on their way");
        for moment in [Posted, Arrived, Handed, Stop] {
            apply(&mut session, &mut out, 0x51, number, moment);
        }
    }
    assert_eq!(out.len(), 1);
    let [receive, send] = &out[0].peers[..] else { panic!("{:?}", out[0].peers) };
    let (receive, send) =
        (&receive.measured.as_ref().unwrap().messages, &send.measured.as_ref().unwrap().messages);
    assert_eq!((receive.len(), send.len()), (2, 2));
    // A step that the proxy repeats counts from its first time.
    assert_eq!(
        [Start, Ready, Sent, Stop].map(|moment| send[0].at(moment)),
        [Some(101), Some(102), Some(104), Some(105)]
    );
    let moments = [Posted, Arrived, Stop].map(|moment| receive[0].at(moment));
    assert_eq!(moments, [Some(106), Some(107), Some(109)]);
    assert_eq!((send[1].bytes, receive[1].bytes), (Some(1002), Some(1002)));
    session.finish(|_| 0, &mut |record| out.push(record));
    assert_eq!((out.len(), session.counters()), (1, ModelCounters::default()));
}

#[test]
fn messages_that_never_end_and_steps_of_nobody_are_counted() {
    let (mut session, mut out) = (Alone::new(Session::new(true)), Vec::new());
    posted_for_measuring(&mut session, &mut out);
    session.apply(step(0x52, 0, StepMoment::Start, 5), &mut |record| out.push(record));
    session.apply(step(0x99, 0, StepMoment::Start, 6), &mut |record| out.push(record));
    session.apply(step(0x52, 400, StepMoment::Stop, 7), &mut |record| out.push(record));
    session.finish(|_| 0, &mut |record| out.push(record));
    assert_eq!(out.len(), 1, "what is known of the op is written");
    assert_eq!(out[0].peers[1].measured.as_ref().unwrap().totals(), (0, 0));
    let counters = session.counters();
    assert_eq!((counters.unfinished, counters.unjoined_steps), (1, 2));
}

/// Hosts launch ahead: when a session begins, ops that it has not seen are on their way, and those that it
/// sees being posted wait behind them. With samples, the ops between two of them are not wanted.
#[test]
fn the_time_of_ops_that_are_not_measured_is_no_wait_of_the_next_one() {
    let step_of = |op_count, connection, moment, ts_ns| {
        let Event::ProxyStep(event) = step(connection, 0, moment, ts_ns) else { panic!("a step") };
        Event::ProxyStep(ProxyStepEvent { op_count, ..event })
    };
    for every in [1, 20] {
        let sampling = Sampling { every, ..Sampling::default() };
        let (mut session, mut out) = (Alone::new(Session::new(true).sampling(sampling)), Vec::new());
        posted_for_measuring(&mut session, &mut out);
        for connection in [0x51, 0x52] {
            session.apply(step_of(38, connection, StepMoment::Stop, 7_000), &mut |record| out.push(record));
            session.apply(step_of(40, connection, StepMoment::Stop, 7_010), &mut |record| out.push(record));
        }
        session.finish(|_| 0, &mut |record| out.push(record));
        for peer in &out[0].peers {
            let measured = peer.measured.as_ref().unwrap();
            assert_eq!(measured.slot_free(0), Some(7_000), "{every}: {measured:?}");
        }
    }
}

/// 2.24 to 2.26 tell a sum over all messages of a place; another place has a sum of its own.
#[test]
fn a_size_is_what_a_sum_grew_by() {
    let (mut session, mut out) = (Alone::new(Session::new(true)), Vec::new());
    for lost in [0, 0, 5] {
        posted_for_measuring(&mut session, &mut out);
        for (connection, place) in [(0x51, 0xa0), (0x52, 0xb0)] {
            for number in [0, 2] {
                let sum = 700 * (3 * out.len() as u64 + number) + place;
                for moment in [StepMoment::Sent, StepMoment::Stop] {
                    let Event::ProxyStep(mut event) = step(connection, number, moment, 1) else { return };
                    let sum = BytesSum { place, bytes: sum, lacks_this: false };
                    (event.bytes, event.bytes_sum, event.origin.lost) = (None, Some(sum), lost);
                    session.apply(Event::ProxyStep(event), &mut |record| out.push(record));
                }
            }
        }
    }
    let sizes = |record: &FlowRecord, peer: usize| -> Vec<Option<u64>> {
        let measured = record.peers[peer].measured.as_ref().unwrap();
        measured.messages.iter().map(|message| message.bytes).collect()
    };
    for peer in [0, 1] {
        assert_eq!(sizes(&out[0], peer), [None, Some(1400)], "what was before it is not known");
        assert_eq!(sizes(&out[1], peer), [Some(700), Some(1400)]);
        assert_eq!(sizes(&out[2], peer), [None, Some(1400)], "a message may have been lost before it");
    }
}

/// 2.23 adds a send only after it has told it: what comes next shows its size, a send or an end; the first
/// one's, too.
#[test]
fn a_send_that_the_sum_lacks_has_its_size_with_what_comes_next() {
    use StepMoment::{Sent, Stop};
    let orders = [[(Sent, 0), (Sent, 2), (Stop, 0), (Stop, 2)], [(Sent, 0), (Stop, 0), (Sent, 2), (Stop, 2)]];
    for (order, lost_in_between) in [(orders[0], false), (orders[1], false), (orders[0], true)] {
        let (mut session, mut out) = (Alone::new(Session::new(true)), Vec::new());
        posted_for_measuring(&mut session, &mut out);
        let mut sum = 5000;
        for (at, (moment, number)) in order.into_iter().enumerate() {
            let Event::ProxyStep(mut event) = step(0x52, number, moment, 1) else { return };
            event.bytes = None;
            event.origin.lost = u64::from(lost_in_between && at > 0);
            event.bytes_sum = Some(BytesSum { place: 1, bytes: sum, lacks_this: moment == Sent });
            session.apply(Event::ProxyStep(event), &mut |record| out.push(record));
            sum += if moment == Sent { 700 + number } else { 0 };
        }
        session.finish(|_| 0, &mut |record| out.push(record));
        let sizes: Vec<_> =
            out[0].peers[1].measured.as_ref().unwrap().messages.iter().map(|message| message.bytes).collect();
        let first = (!lost_in_between).then_some(700);
        assert_eq!(sizes, [first, Some(702)], "{order:?}");
    }
}

/// Up to 2.19 a size is told by itself, and then the send of it, for each of its FIFO steps.
#[test]
fn a_size_that_is_told_before_is_that_of_the_message() {
    for lost in [0, 1] {
        let (mut session, mut out) = (Alone::new(Session::new(true)), Vec::new());
        posted_for_measuring(&mut session, &mut out);
        let mut time = 100;
        for (number, bytes) in [(0, 700), (2, 0)] {
            let origin = Origin { ts_ns: time, tgid: 10, tid: 300, lost, stack: None };
            let size = SendSizeEvent { origin, bytes: Some(bytes) };
            session.apply(Event::SendSize(size), &mut |record| out.push(record));
            for step_of_message in [number, number + 1] {
                time += 10;
                let Event::ProxyStep(mut event) = step(0x52, step_of_message, StepMoment::Sent, time) else {
                    return;
                };
                (event.bytes, event.is_per_fifo_step) = (None, true);
                session.apply(Event::ProxyStep(event), &mut |record| out.push(record));
            }
        }
        session.finish(|_| 0, &mut |record| out.push(record));
        let measured = out[0].peers[1].measured.as_ref().unwrap();
        let sizes: Vec<_> = measured.messages.iter().map(|message| message.bytes).collect();
        let expected = if lost == 0 { [Some(700), Some(0)] } else { [None, None] };
        assert_eq!(sizes, expected, "{lost} records lost between the two");
    }
}

#[test]
fn what_is_left_out_is_counted_with_its_steps() {
    // The op is number 20 of its communicator.
    for (every, is_measured) in [(10, true), (3, false)] {
        let sampling = Sampling { every, ..Sampling::default() };
        let (mut session, mut out) = (Alone::new(Session::new(true).sampling(sampling)), Vec::new());
        posted_for_measuring(&mut session, &mut out);
        for connection in [0x51, 0x52] {
            for number in [0, 2] {
                session.apply(step(connection, number, StepMoment::Stop, 1), &mut |record| out.push(record));
            }
        }
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].peers[0].measured.is_some(), is_measured);
        let expected =
            if is_measured { LeftOut::default() } else { LeftOut { ops: 1, messages: 4, hits: 4 } };
        assert_eq!(session.counters(), ModelCounters { left_out: expected, ..ModelCounters::default() });
    }
}
