//! `ncclflow record --level steps` on the real NCCL: every message as it happened.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{
    direction::Direction,
    harness::{
        prelude::*,
        traced_run::{Plugin, TracedRun},
    },
    tracer::{BytesKind, FlowStep, Measured},
};

/// Versions before the ones that every test runs: two that `cargo xtask test` fetches, and the
/// others with `NCCLFLOW_LONG=1`.
const OLD: [&str; 2] = ["2.17.1-cu12", "2.19.3-cu12"];
const OLD_LONG: [&str; 4] = ["2.16.5-cu12", "2.18.1-cu12", "2.18.3-cu12", "2.20.5-cu12"];

/// Every operation.
const ALL: &str =
    "--ops allreduce,allgather,reducescatter,broadcast,sendrecv,alltoall --bytes 700000 --ranks 3 --iters 2";

/// Whether this version's hooks tell the sizes of messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sizes {
    Measured,
    /// Of sends, but for those whose buffer is the user's own.
    OfSends,
}

/// What is asked of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    Waits,
    Transitions,
}

impl Detail {
    fn options(self) -> &'static str {
        match self {
            Self::Waits => "--level steps",
            Self::Transitions => "--level steps --step-detail transitions",
        }
    }
}

fn all_steps(run: &TracedRun) -> Vec<FlowStep> {
    run.trace().ranks.into_values().flat_map(|rank| rank.steps).collect()
}

/// Every message of every op was measured from beginning to end, and nothing is left over.
fn check_measured(run: &TracedRun, detail: Detail, sizes: Sizes) {
    let steps = all_steps(run);
    assert!(!steps.is_empty());
    for step in &steps {
        let measured: &Measured = &step.measured;
        let moments = match (step.direction, detail) {
            (Direction::Send, Detail::Waits) => vec![measured.slot_free, measured.sent, measured.end],
            (Direction::Send, Detail::Transitions) => {
                vec![measured.slot_free, measured.start, measured.sent, measured.end]
            }
            (Direction::Recv, Detail::Waits) => vec![measured.slot_free, measured.arrived, measured.end],
            (Direction::Recv, Detail::Transitions) => {
                vec![measured.slot_free, measured.posted, measured.arrived, measured.handed, measured.end]
            }
        };
        assert!(step.posted && moments.iter().all(Option::is_some) && moments.is_sorted(), "{step:?}");
        // Where the plan does not have the exact size, the size that is measured does not pass it.
        let told = sizes == Sizes::Measured || step.direction == Direction::Send;
        assert_eq!(measured.bytes.is_some(), told, "{step:?}");
        match step.bytes_kind {
            BytesKind::Exact => assert!(measured.bytes.is_none_or(|bytes| bytes == step.bytes), "{step:?}"),
            BytesKind::Capacity => {
                assert!(measured.bytes.is_none_or(|bytes| bytes <= step.bytes), "{step:?}");
            }
        }
    }
    let session = run.session();
    for counter in ["orphan_peers", "unplanned_posts", "unposted", "unjoined_steps", "unfinished"] {
        assert_eq!(session["model"][counter], 0, "{counter}");
    }
    assert_eq!(session["step_detail"], format!("{detail:?}").to_lowercase());
}

/// The kernel's own counts of hits at the hooks of steps, all processes together.
fn step_hits(run: &TracedRun) -> u64 {
    let session = run.session();
    hits_of(&session, |function| function.contains("ProxyStep") || function == "ncclProfilingRecord")
}

/// The kernel's own counts of hits at the probes of some functions, all processes together.
fn hits_of(session: &Value, is_one: impl Fn(&str) -> bool) -> u64 {
    let probes = list(&session["probes"]).iter().filter(|probe| is_one(text(&probe["function"])));
    probes.map(|probe| number(&probe["hits"]) - number(&probe["disarmed"])).sum()
}

/// Messages that the emulated kernels themselves put into and took out of the slots.
fn messages_moved(run: &TracedRun) -> u64 {
    run.transfers().ranks.values().flatten().map(|transfer| transfer.messages).sum()
}

/// Times in the order of the hooks and of NCCL's own profiler interface in the same run, sizes as
/// transferred and as planned.
fn as_the_plugin_tells(version: &str) {
    for (mode, detail) in
        [("threads", Detail::Waits), ("processes", Detail::Waits), ("processes", Detail::Transitions)]
    {
        let workload = format!("--mode {mode} {ALL}");
        let Some(run) = TracedRun::new(detail.options(), version, Plugin::Yes, &workload) else { return };
        run.check(Plugin::Yes);
        check_measured(&run, detail, Sizes::Measured);
        check_sums(&run, Direction::Send);
        check_sums(&run, Direction::Recv);
    }
}

