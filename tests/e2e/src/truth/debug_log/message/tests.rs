//! Lines as the format strings of NCCL 2.21.5, 2.27.5 and 2.30.7 make them.

use super::*;

#[test]
fn rings_of_all_versions() {
    let ring = Ring { channel: 3, prev: 7, rank: 0, next: 1 };
    assert_eq!(Message::parse("Ring 03 : 7 -> 0 -> 1"), Some(Message::Ring(ring)));
    assert_eq!(Message::parse("Ring 03 : 7 -> 0"), None);
    assert_eq!(Message::parse("Ring 03 : 7 -> 0 -> 1 -> 2"), None);
    let order = Message::RingOrder { channel: 0, ranks: vec![0, 1, 2, 3] };
    assert_eq!(Message::parse("Channel 00/02 :    0   1   2   3"), Some(order.clone()));
    assert_eq!(Message::parse("Channel 00/02 : 0 1 2 3"), Some(order));
    assert_eq!(Message::parse("Channel 00/02 : 0 1 2..."), None, "a cut list is no ring");
}

#[test]
fn trees_of_all_channels_stand_on_one_line() {
    let message = "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->2";
    let expected = vec![
        Tree { channel: 0, down: [1, -1, -1], rank: 0, up: -1 },
        Tree { channel: 1, down: [-1, -1, -1], rank: 0, up: 2 },
    ];
    assert_eq!(Message::parse(message), Some(Message::Trees { trees: expected.clone(), cut: false }));
    assert_eq!(expected[0].children().collect::<Vec<_>>(), [1]);
    assert_eq!((expected[0].parent(), expected[1].parent()), (None, Some(2)));
    assert_eq!(Message::parse("Trees"), None);
}

#[test]
fn the_last_tree_of_a_cut_line_is_not_believed() {
    let items: Vec<String> = (0..64).map(|channel| format!("[{channel}] 10/11/-1->12->13")).collect();
    let mut message = format!("Trees {}", items.join(" "));
    message.truncate("Trees".len() + TREE_LINE_LIMIT);
    let Some(Message::Trees { trees, cut: true }) = Message::parse(&message) else { panic!("{message}") };
    assert!(trees.iter().all(|tree| tree.up == 13));
    assert!(trees.len() > 40);
}

#[test]
fn connections_of_every_transport() {
    let parse = |message| match Message::parse(message) {
        Some(Message::Connection(connection)) => connection,
        other => panic!("{message}: {other:?}"),
    };
    let net = parse("Channel 00/0 : 3[3] -> 0[0] [receive] via NET/Socket/0");
    assert_eq!((net.channel, net.conn_index, net.from, net.to), (0, Some(0), 3, 0));
    assert_eq!(
        (net.side, net.transport.as_str(), net.details.as_str()),
        (Some(Direction::Recv), "NET", "Socket/0")
    );
    assert_eq!(net.speaker(), 0);

    let net = parse("Channel 01/1 : 0[0] -> 4[0] [send] via NET/IB/2(3)/GDRDMA(PCI)/Shared");
    assert_eq!(
        (net.side, net.details.as_str(), net.speaker()),
        (Some(Direction::Send), "IB/2(3)/GDRDMA(PCI)/Shared", 0)
    );

    let p2p = parse("Channel 01/0 : 0[0] -> 1[1] via P2P/IPC/read");
    assert_eq!((p2p.side, p2p.transport.as_str(), p2p.details.as_str()), (None, "P2P", "IPC/read"));
    let p2p = parse("Channel 01/0 : 0[0] -> 1[1] via P2P/direct pointer/read");
    assert_eq!(p2p.details, "direct pointer/read");
    let p2p = parse("Channel 01/0 : 0[0] -> 1[1] via P2P/indirect/2[2]");
    assert_eq!(p2p.details, "indirect/2[2]");

    let shm = parse("Channel 02 : 1[1] -> 2[2] via SHM/direct/direct");
    assert_eq!((shm.channel, shm.conn_index, shm.transport.as_str()), (2, None, "SHM"));
    assert_eq!(Message::parse("Channel 00/0 : 3[3] ->"), None);
}

