//! Steps of ops that another rank's process executes: NCCL sends through the GPU beside the NIC (PXN). On the
//! bed's nodes of two ranks with one NIC, where NCCL chooses so by itself.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{
    compare,
    direction::Direction,
    harness::{
        prelude::*,
        traced_run::{Plugin, TracedRun},
    },
    tracer::{BytesKind, FlowPeer, FlowStep, Measured, Trace},
    truth::{debug_log::DebugLog, transfer_log::TransferLog},
};

const COLLECTIVES: &str = "allreduce,allgather,reducescatter,broadcast";

/// Sends between the nodes go through the own proxy, and stand beside the others.
const ALL_OPS: &str = "allreduce,allgather,reducescatter,broadcast,sendrecv";

const NODES: &str = "--nodes collectives --mode processes --ranks 4";

/// Where ncclSend goes through another rank's proxy, too.
const NODES_THAT_SEND: &str = "--nodes sends --mode processes --ranks 6";

const SIZES: &str = "--bytes 700000 --iters 2";

/// By NCCL's own log: whose proxy sends, by rank, peer, channel and index of the connection. `None`: the
/// rank's own.
fn log_of_proxies(log: &DebugLog) -> BTreeMap<(i32, i32, u32, u32), Option<i32>> {
    let connections = log.communicators.iter().flat_map(|communicator| &communicator.connections);
    let sends = connections.filter(|one| one.transport == "NET" && one.side == Some(Direction::Send));
    sends
        .map(|one| {
            // `Socket/0(1)`, `Socket/0/Shared`
            let proxy = one.details.split_once('(').map(|(_, rest)| rest.trim_end_matches(')'));
            let key = (one.from, one.to, one.channel, one.conn_index.unwrap());
            (key, proxy.map(|rank| rank.parse().unwrap()))
        })
        .collect()
}

/// What the emulated kernels put into and took out of the slots of each connection: messages and bytes.
fn moved(transfers: &TransferLog) -> BTreeMap<(i32, Direction, i32, u32), (u64, u64)> {
    let mut all = BTreeMap::new();
    for transfer in transfers.ranks.values().flatten() {
        let key = (transfer.rank, transfer.direction, transfer.peer, transfer.channel);
        let sum: &mut (u64, u64) = all.entry(key).or_default();
        sum.0 += transfer.messages;
        sum.1 += transfer.wire_bytes;
    }
    all
}

fn network_steps(trace: &Trace) -> Vec<&FlowStep> {
    let steps = trace.ranks.values().flat_map(|rank| &rank.steps);
    steps.filter(|step| step.posted).collect()
}

/// What was measured, in the same way.
fn measured(steps: &[&FlowStep]) -> BTreeMap<(i32, Direction, i32, u32), (u64, u64)> {
    let mut all = BTreeMap::new();
    for step in steps.iter().filter(|step| step.measured.end.is_some()) {
        let sum: &mut (u64, u64) =
            all.entry((step.rank, step.direction, step.peer, step.channel)).or_default();
        sum.0 += 1;
        sum.1 += step.measured.bytes.unwrap_or(0);
    }
    all
}