#[test]
fn nccl_2_27_5_as_the_plugin_tells() {
    as_the_plugin_tells("2.27.5-cu12");
}

#[test]
fn nccl_2_28_9_as_the_plugin_tells() {
    as_the_plugin_tells("2.28.9-cu13");
}

#[test]
fn nccl_2_32_3_as_the_plugin_tells() {
    as_the_plugin_tells("2.32.3-cu12");
}

/// Without symbols the hooks are found by who calls them, with what.
#[test]
fn stripped_libraries_are_measured_too() {
    let versions = [
        ("2.21.5-cu12", Plugin::No, Sizes::OfSends),
        ("2.27.5-cu12", Plugin::Yes, Sizes::Measured),
        ("2.32.3-cu12", Plugin::Yes, Sizes::Measured),
    ];
    for (version, plugin, sizes) in versions {
        let options = Detail::Waits.options();
        let Some(run) = TracedRun::of_stripped(options, version, plugin, ALL) else { return };
        assert_eq!(run.session()["libraries"][0]["symbols"], "stripped");
        run.check(plugin);
        check_measured(&run, Detail::Waits, sizes);
    }
}

/// The same records, through a buffer per CPU, and by a link for each probe.
#[test]
fn through_the_perf_event_array_and_perf_links() {
    for (mode, way) in [("threads", "--buffer"), ("processes", "--buffer"), ("processes", "--links")] {
        let (options, workload) = (format!("--level steps {way} perf"), format!("--mode {mode} {ALL}"));
        let Some(run) = TracedRun::new(&options, "2.27.5-cu12", Plugin::Yes, &workload) else { return };
        run.check(Plugin::Yes);
        check_measured(&run, Detail::Waits, Sizes::Measured);
    }
}

/// Bytes that were measured, by rank and direction, against those that the emulated kernels put into the
/// slots.
fn check_sums(run: &TracedRun, direction: Direction) {
    let transfers = run.transfers();
    for (member, rank) in &run.trace().ranks {
        let measured: u64 = rank
            .steps
            .iter()
            .filter(|step| step.direction == direction)
            .map(|step| step.measured.bytes.unwrap())
            .sum();
        let moved: u64 = transfers.ranks[member]
            .iter()
            .filter(|transfer| transfer.direction == direction)
            .map(|transfer| transfer.wire_bytes)
            .sum();
        assert_eq!(measured, moved, "{member}");
    }
}

/// Up to 2.22 one function, called for each FIFO step, tells it all; the sizes of sends stand in their slots.
#[test]
fn before_the_profiler_interface() {
    for detail in [Detail::Waits, Detail::Transitions] {
        let workload = format!("--mode processes {ALL}");
        let Some(run) = TracedRun::new(detail.options(), "2.21.5-cu12", Plugin::No, &workload) else {
            return;
        };
        run.check(Plugin::No);
        check_measured(&run, detail, Sizes::OfSends);
        check_sums(&run, Direction::Send);
    }
}

/// Before 2.20 the size of a send is forgotten before it is told that it was sent: a hit more, of
/// each message that is sent.
#[test]
fn before_sizes_stayed_in_their_slots() {
    for version in OLD.into_iter().chain(OLD_LONG.into_iter().filter(|_| is_long())) {
        for (mode, detail, buffer) in
            [("threads", Detail::Waits, "perf"), ("processes", Detail::Transitions, "ring")]
        {
            let options = format!("{} --buffer {buffer}", detail.options());
            let workload = format!("--mode {mode} {ALL}");
            let Some(run) = TracedRun::new(&options, version, Plugin::No, &workload) else { return };
            run.check(Plugin::No);
            check_measured(&run, detail, Sizes::OfSends);
            check_sums(&run, Direction::Send);
            check_each_size(&run);
            let hits = hits_of(&run.session(), |function| function == "sendProxyProgress");
            let sent = |step: &&FlowStep| step.direction == Direction::Send;
            let expected =
                if version == "2.20.5-cu12" { 0 } else { all_steps(&run).iter().filter(sent).count() };
            assert_eq!(hits, expected as u64, "{version}");
        }
    }
}