#[test]
fn api_calls_of_all_versions() {
    let message = "AllReduce: opCount 1f sendbuff 0x7f0 recvbuff 0x7f1 count 1024 datatype 7 op 0 root 0 \
                   comm 0x55aa [nranks=4] stream 0x1";
    let expected = ApiCall {
        func: "AllReduce".into(),
        op_count: 31,
        send_buffer: 0x7f0,
        recv_buffer: 0x7f1,
        count: 1024,
        datatype: 7,
        red_op: 0,
        root: 0,
        comm: 0x55aa,
        n_ranks: 4,
        stream: 1,
    };
    assert_eq!(Message::parse(message), Some(Message::Call(expected)));
    let null = message.replace("stream 0x1", "stream (nil)").replace("sendbuff 0x7f0", "sendbuff (nil)");
    assert!(matches!(Message::parse(&null), Some(Message::Call(_))));
}

#[test]
fn tuning_lines_of_three_generations() {
    let parse = |message| match Message::parse(message) {
        Some(Message::Tuning(tuning)) => tuning,
        other => panic!("{message}: {other:?}"),
    };
    let old = parse("4096 Bytes -> Algo 1 proto 0 time 12.500000");
    assert_eq!(
        (old.func, old.bytes, old.algo.as_str(), old.proto.as_str(), old.channels),
        (None, 4096, "1", "0", None)
    );
    let middle = parse("AllReduce: 4096 Bytes -> Algo 1 proto 2 time 12.500000");
    assert_eq!((middle.func.as_deref(), middle.algo.as_str()), (Some("AllReduce"), "1"));
    let new = parse("AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}");
    assert_eq!((new.algo.as_str(), new.proto.as_str(), new.channels), ("RING", "LL", Some((0, 3))));
    assert_eq!(
        Message::parse("AllGather [Symmetric]: 4096 Bytes -> Kernel X nchannels 1 nthreads 512 nWorks 1"),
        None
    );
}

#[test]
fn communicators_begin_and_end() {
    let parse = |message| match Message::parse(message) {
        Some(Message::Init(init)) => init,
        other => panic!("{message}: {other:?}"),
    };
    let start = parse(
        "ncclCommInitRank comm 0x55aa rank 1 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId 0xdeadbeef - Init START",
    );
    let expected =
        Init { comm: 0x55aa, rank: 1, n_ranks: 4, comm_hash: Some(CommHash(0xdead_beef)), complete: false };
    assert_eq!(start, expected);
    let ranked = parse(
        "[Rank 1] ncclCommInitRankConfig comm 0x55aa rank 1 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 \
         commId 0xdeadbeef - Init START",
    );
    assert_eq!(ranked, expected);
    let split = parse(
        "ncclCommSplit comm 0x66 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 parent 0x55aa splitCount 1 color 0 \
         key 0- Init START",
    );
    assert_eq!((split.comm, split.comm_hash, split.complete), (0x66, None, false));
    let split = parse(
        "ncclCommSplit comm 0x66 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 parent 0x55aa childCount 1 color 0 \
         key 0 - Init COMPLETE",
    );
    assert!(split.complete);
    assert_eq!(
        Message::parse("comm 0x55aa rank 0 nRanks 4 nNodes 4 localRanks 1 localRank 0 MNNVL 0"),
        Some(Message::Topology(Topology { comm: 0x55aa, rank: 0, n_ranks: 4, n_nodes: 4 }))
    );
    assert_eq!(
        Message::parse("comm 0x55aa rank 0 nranks 4 cudaDev 0 busId 1000 - Destroy COMPLETE"),
        Some(Message::Destroyed { comm: 0x55aa })
    );
    assert_eq!(Message::parse("Bootstrap: Using lo:127.0.0.1<0>"), None);
}
