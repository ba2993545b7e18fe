//! Lists of args structs made up in our own memory, read as if they were another process's.

use std::time::{Duration, Instant};

use super::*;
use inspect::process::Process;

/// Words of a made-up args struct: one sub of 16 words, then the rest.
const ARGS: usize = 32;
const OP_COUNT: usize = 17;
const STATE: usize = 18;
const NEXT: usize = 19;
const NEXT_PEER: usize = 20;
const N_SUBS: usize = 16;
const BASE: usize = 3;
const POSTED: usize = 4;
const DONE: usize = 7;
const REGISTERED: usize = 10;
const BUFFER_READY: usize = 11;

fn word(index: usize) -> IntField {
    IntField::new(8 * index as u64, 8).unwrap()
}

fn words<const N: usize>(indices: [usize; N]) -> Places<N> {
    indices.map(|index| Some(word(index)))
}

fn layout() -> ProxyLayout {
    ProxyLayout {
        active: word(0),
        async_result: None,
        thread: None,
        args_size: 8 * ARGS as u64,
        subs: ArrayField { offset: 0, count: 1, elem_size: 128 },
        links: words([NEXT, NEXT_PEER, OP_COUNT, STATE, N_SUBS]),
        args: [Some(word(21)), Some(word(22)), None, Some(word(23)), Some(word(24))],
        sub: {
            let mut sub = words([0, 1, 2, BASE, POSTED, 5, 0, 6, DONE, 8, 9, REGISTERED, BUFFER_READY]);
            sub[6] = None;
            sub
        },
        connection: words([0, 1, 2]),
        send_tail: None,
        recv_head: None,
        ready: None,
        net_devs: NetDevs::default(),
        send_ranks: [None; 2],
        state_none: 0,
        state_ready: 1,
        names: NameTables::default(),
    }
}

fn address(words: &[u64]) -> u64 {
    words.as_ptr() as u64
}

/// An op in progress: 4 of 8 steps posted, 2 done.
fn args(connection: &[u64], op_count: u64, next: u64, next_peer: u64) -> Vec<u64> {
    let mut words = vec![0; ARGS];
    words[..10].copy_from_slice(&[address(connection), 3, 8, 0, 4, 0, 2, 2, 1, 0]);
    words[N_SUBS..=24].copy_from_slice(&[1, op_count, 2, next, next_peer, 0, 2, 1, 1]);
    words
}

fn read_list(head: u64) -> ProxyList {
    read_by(&layout(), head)
}

fn read_by(layout: &ProxyLayout, head: u64) -> ProxyList {
    let process = Process::open(std::process::id()).unwrap();
    let proxy = [head];
    read(Memory::new(&process), layout, address(&proxy)).unwrap()
}

#[test]
fn a_list_is_read_along_both_links() {
    let connection = [1, 2, 0];
    let queued = {
        let mut words = args(&connection, 12, 0, 0);
        words[STATE] = 1;
        words
    };
    let last = args(&connection, 7, 0, 0);
    let first = args(&connection, 10, address(&last), address(&queued));
    let list = read_list(address(&first));
    assert_eq!(list.state, ProxyListState::Read);
    let mut counts: Vec<(u64, bool)> =
        list.ops.iter().map(|op| (op.report.op_count, op.report.p2p)).collect();
    counts.sort_unstable();
    assert_eq!(counts, [(3, true), (5, false), (6, false)]);
    let of = |count| &list.ops.iter().find(|op| op.report.op_count == count).unwrap().report;
    assert_eq!((of(5).posted, of(5).done, of(5).nsteps, of(5).channel), (4, 2, 8, 3));
    assert_eq!((of(5).direction, of(5).peer), (Direction::Send, Some(1)));
    assert!(!of(6).begun && of(6).posted == 0, "steps of an op that has not begun are an older op's");
    assert_eq!(read_list(0).ops, []);
}

/// Fields of many structs are read at once: each op has its own, whatever others lack.
#[test]
fn each_of_many_ops_has_its_own_device_and_counter_of_the_gpu() {
    let layout = ProxyLayout {
        // The first word is the device, the second points to the counter.
        net_devs: NetDevs([Some(word(0)), None]),
        send_tail: Some((word(1), word(0))),
        ..layout()
    };
    let tails: Vec<u64> = (0..600).map(|op| 1 + op % 5).collect();
    let resources: Vec<[u64; 2]> =
        (0..600).zip(&tails).map(|(op, tail)| [op % 8, std::ptr::from_ref(tail) as u64]).collect();
    // Each third op goes through shared memory, and each seventh connection has resources that cannot be read.
    let of_op = |op: usize| match op {
        op if op % 3 == 0 => [1, 1, address(&resources[op])],
        op if op % 7 == 0 => [1, NET, 0x10],
        op => [1, NET, address(&resources[op])],
    };
    let connections: Vec<[u64; 3]> = (0..600).map(of_op).collect();
    let mut all: Vec<Vec<u64>> =
        connections.iter().zip(0..).map(|(connection, op)| args(connection, 2 * op, 0, 0)).collect();
    for op in 1..all.len() {
        let next = address(&all[op]);
        all[op - 1][NEXT] = next;
    }
    let list = read_by(&layout, address(&all[0]));
    assert_eq!((list.state, list.ops.len()), (ProxyListState::Read, 600));
    for (op, read) in list.ops.iter().enumerate() {
        let is_read = op % 3 != 0 && op % 7 != 0;
        let report = &read.report;
        assert_eq!((read.connection, report.op_count), (address(&connections[op]), op as u64));
        assert_eq!(report.net_dev, is_read.then_some(u32::try_from(op % 8).unwrap()), "{op}");
        // The base of an op is 0.
        assert_eq!(report.gpu, is_read.then_some(tails[op]), "{op}");
    }
}