/// NCCL's log says whose proxy sends; the emulated kernels say what went through it; the plugin says
/// what its hooks were told.
fn as_nccl_itself_tells(version: &str, plugin: Plugin, nodes: &str, ops: &str) {
    let workload = format!("{nodes} {SIZES} --channels 2 --ops {ops}");
    let options = "--level steps --step-detail transitions";
    let Some(run) = TracedRun::new(options, version, plugin, &workload) else { return };
    run.check(Plugin::No);
    let (trace, log) = (run.trace(), log_of_proxies(&run.log()));
    assert!(log.values().any(Option::is_some), "NCCL does not send through other ranks: {log:?}");
    if plugin == Plugin::Yes {
        // The plugin hears of what goes over the network only.
        let mut over_network = run.transfers();
        for transfer in over_network.ranks.values_mut() {
            transfer.retain(|one| {
                let ends = match one.direction {
                    Direction::Send => (one.rank, one.peer),
                    Direction::Recv => (one.peer, one.rank),
                };
                log.contains_key(&(ends.0, ends.1, one.channel, one.conn_index))
            });
        }
        let truth = run.plugin();
        compare::witnesses(&truth, &over_network).assert_clean("the witnesses agree with each other");
        compare::against_plugin(&trace, &truth).assert_clean("plugin");
    }

    let mut elsewhere = 0;
    for flow in trace.ranks.values().flat_map(|rank| &rank.flows) {
        let sends = |peer: &&FlowPeer| peer.proxy && peer.direction == Direction::Send;
        assert_eq!(flow.measured.is_some(), flow.peers.iter().any(|peer| peer.proxy), "{flow:?}");
        assert!(flow.measured.as_deref().is_none_or(|measured| measured == "as_planned"), "{flow:?}");
        for peer in flow.peers.iter().filter(sends) {
            let key = (flow.rank, peer.peer, flow.channel, u32::try_from(peer.conn_index).unwrap());
            let proxy = log[&key];
            // Before 2.23 a connector does not name the rank.
            if plugin == Plugin::Yes {
                assert_eq!(peer.proxy_rank, proxy, "{flow:?}");
            }
            let pid = proxy.map(|rank| run.pids()[usize::try_from(rank).unwrap()]);
            assert_eq!(peer.proxy_pid, pid, "{flow:?}");
            elsewhere += u64::from(proxy.is_some());
        }
    }
    assert!(elsewhere > 0);

    let steps = network_steps(&trace);
    for step in &steps {
        let Measured { start, sent, arrived, handed, posted, end, slot_free, bytes, .. } = step.measured;
        let moments = match step.direction {
            Direction::Send => vec![slot_free, start, sent, end],
            Direction::Recv => vec![slot_free, posted, arrived, handed, end],
        };
        assert!(moments.iter().all(Option::is_some) && moments.is_sorted(), "{step:?}");
        let told = plugin == Plugin::Yes || step.direction == Direction::Send;
        assert_eq!(bytes.is_some(), told, "{step:?}");
        assert!(step.bytes_kind != BytesKind::Exact || bytes.is_none_or(|bytes| bytes == step.bytes));
    }
    let (measured, moved) = (measured(&steps), moved(&run.transfers()));
    assert!(!measured.is_empty());
    for (key, (messages, bytes)) in &measured {
        let told = plugin == Plugin::Yes || key.1 == Direction::Send;
        assert_eq!((*messages, *bytes), (moved[key].0, if told { moved[key].1 } else { 0 }), "{key:?}");
    }
    let model = &run.session()["model"];
    for counter in ["unjoined_steps", "foreign_messages", "proxy_not_known", "unfinished", "unposted"] {
        assert_eq!(model[counter], 0, "{counter}");
    }
}

#[test]
fn nccl_2_27_5_as_it_tells() {
    as_nccl_itself_tells("2.27.5-cu12", Plugin::Yes, NODES, ALL_OPS);
    as_nccl_itself_tells("2.27.5-cu12", Plugin::Yes, NODES_THAT_SEND, "sendacross,allgather");
}

#[test]
fn nccl_2_28_9_as_it_tells() {
    as_nccl_itself_tells("2.28.9-cu13", Plugin::Yes, NODES, ALL_OPS);
    as_nccl_itself_tells("2.28.9-cu13", Plugin::Yes, NODES, "allreduce --algo tree");
    as_nccl_itself_tells("2.28.9-cu13", Plugin::Yes, NODES_THAT_SEND, "sendacross,allgather --group 2");
}

#[test]
fn nccl_2_21_5_as_it_tells() {
    as_nccl_itself_tells("2.21.5-cu12", Plugin::No, NODES, ALL_OPS);
}

/// Records these ranks of the bed's four only.
fn recorded_in_part(ranks: &[usize]) -> Option<World> {
    let workload = format!("{NODES} {TRANSFER_LOG} --ops {COLLECTIVES} {SIZES}");
    let mut world = World::start("2.27.5-cu12", &workload)?;
    let pids: Vec<String> = ranks.iter().map(|rank| world.bed.ready.pids[*rank].to_string()).collect();
    let options = ["--level", "steps", "--strict"];
    let recorder = Recorder::start(&world.ncclflow, &pids.join(","), &world.out(), &options).unwrap();
    world.run();
    recorder.end().unwrap();
    Some(world)
}

