//! Ops and calls of known number and size, counted.

use crate::{
    made::ops::{Op, host, messages},
    model::{Measured, Message, Sampling},
};

use super::*;
use nccl_library::nccl::Direction;

#[test]
fn an_op_counts_once_on_however_many_channels_and_its_messages_each_time() {
    let mut tally = Tally::default();
    // Two ops, whose channels interleave as they do when messages are waited for.
    for (seq, channel) in [(0, 0), (2, 0), (0, 1), (2, 1)] {
        tally.flow(&Op { seq, channel, ..Op::default() }.record(), &host(10));
    }
    let statistics = tally.statistics();
    let [(key, rank)] = statistics.ranks.iter().collect::<Vec<_>>()[..] else { panic!("one rank") };
    assert_eq!((key.hash, key.rank, key.pid), (Some(7), 1, 10));
    let [(kind, op)] = &rank.ops[..] else { panic!("one kind: {:?}", rank.ops) };
    assert_eq!(
        (kind.coll.as_deref(), kind.algorithm, kind.protocol),
        (Some("AllReduce"), Some("RING"), Some("SIMPLE"))
    );
    assert_eq!((op.ops, op.bytes, op.unsized_ops), (2, 2 * 4096, 0), "1,024 floats each");
    let sends = &rank.traffic[&(PeerKind::Net, Direction::Send)];
    assert_eq!((sends.ended, sends.bytes_measured), (0, 0), "nothing was measured");
    assert!(sends.planned_exact + sends.planned_capacity > 0);
}

#[test]
fn what_was_measured_is_apart_from_what_was_planned() {
    let mut tally = Tally::default();
    let message = Message {
        start: Some(1_000),
        ready: Some(3_000),
        sent: Some(3_500),
        end: Some(11_000),
        bytes: Some(512),
        ..Message::default()
    };
    let mut record = Op::default().record();
    record.peers[1].measured =
        Some(Measured { messages: vec![message, Message { end: None, ..message }], ..Measured::default() });
    tally.flow(&record, &host(10));
    let rank = tally.statistics().ranks.values().next().unwrap();
    let sends = &rank.traffic[&(PeerKind::Net, Direction::Send)];
    assert_eq!(
        (sends.ended, sends.bytes_measured),
        (1, 1024),
        "one came to its end, of both the size was seen"
    );
    assert_eq!((sends.times.count(), sends.times.sum_ns()), (1, 10_000));
    let ready = &sends.waits[Wait::GpuReady as usize];
    assert_eq!((ready.count(), ready.sum_ns()), (2, 4_000));
    let network = &sends.waits[Wait::Network as usize];
    assert_eq!((network.count(), network.sum_ns()), (1, 7_500));
    let peer = rank.peers[&(Direction::Send, 2)];
    assert_eq!(peer.waits[Wait::PeerBuffer as usize], Sum { count: 2, ns: 1_000 });
    assert_eq!(rank.last_ns, 11_000);
}

#[test]
fn ranks_peers_and_kinds_are_bounded_and_what_is_beyond_is_counted_together() {
    let mut tally = Tally::default();
    let ranks = 600;
    for rank in 0..ranks {
        for seq in [0, 2, 4] {
            tally.flow(&Op { seq, rank, ..Op::default() }.record(), &host(10));
        }
    }
    let statistics = tally.statistics();
    assert_eq!(statistics.ranks.len(), 512);
    assert_eq!(statistics.folded_ranks, 88);
    assert_eq!(statistics.folded.ops[0].1.ops, 88 * 3, "each rank's ops are told apart");

    let mut tally = Tally::default();
    for number in 0..1000u32 {
        let mut record = Op { seq: u64::from(number) * 2, ..Op::default() }.record();
        record.op.coll = Some(format!("Function{number}").as_str().into());
        record.peers[0].connector.peer = i32::try_from(number).unwrap();
        record.peers[0].measured = messages(&[5_000]);
        tally.flow(&record, &host(10));
    }
    let rank = tally.statistics().ranks.values().next().unwrap();
    assert_eq!(rank.ops.len(), 49);
    assert_eq!(rank.ops.iter().map(|(_, op)| op.ops).sum::<u64>(), 1000);
    assert_eq!(rank.ops[48].0.coll, None);
    assert_eq!(rank.peers.len(), 128);
    let kept: u64 = rank.peers.values().map(|peer| peer.ended).sum();
    assert_eq!(kept + rank.folded_peers.ended, 1000);
}

