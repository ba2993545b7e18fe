//! `ncclflow record` on the real NCCL: what it writes, against what others say of the same run.

use ncclflow_e2e::{
    compare,
    harness::{
        prelude::*,
        traced_run::{Plugin, TracedRun},
    },
    tracer::{BytesKind, RankTrace, Trace},
};

const ALL_OPS: &str = "allreduce,allgather,reducescatter,broadcast,sendrecv,alltoall";

fn traced(version: &str, plugin: Plugin, workload: &str) -> Option<TracedRun> {
    TracedRun::new("", version, plugin, workload)
}

/// Four ranks, every operation, ring and tree; ranks as threads of one process and as processes.
fn every_operation(version: &str, plugin: Plugin) {
    for mode in ["processes", "threads"] {
        let sizes = "--ranks 4 --bytes 1048576 --iters 2 --channels 2 --algo ring";
        let Some(run) = traced(version, plugin, &format!("{sizes} --mode {mode} --ops {ALL_OPS}")) else {
            return;
        };
        run.check(plugin);
    }
    let tree = "--ranks 4 --ops allreduce --bytes 3000000 --iters 3 --algo tree";
    let Some(run) = traced(version, plugin, tree) else { return };
    run.check(plugin);
    let flows = run.trace().ranks.into_values().flat_map(|rank| rank.flows);
    let patterns: Vec<String> = flows.map(|flow| flow.pattern).collect();
    assert!(!patterns.is_empty() && patterns.iter().all(|pattern| pattern == "TREE_UP_DOWN"), "{patterns:?}");
}

#[test]
fn nccl_2_21_5_every_operation() {
    every_operation("2.21.5-cu12", Plugin::No);
}

#[test]
fn nccl_2_27_5_every_operation() {
    every_operation("2.27.5-cu12", Plugin::Yes);
}

#[test]
fn nccl_2_28_9_every_operation() {
    every_operation("2.28.9-cu13", Plugin::Yes);
}

#[test]
fn nccl_2_32_3_every_operation() {
    every_operation("2.32.3-cu12", Plugin::Yes);
}

/// PAT, whose messages follow from a plan by rule: as NCCL's profiler interface, its log and the device count
/// them.
#[test]
fn pat_as_nccl_itself_counts() {
    for version in ["2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"] {
        for bytes in ["1000004", "2000"] {
            let workload = "--ranks 5 --algo pat --ops allgather,reducescatter --channels 2 --iters 2";
            let workload = format!("{workload} --bytes {bytes}");
            let Some(run) = traced(version, Plugin::Yes, &workload) else { return };
            run.check(Plugin::Yes);
            let flows = run.trace().ranks.into_values().flat_map(|rank| rank.flows);
            let counted = flows
                .flat_map(|flow| flow.peers)
                .filter(|peer| peer.nsteps.is_some_and(|nsteps| nsteps > 0))
                .count();
            assert!(counted > 0, "{version}");
        }
    }
}

/// Odd sizes, where the last chunk, loop and slice are cut; from an op's own words (2.27) and
/// from its device work (2.21).
#[test]
fn ring_all_reduce_bytes_add_up_for_odd_sizes() {
    // What the chunks of a last loop are rounded up to: NCCL_SIMPLE_ALIGNMENT in 2.20 and 2.21.
    for (library, plugin, grain) in [("2.27.5-cu12", Plugin::Yes, 16), ("2.21.5-cu12", Plugin::No, 4096)] {
        for bytes in [4, 4096, 1_200_004, 40_000_012] {
            let workload = format!("--ranks 3 --ops allreduce --bytes {bytes} --channels 2 --iters 1");
            let Some(run) = traced(library, plugin, &workload) else { return };
            run.check(plugin);
            compare::ring_all_reduce_sums(&run.trace(), grain, &|_, _| Some(bytes)).assert_clean("sums");
        }
    }
}

/// LL and LL128 put flags into the FIFO too: the bytes that are recorded are those on the wire.
#[test]
fn every_protocol() {
    for (library, plugin) in [("2.27.5-cu12", Plugin::Yes), ("2.21.5-cu12", Plugin::No)] {
        for protocol in ["ll", "ll128"] {
            let workload = format!("--ranks 3 --ops {ALL_OPS} --bytes 100000 --iters 2 --proto {protocol}");
            let Some(run) = traced(library, plugin, &workload) else { return };
            run.check(plugin);
        }
    }
}

/// Every message of sends and receives in several messages and on several channels has its exact size, also
/// where the op does not lead to its task: up to 2.22.
#[test]
fn the_last_message_of_a_send_has_its_size() {
    for (library, plugin) in [("2.27.5-cu12", Plugin::Yes), ("2.21.5-cu12", Plugin::No)] {
        for bytes in ["300004", "5000012"] {
            let workload = format!("--ranks 3 --ops sendrecv,alltoall --bytes {bytes} --iters 2");
            let Some(run) = traced(library, plugin, &workload) else { return };
            run.check(plugin);
            let trace = run.trace();
            let steps: Vec<_> = trace.ranks.values().flat_map(|rank| &rank.steps).collect();
            assert!(steps.len() > 3 * 2 * 2 * 2, "{} messages", steps.len());
            let unknown = steps.iter().find(|step| step.bytes_kind != BytesKind::Exact);
            assert!(unknown.is_none(), "{library}: {unknown:?}");
        }
    }
}

/// Two communicators over the same ranks, and groups of operations, do not mix.
#[test]
fn communicators_and_groups_do_not_mix() {
    let workload = format!("--ranks 4 --ops {ALL_OPS} --bytes 65536 --iters 3 --comms 2 --group 4");
    let Some(run) = traced("2.27.5-cu12", Plugin::Yes, &workload) else { return };
    run.check(Plugin::Yes);
    let trace = run.trace();
    assert_eq!(trace.ranks.len(), 2 * 4, "two communicators of four ranks");
}

/// Attaching in the middle of a run: the true rank, nRanks and commHash, and numbers that are the same on
/// every rank although each process was attached to at another moment.
#[test]
fn attaching_in_the_middle_gives_true_identities() {
    // 20 s of work, by the intervals: more than an attachment takes on a machine where it stands for a while.
    let workload = "--ranks 3 --mode processes --iters 400 --bytes 65536 --interval-ms 50 --sync";
    let workload = format!("{workload} {DEBUG_LOG} {CALL_LOG}");
    let Some(mut world) = World::start("2.27.5-cu12", &workload) else { return };
    world.bed.go().unwrap();
    world.wait_for_calls(3);
    let recorder = world.record("");
    world.wait_for_calls(10);
    recorder.interrupt().unwrap();
    world.bed.end();

    let trace = Trace::read(&world.out()).unwrap();
    assert_eq!(trace.ranks.len(), 3);
    compare::identity(&trace).assert_clean("identity");
    let seqs = |rank: &RankTrace| rank.flows.iter().map(|flow| flow.seq).min().unwrap_or(0);
    for rank in trace.ranks.values() {
        assert!(rank.flows.iter().all(|flow| flow.n_ranks == 3));
        assert!(seqs(rank) > 0, "the collectives before the attachment are counted");
    }
    let logged = world.log();
    for member in trace.ranks.keys() {
        assert!(logged.member(*member).is_some(), "NCCL's own log does not know {member}");
    }
}
