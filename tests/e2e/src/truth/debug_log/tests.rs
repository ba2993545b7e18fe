use super::*;
use crate::direction::Direction;

/// Two ranks as threads of one process, their lines mixed, then a split whose hash is not printed.
const THREADS: &str = "\
h:1:10 [0] NCCL INFO ncclCommInitRank comm 0xa0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x77 - Init START
h:1:11 [1] NCCL INFO ncclCommInitRank comm 0xb0 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2 commId 0x77 - Init START
h:1:11 [1] NCCL INFO comm 0xb0 rank 1 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
h:1:11 [1] NCCL INFO Ring 00 : 0 -> 1 -> 0
h:1:10 [0] NCCL INFO Channel 00/01 : 0 1
h:1:10 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1 h:1:11 [1] NCCL INFO Trees [0] -1/-1/-1->1->0
h:1:10 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1
h:1:10 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0
h:1:10 [0] NCCL INFO ncclCommInitRank comm 0xa0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x77 - Init COMPLETE
h:1:11 [1] NCCL INFO ncclCommInitRank comm 0xb0 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2 commId 0x77 - Init COMPLETE
h:1:10 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 5 datatype 7 op 0 root 0 comm 0xa0 [nranks=2] stream 0x3
h:1:99 [1] NCCL INFO Channel 00/1 : 0[0] -> 1[1] [receive] via NET/Socket/0
";

#[test]
fn lines_of_threads_go_to_their_communicators() {
    let log = DebugLog::parse(THREADS);
    assert_eq!(log.communicators.len(), 2);
    let zero = log.member(Member { comm_hash: CommHash(0x77), rank: 0 }).unwrap();
    let one = log.member(Member { comm_hash: CommHash(0x77), rank: 1 }).unwrap();
    assert_eq!((zero.rings[&0].prev, zero.rings[&0].next, one.rings[&0].next), (1, 1, 0));
    assert_eq!((zero.trees[&0].down[0], one.trees[&0].up), (1, 0));
    assert_eq!(zero.ring_orders[&0], [0, 1]);
    assert_eq!(zero.calls.len(), 1);
    assert_eq!(zero.connections.len(), 1);
    assert_eq!(one.connections[0].side, Some(Direction::Recv), "a late connection has one possible owner");
    assert_eq!((one.n_nodes, one.complete, log.unattributed.len()), (Some(2), true, 0));
}

#[test]
fn what_two_communicators_could_have_said_is_not_given_to_one() {
    let split = "\
h:1:10 [0] NCCL INFO ncclCommSplit comm 0xc0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 parent 0xa0 splitCount 1 color 0 key 0- Init START
h:1:10 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1
h:1:10 [0] NCCL INFO ncclCommSplit comm 0xc0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 parent 0xa0 splitCount 1 color 0 key 0 - Init COMPLETE
h:1:98 [0] NCCL INFO Channel 00/1 : 0[0] -> 1[1] [send] via NET/Socket/0
";
    let log = DebugLog::parse(&format!("{THREADS}{split}"));
    assert_eq!(log.communicators.len(), 3);
    assert_eq!(log.communicators[2].comm_hash, None);
    assert_eq!(log.communicators[2].rings.len(), 1);
    assert_eq!(log.unattributed.len(), 1);
}

#[test]
fn a_reused_address_is_a_new_communicator() {
    let again = "\
h:1:10 [0] NCCL INFO comm 0xa0 rank 0 nranks 2 cudaDev 0 busId 1 - Destroy COMPLETE
h:1:10 [0] NCCL INFO ncclCommInitRank comm 0xa0 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x78 - Init START
";
    let log = DebugLog::parse(&format!("{THREADS}{again}"));
    assert!(log.communicators[0].destroyed);
    assert_eq!(log.communicators[2].member(), Some(Member { comm_hash: CommHash(0x78), rank: 1 }));
}

#[test]
fn a_communicator_without_a_name_is_known_by_its_likes() {
    let stranger = Member { comm_hash: CommHash(0x99), rank: 0 };
    let log = DebugLog::parse(THREADS);
    assert!(log.member(stranger).is_none());
    assert_eq!(log.member_or_alike(stranger, 2).unwrap().rings[&0].next, 1);
    assert!(log.member_or_alike(stranger, 3).is_none(), "another size");
    let other = "\
h:2:10 [0] NCCL INFO ncclCommInitRank comm 0xa0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x78 - Init START
h:2:10 [0] NCCL INFO Ring 00 : 5 -> 0 -> 5
";
    let log = DebugLog::parse(&format!("{THREADS}{other}"));
    assert!(log.member_or_alike(stranger, 2).is_none(), "two with rank 0, and their rings differ");
}

/// Up to 2.17 only the end of an initialization has a line, and what was built stands before it.
#[test]
fn graphs_may_come_before_their_communicator_has_a_name() {
    let log = DebugLog::parse(
        "\
h:1:10 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1
h:1:11 [1] NCCL INFO Ring 00 : 0 -> 1 -> 0
h:1:10 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1
h:1:11 [1] NCCL INFO comm 0xb0 rank 1 nranks 2 cudaDev 1 busId 2 commId 0x77 - Init COMPLETE
h:1:10 [0] NCCL INFO comm 0xa0 rank 0 nranks 2 cudaDev 0 busId 1 commId 0x77 - Init COMPLETE
",
    );
    let of = |rank: i32| log.member(Member { comm_hash: CommHash(0x77), rank }).unwrap();
    assert_eq!((of(0).rings[&0].prev, of(1).rings[&0].prev), (1, 0));
    assert_eq!((of(0).trees.len(), of(1).trees.len()), (1, 0));
}