/// Before 2.23 an all-gather has its count in elements and its type as bytes.
#[test]
fn bytes_that_are_not_known_are_not_guessed() {
    let mut tally = Tally::default();
    let mut record = Op::default().record();
    record.op.coll = Some("AllGather".into());
    record.op.dtype = Some("int8".into());
    tally.flow(&record, &host(10));
    let rank = tally.statistics().ranks.values().next().unwrap();
    assert_eq!((rank.ops[0].1.bytes, rank.ops[0].1.unsized_ops), (0, 1));
    let large_only = Sampling { min_bytes: 4096, ..Sampling::default() };
    assert!(large_only.takes(&record), "1,024 elements of nobody knows what");
    record.op.coll = Some("AllReduce".into());
    assert!(!large_only.takes(&record), "1,024 bytes");
}

#[test]
fn processes_that_ended_make_room_and_go_after_a_while() {
    let mut tally = Tally::default();
    let op = |rank| Op { rank, ..Op::default() }.record();
    for rank in 0..512 {
        tally.flow(&op(rank), &host(10 + u32::try_from(rank).unwrap() / 256));
    }
    tally.process_ended(&host(10), 1);
    tally.flow(&op(1000), &host(12));
    assert_eq!(tally.statistics().folded_ranks, 0);
    assert_eq!(tally.statistics().ranks.len(), 257);
    tally.process_ended(&host(11), 2);
    tally.process_ended(&host(12), 700_000_000_000);
    let left: Vec<u32> = tally.statistics().ranks.keys().map(|key| key.pid).collect();
    assert_eq!(left, [12], "ten minutes are over for one");
}

/// Each window has a model of its own, which counts sends and receives from 0.
#[test]
fn numbers_that_begin_anew_are_of_new_ops() {
    let mut tally = Tally::default();
    for _ in 0..2 {
        for seq in [1, 3] {
            tally.flow(&Op { seq, ..Op::default() }.record(), &host(10));
        }
        tally.numbers_begin_anew();
    }
    let rank = tally.statistics().ranks.values().next().unwrap();
    assert_eq!(rank.ops.iter().map(|(_, op)| op.ops).sum::<u64>(), 4);
}

/// A process that makes up communicators without end has its own counted together, and no other's.
#[test]
fn a_process_that_floods_loses_its_own_ranks() {
    let mut tally = Tally::default();
    let made_up = |hash: u64| {
        let mut record = Op { rank: 0, ..Op::default() }.record();
        record.comm.hash = Some(hash);
        record
    };
    for hash in 0..20_000 {
        tally.flow(&made_up(hash), &host(666));
    }
    assert!(tally.statistics().left_out > 0, "it has used up all that there is");
    for rank in 0..8 {
        for seq in [0, 2, 4] {
            tally.flow(&Op { seq, rank, ..Op::default() }.record(), &host(10 + rank.cast_unsigned()));
        }
    }
    let statistics = tally.statistics();
    let others: Vec<_> = statistics.ranks.iter().filter(|(key, _)| key.pid != 666).collect();
    assert_eq!(others.len(), 8, "each rank of the others is kept apart");
    assert!(others.iter().all(|(_, rank)| rank.ops[0].1.ops == 3), "and all its ops are counted");
    assert_eq!(statistics.ranks.len(), 512);
    assert_eq!(statistics.folded_by_process.keys().collect::<Vec<_>>(), [&666], "it is said whose are not");
    assert!(statistics.folded_by_process[&666] >= 8192 - 512);
}
