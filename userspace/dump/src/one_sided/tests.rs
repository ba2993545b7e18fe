//! Queues of NCCL's own proxies. The real functions of a library (`ncclGinProxyProgress`,
//! `ncclRmaProxyProgress`) move them, in structs of the layouts of its debugging information. The test takes
//! the places of the GPU, which writes descriptors, and of the network, which takes puts and ends them when
//! told to.

mod nccl;
mod network;

use std::{
    env,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use self::nccl::{Descriptor, Nccl};
use super::*;
use inspect::process::Process;

/// Environment variable with the library, in the child.
const LIBRARY: &str = "NCCLFLOW_TEST_ONE_SIDED";
const N_RANKS: u32 = 4;
const RANK: u32 = 0;

/// Runs a test of this file in a process of its own for each library that has both proxies: NCCL's
/// destructors must not run, as there is no CUDA driver.
fn in_children(test: &str) -> Result<()> {
    for (name, library) in test_support::libraries() {
        if !["2.30", "2.31", "2.32"].iter().any(|version| name.starts_with(version)) {
            continue;
        }
        let mut child = Command::new(env::current_exe()?);
        child.args(["--exact", &format!("one_sided::tests::{test}"), "--nocapture"]).env(LIBRARY, &library);
        let output = child.output()?;
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(output.status.success(), "{name}: {}: {}", output.status, said.join("\n"));
        ensure!(said.join("").contains("compared"), "{name}: the child compared nothing: {said:?}");
    }
    Ok(())
}

/// In the child compares, and ends the process; in the parent starts the children.
fn with_nccl(test: &str, compare: impl FnOnce(&mut Nccl) -> Result<()>) -> Result<()> {
    let Some(library) = env::var_os(LIBRARY) else { return in_children(test) };
    let mut nccl = Nccl::open(Path::new(&library), N_RANKS, RANK)?;
    compare(&mut nccl)?;
    eprintln!("compared with {}", library.display());
    // SAFETY: nothing of this process is needed any more.
    unsafe { libc::_exit(0) }
}

fn read_any(nccl: &Nccl) -> Result<Option<OneSided>> {
    let process = Process::open(std::process::id())?;
    let layout = OneSidedLayout::new(&nccl.layouts);
    let comm = RankReport { address: nccl.comm(), n_ranks: N_RANKS, rank: RANK, ..RankReport::default() };
    Ok(layout.read(Memory::new(&process), &comm, nccl.shared(), &mut Budget::default())?)
}

fn read(nccl: &Nccl) -> Result<OneSided> {
    let read = read_any(nccl)?.context("the communicator has no proxy")?;
    ensure!(!read.is_cut, "{read:#?}");
    Ok(read)
}

/// Proxy, context and target of a queue, and what was called, taken and done.
type Row = (OneSidedProxy, u32, u32, [u32; 3]);

fn rows(read: &OneSided) -> Vec<Row> {
    let row = |queue: &OneSidedQueue| {
        let counts = [queue.called, queue.taken, queue.done];
        Some((queue.proxy?, queue.context, queue.target?, counts))
    };
    let mut rows: Vec<Row> = read.queues.iter().filter_map(row).collect();
    rows.sort_by_key(|(_, context, target, _)| (*context, *target));
    rows
}

fn queue(read: &OneSided, context: u32, target: u32) -> Result<&OneSidedQueue> {
    let mut queues = read.queues.iter();
    let found = queues.find(|queue| (queue.context, queue.target) == (context, Some(target)));
    found.with_context(|| format!("no queue of context {context} to {target}: {read:#?}"))
}

#[expect(clippy::unnecessary_wraps, reason = "as the fields of a queue have it")]
fn op(kind: OneSidedKind, bytes: Option<u64>, with_signal: bool) -> Option<OneSidedOp> {
    Some(OneSidedOp { kind: Some(kind), bytes, with_signal, is_ready: None })
}

#[test]
fn what_gpus_put_is_read_as_nccls_own_proxy_has_it() -> Result<()> {
    use OneSidedKind::{Flush, Get, Put, Signal};
    use OneSidedProxy::Gin;
    with_nccl("what_gpus_put_is_read_as_nccls_own_proxy_has_it", |nccl| {
        assert_eq!(rows(&read(nccl)?), []);
        nccl.write(1, 2, Descriptor { op: Descriptor::PUT | Descriptor::SIGNAL_INC, bytes: 65536 });
        nccl.write(1, 2, Descriptor { op: Descriptor::PUT, bytes: 300 });
        nccl.write(0, 3, Descriptor { op: Descriptor::SIGNAL_ONLY | Descriptor::SIGNAL_INC, bytes: 0 });
        // The proxy has not seen them.
        let before = read(nccl)?;
        assert_eq!(rows(&before), [(Gin, 0, 3, [1, 0, 0]), (Gin, 1, 2, [2, 0, 0])]);
        assert_eq!(
            (queue(&before, 1, 2)?.next, queue(&before, 1, 2)?.oldest),
            (op(Put, Some(65536), true), None)
        );
        assert_eq!((queue(&before, 0, 3)?.next, queue(&before, 0, 3)?.size), (op(Signal, None, false), 8));
        assert_eq!((before.called, before.done), (3, 0));
        nccl.progress_gin(3)?;
        assert_eq!(network::given(), [(3, 0), (2, 65536), (2, 300)]);
        nccl.write(1, 2, Descriptor { op: Descriptor::PUT, bytes: 4096 });
        nccl.write(1, 2, Descriptor { op: Descriptor::GET, bytes: 5 });
        let taken = read(nccl)?;
        assert_eq!(rows(&taken), [(Gin, 0, 3, [1, 1, 0]), (Gin, 1, 2, [4, 2, 0])]);
        let to_two = queue(&taken, 1, 2)?;
        // The proxy forgets the size of what it gives to the network.
        assert_eq!((to_two.oldest, to_two.next), (op(Put, None, true), op(Put, Some(4096), false)));
        // The second put ends first: what is before it is not done.
        network::end(3);
        nccl.progress_gin(1)?;
        assert_eq!(queue(&read(nccl)?, 1, 2)?.done, 0);
        network::end(1);
        network::end(2);
        nccl.progress_gin(3)?;
        let done = read(nccl)?;
        assert_eq!(rows(&done), [(Gin, 0, 3, [1, 1, 1]), (Gin, 1, 2, [4, 4, 2])]);
        assert_eq!((queue(&done, 1, 2)?.oldest, queue(&done, 0, 3)?.oldest), (op(Put, None, false), None));
        assert_eq!((done.called, done.done, network::given().len()), (5, 3, 5));
        // More than a round of the queue: the numbers go on, and places are used again.
        for number in 4..30 {
            network::end(number);
            nccl.progress_gin(2)?;
            nccl.write(1, 2, Descriptor { op: Descriptor::FLUSH, bytes: 0 });
            nccl.progress_gin(2)?;
        }
        let later = read(nccl)?;
        let to_two = queue(&later, 1, 2)?;
        assert_eq!(
            ([to_two.called, to_two.taken, to_two.done], to_two.oldest),
            ([30, 30, 28], op(Flush, None, false))
        );
        assert_eq!(op(Get, Some(5), false), later_get(nccl)?, "a get that was not taken");
        Ok(())
    })
}

/// Writes a get that the proxy does not see.
fn later_get(nccl: &mut Nccl) -> Result<Option<OneSidedOp>> {
    nccl.write(0, 1, Descriptor { op: Descriptor::GET, bytes: 5 });
    Ok(queue(&read(nccl)?, 0, 1)?.next)
}

#[test]
fn puts_and_waits_are_read_as_nccls_own_proxy_has_them() -> Result<()> {
    use OneSidedKind::{Put, PutGroup, Signal};
    use OneSidedProxy::{Rma, RmaGraph};
    with_nccl("puts_and_waits_are_read_as_nccls_own_proxy_has_them", |nccl| {
        nccl.put(1, 65536, true)?;
        nccl.put(3, 0, true)?;
        nccl.put(1, 12, false)?;
        nccl.stream_reaches(1, 1);
        nccl.stream_reaches(3, 1);
        nccl.progress_rma()?;
        assert_eq!(network::given(), [(1, 65536), (3, 0)]);
        let taken = read(nccl)?;
        assert_eq!(rows(&taken), [(Rma, 0, 1, [2, 1, 0]), (Rma, 0, 3, [1, 1, 0])]);
        let to_one = queue(&taken, 0, 1)?;
        let next = op(Put, Some(12), false).map(|op| OneSidedOp { is_ready: Some(false), ..op });
        assert_eq!((to_one.oldest, to_one.next), (op(Put, Some(65536), true), next));
        assert_eq!(queue(&taken, 0, 3)?.oldest, op(Signal, Some(0), false));
        assert_eq!(taken.waits, []);
        network::end(2);
        nccl.progress_rma()?;
        assert_eq!(rows(&read(nccl)?), [(Rma, 0, 1, [2, 1, 0]), (Rma, 0, 3, [1, 1, 1])]);
        assert_eq!(nccl.done_of(3), 1, "NCCL's own word");

        // A wait in a stream is only a number; one in a graph begins when the stream comes to it.
        nccl.expect_signals(2, 3, 1);
        nccl.wait_in_graph(2, 5)?;
        let wait = |expected, has_begun| SignalWait {
            context: 0,
            peer: 2,
            signal: 0,
            expected,
            arrived: Some(1),
            has_begun,
        };
        assert_eq!(read(nccl)?.waits, [wait(3, false)]);
        nccl.progress_rma()?;
        let waits = read(nccl)?.waits;
        assert_eq!(
            waits,
            [SignalWait { arrived: Some(4), signal: nccl.signal, ..wait(4 + 5, true) }, wait(3, false)]
        );
        nccl.signals_of_graphs_arrive(2, 9);
        nccl.progress_rma()?;
        assert_eq!(read(nccl)?.waits, [wait(3, false)]);

        nccl.put_in_graph(1, 77)?;
        nccl.progress_rma()?;
        let graph = read(nccl)?;
        let of_graph = graph.queues.iter().find(|queue| queue.proxy == Some(RmaGraph));
        let of_graph = of_graph.context("no put of the graph")?;
        assert_eq!(
            (of_graph.target, of_graph.oldest, of_graph.in_flight()),
            (Some(1), op(Put, Some(77), false), 1)
        );

        // Puts that were called together are in the rank's own queue.
        if nccl.put_together(&[(1, 10), (2, 20), (3, 30)])? {
            nccl.stream_reaches(RANK, 1);
            nccl.progress_rma()?;
            let (given, first) = (network::given(), 4);
            assert_eq!(given[first - 1..], [(1, 10), (2, 20), (3, 30)]);
            network::end(first);
            nccl.progress_rma()?;
            let read = read(nccl)?;
            let group = read.queues.iter().find(|queue| queue.slot == RANK).context("no group")?;
            assert_eq!((group.target, group.oldest), (Some(2), op(PutGroup, Some(20), false)));
        }
        Ok(())
    })
}

/// A tenant can write what it likes: numbers, and lists that lead back to themselves.
#[test]
fn made_up_numbers_and_lists_end_soon() -> Result<()> {
    with_nccl("made_up_numbers_and_lists_end_soon", |nccl| {
        nccl.put(1, 65536, true)?;
        nccl.stream_reaches(1, 1);
        nccl.progress_rma()?;
        let begun = Instant::now();
        for change in [Nccl::circle, Nccl::many_contexts, Nccl::many_signals, Nccl::no_queue_size] {
            change(nccl)?;
            let read = read_any(nccl)?.context("the communicator has no proxy")?;
            ensure!(read.is_cut && read.queues.len() <= MAX_ROWS, "{read:#?}");
        }
        ensure!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        Ok(())
    })
}
