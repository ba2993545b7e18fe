//! Made-up ranks of a ring of four.

use std::collections::BTreeSet;

use crate::{
    ChannelReport, CommunicatorReport, ConnectionReport, Motion, OpReport, ProcessReport, ProcessState,
    ProxyListState, ProxyReport, RankGpu, RankReport, Work,
    verdict::{State, Verdict, judge_beside},
};
use inspect::threads::Thread;
use nccl_library::nccl::Direction;

pub(in crate::verdict) const N: u32 = 4;

/// Judges one communicator, which nothing beside it explains.
pub(crate) fn judge(ranks: &[RankReport], processes: &[ProcessReport]) -> Verdict {
    judge_beside(ranks, processes, &BTreeSet::new(), &BTreeSet::new(), None)
}

pub(crate) fn op(direction: Direction, peer: u32, count: u64) -> OpReport {
    OpReport {
        op_count: count,
        p2p: false,
        coll: Some("AllReduce".to_owned()),
        pattern: Some("RING_TWICE".to_owned()),
        protocol: Some("SIMPLE".to_owned()),
        channel: 0,
        direction,
        peer: Some(peer),
        transport: Some("NET".to_owned()),
        net_dev: None,
        begun: true,
        nsteps: 24,
        posted: 8,
        received: 0,
        flushed: None,
        transmitted: 0,
        done: 0,
        gpu: None,
        gpu_ready: None,
        chunk_steps: 4,
        slice_steps: 2,
        still_seconds: 1.0,
    }
}

/// A rank of a ring over all, that stood still for a second and launched `launched` all-reduces.
pub(crate) fn rank(rank: u32, launched: u64, ops: Vec<OpReport>) -> RankReport {
    let at = |rank: u32| i32::try_from(rank % N).unwrap();
    let channel = ChannelReport {
        channel: 0,
        ring_prev: at(rank + N - 1),
        ring_next: at(rank + 1),
        tree_up: -1,
        tree_down: Vec::new(),
    };
    let mut report = RankReport {
        comm_hash: "0x1".to_owned(),
        n_ranks: N,
        rank,
        pid: 100 + rank,
        process_state: ProcessState::Running,
        channels: vec![channel],
        proxy: ProxyReport { state: ProxyListState::Read, carries_rings: Some(true), ops },
        motion: Motion { readings: 3, seconds: 1.0, steps_moved: false, counters_moved: false },
        ..RankReport::default()
    };
    report.counters.seq_number.insert("AllReduce".to_owned(), launched);
    report
}

/// A rank of a ring over NVLink that launched `launched` all-reduces, none of which the host sees in flight.
pub(in crate::verdict) fn over_nvlink(number: u32, launched: u64, work: Option<Work>) -> RankReport {
    let mut report = rank(number, launched, Vec::new());
    report.proxy.carries_rings = Some(false);
    report.gpu = work.map(|work| {
        let (sm, memory, nvlink) = match work {
            Work::Idle => (0, 0, 0),
            Work::Waits => (99, 0, 0),
            Work::Computes => (98, 20, 0),
            Work::Moves => (98, 40, 64_000_000_000),
        };
        RankGpu {
            seconds: 1.0,
            sm_percent: Some(sm),
            memory_percent: Some(memory),
            nvlink_bytes: Some(nvlink),
            ..RankGpu::default()
        }
    });
    report
}

/// A rank that sent what it could and waits for its predecessor.
pub(crate) fn waiting(number: u32) -> RankReport {
    let mut send = op(Direction::Send, (number + 1) % N, 4);
    (send.posted, send.transmitted, send.done) = (12, 4, 4);
    rank(number, 5, vec![op(Direction::Recv, (number + N - 1) % N, 4), send])
}

/// A rank whose GPU has what it needs and does nothing.
pub(in crate::verdict) fn lazy(number: u32) -> RankReport {
    let mut receive = op(Direction::Recv, (number + N - 1) % N, 4);
    (receive.received, receive.transmitted) = (4, 4);
    rank(number, 5, vec![receive, op(Direction::Send, (number + 1) % N, 4)])
}

/// A communicator over these processes, whose ranks have nothing in flight.
pub(in crate::verdict) fn communicator(hash: &str, pids: &[u32]) -> CommunicatorReport {
    let n_ranks = u32::try_from(pids.len()).unwrap();
    let ranks = (0..).zip(pids).map(|(number, pid)| RankReport {
        comm_hash: hash.to_owned(),
        n_ranks,
        pid: *pid,
        ..over_nvlink(number, 5, None)
    });
    let (comm_hash, ranks) = (hash.to_owned(), ranks.collect());
    CommunicatorReport { comm_hash, n_ranks, ranks, ..CommunicatorReport::default() }
}

/// A process whose first thread is in a call of NCCL, or in none.
pub(in crate::verdict) fn in_call(pid: u32, communicators: usize, call: Option<&str>) -> ProcessReport {
    let thread = Thread { tid: pid, nccl_api: call.map(str::to_owned), ..Thread::default() };
    ProcessReport { pid, communicators, threads: vec![thread], ..ProcessReport::default() }
}

#[track_caller]
pub(in crate::verdict) fn check(
    verdict: &Verdict,
    state: State,
    culprits: &[u32],
    victims: &[u32],
    said: &str,
) {
    assert_eq!(verdict.state, state, "{verdict:#?}");
    assert_eq!((&*verdict.culprits, &*verdict.victims), (culprits, victims), "{verdict:#?}");
    assert!(verdict.evidence.iter().any(|sentence| sentence.contains(said)), "{verdict:#?}");
}

/// The connections of a rank in a ring over all, with the steps begun from and to its neighbours.
pub(in crate::verdict) fn connected(mut rank: RankReport, from: u64, to: u64) -> RankReport {
    let end = |direction, peer, steps| ConnectionReport {
        channel: 0,
        direction,
        peer: peer % N,
        steps,
        net_dev: None,
    };
    rank.connections =
        vec![end(Direction::Recv, rank.rank + N - 1, from), end(Direction::Send, rank.rank + 1, to)];
    rank
}