/// The flag is in the slot of the step at which the op begins, and is asked for of receives only that wait
/// for it.
#[test]
fn a_receive_into_a_registered_buffer_tells_whether_its_gpu_is_ready() {
    // The FIFO begins at the second word of the memory; a slot has three words, of which the second is the
    // size, as `int`.
    let flags = ReadyFlags { recv_mem: word(0), fifo: (8, 24), size: IntField::new(8, 4).unwrap() };
    let layout = ProxyLayout { ready: Some(flags), ..layout() };
    let mut recv_mem = [u64::MAX; 1 + 3 * 8];
    recv_mem[1 + 3 * 5 + 1] = 0;
    let resources = [address(&recv_mem)];
    let connection = [0, NET, address(&resources)];
    let ready = |base: u64, change: fn(&mut [u64])| {
        let mut args = args(&connection, 10, 0, 0);
        (args[BASE], args[POSTED], args[6], args[DONE], args[REGISTERED]) = (base, 0, 0, 0, 1);
        change(&mut args);
        read_by(&layout, address(&args)).ops[0].report.gpu_ready
    };
    assert_eq!(
        (ready(4, |_| ()), ready(5, |_| ()), ready(5 + 8 * 3, |_| ())),
        (Some(false), Some(true), Some(true))
    );
    assert_eq!(ready(4, |args| args[REGISTERED] = 0), None, "not registered");
    assert_eq!(ready(4, |args| args[BUFFER_READY] = 1), None, "known to be ready");
    assert_eq!(ready(4, |args| args[POSTED] = 1), None, "posted");
    assert_eq!(ready(4, |args| args[STATE] = 1), None, "not begun");
    assert_eq!(ready(4, |args| args[22] = 0), None, "LL does not wait");
}

#[test]
fn a_list_without_end_and_one_of_nonsense_are_not_believed() {
    let connection = [0, 2, 0];
    let mut circle = args(&connection, 10, 0, 0);
    circle[NEXT] = address(&circle);
    assert_eq!(read_list(address(&circle)).state, ProxyListState::Unreadable);
    let mut freed = args(&connection, 10, 0, 0);
    freed[STATE] = 0;
    assert_eq!(read_list(address(&freed)).state, ProxyListState::Unreadable);
    let mut impossible = args(&connection, 10, 0, 0);
    impossible[DONE] = 6;
    assert_eq!(read_list(address(&impossible)).state, ProxyListState::Unreadable);
    let mut many = args(&connection, 10, 0, 0);
    many[N_SUBS] = u64::MAX;
    assert_eq!(read_list(address(&many)).state, ProxyListState::Unreadable);
    let stray = args(&connection, 10, 0x10, 0);
    let list = read_list(address(&stray));
    assert!(list.state == ProxyListState::Unreadable && list.ops.is_empty());
}

/// Returns the state of the steps of a list, by these looks.
fn steps(looks: &mut ProxyLooks, proxy: u64) -> Option<Steps> {
    let process = Process::open(std::process::id()).unwrap();
    looks.steps(Memory::new(&process), &layout(), proxy)
}

#[test]
fn a_step_changes_the_mark_and_a_list_that_cannot_be_read_has_none() {
    let later = || ProxyLooks::until(Instant::now() + Duration::from_secs(60));
    let connection = [1, 2, 0];
    let mut op = args(&connection, 10, 0, 0);
    let head = [address(&op)];
    let proxy = address(&head);
    let mut looks = later();
    let first = steps(&mut looks, proxy);
    assert!(matches!(first, Some(Steps::At(_))), "{first:?}");
    assert_eq!(steps(&mut later(), proxy), first, "nothing moved");
    op[DONE] += 1;
    op[6] += 1;
    assert_eq!(steps(&mut looks, proxy), first, "one look for a reading");
    assert_ne!(steps(&mut later(), proxy), first);
    assert_eq!(steps(&mut ProxyLooks::until(Instant::now()), proxy), None, "no time is left");
    op[NEXT] = 0x10;
    assert_eq!(steps(&mut later(), proxy), None, "not movement");
}

#[test]
fn a_mark_is_made_of_the_beginning_of_a_long_list() {
    let connection = [1, 2, 0];
    let mut all: Vec<Vec<u64>> = (0..20_000).map(|op| args(&connection, 2 * op, 0, 0)).collect();
    for op in 1..all.len() {
        let next = address(&all[op]);
        all[op - 1][NEXT] = next;
    }
    let head = [address(&all[0])];
    let mark = || steps(&mut ProxyLooks::until(Instant::now() + Duration::from_secs(60)), address(&head));
    let first = mark();
    assert!(matches!(first, Some(Steps::At(_))), "{first:?}");
    all[19_999][POSTED] = 5;
    assert_eq!(mark(), first);
    all[0][POSTED] = 5;
    assert_ne!(mark(), first);
}

#[test]
fn op_counts_carry_their_kind_in_the_lowest_bit() {
    assert_eq!(split_op_count(10), (5, false));
    assert_eq!(split_op_count(11), (5, true));
    assert_eq!(transport_name(2), Some("NET"));
    assert_eq!(transport_name(9), None);
}