/// The size of every message that was sent, in its order, against those that the emulated kernels put into
/// the slots.
fn check_each_size(run: &TracedRun) {
    let transfers = run.transfers();
    for (member, rank) in &run.trace().ranks {
        let mut measured: BTreeMap<(i32, u32), Vec<u64>> = BTreeMap::new();
        for step in rank.steps.iter().filter(|step| step.direction == Direction::Send) {
            measured.entry((step.peer, step.channel)).or_default().push(step.measured.bytes.unwrap());
        }
        let mut moved: BTreeMap<(i32, u32), Vec<u64>> = BTreeMap::new();
        for transfer in
            transfers.ranks[member].iter().filter(|transfer| transfer.direction == Direction::Send)
        {
            let sizes = transfer.sizes.as_ref().unwrap();
            moved.entry((transfer.peer, transfer.channel)).or_default().extend(sizes);
        }
        // Which op's messages are written first is not the same in both.
        for sizes in measured.values_mut().chain(moved.values_mut()) {
            sizes.sort_unstable();
        }
        assert_eq!(measured, moved, "{member}");
    }
}

/// What a message costs the job: hits for each message that is sent and received again, by the kernel's own
/// counts, and that none of them is at an instruction that the kernel has to single-step.
#[test]
fn hits_per_message() {
    // 2.27.5 tells "offered to the GPU" and "sent" by one call.
    for (version, waits, transitions) in [("2.27.5-cu12", 6, 8), ("2.28.9-cu13", 5, 8), ("2.32.3-cu12", 5, 8)]
    {
        for (detail, expected) in [(Detail::Waits, waits), (Detail::Transitions, transitions)] {
            let workload = "--ranks 2 --mode processes --bytes 8388608 --channels 2";
            let Some(run) = TracedRun::new(detail.options(), version, Plugin::No, workload) else { return };
            check_measured(&run, detail, Sizes::Measured);
            // The log has a message twice: sent, and received.
            assert_eq!(2 * step_hits(&run), expected * messages_moved(&run), "{version} {detail:?}");
            let session = run.session();
            let probes = list(&session["probes"]).iter();
            let of_steps = probes.filter(|probe| text(&probe["function"]).contains("ProxyStep"));
            let at: BTreeSet<&str> = of_steps.map(|probe| text(&probe["symbol"])).collect();
            assert!(!at.is_empty() && at.iter().all(|place| place.contains('+')), "{at:?}");
        }
    }
}

/// Of what is not asked for nothing is measured, and all of it is counted.
#[test]
fn samples_say_what_they_leave_out() {
    for (version, sampling) in [
        ("2.28.9-cu13", "--steps-every 3"),
        ("2.21.5-cu12", "--steps-every 3"),
        ("2.28.9-cu13", "--channels 1"),
        ("2.28.9-cu13", "--min-bytes 700000"),
        ("2.28.9-cu13", "--min-bytes 700001"),
    ] {
        let workload = format!("--mode processes --channels 2 {ALL}");
        let workload = workload.replace("--ranks 3 --iters 2", "--ranks 2 --iters 3");
        let options = format!("--level steps {sampling}");
        let Some(run) = TracedRun::new(&options, version, Plugin::No, &workload) else { return };
        run.check(Plugin::No);
        let steps = all_steps(&run);
        let (measured, rest): (Vec<_>, Vec<_>) =
            steps.iter().partition(|step| step.measured != Measured::default());
        assert!(measured.iter().all(|step| step.measured.end.is_some()));
        let wanted = |step: &FlowStep| match sampling {
            "--steps-every 3" => (step.op_count >> 1).is_multiple_of(3),
            "--channels 1" => step.channel == 1,
            _ => sampling == "--min-bytes 700000",
        };
        assert!(!steps.is_empty());
        assert!(measured.iter().all(|step| wanted(step)), "{version} {sampling:?}");
        assert!(rest.iter().all(|step| !wanted(step)), "{version} {sampling:?}");
        let session = run.session();
        let left_out = &session["model"]["left_out"];
        assert_eq!(left_out["messages"], rest.len(), "{version} {sampling:?}");
        for counter in ["unjoined_steps", "unfinished"] {
            assert_eq!(session["model"][counter], 0, "{version} {sampling:?}: {counter}");
        }
        // Every message has as many hits as every other, wherever it is counted.
        let hits = step_hits(&run);
        let expected = number(&left_out["hits"]) * steps.len() as u64;
        assert_eq!(expected, hits * rest.len() as u64, "{version} {sampling:?}");
    }
}