/// Of messages that nobody watched nothing is said, least of all that there were none.
#[test]
fn without_the_process_that_executes_them() {
    let Some(world) = recorded_in_part(&[0, 2]) else { return };
    let trace = Trace::read(&world.out()).unwrap();
    let mut ops = 0;
    for flow in trace.ranks.values().flat_map(|rank| &rank.flows) {
        let elsewhere = flow.peers.iter().any(|peer| peer.proxy_rank.is_some());
        assert!(flow.peers.iter().all(|peer| peer.proxy_pid.is_none()), "{flow:?}");
        if elsewhere {
            assert_eq!(flow.measured.as_deref(), Some("proxy_not_known"), "{flow:?}");
            ops += 1;
        }
    }
    assert!(ops > 0);
    let steps = network_steps(&trace);
    let sends: Vec<_> = steps.iter().filter(|step| step.direction == Direction::Send).collect();
    assert!(!sends.is_empty());
    assert!(sends.iter().all(|step| step.measured == Measured::default()));
    let model = &world.session()["model"];
    assert_eq!((&model["proxy_not_known"], &model["unfinished"]), (&ops.into(), &0.into()));
    assert_eq!((&model["unjoined_steps"], &model["foreign_messages"]), (&0.into(), &0.into()));
}

/// Messages whose op nobody saw are no op's, and they are as many as the others' kernels put into the slots.
#[test]
fn without_the_processes_that_posted_them() {
    let Some(world) = recorded_in_part(&[1, 3]) else { return };
    let trace = Trace::read(&world.out()).unwrap();
    let transfers = TransferLog::read(&world.path("transfers"), world.bed.ready.nranks).unwrap();
    // Ranks 0 and 2 send to the other node, everything else stays in its own.
    let foreign: u64 = moved(&transfers)
        .iter()
        .filter(|((rank, direction, peer, _), _)| {
            rank % 2 == 0 && *direction == Direction::Send && rank / 2 != peer / 2
        })
        .map(|(_, (messages, _))| messages)
        .sum();
    assert!(foreign > 0);
    let model = &world.session()["model"];
    assert_eq!(model["foreign_messages"], foreign);
    assert_eq!((&model["proxy_not_known"], &model["unfinished"]), (&0.into(), &0.into()));
    assert!(network_steps(&trace).iter().all(|step| step.measured.proxy_pid.is_none()));
}

/// What is left out is counted with the hits that it had in the other process.
#[test]
fn samples_count_what_another_process_executes() {
    for sampling in ["--steps-every 2", "--channels 1"] {
        let options = format!("--level steps {sampling}");
        let workload = format!("{NODES} --ops {COLLECTIVES} {SIZES} --channels 2");
        let Some(run) = TracedRun::new(&options, "2.28.9-cu13", Plugin::No, &workload) else { return };
        run.check(Plugin::No);
        let trace = run.trace();
        let (measured, rest): (Vec<&FlowStep>, Vec<&FlowStep>) =
            network_steps(&trace).into_iter().partition(|step| step.measured != Measured::default());
        assert!(!measured.is_empty() && measured.iter().all(|step| step.measured.end.is_some()));
        let model = &run.session()["model"];
        assert_eq!(model["left_out"]["messages"], rest.len(), "{sampling:?}");
        // Two hits to receive a message, three to send one.
        let hits = |steps: &[&FlowStep]| -> usize {
            steps.iter().map(|step| if step.direction == Direction::Send { 3 } else { 2 }).sum()
        };
        assert_eq!(model["left_out"]["hits"], hits(&rest), "{sampling:?}");
        for counter in ["unjoined_steps", "unfinished", "proxy_not_known"] {
            assert_eq!(model[counter], 0, "{sampling:?}: {counter}");
        }
    }
}
